"""Who may read an HTTP endpoint: a file of passwords and tokens, compared in constant time (RFC 7617, 6750).

    # comments and empty lines are passed over
    prometheus:correct horse battery staple      user:password, for basic authentication
    9f86d081884c7d659a2feaa0c55ad015             a token alone, for bearer authentication

Only digests of the lines are kept. The file is read again when it changes; one that cannot be used is told in
the log, once, and what counted before goes on counting. Nobody but its owner and group may have access to it.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 64 << 10
_BASIC, _BEARER = "basic", "bearer"


class CredentialsUnusable(ValueError):
    """A file that nobody can be checked against; the text says why, and nothing of what is in it."""


class HttpCredentials:
    """The passwords and tokens of one file, as it is now."""

    def __init__(self, path: Path) -> None:
        """Raises CredentialsUnusable."""
        self._path = path
        self._reported = ""
        self._stamp = _stamp(path)
        self._digests = _read(path)

    def __repr__(self) -> str:
        return f"<HttpCredentials {self._path} {len(self._digests)}>"

    def accepts(self, authorization: str) -> bool:
        """Whether an `Authorization` header proves somebody."""
        self._refresh()
        shown = _shown(authorization)
        if shown is None:
            return False
        # All are compared, so that the time tells nothing of which were near.
        return sum(hmac.compare_digest(digest, shown) for digest in self._digests) > 0

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._digests = _read(self._path)
        except CredentialsUnusable as fault:
            if self._reported != str(fault):
                self._reported = str(fault)
                log.warning("the credentials from before stay in use: %s", fault)
            return
        self._stamp, self._reported = stamp, ""


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise CredentialsUnusable(f"{path} cannot be read: {reason}") from None
    if mode & 0o007:
        raise CredentialsUnusable(f"{path} has mode {mode:04o}: everybody on the machine may use it")
    if len(content) > FILE_BYTES_MAX:
        raise CredentialsUnusable(f"{path} has more than {FILE_BYTES_MAX} bytes")
    lines = [line.strip() for line in text.splitlines()]
    found = tuple(_line_digest(line) for line in lines if line and not line.startswith("#"))
    if not found:
        raise CredentialsUnusable(f"{path} has neither a user:password nor a token")
    return found


def _line_digest(line: str) -> bytes:
    return _digest(_BASIC if ":" in line else _BEARER, line.encode())


def _shown(authorization: str) -> bytes | None:
    """The digest of what a header shows; None if it cannot be read."""
    scheme, _, value = authorization.strip().partition(" ")
    scheme, value = scheme.lower(), value.strip()
    if scheme == _BEARER and ":" not in value:
        return _digest(_BEARER, value.encode())
    if scheme != _BASIC:
        return None
    try:
        pair = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return _digest(_BASIC, pair) if b":" in pair else None


def _digest(scheme: str, secret: bytes) -> bytes:
    return hashlib.sha256(scheme.encode() + b" " + secret).digest()


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode
