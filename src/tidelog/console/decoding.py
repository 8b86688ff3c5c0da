"""Bytes of a record as people want to see them: text, JSON, MessagePack, with a registry's schema, or hex.

Nothing here fails: bytes that do not fit the format asked for are shown as hex, with a note. The result is
plain text; templates and scripts escape it, for records are hostile input.
"""

import json
from dataclasses import dataclass
from typing import Any

from tidelog.console import message_pack
from tidelog.console.schema_registry import SchemaRegistry
from tidelog.schemas.framing import FRAMING_BYTES

FORMATS = ("auto", "text", "json", "schema", "msgpack", "hex")
STRUCTURE_BYTES_MAX = 1 << 20
SHOWN_BYTES_MAX = 64 << 10
HEX_ROW_BYTES = 16
_PLAIN_CONTROLS = {"\n", "\r", "\t"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """`format` says what `text` is: null, empty, text, json, avro, json-schema, protobuf, msgpack or hex."""

    format: str
    text: str
    size_bytes: int
    note: str = ""


def decode(
    data: bytes | None,
    wanted: str = "auto",
    *,
    pretty: bool = False,
    schemas: SchemaRegistry | None = None,
) -> Decoded:
    """The bytes in a format; `auto` takes the first of JSON, text, schema, MessagePack and hex that fits."""
    if data is None:
        return Decoded("null", "", 0)
    if not data:
        return Decoded("empty", "", 0)
    if wanted == "hex":
        return _hex(data, pretty)
    if wanted == "text":
        return _cut("text", data.decode("utf-8", errors="replace"), data)
    if wanted == "json":
        found = _json(data, pretty)
        return found or _hex(data, pretty, "not JSON")
    if wanted == "msgpack":
        return _message_pack(data, pretty) or _hex(data, pretty, "not MessagePack")
    if wanted == "schema":
        return _framed(data, pretty, schemas)
    return _guessed(data, pretty, schemas)


def structure(data: bytes | None, schemas: SchemaRegistry | None = None) -> Any:
    """What a schema, JSON or MessagePack says as Python values, text where it is only that; else None."""
    if not data or len(data) > STRUCTURE_BYTES_MAX:
        return None
    framed = schemas.decode(data) if schemas is not None else None
    if framed is not None and not framed.fault:
        return framed.value
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        return message_pack.unpack(data)
    except ValueError:
        return None


def _framed(data: bytes, pretty: bool, schemas: SchemaRegistry | None) -> Decoded:
    """A value that was asked for by its schema."""
    if schemas is None:
        return _hex(data, pretty, "the console was given no registry")
    framed = schemas.decode(data) if len(data) <= STRUCTURE_BYTES_MAX else None
    if framed is None:
        return _hex(data, pretty, "not framed with a schema id")
    if framed.fault:
        return _hex(data, pretty, f"schema {framed.schema_id}: {framed.fault}")
    shown = _cut(framed.kind, _json_text(framed.value, pretty), data)
    note = f"schema {framed.schema_id}"
    return Decoded(
        shown.format, shown.text, shown.size_bytes, f"{note}, {shown.note}" if shown.note else note
    )


def _guessed(data: bytes, pretty: bool, schemas: SchemaRegistry | None) -> Decoded:
    if data[:1] in (b"{", b"["):
        found = _json(data, pretty)
        if found is not None:
            return found
    text = _printable(data)
    if text is not None:
        return _cut("text", text, data)
    packed = _message_pack(data, pretty) if data[0] >= 0x80 else None
    if packed is not None:
        return packed
    if data[0] == 0 and len(data) > FRAMING_BYTES:
        if schemas is not None:
            return _framed(data, pretty, schemas)
        schema_id = int.from_bytes(data[1:FRAMING_BYTES], "big")
        inner = _guessed(data[FRAMING_BYTES:], pretty, None)
        return Decoded(inner.format, inner.text, len(data), f"may be framed with schema id {schema_id}")
    return _hex(data, pretty)


def _printable(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if any(character < " " and character not in _PLAIN_CONTROLS for character in text[:4096]):
        return None
    return text


def _json(data: bytes, pretty: bool) -> Decoded | None:
    if len(data) > STRUCTURE_BYTES_MAX:
        return None
    try:
        value = json.loads(data)
        return _cut("json", _json_text(value, pretty), data)
    except (ValueError, RecursionError):
        return None


def _message_pack(data: bytes, pretty: bool) -> Decoded | None:
    if len(data) > STRUCTURE_BYTES_MAX:
        return None
    try:
        value = message_pack.unpack(data)
    except ValueError:
        return None
    return _cut("msgpack", _json_text(value, pretty), data)


def _json_text(value: Any, pretty: bool) -> str:
    if pretty:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _hex(data: bytes, pretty: bool, note: str = "") -> Decoded:
    shown = data[:SHOWN_BYTES_MAX]
    text = hex_rows(shown) if pretty else shown.hex(" ")
    if len(shown) < len(data):
        note = f"{note}; " if note else ""
        note += f"the first {len(shown)} bytes"
    return Decoded("hex", text, len(data), note)


def _cut(name: str, text: str, data: bytes) -> Decoded:
    if len(text) <= SHOWN_BYTES_MAX:
        return Decoded(name, text, len(data))
    return Decoded(name, text[:SHOWN_BYTES_MAX], len(data), f"the first {SHOWN_BYTES_MAX} characters")


def hex_rows(data: bytes) -> str:
    """Rows of position, bytes in hex, and the same as ASCII."""
    rows = []
    for position in range(0, len(data), HEX_ROW_BYTES):
        row = data[position : position + HEX_ROW_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{position:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(rows)
