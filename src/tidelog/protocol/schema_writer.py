"""Writes messages by kio's schemas, from plain mappings of field names to bytes.

A writer is compiled once per class of kio's. It takes the fields that the version has from a mapping, and the
schema's default for those that are not in it. Plain numbers do for kio's types: milliseconds for times and
durations, numbers for error codes; an id that is None is all zeros. Tagged fields are written where they
differ from their default.

kio's own writer builds an object of every row first, and is called for each field of it; for an answer with
fifty thousand rows that is most of a second. Long arrays are written in slices.
"""

import dataclasses
import datetime
import struct
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.protocol.primitives import STRING_BYTES_MAX, fit_string, unsigned_varint
from tidelog.protocol.schema_fields import absent_value, unwrap
from tidelog.protocol.slices import STEP, checkpoint

Fields = Mapping[str, Any]
Write = Callable[[Any, list[bytes]], None]

#: as much of an `error_message` as is sent: they repeat what was asked for, which may fill a string by itself
ERROR_MESSAGE_BYTES_MAX = 2_048

#: so many parts of an answer are put together as soon as they are there: each takes more than its bytes
PARTS_MAX = 1 << 16

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ZERO_UUID = bytes(16)


class AnswerTooLong(Exception):
    """An answer would be longer than is sent."""


