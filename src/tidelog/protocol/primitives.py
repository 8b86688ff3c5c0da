"""The few primitive readers and writers the hand-written codecs share.

Readers take a buffer and a position and return the value and the next position. The buffer is one whole
frame, so running past its end raises `struct.error` or `IndexError`; lengths are checked here because
slicing a memoryview past its end would silently give less. The caller turns all three into one answer.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

NO_TAGS = b"\x00"
#: topics and partitions that one Fetch request may name; no broker leads as many
PARTITIONS_MAX = 50_000
#: the same for Produce: with a batch for each, more than clients put into a request by default
PRODUCED_PARTITIONS_MAX = 20_000
#: tagged fields in one place; the protocol has a handful
TAGS_MAX = 1_000
#: the longest string in bytes, in every version: what a 16-bit length can say, and what we could send back
STRING_BYTES_MAX = 32_767


class MalformedRequest(ValueError):
    """The bytes of a request do not follow its schema."""


#: what decoding a hostile frame may raise
DECODING_ERRORS = (MalformedRequest, struct.error, IndexError, UnicodeDecodeError)

Result = TypeVar("Result")


def malformed_if_fails(decode: Callable[..., Result], *arguments: Any) -> Result:
    """Call a decoder and turn whatever a hostile frame makes it raise into `MalformedRequest`."""
    try:
        return decode(*arguments)
    except DECODING_ERRORS as fault:
        raise MalformedRequest(str(fault)) from fault


def read_unsigned_varint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read a base-128 number of at most five bytes."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 28:
            raise MalformedRequest("a varint is longer than five bytes")


def unsigned_varint(value: int) -> bytes:
    """Write a base-128 number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def checked_slice(buffer: memoryview, position: int, length: int) -> memoryview:
    """Return `length` bytes from `position`, or refuse if the buffer has fewer."""
    if length < 0 or position + length > len(buffer):
        raise MalformedRequest(f"a field of {length} bytes does not fit the frame")
    return buffer[position : position + length]


def read_string(buffer: memoryview, position: int) -> tuple[str, int]:
    """Read a string with a 16-bit length that may not be null."""
    length = INT16.unpack_from(buffer, position)[0]
    position += 2
    return str(checked_slice(buffer, position, length), "utf-8"), position + length


def read_nullable_string(buffer: memoryview, position: int) -> tuple[str | None, int]:
    """Read a string with a 16-bit length, -1 for null."""
    length = INT16.unpack_from(buffer, position)[0]
    position += 2
    if length == -1:
        return None, position
    return str(checked_slice(buffer, position, length), "utf-8"), position + length


def read_compact_string(buffer: memoryview, position: int) -> tuple[str, int]:
    """Read a string with a varint length plus one that may not be null."""
    length, position = read_unsigned_varint(buffer, position)
    if length == 0:
        raise MalformedRequest("a string that must not be null is null")
    length -= 1
    if length > STRING_BYTES_MAX:
        raise MalformedRequest(f"a string had invalid length {length}")
    return str(checked_slice(buffer, position, length), "utf-8"), position + length


def read_compact_nullable_string(buffer: memoryview, position: int) -> tuple[str | None, int]:
    """Read a string with a varint length plus one, zero for null."""
    length, position = read_unsigned_varint(buffer, position)
    if length == 0:
        return None, position
    length -= 1
    if length > STRING_BYTES_MAX:
        raise MalformedRequest(f"a string had invalid length {length}")
    return str(checked_slice(buffer, position, length), "utf-8"), position + length


def read_array_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read a 32-bit array length; null counts as empty."""
    length = INT32.unpack_from(buffer, position)[0]
    if length < -1:
        raise MalformedRequest(f"an array length of {length}")
    return max(length, 0), position + 4


def read_compact_array_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read a varint array length plus one; null counts as empty."""
    length, position = read_unsigned_varint(buffer, position)
    return max(length - 1, 0), position


def read_uuid(buffer: memoryview, position: int) -> tuple[UUID, int]:
    """Read sixteen bytes as a UUID."""
    return UUID(bytes=bytes(checked_slice(buffer, position, 16))), position + 16


def too_many_partitions() -> MalformedRequest:
    """What a request that names more than anybody needs is refused with."""
    return MalformedRequest("more topics and partitions than one request may name")


def skip_tags(buffer: memoryview, position: int) -> int:
    """Pass over a tagged-field section whose tags do not matter here."""
    if buffer[position] == 0:
        return position + 1
    return read_tags(buffer, position)[1]


def skip_counted_tags(buffer: memoryview, position: int, left: int) -> tuple[int, int]:
    """Pass over tagged fields, of which a request may have so many: the position, and how many are left."""
    tags, position = read_tags(buffer, position)
    left -= len(tags)
    if left < 0:
        raise too_many_partitions()
    return position, left


def read_tags(buffer: memoryview, position: int) -> tuple[dict[int, memoryview], int]:
    """Read a tagged-field section as tag → bytes."""
    count, position = read_unsigned_varint(buffer, position)
    if count > TAGS_MAX:
        raise MalformedRequest(f"{count} tagged fields")
    tags: dict[int, memoryview] = {}
    for _ in range(count):
        tag, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        tags[tag] = checked_slice(buffer, position, size)
        position += size
    return tags, position


def fit_string(value: str, bytes_max: int = STRING_BYTES_MAX) -> str:
    """As much of a text as fits a string of the protocol; for texts that we make from others."""
    if len(value) * 4 <= bytes_max:
        return value
    encoded = value.encode()
    return value if len(encoded) <= bytes_max else encoded[:bytes_max].decode(errors="ignore")


def string(value: str) -> bytes:
    """Write a string with a 16-bit length."""
    data = value.encode()
    return INT16.pack(len(data)) + data


def nullable_string(value: str | None) -> bytes:
    """Write a string with a 16-bit length, -1 for null."""
    return b"\xff\xff" if value is None else string(value)


def compact_string(value: str) -> bytes:
    """Write a string with a varint length plus one."""
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


def compact_nullable_string(value: str | None) -> bytes:
    """Write a string with a varint length plus one, zero for null."""
    return b"\x00" if value is None else compact_string(value)
