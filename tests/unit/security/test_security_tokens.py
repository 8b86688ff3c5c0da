"""JSON Web Tokens against a set of keys: signatures, claims, rotation, and what attackers try."""

import base64
import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tidelog.security.jwt_tokens import (
    UNKNOWN_KEY_SECONDS_MIN,
    KeySet,
    SignedTokens,
    TokenRules,
    UnsecuredTokens,
)
from tidelog.security.key_download import _CarefulRedirects
from tidelog.security.oauthbearer import TokenRefused

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, key_id: str) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    )
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, "use": "sig"}


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [jwk(RSA_KEY, "rsa"), jwk(EC_KEY, "ec")]}))
    return path


def tokens(path: Path, **rules: Any) -> SignedTokens:
    return SignedTokens(KeySet(path.as_uri(), refresh_ms=3_600_000, retry_ms=100), TokenRules(**rules))


def token(key: Any = RSA_KEY, key_id: str | None = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
    now = int(time.time())
    body = {"sub": "carol", "iat": now, "exp": now + 60, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, key, algorithm, headers={} if key_id is None else {"kid": key_id})


def test_signed_tokens_are_accepted(jwks: Path) -> None:
    checker = tokens(jwks)
    assert checker.check(token())[0] == "carol"
    assert checker.check(token(EC_KEY, "ec", "ES256", sub="dave"))[0] == "dave"


@pytest.mark.parametrize(
    "claims",
    [{"exp": 1}, {"exp": None}, {"iat": None}, {"sub": None}, {"sub": " "}, {"sub": 7}, {"scope": 7}],
)
def test_claims_that_are_missing_or_wrong(jwks: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused):
        tokens(jwks).check(token(**claims))


def test_issuer_audience_and_the_name_of_the_user(jwks: Path) -> None:
    checker = tokens(jwks, issuer="https://issuer", audience=("kafka", "tidelog"), user_claim="email")
    good = {"iss": "https://issuer", "aud": ["tidelog"], "email": "c@example.com"}
    assert checker.check(token(**good))[0] == "c@example.com"  # type: ignore[arg-type]
    for wrong in ({"iss": "https://other"}, {"aud": "else"}, {"aud": None}, {"iss": None}, {"email": None}):
        with pytest.raises(TokenRefused):
            checker.check(token(**{**good, **wrong}))  # type: ignore[arg-type]


def test_a_token_of_somebody_else_is_refused(jwks: Path) -> None:
    other = rsa.generate_private_key(65537, 2048)
    for forged in (token(other), token(key_id="unknown"), token(key_id=None), "a.b.c", "", "x" * 1000):
        with pytest.raises(TokenRefused):
            tokens(jwks).check(forged)


def test_the_key_decides_about_the_algorithm(jwks: Path) -> None:
    """Neither `none`, nor an HMAC with the public key as its secret."""
    header, claims, _ = token().split(".")
    for algorithm in ("none", "HS256"):
        fields = json.dumps({"alg": algorithm, "kid": "rsa", "typ": "JWT"}).encode()
        forged = base64.urlsafe_b64encode(fields).rstrip(b"=").decode()
        for signature in ("", header):
            with pytest.raises(TokenRefused):
                tokens(jwks).check(f"{forged}.{claims}.{signature}")


def test_keys_change_without_a_restart(jwks: Path) -> None:
    checker = tokens(jwks)
    checker.check(token())
    fresh = ec.generate_private_key(ec.SECP256R1())
    replacement = jwks.with_suffix(".new")
    replacement.write_text(json.dumps({"keys": [jwk(fresh, "fresh")]}))
    replacement.replace(jwks)
    assert checker.check(token(fresh, "fresh", "ES256"))[0] == "carol"
    with pytest.raises(TokenRefused):
        checker.check(token())


def test_keys_that_cannot_be_read(tmp_path: Path) -> None:
    for content in (None, "", "{}", '{"keys": 7}', '{"keys": [{"kty": "RSA", "kid": "x"}]}'):
        path = tmp_path / "bad.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(TokenRefused):
            tokens(path).check(token())


def _part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("header", "claims"),
    [
        ("[" * 40_000, "{}"),
        ('{"alg":"none"}', "[" * 40_000),
        ('{"alg":"none"}', '{"sub":"carol","exp":1e999}'),
        ('{"alg":"none"}', '{"sub":"carol","exp":NaN}'),
        ('{"alg":"none"}', '{"sub":"carol","exp":true}'),
    ],
)
def test_what_breaks_parsers_is_refused_like_any_other(jwks: Path, header: str, claims: str) -> None:
    """Anybody can send these before they have authenticated: a traceback each would fill the log."""
    text = f"{_part(header)}.{_part(claims)}."
    for checker in (tokens(jwks), UnsecuredTokens(TokenRules())):
        with pytest.raises(TokenRefused):
            checker.check(text)


