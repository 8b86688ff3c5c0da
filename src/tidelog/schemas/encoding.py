"""JSON values as serialized ones, with a schema of a registry.

Bytes in JSON are 0x and hexadecimal digits, as they come out of `decoding`: what was decoded can be encoded.
"""

import importlib.util
import json
from collections.abc import Callable
from typing import Any

from tidelog.schemas import avro_writer, protobuf_schema
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.framing import framed, message_path
from tidelog.schemas.misfit import DoesNotFit
from tidelog.schemas.protobuf_writer import write_message
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, RegisteredSchema

Write = Callable[[Any], bytes]


class NoValidator(Exception):
    """JSON Schema cannot be checked: the extra `registry` is not installed."""


class Encoder:
    """Encodes values with one schema."""

    def __init__(self, schema: RegisteredSchema, message: str | None = None) -> None:
        """`message` names the one of a Protobuf schema that is meant, where it is not the first.

        Raises ValueError for a schema that cannot be used, NoValidator.
        """
        self.schema = schema
        if message is not None and schema.kind in (AVRO, JSON_SCHEMA):
            raise ValueError("only a Protobuf schema has messages to choose from")
        try:
            self._write = _writer(schema, message)
        except (KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise ValueError(f"the schema cannot be read: {fault!r}") from fault

    def __repr__(self) -> str:
        return f"<Encoder {self.schema!r}>"

    def encode(self, value: Any) -> bytes:
        """A framed value; raises DoesNotFit."""
        try:
            return framed(self.schema.id, self._write(value))
        except RecursionError as fault:
            raise DoesNotFit("too many or too deep values") from fault


def _writer(schema: RegisteredSchema, message: str | None) -> Write:
    texts = [reference.text for reference in schema.references]
    if schema.kind == AVRO:
        avro = AvroSchema(json.loads(schema.text), [json.loads(text) for text in texts])
        return lambda value: avro_writer.write(avro, value)
    if schema.kind == JSON_SCHEMA:
        return _checked_json(schema)
    file = protobuf_schema.parse(schema.text, texts)
    path = [0] if message is None else file.path_of(message)
    found, prefix = file.message_at(path), message_path(path)
    return lambda value: prefix + write_message(value, found, file)


def _checked_json(schema: RegisteredSchema) -> Write:
    if importlib.util.find_spec("jsonschema") is None:
        raise NoValidator
    from tidelog.schemas.json_values import checker

    check = checker(schema)

    def write(value: Any) -> bytes:
        check(value)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    return write
