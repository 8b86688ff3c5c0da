"""JSON Schema as typed columns, and JSON values as what goes into them.

    object with properties                    a struct with a member for each
    object with additionalProperties only     a map of strings to those
    array with items                          a list
    string, integer, number, boolean          string, 64 bits, 64 bits, boolean
    [null, T], anyOf and oneOf of the two     T
    anything else                             the JSON text

Members that a struct does not have are left out. A value of another type than its column is bad; the other
rules of a schema (patterns, ranges, what is required) are kept by those who write, and not asked here.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from tidelog.schemas.misfit import shown

DEPTH_MAX = 64
#: what references repeat counts each time
TYPES_MAX = 10_000
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
Read = Callable[[Any], Any]


class JsonType(NamedTuple):
    """A column, and what makes its values of JSON values; that raises ValueError."""

    type: pa.DataType
    read: Read


def json_type(schema: Any, references: Mapping[str, Any] | None = None) -> JsonType:
    """The columns of a schema; `references` are others by the names that it has for them."""
    return _Planner(references or {}).planned(schema, schema, 0)


class _Planner:
    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = references
        self._under_way: list[int] = []
        self._count = 0

    def planned(self, schema: Any, home: Any, depth: int) -> JsonType:
        """The type of a schema that stands in `home`; one that holds itself is text where it does."""
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX or id(schema) in self._under_way:
            return _TEXT
        self._count += 1
        if self._count > TYPES_MAX:
            raise ValueError(f"the schema has more than {TYPES_MAX} types")
        self._under_way.append(id(schema))
        try:
            return self._made(schema, home, depth)
        finally:
            self._under_way.pop()

    def _made(self, schema: Mapping[str, Any], home: Any, depth: int) -> JsonType:
        if "$ref" in schema:
            found, inside = self._referred(str(schema["$ref"]), home)
            return self.planned(found, inside, depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                branches = [one for one in schema[word] if not _is_null(one)]
                return self.planned(branches[0], home, depth + 1) if len(branches) == 1 else _TEXT
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            kinds = [one for one in kind if one != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        if kind == "object":
            return self._object(schema, home, depth)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            return _list(self.planned(schema["items"], home, depth + 1))
        return _SIMPLE.get(str(kind), _TEXT)

    def _object(self, schema: Mapping[str, Any], home: Any, depth: int) -> JsonType:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties:
            members = {str(name): self.planned(one, home, depth + 1) for name, one in properties.items()}
            return _struct(members)
        values = schema.get("additionalProperties")
        return _map(self.planned(values, home, depth + 1)) if isinstance(values, Mapping) else _TEXT

    def _referred(self, reference: str, home: Any) -> tuple[Any, Any]:
        """What a reference means, and what it stands in; None for what is not there."""
        name, _, pointer = reference.partition("#")
        inside = self._references.get(name) if name else home
        found = inside
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            step = part.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        return found, inside


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"


def _nullable(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _struct(members: Mapping[str, JsonType]) -> JsonType:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, "an object")
        made = {}
        for name, member in members.items():
            try:
                made[name] = member.read(value.get(name))
            except ValueError as fault:
                raise ValueError(f"{name}: {fault}") from fault
        return made

    return JsonType(pa.struct([(name, one.type) for name, one in members.items()]), _nullable(read))


def _list(item: JsonType) -> JsonType:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _misfit(value, "an array")
        return [item.read(one) for one in value]

    return JsonType(pa.list_(item.type), _nullable(read))


def _map(item: JsonType) -> JsonType:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, "an object")
        return [(_string(name), item.read(one)) for name, one in value.items()]

    return JsonType(pa.map_(pa.string(), item.type), _nullable(read))


def _misfit(value: Any, wanted: str) -> ValueError:
    return ValueError(f"{shown(value)} is not {wanted}")


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        raise _misfit(value, "a string")
    # Arrow takes no half of a surrogate pair; this raises ValueError as well.
    value.encode()
    return value


def _integer(value: Any) -> Any:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not _LONG_MIN <= number <= _LONG_MAX:
        raise _misfit(value, "an integer of 64 bits")
    return number


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _misfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _misfit(value, "a number of 64 bits") from None


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _misfit(value, "true or false")
    return value


def _json_text(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text.encode()
    return text


_TEXT = JsonType(pa.string(), _nullable(_json_text))
_SIMPLE = {
    "string": JsonType(pa.string(), _nullable(_string)),
    "integer": JsonType(pa.int64(), _nullable(_integer)),
    "number": JsonType(pa.float64(), _nullable(_number)),
    "boolean": JsonType(pa.bool_(), _nullable(_boolean)),
}
