"""Avro's binary encoding read with the schema that it was written with (https://avro.apache.org/docs/1.12.0/specification/).

Records are hostile input: lengths are checked before anything is made, and depth and the number of values are
bounded. Values come out fit for JSON: bytes as hex strings, times in ISO form, decimals as text.
"""

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any

DEPTH_MAX = 64
VALUES_MAX = 50_000
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_EPOCH = datetime.datetime(1970, 1, 1)
TIMES = {"timestamp-millis": 1_000, "timestamp-micros": 1, "local-timestamp-millis": 1_000}
TIMES["local-timestamp-micros"] = 1


class AvroSchema:
    """A schema with the named types that it defines or refers to."""

    def __init__(self, schema: Any, references: Iterable[Any] = ()) -> None:
        self._named: dict[str, tuple[Any, str]] = {}
        for reference in references:
            self._learn(reference, "", 0)
        self.schema = schema
        self._learn(schema, "", 0)

    def _learn(self, schema: Any, space: str, depth: int) -> None:
        """Note the named types of a schema with the namespace in which they were found."""
        if depth > DEPTH_MAX:
            raise ValueError("the schema is too deep")
        if isinstance(schema, list):
            for branch in schema:
                self._learn(branch, space, depth + 1)
            return
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            name, space = full_name(schema, space)
            self._named[name] = (schema, space)
            for field in schema.get("fields", ()):
                self._learn(field["type"], space, depth + 1)
        elif kind == "array":
            self._learn(schema["items"], space, depth + 1)
        elif kind == "map":
            self._learn(schema["values"], space, depth + 1)
        else:
            self._learn(kind, space, depth + 1)

    def named(self, name: str, space: str) -> tuple[Any, str]:
        """The type that a name means inside a namespace, and the namespace that it was found in."""
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._named.get(full) or self._named.get(name)
        if found is None:
            raise ValueError(f"the schema names {name[:80]!r} and does not define it")
        return found

    def read(self, data: bytes) -> Any:
        """The one value that `data` holds; ValueError where it does not fit the schema."""
        reader = _Reader(data, self.named)
        try:
            value = reader.value(self.schema, "", 0)
        except (
            KeyError,
            TypeError,
            IndexError,
            struct.error,
            OverflowError,
            decimal.DecimalException,
        ) as fault:
            raise ValueError(f"the bytes do not fit the schema: {fault}") from fault
        if reader.position != len(data):
            raise ValueError("bytes are left after the value")
        return value


def full_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """The full name of a named type, and the namespace of what it defines."""
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = str(schema.get("namespace", space) or "")
    return (f"{inner}.{name}" if inner else name), inner


class _Reader:
    def __init__(self, data: bytes, named: Callable[[str, str], tuple[Any, str]]) -> None:
        self.data = data
        self.position = 0
        self.values = 0
        self.named = named
        self._simple: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: self.take(1)[0] != 0,
            "int": self.number,
            "long": self.number,
            "float": lambda: _FLOAT.unpack(self.take(4))[0],
            "double": lambda: _DOUBLE.unpack(self.take(8))[0],
            "bytes": lambda: self.take(self.number()),
            "string": lambda: self.take(self.number()).decode("utf-8"),
        }

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.position:
            raise ValueError("the value is cut off")
        piece = self.data[self.position : self.position + size]
        self.position += size
        return piece

    def number(self) -> int:
        """A zigzag number of at most ten bytes."""
        result = shift = 0
        while True:
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number has too many bytes")

    def value(self, schema: Any, space: str, depth: int) -> Any:
        self.values += 1
        if depth > DEPTH_MAX or self.values > VALUES_MAX:
            raise ValueError("too many or too deep values")
        if isinstance(schema, list):
            branch = self.number()
            if not 0 <= branch < len(schema):
                raise ValueError(f"branch {branch} of a union of {len(schema)}")
            return self.value(schema[branch], space, depth + 1)
        if isinstance(schema, str):
            if schema in self._simple:
                return _plain(self._simple[schema]())
            found, inner = self.named(schema, space)
            return self.value(found, inner, depth + 1)
        return self.complex(schema, space, depth)

    def complex(self, schema: dict[str, Any], space: str, depth: int) -> Any:
        kind = schema["type"]
        match kind:
            case "record" | "error":
                _, inner = full_name(schema, space)
                return {
                    field["name"]: self.value(field["type"], inner, depth + 1) for field in schema["fields"]
                }
            case "enum":
                symbols = schema["symbols"]
                number = self.number()
                if not 0 <= number < len(symbols):
                    raise ValueError(f"symbol {number} of an enum of {len(symbols)}")
                return symbols[number]
            case "fixed":
                return logical(schema, self.take(int(schema["size"])))
            case "array":
                return list(self.blocks(lambda: self.value(schema["items"], space, depth + 1)))
            case "map":
                return dict(self.blocks(lambda: self.entry(schema["values"], space, depth)))
            case str() if kind in self._simple:
                return logical(schema, self._simple[kind]())
            case _:
                return self.value(kind, space, depth + 1)

    def entry(self, schema: Any, space: str, depth: int) -> tuple[str, Any]:
        key = self._simple["string"]()
        return key, self.value(schema, space, depth + 1)

    def blocks(self, read: Callable[[], Any]) -> Iterable[Any]:
        """Items in blocks, each after its count; a negative count is followed by the size in bytes."""
        while (count := self.number()) != 0:
            if count < 0:
                count = -count
                self.number()
            self.values += count
            if self.values > VALUES_MAX:
                raise ValueError("too many values")
            for _ in range(count):
                yield read()


def _plain(value: Any) -> Any:
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def logical(schema: dict[str, Any], value: Any) -> Any:
    """A value with what its logical type makes of it."""
    kind = schema.get("logicalType")
    if kind == "decimal" and isinstance(value, bytes):
        number = decimal.Decimal(int.from_bytes(value, "big", signed=True))
        return format(number.scaleb(-int(schema.get("scale", 0)), decimal.Context(prec=200)), "f")
    if kind == "uuid" and isinstance(value, bytes) and len(value) == 16:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, int) and not isinstance(value, bool):
        if kind == "date":
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        if kind in TIMES:
            moment = _EPOCH + datetime.timedelta(microseconds=value * TIMES[kind])
            return moment.isoformat() + ("" if kind.startswith("local") else "Z")
    return _plain(value)