class Parts(list[bytes]):
    """What is written of an answer: pieces that were put together, and single values behind them."""

    __slots__ = ("_bytes_max", "_pieces", "_size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pieces = self._size_bytes = 0

    def put_together(self) -> None:
        """Put the values together if they are many; raises AnswerTooLong."""
        if len(self) - self._pieces < PARTS_MAX:
            return
        piece = b"".join(self[self._pieces :])
        self[self._pieces :] = [piece]
        self._pieces += 1
        self._size_bytes += len(piece)
        if self._size_bytes > self._bytes_max:
            raise AnswerTooLong(f"the answer would be longer than {self._bytes_max} bytes")


def _fixed(layout: str) -> Write:
    pack = struct.Struct(layout).pack

    def write(value: Any, out: list[bytes]) -> None:
        out.append(pack(value))

    return write


def _duration(layout: str) -> Write:
    pack = struct.Struct(layout).pack

    def write(value: Any, out: list[bytes]) -> None:
        out.append(pack(value if type(value) is int else _milliseconds(value)))

    return write


def _milliseconds(value: Any) -> int:
    if isinstance(value, datetime.timedelta):
        return round(value / _MILLISECOND)
    return round((value - _EPOCH) / _MILLISECOND) if isinstance(value, datetime.datetime) else int(value)


def _write_instant(value: Any, out: list[bytes]) -> None:
    out.append(struct.pack(">q", -1 if value is None else _milliseconds(value)))


def _write_uuid(value: Any, out: list[bytes]) -> None:
    out.append(_ZERO_UUID if value is None else value.bytes)


def _write_bool(value: Any, out: list[bytes]) -> None:
    out.append(b"\x01" if value else b"\x00")


_FIXED: dict[str, Write] = {
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint8": _fixed(">B"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "uint64": _fixed(">Q"),
    "float64": _fixed(">d"),
    "bool": _write_bool,
    "error_code": _fixed(">h"),
    "timedelta_i32": _duration(">i"),
    "timedelta_i64": _duration(">q"),
    "datetime_i64": _write_instant,
    "uuid": _write_uuid,
}


def _string_writer(flexible: bool, nullable: bool) -> Write:
    null = b"\x00" if flexible else b"\xff\xff"

    def write(value: Any, out: list[bytes]) -> None:
        if value is None:
            assert nullable, "a string that must not be null is null"
            out.append(null)
            return
        data = value.encode()
        size = len(data)
        assert size <= STRING_BYTES_MAX, f"a string of {size} bytes"
        out.append(unsigned_varint(size + 1) if flexible else _INT16.pack(size))
        out.append(data)

    return write


def _write_message(write: Write) -> Write:
    def write_cut(value: Any, out: list[bytes]) -> None:
        write(None if value is None else fit_string(value, ERROR_MESSAGE_BYTES_MAX), out)

    return write_cut


def _bytes_writer(flexible: bool, nullable: bool) -> Write:
    null = b"\x00" if flexible else b"\xff\xff\xff\xff"

    def write(value: Any, out: list[bytes]) -> None:
        if value is None:
            assert nullable, "bytes that must not be null are null"
            out.append(null)
            return
        size = len(value)
        out.append(unsigned_varint(size + 1) if flexible else _INT32.pack(size))
        out.append(bytes(value))

    return write


def _array_writer(element: Write, flexible: bool) -> Write:
    def write(values: Any, out: list[bytes]) -> None:
        if values is None:
            out.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
            return
        count = len(values)
        out.append(unsigned_varint(count + 1) if flexible else _INT32.pack(count))
        if count <= STEP:
            for value in values:
                element(value, out)
            return
        for number, value in enumerate(values):
            element(value, out)
            if number % STEP == 0:
                if isinstance(out, Parts):
                    out.put_together()
                checkpoint()

    return write


def _nullable_entity(entity: Write) -> Write:
    """A struct with a byte before it that says whether it is there (KIP-893)."""

    def write(value: Any, out: list[bytes]) -> None:
        if value is None:
            out.append(b"\xff")
        else:
            out.append(b"\x01")
            entity(value, out)

    return write


def _field_writer(field: Any, flexible: bool) -> Write:
    inner, is_array, nullable = unwrap(field.type)
    if "tag" in field.metadata:
        nullable = False  # it is there or not
    if dataclasses.is_dataclass(inner):
        element = entity_writer(inner)
        if is_array:
            return _array_writer(element, flexible)
        return _nullable_entity(element) if nullable else element
    kafka_type = field.metadata["kafka_type"]
    nullable = nullable and not is_array
    fixed = _FIXED.get(kafka_type)
    if fixed is not None:
        element = fixed
    elif kafka_type == "string":
        element = _string_writer(flexible, nullable)
        if field.name == "error_message":
            element = _write_message(element)
    else:
        assert kafka_type in ("bytes", "records"), f"no writer for {kafka_type}"
        element = _bytes_writer(flexible, nullable)
    return _array_writer(element, flexible) if is_array else element


def _default_of(field: Any) -> Any:
    inner, is_array, nullable = unwrap(field.type)
    if dataclasses.is_dataclass(inner) and not is_array and not nullable:
        return {}
    return absent_value(field, is_array, nullable)


def _encoded(write: Write, value: Any) -> bytes:
    out: list[bytes] = []
    write(value, out)
    return b"".join(out)


_WRITERS: dict[Any, Write] = {}


def entity_writer(entity: Any) -> Write:
    """The writer of one of kio's classes, compiled once."""
    if entity not in _WRITERS:
        _WRITERS[entity] = _compile(entity)
    return _WRITERS[entity]


def _compile(entity: Any) -> Write:
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, Write, Any]] = []
    tagged: list[tuple[int, str, Write, bytes | None]] = []
    for field in dataclasses.fields(entity):
        write, default = _field_writer(field, flexible), _default_of(field)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, write, default))
        else:
            unsent = None if default is None else _encoded(write, default)
            tagged.append((int(tag), field.name, write, unsent))
    tagged.sort(key=lambda row: row[0])

    def write_tags(fields: Fields, out: list[bytes]) -> None:
        parts: list[bytes] = []
        for tag, name, write, unsent in tagged:
            value = fields.get(name)
            if value is None:
                continue
            data = _encoded(write, value)
            if data != unsent:
                parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)
        out.append(unsigned_varint(len(parts) // 3))
        out += parts

    def write_entity(fields: Fields, out: list[bytes]) -> None:
        for name, write, default in plain:
            write(fields.get(name, default), out)
        if tagged:
            write_tags(fields, out)
        elif flexible:
            out.append(b"\x00")

    return write_entity
