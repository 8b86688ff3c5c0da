"""MessagePack, read with limits: https://github.com/msgpack/msgpack/blob/master/spec.md.

Records are hostile input. The msgpack library reads numbers, texts, binaries and extensions, none of which
can be longer than the record. Arrays and maps are entered here, one header at a time: the library makes room
for items that each of a thousand nested headers only claims (78 MB for a record of 1 MB). Nesting and the
number of values are bounded. Bytes that are no single complete value raise ValueError.
"""

from typing import Any

import msgpack

DEPTH_MAX = 32
VALUES_MAX = 20_000
_MAPS = {*range(0x80, 0x90), 0xDE, 0xDF}
_ARRAYS = {*range(0x90, 0xA0), 0xDC, 0xDD}


def unpack(data: bytes) -> Any:
    """The one value that `data` holds; bytes inside become hex strings, so the result can be JSON."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (msgpack.UnpackException, OverflowError) as fault:
        raise ValueError(f"the value is cut off or is none: {fault}") from fault
    if reader.left_bytes:
        raise ValueError("bytes are left after the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0
        size = len(data)
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=max(1, size), max_array_len=size, max_map_len=size, ext_hook=_extension
        )
        self._unpacker.feed(data)

    @property
    def left_bytes(self) -> int:
        return len(self._data) - int(self._unpacker.tell())

    def value(self, depth: int) -> Any:
        self._values += 1
        if depth > DEPTH_MAX or self._values > VALUES_MAX:
            raise ValueError("too many or too deep values")
        if not self.left_bytes:
            raise ValueError("the value is cut off")
        tag = self._data[self._unpacker.tell()]
        if tag in _ARRAYS:
            count = self._fitting(self._unpacker.read_array_header(), 1)
            return [self.value(depth + 1) for _ in range(count)]
        if tag in _MAPS:
            count = self._fitting(self._unpacker.read_map_header(), 2)
            return dict(self._entry(depth) for _ in range(count))
        found = self._unpacker.unpack()
        if isinstance(found, msgpack.Timestamp):
            return _extension(-1, found.to_bytes())
        return f"0x{found.hex()}" if isinstance(found, bytes) else found

    def _entry(self, depth: int) -> tuple[str, Any]:
        key = self.value(depth + 1)
        return key if isinstance(key, str) else repr(key), self.value(depth + 1)

    def _fitting(self, count: int, bytes_each: int) -> int:
        """Each value takes a byte at least, so a count beyond what is left is a lie."""
        if count * bytes_each > self.left_bytes:
            raise ValueError("the value is cut off")
        return count


def _extension(kind: int, data: bytes) -> dict[str, Any]:
    return {"extension": kind, "data": f"0x{data.hex()}"}
