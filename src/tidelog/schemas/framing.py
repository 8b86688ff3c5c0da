"""How a serialized value names its schema: a 0 byte, the schema's id in four bytes, the payload.

Protobuf has, between id and payload, the path of the message in its file, as zigzag numbers after their
count; a lone 0 is the first message.
"""

from collections.abc import Sequence
from typing import NamedTuple

#: magic byte and schema id before the payload
FRAMING_BYTES = 5
_MAGIC = b"\0"


class FramedValue(NamedTuple):
    """A value whose schema is known by its id."""

    schema_id: int
    payload: bytes


def unframed(data: bytes) -> FramedValue | None:
    """The id and the payload of a value; None where it does not begin as serializers begin it."""
    if len(data) < FRAMING_BYTES or data[:1] != _MAGIC:
        return None
    return FramedValue(int.from_bytes(data[1:FRAMING_BYTES], "big"), data[FRAMING_BYTES:])


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload behind the id of its schema."""
    return _MAGIC + schema_id.to_bytes(4, "big") + payload


def varint(number: int) -> bytes:
    """A number from 0 to 2^64-1, seven bits in each byte."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def zigzag(number: int) -> bytes:
    """A number of 64 bits with a sign: small ones are short, below 0 or not."""
    return varint((number << 1) ^ (number >> 63))


def message_path(indexes: Sequence[int]) -> bytes:
    """Where a Protobuf message stands in its file, as serializers write it before the payload."""
    if list(indexes) == [0]:
        return b"\0"
    return zigzag(len(indexes)) + b"".join(zigzag(index) for index in indexes)
