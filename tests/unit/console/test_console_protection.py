"""Other sites are kept out: hosts, origins, tokens, headers."""

import pytest

from tidelog.console.protection import Token, host_allowed, same_origin, token_fits


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.1.5", "kafka.example.com:1"],
)
def test_hosts_of_ours(host: str) -> None:
    assert host_allowed(host, {"kafka.example.com"})


@pytest.mark.parametrize(
    "host", ["", "evil.example.com", "localhost.evil.com", "127.0.0.1.evil.com:80", ":80"]
)
def test_hosts_of_others(host: str) -> None:
    assert not host_allowed(host, {"kafka.example.com"})


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"host": "localhost:1"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ({"host": "localhost:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, False),
        ({"host": "localhost:1", "origin": "https://evil.example.com"}, False),
        ({"host": "localhost:1", "origin": "null"}, False),
        ({"host": "localhost:1", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost:1", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_origins(headers: dict[str, str], wanted: bool) -> None:
    assert same_origin(headers) is wanted


def test_a_token_is_a_secret_of_its_own() -> None:
    token = Token()
    assert token_fits(token.text, token.text)
    assert not token_fits(token.text, "")
    assert not token_fits(token.text, Token().text)
    assert not token_fits(token.text, "ü")
