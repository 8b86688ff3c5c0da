"""Topics and Iceberg tables under SQL, for a first look: DuckDB in this process, which reads them as Arrow.

    SELECT * FROM orders                       a topic; "with-a-dash" needs quotes
    SELECT * FROM lake.orders                  a table of the catalog, as it is now

A topic's newest records are read, as many as are asked for; they have the columns of rows in tables
(`table_rows`), save that keys and values that are not decoded are text, or 0x and hexadecimal digits where
they are no UTF-8. Only SELECT is run, and DuckDB gets no extensions from elsewhere.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.lake.catalogs import CatalogOptions
from tidelog.pipelines.lake.column_types import DoNotMerge, conformed_table, merged_schema, plain_schema
from tidelog.pipelines.lake.iceberg_table import IcebergTable
from tidelog.pipelines.lake.table_rows import REASON, RowMaker
from tidelog.pipelines.offset_planning import OffsetRange
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import SourceOptions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: of one topic, or of one table
BYTES_MAX = 1 << 30
_WITHOUT = "SQL needs DuckDB: pip install 'tidelog[sql]'"
_RECORD_TEXTS = ("key", "value", "_key")


class BadQuery(BadOption):
    """SQL that cannot be run; the text is DuckDB's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave, and what a person should know about it."""

    rows: pa.Table
    notes: tuple[str, ...] = ()


@dataclass
class FirstLook:
    """Where names of queries are looked up."""

    #: client options, with the prefix `kafka.`
    kafka: Mapping[str, str] = field(repr=False)
    maker: RowMaker
    #: of each topic, the newest
    records_max: int
    #: None where nobody named one
    catalog: CatalogOptions | None = None

    def run(self, sql: str) -> Answer:
        """Run a query; raises BadQuery, BadOption, and what clusters and catalogs raise."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise BadOption(_WITHOUT) from None
        notes: list[str] = []
        with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as database:
            for number, (schema, name) in enumerate(tables_of(database, sql)):
                rows = self._topic(name, notes.append) if not schema else self._table(f"{schema}.{name}")
                if rows is not None:
                    _register(database, schema, name, rows, number)
            try:
                found: pa.Table = database.sql(sql).to_arrow_table()
            except duckdb.Error as fault:
                raise BadQuery(str(fault)) from fault
        return Answer(found, tuple(notes))

    def _table(self, name: str) -> pa.Table:
        if self.catalog is None:
            raise BadOption(f"{name} is a table of a catalog: say which with --warehouse or --catalog")
        table = IcebergTable.find(self.catalog.open(), name, "")
        if table is None:
            raise BadOption(f"the catalog has no table {name}")
        reader = table.table.scan().to_arrow_batch_reader()
        return pa.Table.from_batches(
            _bounded(reader, name, "query its files with Spark or DuckDB"), reader.schema
        )

    def _topic(self, name: str, note: Callable[[str], None]) -> pa.Table | None:
        """The newest records of a topic; None for the name of a file, which DuckDB reads itself."""
        options = {"subscribe": name, "startingOffsets": "earliest", **self.kafka}
        source = SourceOptions.read(options, streaming=True)
        with Cluster(source.client) as cluster:
            if name not in cluster.topics([name]):
                if "." in name or "/" in name:
                    return None
                raise BadOption(f"the cluster has no topic {name}; 'tidelog topic list' shows those that are")
            ranges, left_out = _newest(QueryOffsets(source, cluster), self.records_max)
        if left_out:
            note(
                f"{name}: the newest {self.records_max} records; --last reads more of {left_out} before them"
            )
        pieces: list[pa.Table] = []
        dead: list[str] = []
        schema = self.maker.columns
        for batch in _bounded(_records(source, ranges), name, "--last reads fewer records"):
            made = self.maker.rows(batch)
            if made.dead is not None:
                dead += made.dead.column(REASON).to_pylist()
            for piece in made.pieces:
                try:
                    schema = merged_schema(schema, plain_schema(piece.rows.schema))
                    pieces.append(piece.rows)
                except DoNotMerge as fault:
                    dead += [str(fault)] * len(piece.rows)
        if dead:
            note(f"{name}: {len(dead)} records are left out, for the first of them {dead[0]}")
        conformed = [conformed_table(one, schema) for one in pieces] or [schema.empty_table()]
        return _with_texts(pa.concat_tables(conformed))


def tables_of(database: "DuckDBPyConnection", sql: str) -> list[tuple[str, str]]:
    """The tables that a query reads, each a schema, or none, and a name; raises BadQuery."""
    [(text,)] = database.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if tree.get("error"):
        raise BadQuery(tree["error_message"])
    if len(tree["statements"]) != 1:
        raise BadQuery("one SELECT at a time")
    found: dict[tuple[str, str], None] = {}
    for schema, name in _tables(tree, frozenset()):
        found[schema, name] = None
    return list(found)


def _tables(node: Any, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Of a part of the tree in which some names are of subqueries (WITH)."""
    if isinstance(node, list):
        for one in node:
            yield from _tables(one, known)
    if not isinstance(node, dict):
        return
    named = {entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", ())}
    inside = known | named
    if node.get("type") == "BASE_TABLE":
        schema = ".".join(part for part in (node["catalog_name"], node["schema_name"]) if part)
        if schema or node["table_name"].lower() not in known:
            yield schema, node["table_name"]
    for value in node.values():
        yield from _tables(value, inside)


def _register(database: "DuckDBPyConnection", schema: str, name: str, rows: pa.Table, number: int) -> None:
    where = _quoted(name)
    if schema:
        # A dot inside belongs to the namespace.
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        where = f"{_quoted(schema)}.{where}"
    database.register(f"_tidelog_{number}", rows)
    database.execute(f"CREATE VIEW {where} AS SELECT * FROM _tidelog_{number}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _newest(offsets: QueryOffsets, records_max: int) -> tuple[list[OffsetRange], int]:
    """The ends of all partitions, in proportion to what each has, and how many offsets are left out."""
    first, last = offsets.starting(), offsets.latest()
    counts = {where: last[where] - first.get(where, last[where]) for where in last}
    total = sum(counts.values())
    kept = {
        where: math.ceil(count * min(1.0, records_max / max(1, total))) for where, count in counts.items()
    }
    ranges = [OffsetRange(where, last[where] - kept[where], last[where]) for where in sorted(last)]
    return [one for one in ranges if one.records_count], total - sum(kept.values())


def _records(source: SourceOptions, ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
    for wanted in ranges:
        yield from read_range(
            source.client,
            wanted,
            Columns(headers=True),
            patience_ms=source.poll_timeout_ms,
            fail_on_data_loss=False,
        )


def _bounded(batches: Any, name: str, advice: str) -> Iterator[pa.RecordBatch]:
    """Batches, as long as they fit into memory."""
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.nbytes
        if size_bytes > BYTES_MAX:
            raise BadOption(
                f"{name} is larger than {BYTES_MAX >> 20} MB, too much for a first look: {advice}"
            )
        yield batch


def _with_texts(rows: pa.Table) -> pa.Table:
    for name in _RECORD_TEXTS:
        place = rows.schema.get_field_index(name)
        if place >= 0 and pa.types.is_binary(rows.schema.field(place).type):
            rows = rows.set_column(place, name, _text(rows.column(place)))
    return rows


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([[_shown(one) for one in column.to_pylist()]], pa.string())


def _shown(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}" if data is not None else None
