"""Serialized values as JSON values, with the schema that they were written with.

Values come out as `avro_reader` and `protobuf_reader` say: bytes as 0x and hexadecimal digits, times in ISO
form, decimals as text. JSON is taken as it is; whether it keeps to its schema is checked when it is written.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from tidelog.schemas import protobuf_schema
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.framing import unframed
from tidelog.schemas.protobuf_reader import read_indexes, read_message
from tidelog.schemas.registered import (
    AVRO,
    JSON_SCHEMA,
    SCHEMAS_KEPT_MAX,
    RegisteredSchema,
    RegisteredSchemas,
)

Read = Callable[[bytes], Any]
_FAULT_CHARACTERS_MAX = 200


class Undecodable(ValueError):
    """Bytes that are no value of a schema; the text says why."""


class Reader(NamedTuple):
    """What reads the payloads of one schema; raises ValueError for those that are none."""

    kind: str
    read: Read


class Decoded(NamedTuple):
    """A value, and what it was written with."""

    schema_id: int
    kind: str
    value: Any


def reader_of(schema: RegisteredSchema) -> Reader:
    """The reader of a schema; ValueError where the schema cannot be used."""
    texts = [reference.text for reference in schema.references]
    try:
        if schema.kind == JSON_SCHEMA:
            return Reader(schema.kind, json.loads)
        if schema.kind == AVRO:
            avro = AvroSchema(json.loads(schema.text), [json.loads(text) for text in texts])
            return Reader(schema.kind, avro.read)
        return Reader(schema.kind, _protobuf(protobuf_schema.parse(schema.text, texts)))
    except (KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(f"the schema cannot be read: {fault!r}") from fault


def _protobuf(schema: protobuf_schema.ProtoFile) -> Read:
    def read(data: bytes) -> Any:
        indexes, position = read_indexes(data)
        return read_message(data, position, schema.message_at(indexes), schema)

    return read


class Decoder:
    """Decodes values of any schema of a registry; safe from any thread."""

    def __init__(self, schemas: RegisteredSchemas) -> None:
        self._schemas = schemas
        self._lock = threading.Lock()
        self._readers: OrderedDict[int, Reader] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Decoder {self._schemas!r}>"

    def decode(self, data: bytes) -> Decoded:
        """A framed value; raises Undecodable, and what asking the registry raises."""
        found = unframed(data)
        if found is None:
            raise Undecodable("not framed with a schema id")
        reader = self.reader(found.schema_id)
        try:
            return Decoded(found.schema_id, reader.kind, reader.read(found.payload))
        except (ValueError, RecursionError) as fault:
            why = str(fault)[:_FAULT_CHARACTERS_MAX]
            raise Undecodable(f"schema {found.schema_id}: {why}") from fault

    def reader(self, schema_id: int) -> Reader:
        """The reader of a schema; raises what asking the registry raises."""
        with self._lock:
            kept = self._readers.get(schema_id)
        if kept is None:
            kept = reader_of(self._schemas.by_id(schema_id))
            with self._lock:
                self._readers[schema_id] = kept
                while len(self._readers) > SCHEMAS_KEPT_MAX:
                    self._readers.popitem(last=False)
        return kept
