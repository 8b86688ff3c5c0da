"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side, without channel binding.

    C: n,,n=<user>,r=<nonce>[,tokenauth=true]
    S: r=<nonce><ours>,s=<salt>,i=<iterations>
    C: c=<header>,r=<nonce><ours>,p=<proof>
    S: v=<signature>

A user who does not exist is asked for a proof like any other, with a salt that stays the same from attempt to
attempt, and fails at the same place, so that nobody learns who exists. With `tokenauth=true` the user is the
id of a delegation token and its HMAC the password (KIP-48).
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Protocol

from tidelog.model.credentials import SCRAM_SHA_256, SCRAM_SHA_512, DelegationToken, ScramCredential
from tidelog.security.exchange import (
    OTHER_AUTHORIZATION,
    Accepted,
    Challenge,
    DeferredVerdict,
    ExchangeOutcome,
    Rejected,
    Verdict,
)

ALGORITHMS = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
#: fewer are too easy to try out, more would let one login keep a client (or us, for PLAIN) busy
ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
MESSAGE_BYTES_MAX = 4_096
SALT_BYTES = 24

_FIRST = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authorization>[^,]*))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,]*)*))"
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_ESCAPE = re.compile(r"=(2C|3D)|=")
#: makes up the credentials of users who do not exist; nobody can tell them from real ones without it
_FICTION_SECRET = secrets.token_bytes(32)


class Users(Protocol):
    """Who has credentials."""

    def credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """What checks a user's password."""

    def usual_iterations(self, mechanism: str) -> int:
        """How many iterations credentials here have, so that made-up ones look alike."""

    def token(self, token_id: str) -> DelegationToken | None:
        """A delegation token that is valid now."""

    def token_password(self, token_id: str) -> str:
        """The password that goes with a delegation token."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The slow step; it lets other threads run meanwhile."""
    return hashlib.pbkdf2_hmac(ALGORITHMS[mechanism], password.encode(), salt, iterations)


def credential_from_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """What is stored of a password."""
    algorithm = ALGORITHMS[mechanism]
    stored_key = hashlib.new(algorithm, hmac.digest(salted, b"Client Key", algorithm)).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", algorithm), iterations)


def credential_from_password(
    mechanism: str, password: str, iterations: int = ITERATIONS_MIN, salt: bytes | None = None
) -> ScramCredential:
    """New credentials for a password."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from_salted(mechanism, salted, salt, iterations)


def _fictional_salt(mechanism: str, name: str) -> bytes:
    return hmac.digest(_FICTION_SECRET, f"{mechanism} {name}".encode(), "sha256")[:SALT_BYTES]


def fictional_credential(mechanism: str, user: str, iterations: int) -> ScramCredential:
    """Credentials of somebody who does not exist: always the same, and no password fits."""
    salt = _fictional_salt(mechanism, user)
    size = hashlib.new(ALGORITHMS[mechanism]).digest_size
    return ScramCredential(salt, secrets.token_bytes(size), secrets.token_bytes(size), iterations)


def password_fits(mechanism: str, password: str, credential: ScramCredential) -> bool:
    """Whether this is the password; slow, as it must be."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = credential_from_salted(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


class ScramExchange:
    """One run of SCRAM."""

    def __init__(
        self, mechanism: str, users: Users, make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    ) -> None:
        self._mechanism = mechanism
        self._algorithm = ALGORITHMS[mechanism]
        self._users = users
        self._make_nonce = make_nonce
        self._user = ""
        self._token: DelegationToken | None = None
        self._header = ""
        self._first_bare = ""
        self._server_first = ""
        self._nonce = ""
        self._credential: ScramCredential | None = None
        self._known = False

    def __repr__(self) -> str:
        return f"<ScramExchange {self._mechanism} user={self._user!r}>"

    def respond(self, data: bytes) -> ExchangeOutcome:
        if len(data) > MESSAGE_BYTES_MAX:
            return Rejected(f"a SCRAM message of {len(data)} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return Rejected("a SCRAM message that is not UTF-8")
        if self._credential is None:
            return self._first(text)
        return self._final(text)

    def _first(self, text: str) -> ExchangeOutcome:
        match = _FIRST.fullmatch(text)
        user = None if match is None else _unescaped(match["name"])
        if match is None or not user:
            return Rejected("a first SCRAM message that cannot be read")
        authorization = _unescaped(match["authorization"] or "")
        if authorization is None or authorization not in ("", user):
            return Rejected("another authorization id than the user's name", OTHER_AUTHORIZATION)
        self._user, self._header, self._first_bare = user, match["header"], match["bare"]
        self._nonce = match["nonce"] + self._make_nonce()
        extensions = dict(pair.split("=", 1) for pair in match["extensions"].split(",") if pair)
        if extensions.get("tokenauth", "").lower() == "true":
            return self._token_challenge(user)
        found = self._users.credential(user, self._mechanism)
        return self._challenge(found)

    def _challenge(self, found: ScramCredential | None) -> Verdict:
        self._known = found is not None
        self._credential = credential = found or fictional_credential(
            self._mechanism, self._user, self._users.usual_iterations(self._mechanism)
        )
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _token_challenge(self, token_id: str) -> ExchangeOutcome:
        """The same salt, iterations and time whether there is such a token or not."""
        token = self._token = self._users.token(token_id)
        password = secrets.token_urlsafe() if token is None else self._users.token_password(token_id)
        iterations = self._users.usual_iterations(self._mechanism)

        def work() -> Verdict:
            salt = _fictional_salt(self._mechanism, token_id)
            made = credential_from_password(self._mechanism, password, iterations, salt)
            return self._challenge(None if token is None else made)

        return DeferredVerdict(work)

    def _final(self, text: str) -> Verdict:
        credential = self._credential
        assert credential is not None
        match = _FINAL.fullmatch(text)
        proof = None if match is None else _decoded(match["proof"])
        if match is None or proof is None:
            return Rejected("a final SCRAM message that cannot be read")
        if match["binding"] != base64.b64encode(self._header.encode()).decode():
            return Rejected("another channel binding in the final SCRAM message than in the first")
        # Its end counts, as in Kafka: librdkafka before 2.4 puts its own part in front a second time.
        if not match["nonce"].endswith(self._nonce):
            return Rejected("another nonce than the one that was agreed on")
        message = ",".join((self._first_bare, self._server_first, match["without_proof"])).encode()
        signature = hmac.digest(credential.stored_key, message, self._algorithm)
        if len(proof) != len(signature):
            return Rejected("a proof of the wrong size")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        fits = hmac.compare_digest(hashlib.new(self._algorithm, client_key).digest(), credential.stored_key)
        if not fits or not self._known:
            return Rejected("a wrong password" if self._known else "no such user, or not with this mechanism")
        verifier = base64.b64encode(hmac.digest(credential.server_key, message, self._algorithm))
        data = b"v=" + verifier
        if self._token is None:
            return Accepted(self._user, data)
        owner = self._token.owner.partition(":")[2]
        return Accepted(owner, data, self._token.expiry_timestamp_ms, self._token.token_id)


def _unescaped(name: str) -> str | None:
    """A name without its escapes; None if it has an `=` that begins none."""
    for match in _ESCAPE.finditer(name):
        if match[1] is None:
            return None
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
