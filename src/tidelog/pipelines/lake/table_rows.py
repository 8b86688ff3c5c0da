"""Records as rows of a table.

Without a schema a row is the record: `key`, `value`, `headers`, `topic`, `partition`, `offset`, `timestamp`.

With schemas of a registry a row has the fields of the value, and the record's own columns with `_` before
their names. Each value is read with the schema that it was written with, and the row has what was written:
a field that the writer's schema lacks is null. So a row depends on its record alone, not on which schema was
the latest when it was read, and reading a topic twice gives the same rows. A value that is no record is the
column `value`; one that is missing (a tombstone) leaves the columns of the value empty.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.arrow_stream import HEADERS
from tidelog.pipelines.decoded_formats import Columns
from tidelog.pipelines.framed_values import FramedValues, format_of
from tidelog.pipelines.lake.column_types import is_empty, plain
from tidelog.pipelines.packed_values import Rows as Places
from tidelog.schemas.registered import RegisteredSchema, RegisteredSchemas

#: a record's own columns, in the order in which tables have them
RECORD = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", plain(HEADERS)),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
#: the same beside a decoded value
OWN = pa.schema([pa.field(f"_{one.name}", one.type) for one in RECORD if one.name != "value"])
REASON = "reason"
NO_KEY = "it has no key"
DEAD = RECORD.append(pa.field(REASON, pa.string()))
VALUE = "value"
REASON_CHARACTERS_MAX = 1_000


class Piece(NamedTuple):
    """Rows with the same columns, and where their records are in the batch; None for all of it."""

    rows: pa.Table
    places: Places | None = None
    #: which rows take the row of their key away; None where none does
    deletes: pa.Array | None = None


class Rows(NamedTuple):
    """What became of records: rows, and the records that cannot be any, with the reason."""

    pieces: tuple[Piece, ...]
    dead: pa.Table | None = None


class RowMaker(Protocol):
    """Makes rows of batches as `arrow_stream` reads them, with headers."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that every table has, whatever is written to the topic."""

    def rows(self, batch: pa.RecordBatch) -> Rows: ...


class RecordRows:
    """Rows that are records."""

    columns = RECORD

    def rows(self, batch: pa.RecordBatch) -> Rows:
        return Rows((Piece(_own(batch, RECORD, list(RECORD.names))),))


class DecodedRows:
    """Rows of values with schemas of a registry, of one kind or (None) of any."""

    columns = OWN

    def __init__(self, schemas: RegisteredSchemas, kind: str | None, message: str | None) -> None:
        self._kind = kind
        self._message = message
        self._values = FramedValues(schemas, self._columns)

    def __repr__(self) -> str:
        return f"<DecodedRows {self._kind} {self._values!r}>"

    def _columns(self, schema: RegisteredSchema) -> Columns:
        return writer_columns(schema, self._kind, self._message)[1]

    def rows(self, batch: pa.RecordBatch) -> Rows:
        values = batch.column(VALUE)
        found, faults = self._values.read(values)
        own = _own(batch, OWN, [name.removeprefix("_") for name in OWN.names])
        pieces: list[Piece] = []
        for written in found:
            rows = own if len(written.rows) == len(batch) else own.take(pa.array(written.rows))
            for name, column in _fields(written.values):
                rows = rows.append_column(name, column)
            pieces.append(Piece(rows, written.rows))
        if values.null_count:
            places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            pieces.append(Piece(own.take(pa.array(places)), places))
        return Rows(tuple(pieces), dead_rows(batch, faults) if faults else None)


class KeyedRows:
    """Rows of a table with a row for each key: tombstones are told from the others, and all have keys."""

    def __init__(self, maker: RowMaker) -> None:
        self._maker = maker
        self.columns = maker.columns

    def rows(self, batch: pa.RecordBatch) -> Rows:
        keyless = np.flatnonzero(batch.column("key").is_null().to_numpy(zero_copy_only=False)).tolist()
        dead = []
        if keyless:
            dead.append(dead_rows(batch, dict.fromkeys(keyless, NO_KEY)))
            batch = batch.filter(batch.column("key").is_valid())
        made = self._maker.rows(batch)
        gone = batch.column(VALUE).is_null()
        pieces = tuple(
            one._replace(deletes=gone if one.places is None else gone.take(pa.array(one.places)))
            for one in made.pieces
        )
        if made.dead is not None:
            dead.append(made.dead)
        return Rows(pieces, pa.concat_tables(dead) if dead else None)


class _Written(NamedTuple):
    """The columns of a writer's schema that a table can have, and what reads them."""

    schema: pa.Schema
    columns: Columns


def writer_columns(schema: RegisteredSchema, kind: str | None, message: str | None) -> _Written:
    """What values of a schema become; ValueError where they cannot be rows."""
    if kind is not None and schema.kind != kind:
        raise ValueError(f"it is {schema.kind}, not {kind}")
    made = format_of(schema, message)
    fields = pa.schema([(name, column.type) for name, column in _fields(pa.nulls(0, made.type))])
    taken = [name for name in fields.names if name in OWN.names]
    if taken:
        raise ValueError(f"its field {taken[0]} has the name of a column of the record itself")
    folded = [name.lower() for name in fields.names]
    twice = next((name for name in fields.names if folded.count(name.lower()) > 1), None)
    if twice is not None:
        raise ValueError(f"two of its fields are called {twice}, but for capitals, which readers may ignore")
    return _Written(fields, made.columns(schema))


def _fields(values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The columns of values, without those that hold nothing."""
    if not pa.types.is_struct(values.type):
        found = [(VALUE, values)]
    else:
        found = [(one.name, column) for one, column in zip(values.type, values.flatten(), strict=True)]
    return ((name, column) for name, column in found if not is_empty(plain(column.type)))


def _own(batch: pa.RecordBatch, schema: pa.Schema, names: list[str]) -> pa.Table:
    columns = [batch.column(name).cast(one.type) for name, one in zip(names, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def dead_rows(batch: pa.RecordBatch, faults: dict[int, str]) -> pa.Table:
    """The records at some rows, with the reason why they are no rows."""
    places = sorted(faults)
    records = _own(batch, RECORD, list(RECORD.names)).take(pa.array(places, pa.int64()))
    reasons = pa.array([faults[row][:REASON_CHARACTERS_MAX] for row in places], pa.string())
    return records.append_column(REASON, reasons)


def without(batch: pa.RecordBatch, offsets: Mapping[TopicPartition, set[int]]) -> pa.RecordBatch:
    """The records of a batch of one partition whose offsets are not among these."""
    if not offsets or not len(batch):
        return batch
    where = TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
    gone = offsets.get(where)
    if not gone:
        return batch
    kept = ~np.isin(batch.column("offset").to_numpy(), np.fromiter(gone, np.int64, len(gone)))
    return batch if kept.all() else batch.filter(pa.array(kept))
