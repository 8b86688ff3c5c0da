"""kio's objects from plain mappings, for tests that hold our codecs against kio's own."""

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.protocol.schema_fields import absent_value, unwrap

Fields = Mapping[str, Any]
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_Converter = Callable[[Any], Any]


def _milliseconds(value: Any) -> datetime.timedelta:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


def _instant(value: Any) -> datetime.datetime | None:
    if value is None or isinstance(value, datetime.datetime):
        return value
    return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)


def _error_code(value: Any) -> Any:
    from kio.schema.errors import ErrorCode

    return ErrorCode(int(value))


_BY_KAFKA_TYPE: dict[str, _Converter] = {
    "error_code": _error_code,
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _instant,
}


def _field_converter(inner: Any, is_array: bool, kafka_type: str | None) -> _Converter | None:
    """How to turn a plain value into what kio's writer expects; None if it already is."""
    one = build(inner) if dataclasses.is_dataclass(inner) else _BY_KAFKA_TYPE.get(kafka_type or "")
    if not is_array:
        if one is None:
            return None
        single = one
        return lambda value: None if value is None else single(value)
    if one is None:
        return lambda values: None if values is None else tuple(values)
    each = one
    return lambda values: None if values is None else tuple([each(value) for value in values])


_BUILDERS: dict[Any, Callable[[Fields], Any]] = {}


def build(entity: Any) -> Callable[[Fields], Any]:
    """The function that builds an entity from a mapping, compiled once per class."""
    if entity not in _BUILDERS:
        _BUILDERS[entity] = _compiled(entity)
    return _BUILDERS[entity]


def _compiled(entity: Any) -> Callable[[Fields], Any]:
    plan: list[tuple[str, _Converter | None, Any]] = []
    for field in dataclasses.fields(entity):
        inner, is_array, nullable = unwrap(field.type)
        converter = _field_converter(inner, is_array, field.metadata.get("kafka_type"))
        if dataclasses.is_dataclass(inner) and not is_array and not nullable:
            default = build(inner)({})
        else:
            default = absent_value(field, is_array, nullable)
        plan.append((field.name, converter, default))

    def made(fields: Fields) -> Any:
        values = {}
        for name, converter, default in plan:
            if name in fields:
                value = fields[name]
                values[name] = value if converter is None else converter(value)
            else:
                values[name] = default
        return entity(**values)

    return made
