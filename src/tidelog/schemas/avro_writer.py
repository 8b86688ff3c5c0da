"""JSON values written in Avro's binary encoding (https://avro.apache.org/docs/1.12.0/specification/).

Takes what `avro_reader` gives, so a value that was read can be written: bytes and fixed as 0x and hexadecimal
digits, decimals as text, dates and times in ISO form (or the numbers that stand for them). A value of a union
is that of the first branch that it fits, or an object that names the branch, as in Avro's JSON encoding:
{"string": "x"}. A field that is not given takes its default; one that the schema does not have is refused.
"""

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable
from typing import Any

from tidelog.schemas.avro_reader import DEPTH_MAX, TIMES, AvroSchema, full_name
from tidelog.schemas.framing import zigzag
from tidelog.schemas.misfit import DoesNotFit, hexadecimal, shown

#: values tried, those of branches that did not fit among them
STEPS_MAX = 100_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INT, _LONG = 31, 63
_MICROSECOND = datetime.timedelta(microseconds=1)


def write(schema: AvroSchema, value: Any) -> bytes:
    """A value in the encoding; raises DoesNotFit."""
    return _Writer(schema).written(schema.schema, value)


def default_bytes(schema: AvroSchema, kind: Any, space: str, value: Any) -> bytes:
    """The default of a field of this type, found in a namespace, in the encoding; raises DoesNotFit."""
    return _Writer(schema).value(kind, space, value, 0, default=True)


class _Writer:
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._steps = 0

    def written(self, schema: Any, value: Any) -> bytes:
        try:
            return self.value(schema, "", value, 0)
        except (KeyError, TypeError, IndexError) as fault:
            raise DoesNotFit(f"the schema cannot be read: {fault!r}") from fault

    def value(self, schema: Any, space: str, value: Any, depth: int, *, default: bool = False) -> bytes:
        self._steps += 1
        if depth > DEPTH_MAX or self._steps > STEPS_MAX:
            raise DoesNotFit("too many or too deep values")
        if isinstance(schema, list):
            return self._union(schema, space, value, depth, default)
        if isinstance(schema, str):
            if schema in _SIMPLE:
                return _SIMPLE[schema](_latin_bytes(schema, value) if default else value)
            found, inner = self._schema.named(schema, space)
            return self.value(found, inner, value, depth + 1, default=default)
        return self._complex(schema, space, value, depth, default)

    def _complex(self, schema: dict[str, Any], space: str, value: Any, depth: int, default: bool) -> bytes:
        kind = schema["type"]
        match kind:
            case "record" | "error":
                return self._record(schema, space, value, depth, default)
            case "enum":
                if value not in schema["symbols"]:
                    raise DoesNotFit(f"{shown(value)} is none of {', '.join(schema['symbols'])[:200]}")
                return zigzag(schema["symbols"].index(value))
            case "fixed":
                data = value.encode("latin-1") if default else hexadecimal(unlogical(schema, value))
                if len(data) != schema["size"]:
                    raise DoesNotFit(f"{len(data)} bytes, not {schema['size']}")
                return data
            case "array":
                if not isinstance(value, list):
                    raise DoesNotFit(f"{shown(value)} is no list")
                items = [
                    self._inside(f"[{index}]", schema["items"], space, item, depth, default)
                    for index, item in enumerate(value)
                ]
                return _block(items)
            case "map":
                if not isinstance(value, dict):
                    raise DoesNotFit(f"{shown(value)} is no object")
                entries = [
                    _string(key) + self._inside(f".{key}", schema["values"], space, item, depth, default)
                    for key, item in value.items()
                ]
                return _block(entries)
            case str() if kind in _SIMPLE:
                if default:
                    return _SIMPLE[kind](_latin_bytes(kind, value))
                return _SIMPLE[kind](unlogical(schema, value))
            case _:
                return self.value(kind, space, value, depth + 1, default=default)

    def _inside(
        self, part: str, schema: Any, space: str, value: Any, depth: int, default: bool = False
    ) -> bytes:
        try:
            return self.value(schema, space, value, depth + 1, default=default)
        except DoesNotFit as fault:
            raise DoesNotFit(fault.why, part + fault.place) from fault

    def _record(self, schema: dict[str, Any], space: str, value: Any, depth: int, default: bool) -> bytes:
        if not isinstance(value, dict):
            raise DoesNotFit(f"{shown(value)} is no object")
        _, inner = full_name(schema, space)
        names = [field["name"] for field in schema["fields"]]
        unknown = [name for name in value if name not in names]
        if unknown:
            raise DoesNotFit(f"the schema has no field {unknown[0][:80]!r}; it has {', '.join(names)[:200]}")
        written = bytearray()
        for field in schema["fields"]:
            name, place = field["name"], f".{field['name']}"
            if name in value:
                written += self._inside(place, field["type"], inner, value[name], depth, default)
            elif "default" in field:
                written += self._inside(place, field["type"], inner, field["default"], depth, True)
            else:
                raise DoesNotFit("is missing, and has no default", place)
        return bytes(written)

    def _union(self, branches: list[Any], space: str, value: Any, depth: int, default: bool) -> bytes:
        if isinstance(value, dict) and len(value) == 1 and not default:
            ((name, inner),) = value.items()
            for index, branch in enumerate(branches):
                if name in self._names(branch, space):
                    return zigzag(index) + self._inside(f".{name}", branch, space, inner, depth)
        faults = []
        for index, branch in enumerate(branches):
            try:
                return zigzag(index) + self.value(branch, space, value, depth + 1, default=default)
            except DoesNotFit as fault:
                if self._steps > STEPS_MAX:
                    raise
                faults.append(fault)
        # With one branch beside null its fault says most.
        likely = [
            fault for branch, fault in zip(branches, faults, strict=True) if _type_name(branch) != "null"
        ]
        if len(likely) == 1:
            raise likely[0]
        told = ", ".join(_type_name(branch) for branch in branches)
        raise DoesNotFit(f"{shown(value)} fits none of {told[:200]}")

    def _names(self, branch: Any, space: str) -> set[str]:
        """The names of a branch in Avro's JSON encoding, and the short one of a named type."""
        if isinstance(branch, str):
            found = None if branch in _SIMPLE else self._schema.named(branch, space)
            return {branch} if found is None else self._names(*found)
        if isinstance(branch, dict) and branch.get("type") in ("record", "error", "enum", "fixed"):
            name, _ = full_name(branch, space)
            return {name, name.rpartition(".")[2]}
        return {_type_name(branch)}


