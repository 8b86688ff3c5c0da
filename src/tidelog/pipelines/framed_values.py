"""Values that name their schema, read in bulk: those with one schema together, whatever their order.

Which columns come out of a writer's schema is the caller's: those of one schema for all (`decoded_values`),
or those that each writer's schema has itself (the rows of a table, `lake`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.pipelines.decoded_formats import AvroFormat, Columns, Format, JsonFormat, ProtobufFormat
from tidelog.pipelines.packed_values import Cursor, Flags, Rows
from tidelog.schemas.framing import FRAMING_BYTES
from tidelog.schemas.registered import AVRO, JSON_SCHEMA, PROTOBUF, RegisteredSchema, RegisteredSchemas
from tidelog.schemas.registry_client import RegistryFault

NOT_FRAMED = "it is not framed with a schema id"
_FORMATS: dict[str, Callable[[RegisteredSchema, str | None], Format]] = {
    AVRO: lambda schema, message: AvroFormat(schema),
    JSON_SCHEMA: lambda schema, message: JsonFormat(schema),
    PROTOBUF: ProtobufFormat,
}


def format_of(schema: RegisteredSchema, message: str | None) -> Format:
    """The columns of a schema; ValueError where it has none."""
    try:
        return _FORMATS[schema.kind](schema, message)
    except (RecursionError, KeyError, TypeError) as fault:
        raise ValueError(f"the schema cannot be read: {fault!r}") from fault


class Written(NamedTuple):
    """The values of one schema, and their places among all."""

    schema_id: int
    rows: Rows
    values: pa.Array


class FramedValues:
    """Reads framed values; what reads a writer's schema is kept."""

    def __init__(self, schemas: RegisteredSchemas, columns: Callable[[RegisteredSchema], Columns]) -> None:
        self._schemas = schemas
        self._make = columns
        self._columns: dict[int, Columns | str] = {}

    def __repr__(self) -> str:
        return f"<FramedValues writers={len(self._columns)}>"

    def read(self, values: pa.Array) -> tuple[list[Written], dict[int, str]]:
        """The values by schema, and why there is none at some rows; a null is in neither."""
        cursor = Cursor.over(values)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        framed, ids = _schema_ids(cursor, present)
        faults = dict.fromkeys(np.flatnonzero(present & ~framed).tolist(), NOT_FRAMED)
        found: list[Written] = []
        for schema_id in np.unique(ids[framed]).tolist():
            rows = np.flatnonzero(framed & (ids == schema_id))
            columns = self._columns_of(schema_id)
            if isinstance(columns, str):
                faults |= dict.fromkeys(rows.tolist(), columns)
                continue
            part = cursor.part(rows)
            part.advance(FRAMING_BYTES)
            read = columns.read(part)
            bad = part.bad | (part.position != part.end)
            if bad.any():
                for row in rows[bad].tolist():
                    payload = values[row].as_py()[FRAMING_BYTES:]
                    faults[row] = f"schema {schema_id}: {columns.fault(payload)}"
                read, rows = read.filter(pa.array(~bad)), rows[~bad]
            if len(rows):
                found.append(Written(schema_id, rows, read))
        return found, faults

    def _columns_of(self, schema_id: int) -> Columns | str:
        """What reads a writer's schema, or why nothing does; a registry that is away raises."""
        known = self._columns.get(schema_id)
        if known is None:
            try:
                known = self._make(self._schemas.by_id(schema_id))
            except RegistryFault as fault:
                if fault.status != 404:
                    raise
                # It may know it later.
                return f"the registry does not know schema {schema_id}"
            except (ValueError, RecursionError) as fault:
                known = f"schema {schema_id}: {fault}"
            self._columns[schema_id] = known
        return known


def _schema_ids(cursor: Cursor, present: Flags) -> tuple[Flags, Rows]:
    """Which values are framed, and the ids of their schemas."""
    starts = cursor.position
    framed = present & (cursor.end - starts >= FRAMING_BYTES) & (cursor.data[starts] == 0)
    ids = np.zeros(len(cursor), np.int64)
    for place in range(1, FRAMING_BYTES):
        ids = (ids << 8) | cursor.data[starts + place]
    return framed, ids
