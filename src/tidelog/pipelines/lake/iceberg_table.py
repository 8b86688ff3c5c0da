"""A table as one pipeline writes it: data files, then a commit that has them and the pipeline's position.

The commit is where a batch becomes true, and where two runs of a pipeline meet. It is tried on the table as
it is known. When that fails, for a conflict or because nobody answers, the table is read anew:

    the attempt is in it                         it was done; the answer was lost
    the pipeline's position is another           another run has written: this one ends
    the position is the one from before          somebody else has changed the table: try again on top of that

pyiceberg's own retries are switched off for these commits, for they would skip the middle line: what two
runs wrote would be there twice.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines.lake.catalogs import (
    CatalogFault,
    delete_files,
    identifier,
    one_line,
    passing_faults,
)
from tidelog.pipelines.lake.column_types import merged_schema, plain_schema
from tidelog.pipelines.lake.partitioning import PartitionField
from tidelog.pipelines.lake.positions import Position, position_of
from tidelog.pipelines.offset_planning import Offsets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 40
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 2.0
_RETRIES = "commit.retry.num-retries"
#: of tables that are made here: metadata files that nobody needs any more go
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}


class OtherRun(ClientFault):
    """Another run of the pipeline writes to the table, or somebody has rolled it back."""


class SpecChanged(Exception):
    """The table is partitioned otherwise by now: what was written does not fit it."""


class NewFile(NamedTuple):
    """A data file that no commit has yet, and the partition spec that it was written with."""

    file: "DataFile"
    spec_id: int


@dataclass(frozen=True, slots=True)
class TableToMake:
    """What a table is to be, where there is none."""

    columns: pa.Schema
    partition_by: tuple[PartitionField, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


class IcebergTable:
    """One table, from the thread of its pipeline."""

    def __init__(self, table: "Table", name: str, pipeline: str) -> None:
        required = [one.name for one in table.schema().fields if one.required]
        if required:
            raise BadOption(
                f"column {required[0]} of table {name} is required, and records may lack it: "
                f"ALTER TABLE {name} ALTER COLUMN {required[0]} DROP NOT NULL"
            )
        self._table = table
        self._pipeline = pipeline
        self.name = name
        self.schema = _columns(table)
        self.position = position_of(table.metadata, pipeline)

    def __repr__(self) -> str:
        return f"<IcebergTable {self.name} {self._table.metadata.current_snapshot_id}>"

    @property
    def table(self) -> "Table":
        """As it is known here."""
        return self._table

    @classmethod
    def find(cls, catalog: "Catalog", name: str, pipeline: str) -> "IcebergTable | None":
        """A table that is there."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return cls(catalog.load_table(identifier(name)), name, pipeline)
        except NoSuchTableError:
            return None

    @classmethod
    def make(cls, catalog: "Catalog", name: str, pipeline: str, wanted: TableToMake) -> "IcebergTable":
        """A table that is there, or that is made."""
        path = identifier(name)
        catalog.create_namespace_if_not_exists(path[:-1])
        properties = {**_PROPERTIES, **wanted.properties}
        table = catalog.create_table_if_not_exists(path, wanted.columns, properties=properties)
        if wanted.partition_by and table.metadata.current_snapshot() is None and not table.spec().fields:
            _partition(table, wanted.partition_by)
        return cls(table, name, pipeline)

    def grow(self, rows: pa.Schema) -> None:
        """Have columns for such rows, too; raises DoNotMerge where no table can."""
        last: Exception | None = None
        for attempt in range(ATTEMPTS_MAX):
            wanted = merged_schema(self.schema, rows)
            if wanted == self.schema:
                return
            _pause(attempt)
            try:
                with self._table.update_schema() as update:
                    update.union_by_name(wanted)
                log.info("table %s has columns %s", self.name, ", ".join(wanted.names))
            except passing_faults() as fault:
                log.info("columns of %s: %s", self.name, one_line(fault))
                last = fault
            self._table.refresh()
            self.schema = _columns(self._table)
        raise CatalogFault(
            f"table {self.name} cannot be given columns: {'' if last is None else one_line(last)}"
        )

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Data files of rows that have all columns of the table; nobody sees them before the commit."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        metadata = self._table.metadata
        files = _dataframe_to_data_files(metadata, rows, self._table.io)
        return [NewFile(one, metadata.default_spec_id) for one in files]

    def commit(self, files: Sequence[NewFile], cluster: str, offsets: Offsets) -> None:
        """Add files and say how far the pipeline is; raises OtherRun, SpecChanged, CatalogFault."""

        def append(after: Position) -> None:
            if any(one.spec_id != self._table.metadata.default_spec_id for one in files):
                raise SpecChanged
            self._append(files, after)

        try:
            self._persist(Position(cluster, offsets, uuid.uuid4().hex), append)
        except (OtherRun, SpecChanged):
            self.discard(files)
            raise

    def replace(self, rows: pa.Table, keys: pa.Array, column: str, cluster: str, offsets: Offsets) -> None:
        """Take away the rows with these keys, add others, and say how far the pipeline is.

        Files that have such rows are written anew without them, on the table as it is at each attempt.
        Raises OtherRun, CatalogFault.
        """
        from pyiceberg.exceptions import CommitFailedException

        def replaced(after: Position) -> None:
            old, kept = self._without(keys, column)
            files = [file for one in (*kept, rows) if len(one) for file in self.write(one)]
            try:
                self._overwrite(old, files, after)
            except CommitFailedException:
                self.discard(files)
                raise

        self._persist(Position(cluster, offsets, uuid.uuid4().hex), replaced)

    def _persist(self, after: Position, attempt_on: Callable[[Position], None]) -> None:
        """Try until it is done; raises what this run cannot go on with."""
        last: Exception | None = None
        for attempt in range(ATTEMPTS_MAX):
            _pause(attempt)
            try:
                if attempt:
                    self._table.refresh()
                if self._is_done(after):
                    break
                attempt_on(after)
                break
            except passing_faults() as fault:
                # None of them says for sure that nothing was done.
                log.info("commit to %s, attempt %d: %s", self.name, attempt + 1, one_line(fault))
                last = fault
        else:
            assert last is not None
            raise CatalogFault(f"table {self.name} cannot be written: {one_line(last)}") from last
        self.position = after
        self.schema = _columns(self._table)

    def _is_done(self, after: Position) -> bool:
        found = position_of(self._table.metadata, self._pipeline)
        if found is not None and found.batch == after.batch:
            return True
        before = None if self.position is None else self.position.batch
        if (None if found is None else found.batch) != before:
            raise OtherRun(
                f"table {self.name} does not have the position that this run of {self._pipeline} wrote last: "
                "another run of the pipeline writes to it, or it was rolled back. What this run had not "
                "committed is not in it; start it again to go on from where the table is"
            )
        return False

    def _append(self, files: Sequence[NewFile], after: Position) -> None:
        table = self._table
        # Of the metadata in this process only; see above.
        table.metadata.properties[_RETRIES] = "0"
        with table.transaction() as transaction:
            summary = after.summary(self._pipeline)
            with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
                for one in files:
                    append.append_data_file(one.file)
            transaction.set_properties(after.property(self._pipeline))

    def _without(self, keys: pa.Array, column: str) -> "tuple[list[DataFile], list[pa.Table]]":
        """The files with rows of some keys, and what else is in them."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._table
        old: list[DataFile] = []
        kept: list[pa.Table] = []
        for task in table.scan().plan_files():
            found = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([task])
            known = found.column(column).cast(keys.type)
            theirs = pc.is_in(known, value_set=keys)
            if pc.any(theirs).as_py():
                old.append(task.file)
                kept.append(found.filter(pc.invert(theirs)))
        return old, kept

    def _overwrite(self, old: "Sequence[DataFile]", files: Sequence[NewFile], after: Position) -> None:
        if not old:
            self._append(files, after)
            return
        table = self._table
        table.metadata.properties[_RETRIES] = "0"
        with table.transaction() as transaction:
            summary = after.summary(self._pipeline)
            with transaction.update_snapshot(snapshot_properties=summary).overwrite() as change:
                for one in old:
                    change.delete_data_file(one)
                for new in files:
                    change.append_data_file(new.file)
            transaction.set_properties(after.property(self._pipeline))

    def scan(self, columns: Sequence[str], row_filter: str) -> pa.Table:
        """Some columns of the rows that a filter leaves."""
        self._table.refresh()
        return (
            self._table.scan(row_filter=row_filter, selected_fields=tuple(columns)).to_arrow().select(columns)
        )

    def discard(self, files: Iterable[NewFile]) -> None:
        """Delete files that no commit has."""
        delete_files(self._table.io, (one.file.file_path for one in files))


def _pause(attempt: int) -> None:
    if attempt:
        seconds = min(PAUSE_SECONDS * 2 ** min(attempt - 1, 10), PAUSE_SECONDS_MAX)
        time.sleep(seconds * random.uniform(0.5, 1.0))


def _columns(table: "Table") -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return plain_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))


def _partition(table: "Table", fields: Iterable[PartitionField]) -> None:
    names = {one.name for one in table.schema().columns}
    with table.update_spec() as update:
        for one in fields:
            if one.column not in names:
                raise BadOption(
                    f"partition_by: the table has no column {one.column}; it has {', '.join(sorted(names))}"
                )
            update.add_field(one.column, one.transform(), one.name)
