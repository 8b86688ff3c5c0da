"""OAUTHBEARER (RFC 7628, KIP-255), the server's side.

    C: n,[a=<user>],^Aauth=Bearer <token>^A[<extension>=<value>^A]^A
    S: nothing, or what is wrong as JSON; the client acknowledges that with ^A and is refused

Checking a token may mean to ask for the keys it is signed with, so it is deferred.
"""

import json
import re
from collections.abc import Callable

from tidelog.security.exchange import (
    OTHER_AUTHORIZATION,
    Accepted,
    Challenge,
    DeferredVerdict,
    ExchangeOutcome,
    Rejected,
    Verdict,
)

#: tokens with many claims are large
MESSAGE_BYTES_MAX = 64 << 10
_MESSAGE = re.compile(
    r"n,(?:a=(?P<authorization>[^,]*))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[A-Za-z0-9._~+/=\-]+) *", re.IGNORECASE)
_ACKNOWLEDGED = b"\x01"


class TokenRefused(Exception):
    """A token that proves nothing; the text says why, and nothing of the token."""


#: checks a token and returns its user and when it ends, in wall-clock milliseconds; raises TokenRefused
CheckToken = Callable[[str], tuple[str, int]]


class OAuthBearerExchange:
    """One run of OAUTHBEARER."""

    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._refusal = ""

    def respond(self, data: bytes) -> ExchangeOutcome:
        if self._refusal:
            # Whatever is said now, the answer is the same as what was told before.
            return Rejected(self._refusal, _json_status())
        if len(data) > MESSAGE_BYTES_MAX:
            return Rejected(f"an OAUTHBEARER message of {len(data)} bytes")
        match = _MESSAGE.fullmatch(data.decode("utf-8", "replace"))
        if match is None:
            return Rejected("an OAUTHBEARER message that cannot be read")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
        bearer = _BEARER.fullmatch(pairs.get("auth", ""))
        if bearer is None:
            return Rejected("an OAUTHBEARER message without a bearer token")
        authorization, token = match["authorization"] or "", bearer["token"]
        return DeferredVerdict(lambda: self._verdict(token, authorization))

    def _verdict(self, token: str, authorization: str) -> Verdict:
        try:
            user, expires_ms = self._check(token)
        except TokenRefused as refused:
            self._refusal = f"a token that is not accepted: {refused}"
            return Challenge(_json_status().encode())
        if authorization not in ("", user):
            return Rejected("another authorization id than the token's user", OTHER_AUTHORIZATION)
        return Accepted(user, b"", expires_ms)


def _json_status() -> str:
    return json.dumps({"status": "invalid_token"}, separators=(",", ":"))
