"""Reads requests by kio's schemas, safely: nothing is allocated before the bytes for it are there.

A reader is compiled once per class of kio's. It returns the object and the position behind it, and raises
one of `primitives.DECODING_ERRORS` for bytes that do not follow the schema. An array cannot announce more
elements than bytes follow it, and all arrays of a request together have no more than `read_limited` allows: a
small element costs a hundred times its bytes, and the time to answer. Unknown tagged fields are passed over,
as the protocol asks, and count as elements. Long arrays are read in slices.
"""

import dataclasses
import datetime
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from tidelog.protocol.primitives import (
    INT32,
    MalformedRequest,
    checked_slice,
    read_compact_nullable_string,
    read_compact_string,
    read_nullable_string,
    read_string,
    read_tags,
    read_unsigned_varint,
)
from tidelog.protocol.schema_fields import absent_value, unwrap
from tidelog.protocol.slices import STEP, checkpoint, copied

#: a buffer and a position in, a value and the next position out
Reader = Callable[[memoryview, int], tuple[Any, int]]

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


class _Elements(threading.local):
    """How many elements of arrays may still come; as many as there are, unless somebody says otherwise."""

    left = sys.maxsize


_elements = _Elements()


def _pause() -> None:
    """Let others go on if it takes long; they may read requests too."""
    left = _elements.left
    checkpoint()
    _elements.left = left


def read_limited(read: Reader, buffer: memoryview, position: int, elements_max: int) -> tuple[Any, int]:
    """Read with a limit on the elements of all arrays together."""
    _elements.left = elements_max
    try:
        return read(buffer, position)
    finally:
        _elements.left = sys.maxsize


def _fixed(layout: str, convert: Callable[[Any], Any] | None = None) -> Reader:
    """A reader of a number of fixed size."""
    numbers = struct.Struct(layout)
    unpack_from, size = numbers.unpack_from, numbers.size
    if convert is None:
        return lambda buffer, position: (unpack_from(buffer, position)[0], position + size)
    made = convert
    return lambda buffer, position: (made(unpack_from(buffer, position)[0]), position + size)


def _read_uuid(buffer: memoryview, position: int) -> tuple[Any, int]:
    """An id, None for the one that is all zeros, as in kio."""
    from uuid import UUID

    raw = bytes(checked_slice(buffer, position, 16))
    return (UUID(bytes=raw) if any(raw) else None), position + 16


def _read_instant(milliseconds: int) -> datetime.datetime | None:
    if milliseconds == -1:
        return None
    try:
        return _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError as fault:
        raise MalformedRequest(f"a time of {milliseconds} ms") from fault


def _read_duration(milliseconds: int) -> datetime.timedelta:
    try:
        return datetime.timedelta(milliseconds=milliseconds)
    except OverflowError as fault:
        raise MalformedRequest(f"a duration of {milliseconds} ms") from fault


def _read_error_code(number: int) -> Any:
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(number)
    except ValueError as fault:
        raise MalformedRequest(f"an unknown error code {number}") from fault


_FIXED: dict[str, Reader] = {
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint8": _fixed(">B"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "uint64": _fixed(">Q"),
    "float64": _fixed(">d"),
    "bool": _fixed(">B", bool),
    "error_code": _fixed(">h", _read_error_code),
    "timedelta_i32": _fixed(">i", _read_duration),
    "timedelta_i64": _fixed(">q", _read_duration),
    "datetime_i64": _fixed(">q", _read_instant),
    "uuid": _read_uuid,
}


def _bytes_reader(flexible: bool, nullable: bool) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if flexible:
            length, position = read_unsigned_varint(buffer, position)
            length -= 1
        else:
            length = INT32.unpack_from(buffer, position)[0]
            position += 4
        if length == -1 and nullable:
            return None, position
        return copied(checked_slice(buffer, position, length), _pause), position + length

    return read


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool) -> Reader:
    fixed = _FIXED.get(kafka_type)
    if fixed is not None:
        return fixed
    if kafka_type == "string":
        if flexible:
            return read_compact_nullable_string if nullable else read_compact_string
        return read_nullable_string if nullable else read_string
    assert kafka_type in ("bytes", "records"), f"no reader for {kafka_type}"
    return _bytes_reader(flexible, nullable)


def _array_reader(element: Reader, flexible: bool, nullable: bool) -> Reader:
    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if flexible:
            count, position = read_unsigned_varint(buffer, position)
            count -= 1
        else:
            count = INT32.unpack_from(buffer, position)[0]
            position += 4
        if count == -1 and nullable:
            return None, position
        if not 0 <= count <= len(buffer) - position:
            raise MalformedRequest(f"an array of {count} elements in {len(buffer) - position} bytes")
        _elements.left -= count
        if _elements.left < 0:
            raise MalformedRequest("more elements than tidelog.request.elements.max allows")
        elements = []
        for number in range(count):
            value, position = element(buffer, position)
            elements.append(value)
            if number % STEP == STEP - 1:
                _pause()
        return tuple(elements), position

    return read


def _nullable_entity(entity: Reader) -> Reader:
    """A struct with a byte before it that says whether it is there."""

    def read(buffer: memoryview, position: int) -> tuple[Any, int]:
        if buffer[position] >= 0x80:
            return None, position + 1
        return entity(buffer, position + 1)

    return read


def _field_reader(field: Any, flexible: bool) -> Reader:
    inner, is_array, nullable = unwrap(field.type)
    if dataclasses.is_dataclass(inner):
        element = entity_reader(inner)
        if not is_array:
            return _nullable_entity(element) if nullable else element
    else:
        kafka_type = field.metadata["kafka_type"]
        element = _primitive_reader(kafka_type, flexible, nullable and not is_array)
        if not is_array:
            return element
    return _array_reader(element, flexible, nullable)


def _read_tagged(
    values: dict[str, Any], tagged: dict[int, tuple[str, Reader]], buffer: memoryview, position: int
) -> int:
    tags, position = read_tags(buffer, position)
    _elements.left -= len(tags)
    if _elements.left < 0:
        raise MalformedRequest("more tagged fields than tidelog.request.elements.max allows")
    for tag, data in tags.items():
        known = tagged.get(tag)
        if known is not None:
            name, read = known
            values[name] = read(data, 0)[0]
    return position


def entity_reader(entity: Any) -> Reader:
    """Compile the reader of one of kio's classes."""
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        read = _field_reader(field, flexible)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[int(tag)] = (field.name, read)
            inner, is_array, nullable = unwrap(field.type)
            if not dataclasses.is_dataclass(inner) or is_array or nullable:
                defaults[field.name] = absent_value(field, is_array, nullable)
            else:
                defaults[field.name] = field.default

    def read_entity(buffer: memoryview, position: int) -> tuple[Any, int]:
        values = dict(defaults)
        for name, read in plain:
            values[name], position = read(buffer, position)
        if flexible:
            if buffer[position] == 0:
                position += 1
            else:
                position = _read_tagged(values, tagged, buffer, position)
        return entity(**values), position

    return read_entity
