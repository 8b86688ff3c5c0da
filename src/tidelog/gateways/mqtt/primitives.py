"""The data types of MQTT: integers, strings, binary data, variable byte integers."""

import struct

from tidelog.gateways.mqtt.faults import Malformed

VARIABLE_INTEGER_MAX = 268_435_455
TEXT_BYTES_MAX = 65_535
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")


class Reader:
    """Reads a packet's bytes from front to back; raises Malformed where they end too early."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def _advance(self, size: int) -> int:
        position = self.position
        if position + size > self.end:
            raise Malformed("the packet ends too early")
        self.position = position + size
        return position

    @property
    def left(self) -> int:
        return self.end - self.position

    def byte(self) -> int:
        return self.data[self._advance(1)]

    def short(self) -> int:
        position = self._advance(2)
        return self.data[position] << 8 | self.data[position + 1]

    def long(self) -> int:
        return int(_LONG.unpack_from(self.data, self._advance(4))[0])

    def variable(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise Malformed("a variable byte integer is longer than it needs to be")
                return value
        raise Malformed("a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        size = self.short()
        position = self._advance(size)
        return self.data[position : position + size]

    def text(self) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError:
            raise Malformed("a string is not UTF-8") from None
        if "\0" in text:
            raise Malformed("a string has a null character")
        return text

    def rest(self) -> bytes:
        return self.data[self._advance(self.end - self.position) : self.end]

    def ended(self) -> None:
        if self.position != self.end:
            raise Malformed("there are bytes behind the end of the packet")


def short(value: int) -> bytes:
    return _SHORT.pack(value)


def long(value: int) -> bytes:
    return _LONG.pack(value)


def variable(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    assert value <= VARIABLE_INTEGER_MAX
    found = bytearray()
    while True:
        value, byte = value >> 7, value & 0x7F
        if not value:
            found.append(byte)
            return bytes(found)
        found.append(byte | 0x80)


def binary(value: bytes) -> bytes:
    assert len(value) <= TEXT_BYTES_MAX
    return _SHORT.pack(len(value)) + value


def text(value: str) -> bytes:
    return binary(value.encode())
