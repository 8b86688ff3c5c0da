"""Fields of the keys and values that coordinators store in internal topics, as Kafka lays them out.

A string is int16 length and UTF-8, bytes are int32 length and content, an array is int32 count. In the
flexible versions of a value these are Kafka's compact forms (unsigned varint of length plus one), with tagged
fields after each struct.
"""

import struct

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class UnreadableRecord(ValueError):
    """The stored bytes are not what their version promises, or the version is from a newer Kafka."""


def text(encoded: bytes) -> str:
    """Decode a stored string."""
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord("a string is not UTF-8") from error


def varint_field(number: int) -> bytes:
    """An unsigned varint, as the lengths of the flexible versions are."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Reader:
    """A cursor over one stored key or value; raises `UnreadableRecord` where the bytes end too early."""

    __slots__ = ("_buffer", "_position", "flexible")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._position = 0
        self.flexible = False

    def raw(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._buffer):
            raise UnreadableRecord(f"{size} bytes wanted at {self._position} of {len(self._buffer)}")
        taken = self._buffer[self._position : end]
        self._position = end
        return bytes(taken)

    def int8(self) -> int:
        return int.from_bytes(self.raw(1), "big", signed=True)

    def int16(self) -> int:
        return int(_INT16.unpack(self.raw(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.raw(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.raw(8))[0])

    def unsigned_varint(self) -> int:
        result = shift = 0
        while True:
            byte = self.raw(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
            if shift > 28:
                raise UnreadableRecord("a varint of more than five bytes")

    def nullable_string(self) -> str | None:
        size = self.unsigned_varint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        return text(self.raw(size))

    def string(self) -> str:
        found = self.nullable_string()
        if found is None:
            raise UnreadableRecord("a string that must be there is null")
        return found

    def nullable_array_count(self) -> int:
        """The number of elements that follow, -1 for a null array."""
        count = self.unsigned_varint() - 1 if self.flexible else self.int32()
        if count < -1 or count > len(self._buffer) - self._position:
            raise UnreadableRecord(f"an array of {count} elements in {len(self._buffer)} bytes")
        return count

    def array_count(self) -> int:
        count = self.nullable_array_count()
        if count < 0:
            raise UnreadableRecord("an array that must be there is null")
        return count

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields that end a struct of a flexible version, as tag to bytes."""
        found: dict[int, bytes] = {}
        if self.flexible:
            for _ in range(self.unsigned_varint()):
                tag = self.unsigned_varint()
                found[tag] = self.raw(self.unsigned_varint())
        return found

    # Last in the class: from here on its name hides the type.
    def bytes(self) -> bytes:
        return self.raw(self.unsigned_varint() - 1 if self.flexible else self.int32())
