"""What one listener asks of whoever connects: encryption, a certificate, a SASL exchange.

A `ListenerSecurity` is made from the settings once, when the broker starts, and refuses what cannot work
there and then. It makes the exchanges of its mechanisms; who the users are is asked anew for each.
"""

import logging
from collections.abc import Mapping
from typing import cast

from tidelog.model.credentials import ANONYMOUS, USER_TYPE
from tidelog.model.settings import BrokerSettings
from tidelog.security import principals
from tidelog.security.exchange import Exchange
from tidelog.security.jaas import plain_users
from tidelog.security.jwt_tokens import KeySet, SignedTokens, TokenChecker, TokenRules, UnsecuredTokens
from tidelog.security.oauthbearer import OAuthBearerExchange
from tidelog.security.plain import PlainExchange
from tidelog.security.scram import ScramExchange, Users
from tidelog.security.tls import ReloadingContext, TlsSettings, server_context

log = logging.getLogger(__name__)


class ListenerSecurity:
    """The security of one listener."""

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self.name = name
        self.protocol = settings.security_protocols.get(name, "PLAINTEXT")
        self.encrypted = self.protocol.endswith("SSL")
        self.authenticates = self.protocol.startswith("SASL_")
        mechanisms = cast("tuple[str, ...]", settings.for_listener(name, "sasl.enabled.mechanisms"))
        self.mechanisms: tuple[str, ...] = mechanisms if self.authenticates else ()
        #: the largest frame that is taken before the client has authenticated
        self.receive_bytes_max = cast(int, settings.for_listener(name, "sasl.server.max.receive.size"))
        self.tls = (
            ReloadingContext(TlsSettings.of_listener(settings, name), server_context)
            if self.encrypted
            else None
        )
        self._reauthentication_ms = {
            mechanism: cast(int, settings.for_listener(name, "connections.max.reauth.ms", mechanism))
            for mechanism in self.mechanisms
        }
        self._plain_users: Mapping[str, str] = {}
        self._tokens: TokenChecker | None = None
        self._rules: tuple[principals.MappingRule, ...] = ()
        if "PLAIN" in self.mechanisms:
            line = settings.for_listener(name, "sasl.jaas.config", "PLAIN")
            self._plain_users = plain_users(cast("str | None", line) or "")
        if "OAUTHBEARER" in self.mechanisms:
            self._tokens = _token_checker(settings, name)
        if self.protocol == "SSL":
            rules = cast(str, settings.for_listener(name, "ssl.principal.mapping.rules"))
            self._rules = principals.parse_rules(rules)

    def __repr__(self) -> str:
        return f"<ListenerSecurity {self.name} {self.protocol} {','.join(self.mechanisms)}>"

    def exchange(self, mechanism: str, users: Users) -> Exchange:
        """Begin a run of one of the mechanisms."""
        if mechanism == "PLAIN":
            return PlainExchange(self._plain_users, users)
        if mechanism == "OAUTHBEARER":
            assert self._tokens is not None
            return OAuthBearerExchange(self._tokens.check)
        return ScramExchange(mechanism, users)

    def session_ms(self, mechanism: str, expires_ms: int | None, now_ms: int) -> int:
        """How long an authentication lasts, 0 for as long as the connection (KIP-368)."""
        limit_ms = self._reauthentication_ms[mechanism]
        if expires_ms is None:
            return limit_ms
        # What has just ended lasts for a moment, not for ever.
        left_ms = max(1, expires_ms - now_ms)
        return min(left_ms, limit_ms) if limit_ms else left_ms

    def certificate_principal(self, certificate: Mapping[str, object] | None) -> str | None:
        """Who a client is by its certificate, without SASL; None where no rule lets it be anybody."""
        name = principals.certificate_name(cast("dict[str, object] | None", certificate))
        if name is None:
            return ANONYMOUS
        user = principals.user_name(name, self._rules)
        return None if user is None else f"{USER_TYPE}:{user}"

    def refresh(self, settings: BrokerSettings) -> None:
        """Look whether certificates have changed; connections from now on get the new ones."""
        if self.tls is not None:
            self.tls.refresh(TlsSettings.of_listener(settings, self.name))


def _token_checker(settings: BrokerSettings, listener: str) -> TokenChecker:
    def value(name: str) -> object:
        return settings.for_listener(listener, f"sasl.oauthbearer.{name}", "OAUTHBEARER")

    rules = TokenRules(
        cast("str | None", value("expected.issuer")) or None,
        cast("tuple[str, ...] | None", value("expected.audience")) or (),
        cast(int, value("clock.skew.seconds")),
        cast(str, value("sub.claim.name")),
        cast(str, value("scope.claim.name")),
    )
    url = cast("str | None", value("jwks.endpoint.url"))
    if url:
        plain_http = settings.for_listener(
            listener, "tidelog.sasl.oauthbearer.jwks.plain.http", "OAUTHBEARER"
        )
        missing = [
            f"sasl.oauthbearer.expected.{name}"
            for name, rule in (("audience", rules.audience), ("issuer", rules.issuer))
            if not rule
        ]
        if missing:
            log.warning(
                "the listener %s takes tokens that were made for anybody: set %s (Kafka 4.4 asks for it)",
                listener,
                " and ".join(missing),
            )
        keys = KeySet(
            url,
            plain_http=bool(plain_http),
            refresh_ms=cast(int, value("jwks.endpoint.refresh.ms")),
            retry_ms=cast(int, value("jwks.endpoint.retry.backoff.ms")),
        )
        return SignedTokens(keys, rules)
    unsecured = settings.for_listener(listener, "tidelog.sasl.oauthbearer.unsecured.tokens", "OAUTHBEARER")
    if unsecured:
        return UnsecuredTokens(rules)
    raise ValueError(
        f"the listener {listener} has OAUTHBEARER and needs sasl.oauthbearer.jwks.endpoint.url "
        "(or tidelog.sasl.oauthbearer.unsecured.tokens, for trying out)"
    )
