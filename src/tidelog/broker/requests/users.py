"""The users that the newest metadata knows: SCRAM credentials and delegation tokens.

Everything is read from the image of the moment, so that a user who is changed or deleted anywhere in the
cluster is changed or deleted here with the next attempt. Threads that check passwords read it too: an image
never changes.
"""

import hmac
from collections.abc import Mapping
from typing import cast

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.controller.commands import ChangeTokens, TokenChange
from tidelog.model.credentials import DelegationToken, ScramCredential
from tidelog.model.ports import Clock
from tidelog.security import delegation_tokens

#: what SCRAM credentials have where nobody asked for more
ITERATIONS_USUAL = 4_096


class BrokerUsers:
    """Who may come in, as of now."""

    def __init__(
        self, metadata: Metadata, settings: LiveSettings, clock: Clock, jobs: BackgroundJobs
    ) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._jobs = jobs
        secret = settings.static.get("delegation.token.secret.key")
        self._token_secret = cast("str | None", secret)
        self._tokens_seen: Mapping[str, DelegationToken] = {}
        self._ids_by_hmac: dict[bytes, str] = {}

    @property
    def tokens_enabled(self) -> bool:
        """Whether there are delegation tokens: they need a secret."""
        return bool(self._token_secret)

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        return self._metadata.image.users.get(user, {}).get(mechanism)

    def usual_iterations(self, mechanism: str) -> int:
        """Those of some user: most have the same."""
        some = next(iter(self._metadata.image.users.values()), None)
        credential = None if some is None else some.get(mechanism) or next(iter(some.values()))
        return ITERATIONS_USUAL if credential is None else credential.iterations

    def token(self, token_id: str) -> DelegationToken | None:
        token = self._metadata.image.tokens.get(token_id)
        if token is None or not self._token_secret or token.expired(self._clock.now_ms()):
            return None
        return token

    def token_password(self, token_id: str) -> str:
        assert self._token_secret
        return delegation_tokens.token_password(self._token_secret, token_id)

    def token_hmac(self, token_id: str) -> bytes:
        assert self._token_secret
        return delegation_tokens.token_hmac(self._token_secret, token_id)

    def start(self) -> None:
        """From now on clear expired tokens away, while this broker is the controller."""
        if self.tokens_enabled:
            name = "delegation.token.expiry.check.interval.ms"
            self._jobs.every("token expiry", lambda: self._settings.get_int(name), self._sweep)

    def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        tokens = self._metadata.image.tokens.values()
        expired = [TokenChange(token.token_id) for token in tokens if token.expired(now_ms)]
        if expired and self._metadata.is_controller:
            self._metadata.submit(ChangeTokens(tuple(expired)), lambda results: None)

    def token_by_hmac(self, shown: bytes) -> DelegationToken | None:
        """The token whose secret this is, expired or not."""
        tokens = self._metadata.image.tokens
        if tokens is not self._tokens_seen:
            self._tokens_seen = tokens
            self._ids_by_hmac = {self.token_hmac(token_id): token_id for token_id in tokens}
        token_id = self._ids_by_hmac.get(shown)
        if token_id is None or not hmac.compare_digest(self.token_hmac(token_id), shown):
            return None
        return tokens.get(token_id)
