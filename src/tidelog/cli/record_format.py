"""How a consumed record becomes bytes on standard output: kcat's format strings, and JSON lines.

    %t topic    %p partition    %o offset    %k key      %s value (payload)    %h headers (name=value,…)
    %T timestamp in ms          %K key size  %S value size (-1 when null)      %R value size in 4 bytes
    %%  a percent sign          \\n \\r \\t \\0 \\\\ \\xNN  the usual characters

A record is a `ShownRecord`, so that this module knows no client library. JSON keeps bytes that are not
UTF-8 under `key_base64`, `value_base64`; `tidelog produce --json` reads the same lines back. What a schema
decoded is JSON in both, with `value_schema_id` beside it; what it could not is bytes, with `value_fault`.
"""

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tidelog.cli.output import utc_text


class ShownRecord(NamedTuple):
    """A record with the place it was read from."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    #: `key` and `value` as their schemas read them, where that was asked for
    decoded: Mapping[str, "DecodedField"] = MappingProxyType({})


class DecodedField(NamedTuple):
    """A key or a value as JSON, or why it could not be decoded."""

    schema_id: int | None
    value: Any
    fault: str = ""


Formatter = Callable[[ShownRecord], bytes]
_Piece = Callable[[ShownRecord, bytes], bytes]

_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "e": b"\x1b", "a": b"\a"}


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: ShownRecord, null: bytes) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
    )


def _text(record: ShownRecord, name: str, data: bytes | None, null: bytes) -> bytes:
    found = record.decoded.get(name)
    if found is not None:
        return json.dumps(found.value, ensure_ascii=False, separators=(",", ":")).encode()
    return null if data is None else data


_FIELDS: dict[str, _Piece] = {
    "t": lambda record, null: record.topic.encode(),
    "p": lambda record, null: b"%d" % record.partition,
    "o": lambda record, null: b"%d" % record.offset,
    "k": lambda record, null: _text(record, "key", record.key, null),
    "s": lambda record, null: _text(record, "value", record.value, null),
    "h": _headers,
    "T": lambda record, null: b"%d" % record.timestamp_ms,
    "K": lambda record, null: b"%d" % _size(record.key),
    "S": lambda record, null: b"%d" % _size(record.value),
    "R": lambda record, null: struct.pack(">i", _size(record.value)),
}


def unescape(text: str) -> bytes:
    """Turn backslash escapes of a delimiter given on the command line into the bytes they stand for."""
    pieces: list[bytes] = []
    position = 0
    for match in re.finditer(r"\\x([0-9a-fA-F]{2})|\\(.?)", text, re.DOTALL):
        pieces.append(text[position : match.start()].encode())
        pieces.append(_escape(match[1], match[2]))
        position = match.end()
    pieces.append(text[position:].encode())
    return b"".join(pieces)


def _escape(hexadecimal: str | None, letter: str | None) -> bytes:
    if hexadecimal is not None:
        return bytes.fromhex(hexadecimal)
    known = _ESCAPES.get(letter or "")
    if known is None:
        raise ValueError(f"'\\{letter or ''}' is not an escape: use \\n, \\r, \\t, \\0, \\xNN or \\\\")
    return known


def compile_format(text: str, *, null: bytes = b"") -> Formatter:
    """Compile a kcat format string once; ValueError names the part that is wrong."""
    pieces: list[bytes | _Piece] = []
    position = 0
    for match in _TOKEN.finditer(text):
        pieces.append(text[position : match.start()].encode())
        position = match.end()
        letter = match[1]
        if letter is None:
            pieces.append(_escape(match[2], match[3]))
        elif letter == "%":
            pieces.append(b"%")
        elif letter in _FIELDS:
            pieces.append(_FIELDS[letter])
        else:
            raise ValueError(
                f"'%{letter}' is not a field: use one of {' '.join('%' + name for name in _FIELDS)}"
            )
    pieces.append(text[position:].encode())

    def format_record(record: ShownRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record, null) for piece in pieces)

    return format_record


def json_line(record: ShownRecord) -> bytes:
    """One record as one line of JSON."""
    line: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "timestamp": utc_text(record.timestamp_ms),
        "timestamp_type": record.timestamp_type,
        **_json_field(record, "key", record.key),
        **_json_field(record, "value", record.value),
        "headers": [{"name": name, **json_bytes("value", value)} for name, value in record.headers],
    }
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _json_field(record: ShownRecord, name: str, data: bytes | None) -> dict[str, Any]:
    found = record.decoded.get(name)
    if found is None or data is None:
        return dict(json_bytes(name, data))
    if found.fault:
        return {f"{name}_base64": base64.b64encode(data).decode(), f"{name}_fault": found.fault}
    return {name: found.value, f"{name}_schema_id": found.schema_id}


def json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field of bytes: text where it is UTF-8, else base64 under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(data).decode()}
