"""Tokens of OAUTHBEARER: JSON Web Tokens (RFC 7519), checked against a set of keys (JWKS, RFC 7517).

The keys come from a file or a URL and are kept for `refresh_ms`; a token that names a key which is not among
them has them read again, not more often than every `retry_ms`. Once there are keys, an issuer on the network
is not asked for others more often than every `UNKNOWN_KEY_SECONDS_MIN`, for anybody can make a token that
names one. A file is read again when it changes. Keys come over TLS or from this machine: who can change them
on the way can sign any token. What a key may be used for follows from its kind, never from
what the token says, and a token without a signature is taken only by `UnsecuredTokens`.

Everything here may block and is called from one worker thread at a time, or from several: a lock keeps the
keys in order. PyJWT is needed (`pip install 'tidelog[security]'`), and imported with the first token.
"""

import base64
import binascii
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from tidelog.security.key_addresses import address_fault
from tidelog.security.oauthbearer import TokenRefused

JWKS_BYTES_MAX = 1 << 20
UNKNOWN_KEY_SECONDS_MIN = 10.0
#: what a key of each kind can have signed
ALGORITHMS_BY_KEY_TYPE = {
    "RSA": ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
    "EC": ["ES256", "ES384", "ES512"],
    "OKP": ["EdDSA"],
    "oct": ["HS256", "HS384", "HS512"],
}
#: what bytes of anybody can make of the parsers; RecursionError is JSON nested thousands deep, OverflowError
#: a time beyond all numbers
_UNREADABLE = (
    binascii.Error,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
INSTALL = "OAUTHBEARER needs PyJWT: pip install 'tidelog[security]'"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say to be accepted."""

    issuer: str | None = None
    audience: tuple[str, ...] = ()
    skew_seconds: int = 30
    user_claim: str = "sub"
    scope_claim: str = "scope"


class TokenChecker(Protocol):
    """Says whose a token is and when it ends, in wall-clock milliseconds."""

    def check(self, token: str) -> tuple[str, int]:
        """Raises TokenRefused."""


class KeySet:
    """The keys by their id, read from a URL or a file when they are needed."""

    def __init__(
        self,
        url: str,
        *,
        refresh_ms: int,
        retry_ms: int,
        plain_http: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError for a URL that keys must not come from; `plain_http` allows http: anywhere."""
        fault = address_fault(url, plain_http=plain_http)
        if fault is not None:
            raise ValueError(f"the keys cannot come from {url}: {fault}")
        self._url = url
        self._plain_http = plain_http
        self._refresh_seconds = refresh_ms / 1000
        self._retry_seconds = retry_ms / 1000
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._keys: dict[str | None, Any] = {}
        self._read_at: float | None = None
        self._stamp: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<KeySet {self._url} keys={len(self._keys)}>"

    def find(self, key_id: str | None) -> Any:
        """The key of an id, or the only one for a token that names none; raises TokenRefused."""
        with self._lock:
            if self._due(self._refresh_seconds) or self._file_changed():
                self._read()
            key = self._pick(key_id)
            if key is None and self._due(self._patience_seconds()):
                self._read()
                key = self._pick(key_id)
        if key is None:
            raise TokenRefused("it is signed with a key that is not known")
        return key

    def _pick(self, key_id: str | None) -> Any:
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def _patience_seconds(self) -> float:
        """How long a token with an unknown key waits for the keys to be read again."""
        if not self._keys or self._path() is not None:
            return self._retry_seconds
        return max(self._retry_seconds, UNKNOWN_KEY_SECONDS_MIN)

    def _due(self, seconds: float) -> bool:
        return self._read_at is None or self._monotonic() - self._read_at >= seconds

    def _path(self) -> str | None:
        parts = urlsplit(self._url)
        return unquote(parts.path) if parts.scheme == "file" else None

    def _file_changed(self) -> bool:
        path = self._path()
        return path is not None and _stamp(path) != self._stamp

    def _read(self) -> None:
        self._read_at = self._monotonic()
        try:
            from jwt import PyJWK
            from jwt.exceptions import PyJWTError
        except ImportError as fault:
            raise TokenRefused(INSTALL) from fault
        try:
            found = json.loads(self._content())["keys"]
            keys = {}
            for fields in found:
                if fields.get("use", "sig") == "sig" and fields.get("kty") in ALGORITHMS_BY_KEY_TYPE:
                    keys[fields.get("kid")] = (PyJWK.from_dict(fields), fields["kty"])
        except (OSError, *_UNREADABLE, PyJWTError) as fault:
            if not self._keys:
                raise TokenRefused(f"the keys at {self._url} cannot be read: {fault}") from fault
            return  # those from before go on being good until the issuer answers again
        self._keys = keys

    def _content(self) -> bytes:
        path = self._path()
        if path is not None:
            self._stamp = _stamp(path)
            with open(path, "rb") as file:  # noqa: PTH123  # the path is one of the URL
                content = file.read(JWKS_BYTES_MAX + 1)
        else:
            from tidelog.security.key_download import download

            content = download(self._url, JWKS_BYTES_MAX + 1, plain_http=self._plain_http)
        if len(content) > JWKS_BYTES_MAX:
            raise ValueError(f"more than {JWKS_BYTES_MAX} bytes")
        return bytes(content)


class SignedTokens:
    """Accepts tokens that a key of the set has signed."""

    def __init__(self, keys: KeySet, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    def __repr__(self) -> str:
        return f"<SignedTokens {self._keys!r}>"

    def check(self, token: str) -> tuple[str, int]:
        try:
            import jwt
        except ImportError as fault:
            raise TokenRefused(INSTALL) from fault
        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
            key, key_type = self._keys.find(header.get("kid"))
            claims = jwt.decode(
                token,
                key=key.key,
                algorithms=ALGORITHMS_BY_KEY_TYPE[key_type],
                leeway=rules.skew_seconds,
                issuer=rules.issuer,
                audience=list(rules.audience) or None,
                options={
                    "require": ["exp", "iat"],
                    "verify_aud": bool(rules.audience),
                    "verify_sub": False,
                },
            )
            expires_ms = _milliseconds(claims["exp"])
        except jwt.exceptions.PyJWTError as fault:
            raise TokenRefused(str(fault)) from fault
        except _UNREADABLE as fault:
            raise TokenRefused(f"it cannot be read: {type(fault).__name__}") from fault
        return _user(claims, rules), expires_ms


class UnsecuredTokens:
    """Accepts tokens that nobody signed (`alg` none), for trying out: anybody can be anybody."""

    def __init__(self, rules: TokenRules, now_seconds: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._now_seconds = now_seconds

    def check(self, token: str) -> tuple[str, int]:
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenRefused("it is not an unsecured token")
        try:
            header, claims = (json.loads(_from_base64(part)) for part in parts[:2])
            if header.get("alg") != "none":
                raise TokenRefused("it is signed, and no keys are configured to check it with")
            expires_ms = _milliseconds(claims["exp"])
        except _UNREADABLE as fault:
            raise TokenRefused(f"it cannot be read: {type(fault).__name__}") from fault
        if expires_ms + self._rules.skew_seconds * 1000 <= self._now_seconds() * 1000:
            raise TokenRefused("it has expired")
        return _user(claims, self._rules), expires_ms


def _user(claims: Mapping[str, Any], rules: TokenRules) -> str:
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenRefused(f"it has no claim {rules.user_claim!r} with the user's name")
    scopes = claims.get(rules.scope_claim, "")
    if not isinstance(scopes, str | list):
        raise TokenRefused(f"its claim {rules.scope_claim!r} is neither text nor a list")
    return user


def _milliseconds(seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError("a time that is not a number")
    return int(seconds * 1000)


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
