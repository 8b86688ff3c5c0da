"""Control-plane messages through kio, imported on first use.

kio has one frozen dataclass per message and version. A handler reads a request as kio's object and answers
with a plain mapping of field names written for the newest version; `encode_response` keeps the fields the
negotiated version has, fills the rest with the schema's defaults and turns plain numbers into kio's
types (milliseconds into timedelta, error numbers into its enumeration). So a handler is written once, not
once per version.

Requests are read by `schema_reader`, from kio's schemas but not by kio's parser: that one allocates what a
hostile length announces, and ends the process when there is not so much memory.

kio itself takes about 150 ms to import, so nothing here touches it until the first control-plane request;
`warm` imports it in the background after start-up.
"""

import dataclasses
import datetime
import importlib
import io
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tidelog.protocol.apis import Api
from tidelog.protocol.primitives import fit_string, malformed_if_fails
from tidelog.protocol.schema_fields import absent_value, unwrap
from tidelog.protocol.schema_reader import Reader, entity_reader, read_limited

Fields = Mapping[str, Any]

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_Converter = Callable[[Any], Any]
#: as much of an `error_message` as is sent
ERROR_MESSAGE_BYTES_MAX = 2_048


def _message_class(module: str, version: int, side: str) -> type[Any]:
    """Find kio's class for a message: `create_topics`, 7, `request` → CreateTopicsRequest."""
    name = "".join(word.capitalize() for word in module.split("_")) + side.capitalize()
    schema = importlib.import_module(f"kio.schema.{module}.v{version}.{side}")
    found: type[Any] = getattr(schema, name)
    return found


@cache
def _reader(module: str, version: int, side: str = "request") -> Reader:
    return entity_reader(_message_class(module, version, side))


@cache
def _writer(
    module: str, version: int, side: str = "response"
) -> tuple[Callable[[Fields], Any], Callable[[Any, Any], None]]:
    from kio.serial import entity_writer

    message = _message_class(module, version, side)
    return _builder(message), entity_writer(message)


def warm() -> None:
    """Import kio and the schemas nearly every client asks for first."""
    _reader("metadata", 12)
    _writer("metadata", 12)


def decode_request(
    api: Api, version: int, frame: memoryview, position: int, elements_max: int = sys.maxsize
) -> Any:
    """Decode the body of a request into kio's object for this version.

    Bytes behind the end are passed over, as Kafka does: librdkafka leaves some behind Metadata v13.
    """
    reader = _reader(api.module, version)
    return malformed_if_fails(read_limited, reader, frame, position, elements_max)[0]


def encode_response(api: Api, version: int, fields: Fields) -> bytes:
    """Encode the body of a response from a mapping of field names."""
    return _encoded(_writer(api.module, version), fields)


def encode_request(api: Api, version: int, fields: Fields) -> bytes:
    """Encode the body of a request to another broker from a mapping of field names."""
    return _encoded(_writer(api.module, version, "request"), fields)


def decode_response(api: Api, version: int, body: memoryview) -> Any:
    """Decode the body of another broker's response into kio's object for this version."""
    return malformed_if_fails(_reader(api.module, version, "response"), body, 0)[0]


def _encoded(writer: tuple[Callable[[Fields], Any], Callable[[Any, Any], None]], fields: Fields) -> bytes:
    build, write = writer
    out = io.BytesIO()
    write(out, build(fields))
    return out.getvalue()


def unknown_fields(api: Api, version: int, fields: Fields) -> set[str]:
    """The top-level names in `fields` that this version's response does not have (for tests)."""
    message = _message_class(api.module, version, "response")
    return set(fields) - {field.name for field in dataclasses.fields(message)}


def _milliseconds(value: Any) -> datetime.timedelta:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


def _instant(value: Any) -> datetime.datetime | None:
    if value is None or isinstance(value, datetime.datetime):
        return value
    return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)


def _message(value: str | None) -> str | None:
    """Messages repeat what was asked for, which may fill a string by itself."""
    return value if value is None else fit_string(value, ERROR_MESSAGE_BYTES_MAX)


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
    one = _builder(inner) if dataclasses.is_dataclass(inner) else _BY_KAFKA_TYPE.get(kafka_type or "")
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


def _builder(entity: Any) -> Callable[[Fields], Any]:
    """The function that builds an entity from a mapping, compiled once per class."""
    if entity not in _BUILDERS:
        _BUILDERS[entity] = _compile_builder(entity)
    return _BUILDERS[entity]


def _compile_builder(entity: Any) -> Callable[[Fields], Any]:
    plan: list[tuple[str, _Converter | None, Any]] = []
    for field in dataclasses.fields(entity):
        inner, is_array, nullable = unwrap(field.type)
        converter = _field_converter(inner, is_array, field.metadata.get("kafka_type"))
        if field.name == "error_message":
            converter = _message
        if dataclasses.is_dataclass(inner) and not is_array and not nullable:
            default = _builder(inner)({})
        else:
            default = absent_value(field, is_array, nullable)
        plan.append((field.name, converter, default))

    def build(fields: Fields) -> Any:
        values = {}
        for name, converter, default in plan:
            if name in fields:
                value = fields[name]
                values[name] = value if converter is None else converter(value)
            else:
                values[name] = default
        return entity(**values)

    return build
