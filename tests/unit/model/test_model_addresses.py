"""Addresses as text, there and back."""

import pytest

from tidelog.model.addresses import address_text, split_address


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("broker", 9092, "broker:9092"),
        ("127.0.0.1", 1, "127.0.0.1:1"),
        ("::1", 9092, "[::1]:9092"),
        ("fe80::1%eth0", 9092, "[fe80::1%eth0]:9092"),
    ],
)
def test_there_and_back(host: str, port: int, text: str) -> None:
    assert address_text(host, port) == text
    assert split_address(text, 1) == (host, port)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broker", ("broker", 9092)),
        ("[::1]", ("::1", 9092)),
        ("SASL_SSL://[::1]:5", ("::1", 5)),
        ("PLAINTEXT://b:5", ("b", 5)),
    ],
)
def test_ports_may_be_left_out(text: str, found: tuple[str, int]) -> None:
    assert split_address(text, 9092) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("::1", "without brackets"),
        ("::1:9092", "without brackets"),
        ("fe80::1", "without brackets"),
        ("[::1", "is not"),
        ("[::1]9092", "is not"),
        ("[]:1", "is not"),
        (":9092", "is not"),
        ("a:0", "is not"),
        ("a:65536", "is not"),
        ("a:x", "is not"),
        ("a:\N{SUPERSCRIPT TWO}", "is not"),
        ("", "is not"),
    ],
)
def test_what_is_no_address(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split_address(text, 9092)
