"""The client's side of SASL: bytes in, bytes out, no sockets.

`exchange` is a generator: it yields what to send and is sent what came back; its end is success. It raises
AuthenticationFailed when the other side is not who it should be (SCRAM proves the broker's knowledge too).

    PLAIN         RFC 4616   one message: NUL user NUL password
    SCRAM-SHA-*   RFC 5802, RFC 7677   two messages, no channel binding
    OAUTHBEARER   RFC 7628   one message; an error is acknowledged with one byte, then refused
"""

import base64
import binascii
import hashlib
import hmac
import importlib
import secrets
from collections.abc import Generator

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, BadOption

Exchange = Generator[bytes, bytes, None]

#: fewer would let a false broker learn the password by trial (RFC 7677); more would keep us busy: Kafka takes
#: 16,384 at most, and this is about a tenth of a second
SCRAM_ITERATIONS_MIN = 4_096
SCRAM_ITERATIONS_MAX = 100_000
_SEPARATOR = "\x01"


def exchange(settings: ClientSettings, nonce: str | None = None) -> Exchange:
    """The exchange for the mechanism that the settings name."""
    mechanism = settings.sasl_mechanism
    if mechanism == "PLAIN":
        return _plain(settings.sasl_username, settings.sasl_password)
    if mechanism == "OAUTHBEARER":
        return _oauth_bearer(current_token(settings), settings.oauth_extensions)
    algorithm = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    return _scram(
        algorithm, settings.sasl_username, settings.sasl_password, nonce or secrets.token_urlsafe(24)
    )


def current_token(settings: ClientSettings) -> str:
    """The token that was given, or the one that the callback returns now."""
    if settings.oauth_token:
        return settings.oauth_token
    module_name, separator, function_name = settings.oauth_token_callback.partition(":")
    if not separator:
        raise BadOption("sasl.oauthbearer.token.callback is written module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as fault:
        raise BadOption(f"sasl.oauthbearer.token.callback: {fault}") from fault
    token = function()
    if not isinstance(token, str) or not token:
        raise AuthenticationFailed(f"{settings.oauth_token_callback} returned no token")
    return token


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def _oauth_bearer(token: str, extensions: str) -> Exchange:
    pairs = "".join(f"{pair.strip()}{_SEPARATOR}" for pair in extensions.split(",") if pair.strip())
    answer = yield f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{pairs}{_SEPARATOR}".encode()
    if answer:
        # The broker says why; it refuses when it has read that we have understood.
        yield _SEPARATOR.encode()
        raise AuthenticationFailed(f"the token was refused: {answer.decode('utf-8', 'replace')}")


def _scram(algorithm: str, username: str, password: str, nonce: str) -> Exchange:
    name = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    answer = yield f"n,,{first_bare}".encode()
    first = _attributes(answer)
    salt, iterations = _salt_and_iterations(first)
    if not first.get("r", "").startswith(nonce) or len(first["r"]) == len(nonce):
        raise AuthenticationFailed("SCRAM: the broker's nonce does not continue ours")
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    final_bare = f"c=biws,r={first['r']}"
    message = b",".join((first_bare.encode(), answer, final_bare.encode()))
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), message, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()
    last = _attributes(answer)
    if "e" in last:
        raise AuthenticationFailed(f"SCRAM: the broker answered {last['e']}")
    server_key = hmac.digest(salted, b"Server Key", algorithm)
    expected = base64.b64encode(hmac.digest(server_key, message, algorithm)).decode()
    if not hmac.compare_digest(last.get("v", ""), expected):
        raise AuthenticationFailed(
            "SCRAM: the broker does not know the password; it may not be the right one"
        )


def _attributes(answer: bytes) -> dict[str, str]:
    try:
        return dict(part.split("=", 1) for part in answer.decode().split(","))
    except ValueError:
        raise AuthenticationFailed(f"SCRAM: the broker's answer cannot be read: {answer[:200]!r}") from None


def _salt_and_iterations(first: dict[str, str]) -> tuple[bytes, int]:
    if "e" in first:
        raise AuthenticationFailed(f"SCRAM: the broker answered {first['e']}")
    try:
        salt, iterations = base64.b64decode(first["s"], validate=True), int(first["i"])
    except (KeyError, ValueError, binascii.Error):
        raise AuthenticationFailed("SCRAM: the broker sent no salt and iterations") from None
    if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
        raise AuthenticationFailed(f"SCRAM: {iterations} iterations are out of bounds")
    return salt, iterations
