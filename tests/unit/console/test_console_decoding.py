"""Bytes as people see them: formats, limits, and input that means harm."""

import json

import pytest

from tidelog.console.decoding import SHOWN_BYTES_MAX, decode, hex_rows, structure
from tidelog.console.message_pack import unpack


@pytest.mark.parametrize(
    ("data", "name", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"hello", "text", "hello"),
        ("grüß\n".encode(), "text", "grüß\n"),
        (b'{"a":1}', "json", '{"a": 1}'),
        (b"[1,2]", "json", "[1, 2]"),
        (b"{not json", "text", "{not json"),
        (b"42", "text", "42"),
        (b"\x81\xa1a\x01", "msgpack", '{"a": 1}'),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        (b"\x00\x01\x02", "hex", "00 01 02"),
    ],
)
def test_auto_takes_the_first_format_that_fits(data: bytes | None, name: str, text: str) -> None:
    found = decode(data)
    assert (found.format, found.text) == (name, text)
    assert found.size_bytes == len(data or b"")


def test_a_format_that_does_not_fit_falls_back_to_hex_and_says_so() -> None:
    assert decode(b"nope", "json").note == "not JSON"
    assert decode(b"\xc1", "msgpack").format == "hex"
    assert decode(b"\xff", "text").text == "\ufffd"


def test_confluent_framing_is_named() -> None:
    found = decode(b"\x00\x00\x00\x00\x07" + b'{"a":1}')
    assert found.format == "json"
    assert "schema id 7" in found.note


def test_large_values_are_cut_and_deep_ones_do_not_break_the_parser() -> None:
    assert len(decode(b"x" * (SHOWN_BYTES_MAX + 9)).text) == SHOWN_BYTES_MAX
    deep = b"[" * 100_000
    assert decode(deep).format == "text"
    assert decode(b"\x91" * 5_000 + b"\x01").format == "hex"
    assert structure(deep) == deep.decode()


def test_hex_rows_show_position_bytes_and_text() -> None:
    assert hex_rows(b"Tide\x00log!") == "00000000  54 69 64 65 00 6c 6f 67 21                       Tide.log!"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x7f", 127),
        (b"\xff", -1),
        (b"\xc0", None),
        (b"\xc3", True),
        (b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
        (b"\xd1\xff\x00", -256),
        (b"\xd9\x02hi", "hi"),
        (b"\xc4\x02\x01\xff", "0x01ff"),
        (b"\x92\x01\xa1x", [1, "x"]),
        (b"\xde\x00\x01\x05\xc2", {"5": False}),
        (b"\xd6\xff\x00\x00\x00\x01", {"extension": -1, "data": "0x00000001"}),
    ],
)
def test_message_pack_values(data: bytes, value: object) -> None:
    assert unpack(data) == value
    json.dumps(unpack(data))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x92\x01", b"\x01\x01", b"\xdf\xff\xff\xff\xff", b"\xa2\xff\xff"]
)
def test_message_pack_refuses_what_is_no_single_value(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)
