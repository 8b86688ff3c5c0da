"""JSON values written in Protobuf's wire format (https://protobuf.dev/programming-guides/encoding/).

Takes what `protobuf_reader` gives: fields by their names (or in lowerCamelCase, as in Protobuf's JSON), enums
by name or number, bytes as 0x and hexadecimal digits, a google.protobuf.Timestamp in ISO form. Numbers may be
texts, as Protobuf's JSON has those of 64 bits. A null is a field that is not set. Repeated numbers are
packed, which every parser takes.
"""

import datetime
import math
import struct
from collections.abc import Callable
from typing import Any

from tidelog.schemas.framing import varint
from tidelog.schemas.misfit import DoesNotFit, hexadecimal, shown
from tidelog.schemas.protobuf_reader import DEPTH_MAX, FIXED, TIMESTAMP
from tidelog.schemas.protobuf_schema import ProtoField, ProtoFile, ProtoMessage

_VARINT, _BYTES = 0, 2
_WIRE_TYPES = {4: 5, 8: 1}
#: lowest and highest number
_RANGES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(1 << 31), (1 << 31) - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(1 << 63), (1 << 63) - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, (1 << 32) - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, (1 << 64) - 1)),
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_message(value: Any, message: ProtoMessage, schema: ProtoFile) -> bytes:
    """A message's bytes; raises DoesNotFit."""
    return _Writer(schema).message(value, message, 0)


