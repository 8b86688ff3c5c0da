"""Requests as large as their schema lets them be, written from kio's classes, for any API and version.

`LargestRequest(module, version, …)` walks the class of a request and writes every field: strings of a given
length, byte strings of a given size, arrays of a given number of elements, tagged fields that nobody knows.
What is written is bytes, not kio's objects: an array of 50,000 elements is one of them, repeated with other
names.
"""

import dataclasses
import importlib
import struct
from collections.abc import Iterator
from typing import Any

from tidelog.protocol.primitives import unsigned_varint
from tidelog.protocol.schema_fields import unwrap

#: ApiVersions 5 is newer than kio
KIO_VERSION_MAX = {"ApiVersions": 4}
_FIXED = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float64": "d", "bool": "?", "error_code": "h", "timedelta_i32": "i", "timedelta_i64": "q",
    "datetime_i64": "q",
}  # fmt: skip
#: Produce has no answer with 0; a follower is answered in another way
_NUMBERS = {"acks": -1, "replica_id": -1}
#: stands for the number of an element in its first name; as long as what takes its place
MARK = b"@@@@@@@@"


def request_class(module: str, version: int) -> Any:
    """kio's class of a request."""
    name = "".join(word.capitalize() for word in module.split("_")) + "Request"
    return getattr(importlib.import_module(f"kio.schema.{module}.v{version}.request"), name)


class LargestRequest:
    """One request and how large its parts are."""

    def __init__(
        self,
        module: str,
        version: int,
        *,
        strings: int = 10,
        elements: int = 1,
        inner_elements: int = 1,
        blobs: int = 0,
        tags: int = 0,
        long_string: int = -1,
        text: bytes = b"",
    ) -> None:
        """`elements` are those of each array of the request itself, `inner_elements` of the arrays in them.

        `long_string` is the number of the one string that is longer than the protocol allows; `text` is what
        all strings are, instead of names.
        """
        self._class = request_class(module, version)
        self._strings = strings
        self._counts = (elements, inner_elements)
        self._blobs = blobs
        self._tags = tags
        self._long_string = long_string
        self._text = text
        #: elements of all arrays together, as the broker counts them
        self.element_count = 0
        #: whether there are byte strings
        self.has_blobs = False
        #: the names of the fields that are strings, in the order in which they are written
        self.string_names: list[str] = []

    def encode(self) -> bytes:
        """The body of the request."""
        self.string_names = []
        self.element_count = 0
        self._multiple = 1
        return self._entity(self._class, 0)

    def _entity(self, entity: Any, depth: int) -> bytes:
        flexible = entity.__flexible__
        parts = []
        tagged = []
        for field in dataclasses.fields(entity):
            data = self._field(field, flexible, depth)
            if "tag" in field.metadata:
                tagged.append((int(field.metadata["tag"]), data))
            else:
                parts.append(data)
        if flexible:
            parts.append(self._tag_section(sorted(tagged)))
        return b"".join(parts)

    def _tag_section(self, known: list[tuple[int, bytes]]) -> bytes:
        every = known + [(10_000 + number, b"") for number in range(self._tags)]
        return unsigned_varint(len(every)) + b"".join(
            unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in every
        )

    def _field(self, field: Any, flexible: bool, depth: int) -> bytes:
        inner, is_array, nullable = unwrap(field.type)
        if not is_array:
            present = b"\x01" if dataclasses.is_dataclass(inner) and nullable else b""
            return present + self._value(inner, field, flexible, depth)
        count = self._counts[min(depth, 1)]
        self.element_count += self._multiple * count
        self._multiple *= count
        element = self._value(inner, field, flexible, depth + 1) if count else b""
        self._multiple //= count or 1
        length = unsigned_varint(count + 1) if flexible else struct.pack(">i", count)
        return length + b"".join(_repeated(element, count))

    def _value(self, inner: Any, field: Any, flexible: bool, depth: int) -> bytes:
        if dataclasses.is_dataclass(inner):
            return self._entity(inner, depth)
        kafka_type = field.metadata["kafka_type"]
        if kafka_type in _FIXED:
            return struct.pack(">" + _FIXED[kafka_type], _NUMBERS.get(field.name, 0))
        if kafka_type == "uuid":
            return MARK + MARK
        if kafka_type == "string":
            return self._string(field.name, flexible)
        assert kafka_type in ("bytes", "records"), kafka_type
        self.has_blobs = True
        length = unsigned_varint(self._blobs + 1) if flexible else struct.pack(">i", self._blobs)
        return length + bytes(self._blobs)

    def _string(self, name: str, flexible: bool) -> bytes:
        size = self._strings if len(self.string_names) != self._long_string else 32_768
        self.string_names.append(name)
        text = self._text or (MARK + b"n" * max(0, size - len(MARK)))[:size]
        size = len(text)
        if flexible:
            return unsigned_varint(size + 1) + text
        # a negative length is what a string of 32,768 bytes becomes here
        return struct.pack(">H", size) + text


def _repeated(element: bytes, count: int) -> Iterator[bytes]:
    """An element so many times, each with its number in its names."""
    if MARK not in element:
        yield element * count
        return
    for number in range(count):
        yield element.replace(MARK, b"%08d" % number)
