"""Protobuf's wire format read with a parsed schema (https://protobuf.dev/programming-guides/encoding/).

Limits as in `avro_reader`. Fields that the schema does not know appear under their number, as bytes in hex or
numbers; an enum value without a name stays a number. Values come out fit for JSON; a
google.protobuf.Timestamp is a time in ISO form.
"""

import datetime
import struct
from typing import Any

from tidelog.schemas.protobuf_schema import ProtoField, ProtoFile, ProtoMessage

DEPTH_MAX = 32
VALUES_MAX = 50_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
TIMESTAMP = "google.protobuf.Timestamp"
#: the years 1 to 9999
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
_EPOCH = datetime.datetime(1970, 1, 1)
FIXED = {
    "double": "<d",
    "fixed64": "<Q",
    "sfixed64": "<q",
    "float": "<f",
    "fixed32": "<I",
    "sfixed32": "<i",
}
_VARINTS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")


def read_indexes(data: bytes) -> tuple[list[int], int]:
    """The path of the message in its schema, and where the payload begins; a lone 0 is the first message."""
    reader = _Reader(data, 0, len(data))
    count = reader.zigzag()
    if count == 0:
        return [0], reader.position
    if not 0 < count <= DEPTH_MAX:
        raise ValueError(f"{count} message indexes")
    return [reader.zigzag() for _ in range(count)], reader.position


def read_message(data: bytes, position: int, message: ProtoMessage, schema: ProtoFile) -> dict[str, Any]:
    """The message that fills `data` from a position on; ValueError where it does not."""
    try:
        return _Decoder(schema).message(data[position:], message, 0)
    except (struct.error, UnicodeDecodeError) as fault:
        raise ValueError(f"the bytes do not fit the schema: {fault}") from fault


class _Reader:
    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    def varint(self) -> int:
        result = shift = 0
        while True:
            if self.position >= self.end or shift > 63:
                raise ValueError("a number is cut off or too long")
            byte = self.data[self.position]
            self.position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result & 0xFFFF_FFFF_FFFF_FFFF
            shift += 7

    def zigzag(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def take(self, size: int) -> bytes:
        if size > self.end - self.position:
            raise ValueError("the value is cut off")
        self.position += size
        return self.data[self.position - size : self.position]

    def raw(self, wire_type: int) -> int | bytes:
        if wire_type == _VARINT:
            return self.varint()
        if wire_type == _BYTES:
            return self.take(self.varint())
        if wire_type in (_FIXED64, _FIXED32):
            return self.take(8 if wire_type == _FIXED64 else 4)
        raise ValueError(f"wire type {wire_type} is not used any more")


class _Decoder:
    def __init__(self, schema: ProtoFile) -> None:
        self._schema = schema
        self._values = 0

    def message(self, data: bytes, message: ProtoMessage, depth: int) -> dict[str, Any]:
        if depth > DEPTH_MAX:
            raise ValueError("messages are nested too deep")
        reader = _Reader(data, 0, len(data))
        found: dict[str, Any] = {}
        while reader.position < reader.end:
            self._values += 1
            if self._values > VALUES_MAX:
                raise ValueError("too many values")
            tag = reader.varint()
            number, wire_type = tag >> 3, tag & 7
            raw = reader.raw(wire_type)
            field = message.fields.get(number)
            if field is None:
                found.setdefault(f"#{number}", _unknown(raw))
            else:
                self._put(found, field, raw, wire_type, message.name, depth)
        return found

    def _put(
        self,
        found: dict[str, Any],
        field: ProtoField,
        raw: int | bytes,
        wire_type: int,
        scope: str,
        depth: int,
    ) -> None:
        if field.map_value:
            entry = ProtoMessage(
                scope, {1: ProtoField("key", 1, field.type), 2: ProtoField("value", 2, field.map_value)}
            )
            pair = self.message(_as_bytes(raw), entry, depth + 1)
            found.setdefault(field.name, {})[str(pair.get("key", ""))] = pair.get("value")
        elif field.repeated:
            listed = found.setdefault(field.name, [])
            if wire_type == _BYTES and self._packable(field.type, scope):
                listed += self._packed(_as_bytes(raw), field.type, scope)
            else:
                listed.append(self._value(raw, field.type, scope, depth))
        else:
            found[field.name] = self._value(raw, field.type, scope, depth)

    def _packable(self, kind: str, scope: str) -> bool:
        return kind in _VARINTS or kind in FIXED or isinstance(self._schema.resolve(kind, scope), dict)

    def _packed(self, data: bytes, kind: str, scope: str) -> list[Any]:
        reader = _Reader(data, 0, len(data))
        wire_type = _VARINT
        if kind in FIXED:
            wire_type = _FIXED64 if struct.calcsize(FIXED[kind]) == 8 else _FIXED32
        values = []
        while reader.position < reader.end:
            self._values += 1
            if self._values > VALUES_MAX:
                raise ValueError("too many values")
            values.append(self._value(reader.raw(wire_type), kind, scope, 0))
        return values

    def _value(self, raw: int | bytes, kind: str, scope: str, depth: int) -> Any:
        if kind in FIXED:
            return struct.unpack(FIXED[kind], _as_bytes(raw))[0]
        if kind == "string":
            return _as_bytes(raw).decode("utf-8")
        if kind == "bytes":
            return f"0x{_as_bytes(raw).hex()}"
        if kind in _VARINTS:
            return _varint_value(raw, kind)
        meaning = self._schema.resolve(kind, scope)
        if isinstance(meaning, ProtoMessage):
            read = self.message(_as_bytes(raw), meaning, depth + 1)
            return _moment(read) if meaning.name == TIMESTAMP else read
        if isinstance(meaning, dict) and isinstance(raw, int):
            number = _varint_value(raw, "int32")
            return meaning.get(number, number)
        return _unknown(raw)


def _moment(read: dict[str, Any]) -> Any:
    """A time in ISO form, with as many digits as it has; the message as it is where it is none."""
    seconds, nanos = read.get("seconds", 0), read.get("nanos", 0)
    if not (FIRST_SECOND <= seconds <= LAST_SECOND and 0 <= nanos < 1_000_000_000):
        return read
    moment = _EPOCH + datetime.timedelta(seconds=seconds)
    digits = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{moment.isoformat()}{digits}Z"


def _as_bytes(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise ValueError("a field has another wire type than its schema says")
    return raw


def _varint_value(raw: int | bytes, kind: str) -> Any:
    if isinstance(raw, bytes):
        raise ValueError("a field has another wire type than its schema says")
    if kind == "bool":
        return raw != 0
    if kind.startswith("sint"):
        return (raw >> 1) ^ -(raw & 1)
    if kind.startswith("int") and raw >> 63:
        return raw - (1 << 64)
    return raw


def _unknown(raw: int | bytes) -> Any:
    return raw if isinstance(raw, int) else f"0x{raw.hex()}"
