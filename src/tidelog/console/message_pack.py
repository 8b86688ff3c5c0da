"""MessagePack, read with limits: https://github.com/msgpack/msgpack/blob/master/spec.md.

Records are hostile input, so nesting and the number of values are bounded, and lengths are checked before
anything is made. Bytes that are no single complete value raise ValueError.
"""

import struct
from typing import Any

DEPTH_MAX = 32
VALUES_MAX = 20_000

_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_BINARY = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}
_FIXED_EXTENSION = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_EXTENSION = {0xC7: 1, 0xC8: 2, 0xC9: 4}


def unpack(data: bytes) -> Any:
    """The one value that `data` holds; bytes inside become hex strings, so the result can be JSON."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.position != len(data):
        raise ValueError("bytes are left after the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.values = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise ValueError("the value is cut off")
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def size(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def value(self, depth: int) -> Any:
        self.values += 1
        if depth > DEPTH_MAX or self.values > VALUES_MAX:
            raise ValueError("too many or too deep values")
        tag = self.take(1)[0]
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self.mapping(tag & 0x0F, depth)
        if tag < 0xA0:
            return self.array(tag & 0x0F, depth)
        if tag < 0xC0:
            return self.text(tag & 0x1F)
        return self.tagged(tag, depth)

    def tagged(self, tag: int, depth: int) -> Any:
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if tag in _NUMBERS:
            layout = _NUMBERS[tag]
            return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        if tag in _TEXT:
            return self.text(self.size(_TEXT[tag]))
        if tag in _BINARY:
            return "0x" + self.take(self.size(_BINARY[tag])).hex()
        if tag in _ARRAY:
            return self.array(self.size(_ARRAY[tag]), depth)
        if tag in _MAP:
            return self.mapping(self.size(_MAP[tag]), depth)
        if tag in _FIXED_EXTENSION:
            return self.extension(_FIXED_EXTENSION[tag])
        if tag in _EXTENSION:
            return self.extension(self.size(_EXTENSION[tag]))
        raise ValueError("0xc1 is never used")

    def text(self, size: int) -> str:
        return self.take(size).decode("utf-8")

    def array(self, count: int, depth: int) -> list[Any]:
        self.fits(count)
        return [self.value(depth + 1) for _ in range(count)]

    def mapping(self, count: int, depth: int) -> dict[str, Any]:
        self.fits(2 * count)
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            found[key if isinstance(key, str) else repr(key)] = self.value(depth + 1)
        return found

    def extension(self, size: int) -> dict[str, Any]:
        kind = struct.unpack(">b", self.take(1))[0]
        return {"extension": kind, "data": "0x" + self.take(size).hex()}

    def fits(self, count: int) -> None:
        """Each value takes a byte at least, so a count beyond what is left is a lie."""
        if count > len(self.data) - self.position:
            raise ValueError("the value is cut off")
