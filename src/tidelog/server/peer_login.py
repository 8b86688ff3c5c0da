"""How this broker proves to the others who it is: TLS and SASL of the listener that brokers share.

`PeerSecurity` is made from the settings once; its certificates are read again when they change. A `Login` is
one SASL exchange as frames: the first from `begin`, each next one from the answer to the last.
"""

import datetime
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from tidelog.client import sasl
from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed
from tidelog.client.requests import (
    CORRELATION_ID,
    MalformedAnswer,
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.security.jaas import parse_options
from tidelog.security.tls import ReloadingContext, TlsSettings, client_context

_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 2


class PeerSecurity:
    """What links to other brokers are made with."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raises ValueError where it cannot work."""
        listener = settings.inter_broker_listener_name
        protocol = settings.security_protocols[listener]
        self._listener = listener
        #: the settings of the moment: certificates may change by request
        self.find_settings: Callable[[], BrokerSettings] = lambda: settings
        self._tls: ReloadingContext | None = None
        if protocol.endswith("SSL"):
            self._tls = ReloadingContext(TlsSettings.of_listener(settings, listener), client_context)
        self._mechanism = ""
        self._user = self._password = self._token_url = ""
        if protocol.startswith("SASL_"):
            self._read_credentials(settings, listener)

    def __repr__(self) -> str:
        return f"<PeerSecurity {self._listener} {self._mechanism} {self._user}>"

    def _read_credentials(self, settings: BrokerSettings, listener: str) -> None:
        self._mechanism = mechanism = settings.get_str("sasl.mechanism.inter.broker.protocol")
        enabled = cast("tuple[str, ...]", settings.for_listener(listener, "sasl.enabled.mechanisms"))
        if mechanism not in enabled:
            raise ValueError(
                f"sasl.mechanism.inter.broker.protocol {mechanism} is not among the mechanisms of {listener}"
            )
        if mechanism == "OAUTHBEARER":
            url = settings.for_listener(listener, "sasl.oauthbearer.token.endpoint.url", mechanism)
            self._token_url = cast("str | None", url) or ""
            return
        line = settings.for_listener(listener, "sasl.jaas.config", mechanism)
        options = parse_options(cast("str | None", line) or "")
        self._user, self._password = options.get("username", ""), options.get("password", "")

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS of a new link; None for a plain one."""
        if self._tls is None:
            return None
        self._tls.refresh(TlsSettings.of_listener(self.find_settings(), self._listener))
        return self._tls.context

    def login(self, client_id: bytes) -> "Login | None":
        """The exchange that a new link begins with, if there is one; raises AuthenticationFailed."""
        if not self._mechanism:
            return None
        token = ""
        if self._mechanism == "OAUTHBEARER":
            token = self._token()
        elif not self._user:
            raise AuthenticationFailed(
                f"sasl.jaas.config has no username and password for brokers to use with {self._mechanism}"
            )
        settings = ClientSettings(
            bootstrap_servers=(),
            security_protocol="SASL_SSL" if self._tls is not None else "SASL_PLAINTEXT",
            sasl_mechanism=self._mechanism,
            sasl_username=self._user,
            sasl_password=self._password,
            oauth_token=token,
        )
        return Login(settings, client_id)

    def _token(self) -> str:
        parts = urlsplit(self._token_url)
        if parts.scheme != "file":
            raise AuthenticationFailed("sasl.oauthbearer.token.endpoint.url must name a file: for brokers")
        try:
            return Path(unquote(parts.path)).read_text().strip()
        except (OSError, UnicodeDecodeError) as fault:
            raise AuthenticationFailed(f"the token in {self._token_url} cannot be read: {fault}") from fault


class Login:
    """One SASL exchange of a link, frame by frame."""

    def __init__(self, settings: ClientSettings, client_id: bytes) -> None:
        self._mechanism = settings.sasl_mechanism
        self._client_id = client_id
        self._exchange = sasl.exchange(settings)
        self._asked = SASL_HANDSHAKE
        self._correlation_id = -1
        #: how long the authentication lasts; 0 for as long as the link
        self.session_ms = 0

    def begin(self) -> bytes:
        """The first frame."""
        return self._frame(SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": self._mechanism})

    def answered(self, frame: memoryview) -> bytes | None:
        """The frame that follows an answer, None when we are in; raises AuthenticationFailed."""
        version = _HANDSHAKE_VERSION if self._asked == SASL_HANDSHAKE else _AUTHENTICATE_VERSION
        if CORRELATION_ID.unpack_from(frame)[0] != self._correlation_id:
            raise AuthenticationFailed("an answer came that nobody asked for")
        try:
            body = response_body(frame, flexible_answer(self._asked, version))
            answer = decode_response(self._asked, version, body)
        except MalformedAnswer as fault:
            raise AuthenticationFailed(f"an answer could not be read: {fault}") from fault
        if answer.error_code:
            reason = getattr(answer, "error_message", None) or ErrorCode(int(answer.error_code)).name
            raise AuthenticationFailed(f"{self._mechanism}: {reason}")
        if self._asked == SASL_HANDSHAKE:
            return self._authenticate(next(self._exchange))
        self.session_ms = answer.session_lifetime // datetime.timedelta(milliseconds=1)
        try:
            return self._authenticate(self._exchange.send(bytes(answer.auth_bytes)))
        except StopIteration:
            return None

    def _authenticate(self, token: bytes) -> bytes:
        return self._frame(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": token})

    def _frame(self, api_key: int, version: int, fields: dict[str, object]) -> bytes:
        self._asked = api_key
        self._correlation_id += 1
        body = encode_request(api_key, version, fields)
        return frame_prefix(api_key, version, self._correlation_id, self._client_id, len(body)) + body
