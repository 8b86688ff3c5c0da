"""Texts that people write or import, as the bytes of a record; faults name the line."""

import base64
import binascii
import json
from typing import Any

from tidelog.console.faults import ConsoleFault

HEADERS_MAX = 100
Parsed = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def typed_bytes(text: str, kind: str) -> bytes | None:
    """The value of a form: text as it is, JSON checked, hex, base64, or null (a tombstone)."""
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
        raise ConsoleFault(f"the value is no {kind}: {fault}") from fault


def parse_headers(text: str) -> list[tuple[str, bytes | None]]:
    """Lines of name=value; the same name may come again."""
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConsoleFault(f"the header {line[:60]!r} is not name=value")
        found.append((name.strip(), value.encode()))
    if len(found) > HEADERS_MAX:
        raise ConsoleFault(f"a record has at most {HEADERS_MAX} headers here")
    return found


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
    parsed: list[tuple[str, bytes | None]] = []
    for header in headers:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ConsoleFault(f"line {number} has a header without a name")
        parsed.append((header["name"], _bytes(header, "value", number)))
    return _bytes(fields, "key", number), _bytes(fields, "value", number), parsed


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
