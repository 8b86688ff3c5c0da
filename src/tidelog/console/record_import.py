"""Texts that people write or import, as the bytes of a record; faults name the line."""

import base64
import binascii
import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.console.faults import ConsoleFault

HEADERS_MAX = 100
RECORDS_MAX = 10_000
#: null in a cell of CSV, as databases write it
CSV_NULL = "\\N"
#: a spreadsheet takes a cell that begins so for a formula; the export puts a quote before it
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_TYPED_HEADERS = (":base64", ":null")
Headers = list[tuple[str, bytes | None]]


class Parsed(NamedTuple):
    """A record to write; the partition where the file names one."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


def typed_bytes(text: str, kind: str) -> bytes | None:
    """The key or value of a form: text as it is, JSON checked, hex, base64, or null (a tombstone)."""
    try:
        match kind:
            case "null":
                return None
            case "json":
                json.loads(text)
                return text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
            case _:
                # A browser sends line ends as CR LF; what was typed is LF.
                return text.replace("\r\n", "\n").encode()
    except (ValueError, RecursionError, binascii.Error) as fault:
        raise ConsoleFault(f"this is no {kind}: {fault}") from fault


def parse_headers(text: str) -> Headers:
    """Lines of name=value; `name:base64=…` for bytes that are no text, `name:null=` for none at all."""
    found: Headers = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConsoleFault(f"the header {line[:60]!r} is not name=value")
        plain, _, kind = name.strip().rpartition(":")
        if plain and kind == "null" and not value:
            found.append((plain, None))
        elif plain and kind == "base64":
            try:
                found.append((plain, base64.b64decode(value, validate=True)))
            except (ValueError, binascii.Error) as fault:
                raise ConsoleFault(f"the header {plain[:60]!r} is no base64: {fault}") from fault
        else:
            found.append((name.strip(), value.encode()))
    if len(found) > HEADERS_MAX:
        raise ConsoleFault(f"a record has at most {HEADERS_MAX} headers here")
    return found


def headers_text(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Headers as lines that `parse_headers` reads back exactly."""
    return "\n".join(_header_line(name, value) for name, value in headers)


def _header_line(name: str, value: bytes | None) -> str:
    if value is None:
        return f"{name}:null="
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = "\n"
    if text.splitlines() in ([text], []) and not name.endswith(_TYPED_HEADERS):
        return f"{name}={text}"
    return f"{name}:base64={base64.b64encode(value).decode()}"


def parse_file(text: str) -> list[Parsed]:
    """Records of JSON lines or of CSV with a header line, whichever the text is."""
    if text.lstrip()[:1] == "{":
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        _check_count(len(lines))
        return [parse_line(line, number) for number, line in lines]
    return parse_csv(text)


def _check_count(count: int) -> None:
    if count == 0:
        raise ConsoleFault("there are no records to import")
    if count > RECORDS_MAX:
        raise ConsoleFault(f"more than {RECORDS_MAX} records", "Use 'tidelog produce' for large files.")


def parse_csv(text: str) -> list[Parsed]:
    """CSV as the export writes it: a column `value`, and key, headers (JSON) and partition where they are."""
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found: list[Parsed] = []
    try:
        if rows.fieldnames is None or "value" not in rows.fieldnames:
            raise ConsoleFault(
                "the text is neither JSON lines nor CSV with a column named value",
                "The first line of CSV names the columns: key,value,headers",
            )
        for row in rows:
            found.append(_csv_record(row, rows.line_num))
            if len(found) > RECORDS_MAX:
                break
    except csv.Error as fault:
        raise ConsoleFault(f"line {rows.reader.line_num} is no CSV: {fault}") from fault
    _check_count(len(found))
    return found


def _csv_record(row: Mapping[str, Any], number: int) -> Parsed:
    if None in row:
        raise ConsoleFault(f"line {number} has more cells than the first line names")
    try:
        headers = json.loads(row.get("headers") or "{}")
    except (ValueError, RecursionError) as fault:
        raise ConsoleFault(f"line {number}: the headers are no JSON: {fault}") from fault
    if not isinstance(headers, dict) or len(headers) > HEADERS_MAX:
        raise ConsoleFault(f"line {number}: the headers are no JSON object of at most {HEADERS_MAX} names")
    parsed: Headers = [(name, None if text is None else str(text).encode()) for name, text in headers.items()]
    # A key that is empty is none: tables have no other way to leave it out.
    return Parsed(_cell(row.get("key")) or None, _cell(row.get("value")), parsed, _partition(row, number))


def _cell(text: str | None) -> bytes | None:
    if text is None or text == CSV_NULL:
        return None
    quoted = text[:1] == "'" and text[1:2] in FORMULA_STARTS
    return (text[1:] if quoted else text).encode()


def _partition(fields: Mapping[str, Any], number: int) -> int | None:
    given = fields.get("partition")
    if given in (None, ""):
        return None
    try:
        partition = int(given)
    except (ValueError, TypeError):
        partition = -1
    if not 0 <= partition < 2**31:
        raise ConsoleFault(f"line {number}: the partition is {str(given)[:40]!r}, not a number of one")
    return partition


def parse_line(line: str, number: int) -> Parsed:
    """A line of JSON as `record_view.record_json` writes it; only the value is needed."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise ConsoleFault(f"line {number} is no JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise ConsoleFault(f"line {number} is no JSON object")
    headers = fields.get("headers") or []
    if not isinstance(headers, list) or len(headers) > HEADERS_MAX:
        raise ConsoleFault(f"line {number} has headers that are no list of at most {HEADERS_MAX}")
    parsed: Headers = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ConsoleFault(f"line {number} has a header without a name")
        parsed.append((header["name"], _bytes(header, "value", number)))
    key, value = _bytes(fields, "key", number), _bytes(fields, "value", number)
    return Parsed(key, value, parsed, _partition(fields, number))


def _bytes(fields: dict[str, Any], name: str, number: int) -> bytes | None:
    encoded = fields.get(f"{name}_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error) as fault:
            raise ConsoleFault(f"line {number}: {name}_base64 is no base64: {fault}") from fault
    value = fields.get(name)
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
