"""Values from queries and forms, figures as words, files of records, annotated batches."""

import json

import pytest

from tidelog.console.batch_view import batch_with
from tidelog.console.faults import ConsoleFault
from tidelog.console.pages_records import csv_lines, json_lines
from tidelog.console.parameters import assignments, choice, integer, moment_ms, optional_integer
from tidelog.console.record_import import parse_headers, parse_line, typed_bytes
from tidelog.console.record_view import RecordView, record_row
from tidelog.console.rendering import ago, byte_size, environment, grouped, moment, path_part, plural
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

RECORD = RecordView("t", 0, 7, 1_000, "CreateTime", b"=1+1", b"\xff\x00", (("h", b"v"), ("n", None)))


def test_integers() -> None:
    assert integer({"a": " 5 "}, "a") == 5
    assert integer({}, "a", 3) == 3
    assert optional_integer({"a": ""}, "a") is None
    for fields in ({}, {"a": "x"}, {"a": "-1"}, {"a": "9" * 30}):
        with pytest.raises(ConsoleFault):
            integer(fields, "a")


def test_choices_times_and_assignments() -> None:
    assert choice({"a": "z"}, "a", ("x", "y")) == "x"
    assert moment_ms("1700000000000") == 1_700_000_000_000
    assert moment_ms("1970-01-01T00:00:01+00:00") == 1_000
    with pytest.raises(ConsoleFault):
        moment_ms("yesterday")
    assert assignments("a = 1\n\nb=x=y") == {"a": "1", "b": "x=y"}
    with pytest.raises(ConsoleFault):
        assignments("nonsense")


def test_figures_as_words() -> None:
    assert grouped(1234567) == "1\u202f234\u202f567"
    assert grouped(None) == "–"
    assert [byte_size(size) for size in (0, 1023, 1536, 150 << 10, -1)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "150 KiB",
        "–",
    ]
    assert moment(None) == "–"
    assert moment(10**30) == str(10**30)
    assert plural(1, "topic") == "1 topic"
    assert plural(2, "topic") == "2 topics"
    assert path_part("a/b c&d") == "a%2Fb%20c%26d"
    assert ago(0).endswith("d ago")


def test_templates_escape() -> None:
    assert environment().from_string("{{ x }}").render(x="<script>") == "&lt;script&gt;"


def test_a_file_of_json_lines_can_be_read_back() -> None:
    (line,) = json_lines(iter([RECORD]))
    fields = json.loads(line)
    assert fields["value_base64"] == "/wA="
    assert parse_line(line, 1) == (b"=1+1", b"\xff\x00", [("h", b"v"), ("n", None)], 0)


def test_csv_has_no_formulas() -> None:
    header, row = "".join(csv_lines(iter([RECORD]))).splitlines()
    assert header.startswith("partition,offset")
    assert row.startswith("0,7,1000,'=1+1,ff 00,")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"headers": 3}', '{"headers": [{}]}', '{"value_base64": "%"}', "[" * 99_999]
)
def test_lines_that_are_no_records(line: str) -> None:
    with pytest.raises(ConsoleFault, match="line 4"):
        parse_line(line, 4)


def test_typed_values() -> None:
    assert typed_bytes("a\r\nb", "text") == b"a\nb"
    assert typed_bytes("00 ff", "hex") == b"\x00\xff"
    assert typed_bytes("/w==", "base64") == b"\xff"
    assert typed_bytes("x", "null") is None
    assert typed_bytes('{"a": 1}', "json") == b'{"a": 1}'
    for text, kind in (("{", "json"), ("0g", "hex"), ("%", "base64")):
        with pytest.raises(ConsoleFault):
            typed_bytes(text, kind)
    assert parse_headers("a=1\nb==") == [("a", b"1"), ("b", b"=")]
    with pytest.raises(ConsoleFault):
        parse_headers("nothing")


def test_rows_are_previews() -> None:
    row = record_row(RecordView("t", 0, 1, None, "CreateTime", None, b"x" * 5_000, ()))
    assert len(row["value"]) == 400
    assert row["value_cut"]
    assert row["key_format"] == "null"


def test_a_batch_is_explained() -> None:
    first = build_batch([Record(0, 5, b"k", b"v")], base_offset=0)
    second = build_batch([Record(1, 6, b"k", b"v"), Record(2, 7, None, None)], base_offset=1)
    view = batch_with(first + second, 2)
    assert view is not None
    assert (view.first_offset, view.last_offset, view.records_count) == (1, 2, 2)
    assert "CRC is right" in view.flags
    assert {field.name: field.value for field in view.fields}["base_offset"] == "1"
    assert sum(len(field.bytes_hex.split()) for field in view.fields) == 61
    assert batch_with(first + second, 3) is None
    assert batch_with(first[:-1], 0) is None
    assert batch_with(b"\xff" * 80, 0) is None
    broken = bytearray(first)
    broken[-1] ^= 1
    assert "CRC is wrong" in (batch_with(bytes(broken), 0) or view).flags
