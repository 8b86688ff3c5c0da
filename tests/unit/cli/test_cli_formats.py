"""Formats of consumed records and the reading of produced ones."""

import io
import json

import pytest

from tidelog.cli.record_format import ShownRecord, compile_format, json_line, unescape
from tidelog.cli.record_input import LineReader, json_record, split_records

RECORD = ShownRecord(
    "orders", 2, 41, 1_700_000_000_123, "CreateTime", b"ann", b"3 apples", [("a", b"1"), ("b", None)]
)
TOMBSTONE = ShownRecord("orders", 0, 0, -1, None, None, None, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %p %o %k %s\n", b"orders 2 41 ann 3 apples\n"),
        (r"%T|%K|%S|%h", b"1700000000123|3|8|a=1,b=NULL"),
        (r"100%%\t\x41\0\\", b"100%\tA\0\\"),
        ("%R", b"\x00\x00\x00\x08"),
        ("é%k", "é".encode() + b"ann"),
        ("", b""),
    ],
)
def test_format(text: str, expected: bytes) -> None:
    assert compile_format(text)(RECORD) == expected


def test_format_of_nulls() -> None:
    assert compile_format("[%k][%s] %K %S")(TOMBSTONE) == b"[][] -1 -1"
    assert compile_format("[%k][%s]", null=b"NULL")(TOMBSTONE) == b"[NULL][NULL]"


@pytest.mark.parametrize("text", ["%q", "%", "\\q", "\\"])
def test_format_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        compile_format(text)


def test_unescape_delimiters() -> None:
    assert unescape(r"\n") == b"\n"
    assert unescape(r"\x00ab\t") == b"\x00ab\t"


def test_json_line_is_read_back_as_the_same_record() -> None:
    binary = RECORD._replace(key=b"\xff\xfe", headers=[("h", b"\x80"), ("n", None), ("t", b"x")])
    for record in (RECORD, TOMBSTONE, binary):
        new = json_record(json_line(record))
        assert (new.key, new.value, new.headers) == (record.key, record.value, list(record.headers))
        assert new.partition == record.partition
    assert json.loads(json_line(binary))["key_base64"] == "//4="


def test_json_values_that_are_not_text() -> None:
    record = json_record(b'{"key": 7, "value": {"n": [1, 2]}, "headers": {"a": "1"}, "timestamp_ms": 5}')
    assert (record.key, record.value, record.headers) == (b"7", b'{"n":[1,2]}', [("a", b"1")])
    assert record.timestamp_ms == 5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"key": "a"}', '"value" is missing'),
        (b'{"value": "a", "partition": -1}', '"partition"'),
        (b'{"value": "a", "partition": true}', '"partition"'),
        (b'{"value": "a", "headers": 3}', '"headers"'),
        (b'{"value_base64": "*"}', "not base64"),
    ],
)
def test_bad_json_lines_are_explained(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        json_record(line)


def test_lines_with_key_delimiter() -> None:
    reader = LineReader(key_delimiter=b":", headers=[("s", b"web")])
    assert (reader.record(b"a:b:c").key, reader.record(b"a:b:c").value) == (b"a", b"b:c")
    assert reader.record(b"plain").key is None
    assert reader.record(b"a:").value == b""
    assert reader.record(b"x").headers == [("s", b"web")]


def test_empty_as_null() -> None:
    record = LineReader(key_delimiter=b":", empty_is_null=True).record(b"a:")
    assert (record.key, record.value) == (b"a", None)
    assert LineReader(key_delimiter=b":", empty_is_null=True).record(b":v").key is None


@pytest.mark.parametrize(
    ("data", "delimiter", "expected"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\n\nb", b"\n", [b"a", b"", b"b"]),
        (b"", b"\n", []),
        (b"a--b--", b"--", [b"a", b"b"]),
        (b"x" * 70_000 + b"--y", b"--", [b"x" * 70_000, b"y"]),
        (b"a\0b", b"\0", [b"a", b"b"]),
    ],
)
def test_split_records(data: bytes, delimiter: bytes, expected: list[bytes]) -> None:
    assert list(split_records(io.BytesIO(data), delimiter)) == expected


def test_a_delimiter_across_two_reads_is_seen() -> None:
    data = b"x" * 65_535 + b"--" + b"y"
    assert list(split_records(io.BytesIO(data), b"--")) == [b"x" * 65_535, b"y"]