def test_made_up_keys_do_not_have_the_issuer_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has authenticated yet who sends such a token."""
    now = 100.0
    reads = []
    keys = KeySet("https://issuer.example/keys", refresh_ms=3_600_000, retry_ms=100, monotonic=lambda: now)

    def content() -> bytes:
        reads.append(now)
        return json.dumps({"keys": [jwk(RSA_KEY, "rsa"), jwk(EC_KEY, "ec")][: len(reads)]}).encode()

    monkeypatch.setattr(keys, "_content", content)
    assert keys.find("rsa")
    for _ in range(100):
        now += 0.05
        with pytest.raises(TokenRefused):
            keys.find(f"made up at {now}")
    assert reads == [100.0]
    now += UNKNOWN_KEY_SECONDS_MIN
    assert keys.find("ec"), "a key that the issuer has since then"
    assert len(reads) == 2


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://issuer.example/keys", True),
        ("file:///etc/keys.json", True),
        ("http://127.0.0.1:8080/keys", True),
        ("http://[::1]:8080/keys", True),
        ("http://localhost/keys", True),
        ("http://issuer.example/keys", False),
        ("http://127.0.0.1.issuer.example/keys", False),
        ("http://127.0.0.1@issuer.example/keys", False),
        ("ftp://issuer.example/keys", False),
        ("data:application/json,{}", False),
    ],
)
def test_keys_come_over_tls_or_from_this_machine(url: str, fits: bool) -> None:
    if fits:
        KeySet(url, refresh_ms=1000, retry_ms=100)
        return
    with pytest.raises(ValueError, match="the keys cannot come from"):
        KeySet(url, refresh_ms=1000, retry_ms=100)


def test_plain_http_can_be_allowed() -> None:
    KeySet("http://issuer.example/keys", refresh_ms=1000, retry_ms=100, plain_http=True)


class Issuer(BaseHTTPRequestHandler):
    """Sends everybody elsewhere."""

    target = ""
    served: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.served.append(self.path)
        if self.path == "/keys" and self.target:
            self.send_response(302)
            self.send_header("Location", self.target)
            self.end_headers()
            return
        body = json.dumps({"keys": [jwk(RSA_KEY, "rsa")]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Issuer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Issuer.served.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    Issuer.target = ""
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/keys", "http://issuer.example/keys", "data:,x"]
)
def test_a_redirect_leads_nowhere_that_keys_may_not_come_from(issuer: str, target: str) -> None:
    Issuer.target = target
    with pytest.raises(TokenRefused, match="cannot be read"):
        KeySet(f"{issuer}/keys", refresh_ms=1000, retry_ms=100).find("rsa")
    assert Issuer.served == ["/keys"]


def test_a_redirect_within_what_is_allowed_is_followed(issuer: str) -> None:
    Issuer.target = f"{issuer}/elsewhere"
    assert KeySet(f"{issuer}/keys", refresh_ms=1000, retry_ms=100).find("rsa")
    assert Issuer.served == ["/keys", "/elsewhere"]


def test_a_redirect_never_leaves_tls() -> None:
    """Not even to this machine, nor where plain http is allowed from the beginning."""
    handler = _CarefulRedirects(plain_http=True)
    request = urllib.request.Request("https://issuer.example/keys")
    for target in ("http://issuer.example/keys", "http://127.0.0.1/keys", "file:///keys"):
        with pytest.raises(urllib.error.URLError, match="not followed"):
            handler.redirect_request(request, io.BytesIO(), 302, "Found", HTTPMessage(), target)
    again = handler.redirect_request(
        request, io.BytesIO(), 302, "Found", HTTPMessage(), "https://other.example/keys"
    )
    assert again is not None and again.full_url == "https://other.example/keys"


def test_keys_nested_without_end_are_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("[" * 100_000)
    with pytest.raises(TokenRefused, match="cannot be read"):
        KeySet(path.as_uri(), refresh_ms=1000, retry_ms=100).find("rsa")
