"""Bytes to AMQP frames and back, with limits before anything is allocated or decoded.

    type int8   channel uint16   size uint32   payload   end 0xCE

pamqp is the codec of methods and properties. What is sent and received most (publish, ack, deliver, bodies)
is read and written here, from the same layout. Nested tables make pamqp's reader copy what is left each time,
so methods and properties have limits of their own, far below that of a frame.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pamqp import exceptions, frame, header
from pamqp.base import Frame

from tidelog.gateways.amqp.faults import FRAME_ERROR, SYNTAX_ERROR, ConnectionFault

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_MIN, FRAME_MAX = 4_096, 131_072
#: what a method or the properties of a message may take
METHOD_BYTES_MAX = 32 << 10
FRAME_OVERHEAD = 8
#: of a header frame, besides the properties and their flags
CONTENT_OVERHEAD = FRAME_OVERHEAD + 12 + 6
_HEAD = struct.Struct(">BHI")
_HEADER_FIXED = struct.Struct(">HHQ")
_TAG = struct.Struct(">Q")
_PUBLISH, _ACK, _DELIVER, _BASIC_ACK = 0x003C0028, 0x003C0050, b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50"
_INDEX = struct.Struct(">I")
_END_BYTE = b"\xce"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
_BASIC_CLASS = 60
#: what pamqp raises for bytes that do not follow the layout
_UNREADABLE = (
    exceptions.UnmarshalingException,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    OverflowError,
    OSError,
    RecursionError,
    struct.error,
)


class RawFrame(NamedTuple):
    """A frame whose payload is not decoded yet."""

    type: int
    channel: int
    payload: bytes


class Publish(NamedTuple):
    """Basic.Publish."""

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


class Ack(NamedTuple):
    """Basic.Ack of a client."""

    delivery_tag: int
    multiple: bool


class FrameReader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self.frame_max = FRAME_MAX
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def protocol_header(self, data: bytes) -> bytes | None:
        """The first eight bytes; None while they are not all there."""
        self._buffer += data
        if len(self._buffer) < len(PROTOCOL_HEADER):
            return None
        found = bytes(self._buffer[: len(PROTOCOL_HEADER)])
        del self._buffer[: len(PROTOCOL_HEADER)]
        return found

    def feed(self, data: bytes) -> Iterator[RawFrame]:
        """Take bytes in, yield whole frames; raises ConnectionFault."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= _HEAD.size:
                kind, channel, size = _HEAD.unpack_from(buffer, position)
                limit = self.frame_max - FRAME_OVERHEAD
                if kind in (METHOD, HEADER):
                    limit = min(limit, METHOD_BYTES_MAX)
                elif kind not in (BODY, HEARTBEAT):
                    raise ConnectionFault(FRAME_ERROR, f"there are no frames of type {kind}")
                if size > limit:
                    raise ConnectionFault(
                        FRAME_ERROR, f"a frame of type {kind} has {size} bytes, {limit} are allowed"
                    )
                end = position + _HEAD.size + size
                if len(buffer) <= end:
                    return
                if buffer[end] != END:
                    raise ConnectionFault(FRAME_ERROR, "a frame does not end where it should")
                payload = bytes(memoryview(buffer)[position + _HEAD.size : end])
                position = end + 1
                yield RawFrame(kind, channel, payload)
        finally:
            del buffer[:position]


def decode_method(raw: RawFrame) -> "Frame | Publish | Ack":
    """The method of a frame; raises ConnectionFault."""
    payload = raw.payload
    try:
        index = _INDEX.unpack_from(payload)[0]
        if index == _PUBLISH:
            return _decode_publish(payload)
        if index == _ACK and len(payload) == 13:
            return Ack(_TAG.unpack_from(payload, 4)[0], bool(payload[12] & 1))
        whole = _HEAD.pack(METHOD, raw.channel, len(payload)) + payload + _END_BYTE
        _, _, decoded = frame.unmarshal(whole)
    except _UNREADABLE as fault:
        raise ConnectionFault(SYNTAX_ERROR, f"a method cannot be read: {_reason(fault)}") from fault
    if not isinstance(decoded, Frame):
        raise ConnectionFault(SYNTAX_ERROR, "a method was expected")
    return decoded


def _decode_publish(payload: bytes) -> Publish:
    position = 6  # class, method, ticket
    length = payload[position]
    exchange = payload[position + 1 : position + 1 + length].decode()
    position += 1 + length
    length = payload[position]
    routing_key = payload[position + 1 : position + 1 + length].decode()
    bits = payload[position + 1 + length]
    return Publish(exchange, routing_key, bool(bits & 1), bool(bits & 2))


def decode_header(raw: RawFrame) -> header.ContentHeader:
    """Size and properties of a message; raises ConnectionFault."""
    try:
        decoded = header.ContentHeader()
        decoded.unmarshal(raw.payload)
    except _UNREADABLE as fault:
        raise ConnectionFault(SYNTAX_ERROR, f"properties cannot be read: {_reason(fault)}") from fault
    if decoded.class_id != _BASIC_CLASS:
        raise ConnectionFault(SYNTAX_ERROR, f"a message of class {decoded.class_id}")
    return decoded


def _reason(fault: BaseException) -> str:
    return "tables are nested too deeply" if isinstance(fault, RecursionError) else str(fault)[:150]


def encode_method(channel: int, method: Frame) -> bytes:
    return frame.marshal(method, channel)


def short(text: str) -> bytes:
    """A short string, cut to what one can be."""
    data = text.encode("utf-8", "replace")
    if len(data) > 255:
        data = data[:255].decode("utf-8", "ignore").encode()
    return bytes((len(data),)) + data


def encode_deliver(
    channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, exchange: str, routing_key: str
) -> bytes:
    """Basic.Deliver; the consumer tag is written already."""
    payload = b"".join(
        (
            _DELIVER,
            consumer_tag,
            _TAG.pack(delivery_tag),
            b"\x01" if redelivered else b"\x00",
            short(exchange),
            short(routing_key),
        )
    )
    return _HEAD.pack(METHOD, channel, len(payload)) + payload + _END_BYTE


def encode_ack(channel: int, delivery_tag: int, multiple: bool) -> bytes:
    payload = _BASIC_ACK + _TAG.pack(delivery_tag) + (b"\x01" if multiple else b"\x00")
    return _HEAD.pack(METHOD, channel, len(payload)) + payload + _END_BYTE


def encode_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """Header and body frames of a message; the properties are written already."""
    payload = _HEADER_FIXED.pack(_BASIC_CLASS, 0, len(body)) + properties
    pieces = [_HEAD.pack(HEADER, channel, len(payload)), payload, _END_BYTE]
    room = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), room):
        part = body[start : start + room]
        pieces += (_HEAD.pack(BODY, channel, len(part)), part, _END_BYTE)
    return pieces
