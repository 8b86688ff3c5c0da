"""The formats that values are decoded from: columns of a reader's schema, payloads of any writer's."""

import json
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidelog.pipelines.avro_columns import NoColumns, plan
from tidelog.pipelines.json_columns import JsonType, json_type
from tidelog.pipelines.packed_values import Cursor, Flags, Rows, joined, spread
from tidelog.pipelines.protobuf_columns import MessagePlan, message_plan
from tidelog.schemas import protobuf_schema
from tidelog.schemas.avro_reader import AvroSchema
from tidelog.schemas.decoding import reader_of
from tidelog.schemas.protobuf_reader import read_indexes
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, PROTOBUF, RegisteredSchema

#: different messages of one schema in a batch; a message's path in its file is short
MESSAGES_MAX = 32
_PATH_BYTES_MAX = 64
OF_NO_COLUMNS = "it was written with what the schema of the columns does not take"


class Columns(Protocol):
    """What reads the payloads of one writer's schema."""

    def read(self, cursor: Cursor) -> pa.Array:
        """The values; those that do not fit are bad in the cursor, or it does not stand at their end."""

    def fault(self, payload: bytes) -> str:
        """Why a payload was not read."""


class Format(Protocol):
    """A reader's schema."""

    @property
    def type(self) -> pa.DataType:
        """What its values are."""

    def columns(self, writer: RegisteredSchema) -> Columns:
        """What reads values of a writer's schema; ValueError where they cannot be read as this one's."""


class AvroFormat:
    """An Avro schema of columns."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._reader = _avro(schema)
        self.type: pa.DataType = plan(self._reader, self._reader).type

    def columns(self, writer: RegisteredSchema) -> Columns:
        return _AvroColumns(writer, self._reader)


class _AvroColumns:
    def __init__(self, writer: RegisteredSchema, reader: AvroSchema) -> None:
        schema = _avro(writer)
        self._single = schema.read
        self.read = plan(schema, reader).read

    def fault(self, payload: bytes) -> str:
        try:
            self._single(payload)
        except ValueError as fault:
            return str(fault)
        return OF_NO_COLUMNS


def _avro(schema: RegisteredSchema) -> AvroSchema:
    _check_kind(schema, AVRO)
    texts = [json.loads(reference.text) for reference in schema.references]
    return AvroSchema(json.loads(schema.text), texts)


def _check_kind(schema: RegisteredSchema, wanted: str) -> None:
    if schema.kind != wanted:
        raise NoColumns(f"it is {schema.kind}, not {wanted}")


class ProtobufFormat:
    """A message of columns."""

    def __init__(self, schema: RegisteredSchema, message: str | None) -> None:
        file = _protobuf(schema)
        found = file.message_at([0] if message is None else file.path_of(message))
        self._name = found.name
        self._plan = message_plan(file, found)
        self.type = self._plan.type

    def columns(self, writer: RegisteredSchema) -> Columns:
        return _ProtobufColumns(writer, self._name, self._plan)


def _protobuf(schema: RegisteredSchema) -> protobuf_schema.ProtoFile:
    _check_kind(schema, PROTOBUF)
    return protobuf_schema.parse(schema.text, [reference.text for reference in schema.references])


class _ProtobufColumns:
    """Messages are read with the reader's fields; the writer's schema says which message they are."""

    def __init__(self, writer: RegisteredSchema, name: str, made: MessagePlan) -> None:
        self._writer = _protobuf(writer)
        self._single = reader_of(writer).read
        self._name = name
        self._plan = made

    def read(self, cursor: Cursor) -> pa.Array:
        found: list[pa.Array] = []
        places: list[Rows] = []
        left = np.arange(len(cursor))
        for _ in range(MESSAGES_MAX):
            if not len(left):
                break
            path, is_wanted = self._path(cursor, int(left[0]))
            same = _begins_with(cursor, left, path)
            rows, left = left[same], left[~same]
            part = cursor.part(rows)
            part.advance(len(path))
            if is_wanted:
                found.append(self._plan.read(part))
                places.append(rows)
            else:
                part.spoil(np.ones(len(part), np.bool_))
            cursor.join(part, rows)
        cursor.spoil(np.isin(np.arange(len(cursor)), left))
        if not found:
            return pa.nulls(len(cursor), self.type)
        if len(places[0]) == len(cursor):
            return found[0]
        return spread(joined(found), np.concatenate(places), len(cursor))

    @property
    def type(self) -> pa.DataType:
        return self._plan.type

    def _path(self, cursor: Cursor, row: int) -> tuple[bytes, bool]:
        """How a value begins, and whether that is the message of the columns; at least one byte."""
        start = int(cursor.position[row])
        end = min(int(cursor.end[row]), start + _PATH_BYTES_MAX)
        data = cursor.data[start:end].tobytes()
        try:
            indexes, size = read_indexes(data)
            return data[:size], self._writer.message_at(indexes).name == self._name
        except ValueError:
            return data[:1], False

    def fault(self, payload: bytes) -> str:
        try:
            indexes, _ = read_indexes(payload)
            name = self._writer.message_at(indexes).name
            if name != self._name:
                return f"it is a {name}, not a {self._name}"
            self._single(payload)
        except ValueError as fault:
            return str(fault)
        return OF_NO_COLUMNS


class JsonFormat:
    """A JSON Schema of columns; what wrote a value makes no difference to how it is read."""

    def __init__(self, schema: RegisteredSchema) -> None:
        _check_kind(schema, JSON_SCHEMA)
        texts = {reference.name: json.loads(reference.text) for reference in schema.references}
        self._columns = _JsonColumns(json_type(json.loads(schema.text), texts))
        self.type: pa.DataType = self._columns.type

    def columns(self, writer: RegisteredSchema) -> Columns:
        _check_kind(writer, JSON_SCHEMA)
        return self._columns


class _JsonColumns:
    def __init__(self, made: JsonType) -> None:
        self._made = made
        self.type: pa.DataType = made.type

    def read(self, cursor: Cursor) -> pa.Array:
        found: list[Any] = []
        bad = np.zeros(len(cursor), np.bool_)
        data = cursor.data.data
        places = zip(cursor.position.tolist(), cursor.end.tolist(), strict=True)
        for row, (start, end) in enumerate(places):
            try:
                found.append(self._made.read(json.loads(bytes(data[start:end]))))
            except (ValueError, RecursionError):
                found.append(None)
                bad[row] = True
        cursor.position = cursor.end.copy()
        cursor.spoil(bad)
        return pa.array(found, self.type)

    def fault(self, payload: bytes) -> str:
        try:
            self._made.read(json.loads(payload))
        except (ValueError, RecursionError) as fault:
            return str(fault)
        return OF_NO_COLUMNS


def _begins_with(cursor: Cursor, rows: Rows, path: bytes) -> Flags:
    """Which of the values begin with these bytes."""
    starts = cursor.position[rows]
    same = cursor.end[rows] - starts >= len(path)
    for place, byte in enumerate(path):
        same &= cursor.data[np.minimum(starts + place, cursor.end[rows])] == byte
    return same