def _type_name(branch: Any) -> str:
    if isinstance(branch, dict):
        return str(branch.get("name") or branch.get("type"))
    return str(branch)


def _block(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"


def _whole(bits: int, kind: str) -> Callable[[Any], bytes]:
    def write_number(value: Any) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool):
            raise DoesNotFit(f"{shown(value)} is no {kind}")
        if not -(1 << bits) <= value < 1 << bits:
            raise DoesNotFit(f"{value} does not fit into the {bits + 1} bits of {kind}")
        return zigzag(value)

    return write_number


def _ratio(layout: str, kind: str) -> Callable[[Any], bytes]:
    packer = struct.Struct(layout)

    def write_ratio(value: Any) -> bytes:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise DoesNotFit(f"{shown(value)} is no {kind}")
        try:
            return packer.pack(value)
        except (OverflowError, struct.error) as fault:
            raise DoesNotFit(f"{shown(value)} does not fit into a {kind}") from fault

    return write_ratio


def _nothing(value: Any) -> bytes:
    if value is not None:
        raise DoesNotFit(f"{shown(value)} is not null")
    return b""


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise DoesNotFit(f"{shown(value)} is no boolean")
    return b"\1" if value else b"\0"


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise DoesNotFit(f"{shown(value)} is no string")
    try:
        data = value.encode()
    except UnicodeEncodeError as fault:
        raise DoesNotFit(f"the text is no Unicode: {fault.reason}") from fault
    return zigzag(len(data)) + data


def _sized_bytes(value: Any) -> bytes:
    data = hexadecimal(value)
    return zigzag(len(data)) + data


_SIMPLE: dict[str, Callable[[Any], bytes]] = {
    "null": _nothing,
    "boolean": _boolean,
    "int": _whole(_INT, "int"),
    "long": _whole(_LONG, "long"),
    "float": _ratio("<f", "float"),
    "double": _ratio("<d", "double"),
    "bytes": _sized_bytes,
    "string": _string,
}


def _latin_bytes(kind: str, value: Any) -> Any:
    """Defaults of bytes are texts whose characters are the bytes."""
    return value.encode("latin-1") if kind == "bytes" and isinstance(value, str) else value


def unlogical(schema: dict[str, Any], value: Any) -> Any:
    """What stands for a value of a logical type; the value itself where it needs nothing."""
    kind, under = schema.get("logicalType"), schema["type"]
    if kind == "decimal" and under in ("bytes", "fixed") and not isinstance(value, bytes):
        return _decimal(schema, value)
    if kind == "uuid" and under == "fixed" and isinstance(value, str):
        try:
            return uuid.UUID(value).bytes
        except ValueError as fault:
            raise DoesNotFit(f"{shown(value)} is no UUID") from fault
    if not isinstance(value, str):
        return value
    try:
        if kind == "date" and under == "int":
            return (datetime.date.fromisoformat(value) - _EPOCH.date()).days
        if kind in TIMES and under == "long":
            return _moment(value) // TIMES[kind]
    except ValueError as fault:
        raise DoesNotFit(f"{shown(value)} is no {kind} in ISO form") from fault
    return value


def _moment(text: str) -> int:
    """Microseconds since 1970; a text without a zone is in UTC, or local, which is the same number."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // _MICROSECOND


def _decimal(schema: dict[str, Any], value: Any) -> bytes:
    if isinstance(value, str) and value.startswith("0x"):
        return hexadecimal(value)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise DoesNotFit(f"{shown(value)} is no decimal")
    scale = int(schema.get("scale", 0))
    try:
        number = decimal.Decimal(str(value)).scaleb(scale, decimal.Context(prec=400))
    except decimal.InvalidOperation as fault:
        raise DoesNotFit(f"{shown(value)} is no decimal") from fault
    if not number.is_finite() or number != int(number):
        raise DoesNotFit(f"{shown(value)} has more than {scale} digits behind the point")
    whole = int(number)
    if len(str(abs(whole))) > int(schema.get("precision", 0)):
        raise DoesNotFit(f"{shown(value)} has more than {schema.get('precision')} digits")
    size = schema["size"] if schema["type"] == "fixed" else (whole + (whole < 0)).bit_length() // 8 + 1
    try:
        return whole.to_bytes(size, "big", signed=True)
    except OverflowError as fault:
        raise DoesNotFit(f"{shown(value)} does not fit into {size} bytes") from fault