class _Writer:
    def __init__(self, schema: ProtoFile) -> None:
        self._schema = schema

    def message(self, value: Any, message: ProtoMessage, depth: int) -> bytes:
        if depth > DEPTH_MAX:
            raise DoesNotFit("messages are nested too deep")
        if message.name == TIMESTAMP and isinstance(value, str):
            value = _timestamp(value)
        if not isinstance(value, dict):
            raise DoesNotFit(f"{shown(value)} is no object")
        by_name = {field.name: field for field in message.fields.values()}
        by_name |= {_camel_case(field.name): field for field in message.fields.values()}
        given: dict[int, Any] = {}
        for name, item in value.items():
            field = by_name.get(name)
            if field is None:
                known = ", ".join(field.name for field in message.fields.values())
                raise DoesNotFit(f"{message.name} has no field {name[:80]!r}; it has {known[:200]}")
            if item is not None:
                given[field.number] = item
        _check_presence(message, given)
        return b"".join(
            self._field(message.fields[number], given[number], message.name, depth)
            for number in sorted(given)
        )

    def _field(self, field: ProtoField, value: Any, scope: str, depth: int) -> bytes:
        try:
            if field.map_value:
                return self._map(field, value, scope, depth)
            if field.repeated:
                return self._repeated(field, value, scope, depth)
            wire_type, data = self._value(field.type, value, scope, depth)
            return _tagged(field.number, wire_type, data)
        except DoesNotFit as fault:
            raise DoesNotFit(fault.why, f".{field.name}{fault.place}") from fault

    def _map(self, field: ProtoField, value: Any, scope: str, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise DoesNotFit(f"{shown(value)} is no object")
        written = b""
        for key, item in value.items():
            given = {"true": True, "false": False}.get(key, key) if field.type == "bool" else key
            try:
                key_type, key_data = self._value(field.type, given, scope, depth + 1)
                value_type, value_data = self._value(field.map_value, item, scope, depth + 1)
            except DoesNotFit as fault:
                raise DoesNotFit(fault.why, f".{key}{fault.place}") from fault
            entry = _tagged(1, key_type, key_data) + _tagged(2, value_type, value_data)
            written += _tagged(field.number, _BYTES, entry)
        return written

    def _repeated(self, field: ProtoField, value: Any, scope: str, depth: int) -> bytes:
        if not isinstance(value, list):
            raise DoesNotFit(f"{shown(value)} is no list")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(self._value(field.type, item, scope, depth))
            except DoesNotFit as fault:
                raise DoesNotFit(fault.why, f"[{index}]{fault.place}") from fault
        if not items:
            return b""
        if items[0][0] != _BYTES:
            return _tagged(field.number, _BYTES, b"".join(data for _, data in items))
        return b"".join(_tagged(field.number, wire_type, data) for wire_type, data in items)

    def _value(self, kind: str, value: Any, scope: str, depth: int) -> tuple[int, bytes]:
        """The wire type and the bytes of one value, without a length."""
        write = _SCALARS.get(kind)
        if write is not None:
            return write(value)
        meaning = self._schema.resolve(kind, scope)
        if isinstance(meaning, ProtoMessage):
            return _BYTES, self.message(value, meaning, depth + 1)
        if meaning is None:
            raise DoesNotFit(f"the schema names the type {kind[:80]!r} and does not define it")
        numbers = {name: number for number, name in meaning.items()}
        if isinstance(value, str) and value in numbers:
            return _VARINT, _signed(numbers[value])
        if isinstance(value, int) and not isinstance(value, bool):
            return _VARINT, _signed(_in_range(value, "int32"))
        raise DoesNotFit(f"{shown(value)} is none of {', '.join(numbers)[:200]}")


def _check_presence(message: ProtoMessage, given: dict[int, Any]) -> None:
    """One field of a oneof at most, and all that are required."""
    chosen: dict[str, str] = {}
    for field in message.fields.values():
        if field.required and field.number not in given:
            raise DoesNotFit("is missing, and is required", f".{field.name}")
        if field.oneof and field.number in given:
            other = chosen.setdefault(field.oneof, field.name)
            if other != field.name:
                raise DoesNotFit(f"{other} and {field.name} are one of {field.oneof}: only one can be set")


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _tagged(number: int, wire_type: int, data: bytes) -> bytes:
    length = varint(len(data)) if wire_type == _BYTES else b""
    return varint(number << 3 | wire_type) + length + data


def _signed(number: int) -> bytes:
    """Ten bytes where it is below 0."""
    return varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def _in_range(value: Any, kind: str) -> int:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError as fault:
            raise DoesNotFit(f"{shown(value)} is no {kind}") from fault
    if not isinstance(value, int) or isinstance(value, bool):
        raise DoesNotFit(f"{shown(value)} is no {kind}")
    lowest, highest = _RANGES[kind]
    if not lowest <= value <= highest:
        raise DoesNotFit(f"{value} does not fit into {kind}")
    return value


Scalar = Callable[[Any], tuple[int, bytes]]


def _number(kind: str) -> Scalar:
    def write(value: Any) -> tuple[int, bytes]:
        number = _in_range(value, kind)
        if kind in FIXED:
            packed = struct.pack(FIXED[kind], number)
            return _WIRE_TYPES[len(packed)], packed
        if kind.startswith("sint"):
            number = (number << 1) ^ (number >> 63)
        return _VARINT, _signed(number)

    return write


def _ratio(kind: str) -> Scalar:
    def write(value: Any) -> tuple[int, bytes]:
        number = _FLOATS.get(value, value) if isinstance(value, str) else value
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise DoesNotFit(f"{shown(value)} is no {kind}")
        try:
            packed = struct.pack(FIXED[kind], number)
        except (OverflowError, struct.error) as fault:
            raise DoesNotFit(f"{shown(value)} does not fit into a {kind}") from fault
        return _WIRE_TYPES[len(packed)], packed

    return write


def _text(value: Any) -> tuple[int, bytes]:
    if not isinstance(value, str):
        raise DoesNotFit(f"{shown(value)} is no string")
    try:
        return _BYTES, value.encode()
    except UnicodeEncodeError as fault:
        raise DoesNotFit(f"the text is no Unicode: {fault.reason}") from fault


def _truth(value: Any) -> tuple[int, bytes]:
    if not isinstance(value, bool):
        raise DoesNotFit(f"{shown(value)} is no bool")
    return _VARINT, b"\1" if value else b"\0"


_SCALARS: dict[str, Scalar] = {
    **{kind: _number(kind) for kind in _RANGES},
    "float": _ratio("float"),
    "double": _ratio("double"),
    "bool": _truth,
    "string": _text,
    "bytes": lambda value: (_BYTES, hexadecimal(value)),
}


def _timestamp(text: str) -> dict[str, int]:
    """The message of a time in ISO form, to the nanosecond."""
    whole, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        if point and not 1 <= len(digits) <= 9:
            raise ValueError
        moment = datetime.datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError as fault:
        raise DoesNotFit(f"{shown(text)} is no time in ISO form") from fault
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    seconds = (moment - _EPOCH) // datetime.timedelta(seconds=1)
    return {"seconds": seconds, "nanos": int(digits.ljust(9, "0")) if digits else 0}
