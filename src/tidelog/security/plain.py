"""PLAIN (RFC 4616), the server's side: one message, [authorization id] NUL user NUL password.

The users are those that `sasl.jaas.config` names (`user_alice="…"`), as in Kafka, and those who have SCRAM
credentials: the password is checked against these. That check is slow by design, so it is deferred, and it is
made for users who do not exist as well.
"""

import hashlib
import hmac
from collections.abc import Mapping

from tidelog.model.credentials import SCRAM_SHA_256, SCRAM_SHA_512
from tidelog.security.exchange import (
    OTHER_AUTHORIZATION,
    Accepted,
    DeferredVerdict,
    ExchangeOutcome,
    Rejected,
    Verdict,
)
from tidelog.security.scram import Users, fictional_credential, password_fits

MESSAGE_BYTES_MAX = 4_096
_INVALID = "Authentication failed: the user name or the password is wrong"


class PlainExchange:
    """One run of PLAIN."""

    def __init__(self, passwords: Mapping[str, str], users: Users) -> None:
        self._passwords = passwords
        self._users = users

    def respond(self, data: bytes) -> ExchangeOutcome:
        if len(data) > MESSAGE_BYTES_MAX:
            return Rejected(f"a PLAIN message of {len(data)} bytes", _INVALID)
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            return Rejected("a PLAIN message that is not UTF-8", _INVALID)
        if len(parts) != 3:
            return Rejected(f"a PLAIN message of {len(parts)} parts", _INVALID)
        authorization, user, password = parts
        if not user or not password:
            missing = "username" if not user else "password"
            return Rejected(f"no {missing}", f"Authentication failed: the {missing} is missing")
        if authorization not in ("", user):
            return Rejected("another authorization id than the user's name", OTHER_AUTHORIZATION)
        expected = self._passwords.get(user)
        if expected is not None and _same(expected, password):
            return Accepted(user)
        return DeferredVerdict(lambda: self._check(user, password))

    def _check(self, user: str, password: str) -> Verdict:
        """Compare with the stored credentials, or go through the same motions where there are none."""
        for mechanism in (SCRAM_SHA_512, SCRAM_SHA_256):
            credential = self._users.credential(user, mechanism)
            if credential is not None:
                fits = password_fits(mechanism, password, credential)
                return Accepted(user) if fits else Rejected("a wrong password", _INVALID)
        iterations = self._users.usual_iterations(SCRAM_SHA_512)
        password_fits(SCRAM_SHA_512, password, fictional_credential(SCRAM_SHA_512, user, iterations))
        return Rejected("a wrong password, or no such user", _INVALID)


def _same(expected: str, given: str) -> bool:
    # Hashed first: the comparison takes the same time for every length.
    return hmac.compare_digest(
        hashlib.sha256(expected.encode()).digest(), hashlib.sha256(given.encode()).digest()
    )
