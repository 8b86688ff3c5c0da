"""The loop of a topic into a table: read a range of offsets, make rows, write files, commit.

A batch is in the table with the offsets that come after it, or not at all. Records that are no rows go to a
table of their own, which is committed first; it has offsets of its own. A run that finds it ahead of the
table knows which of the records to come are in there, and takes those for neither, whatever it would make of
them now. So each record is in one of the two, once, whenever a run is killed.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.lake.column_types import DoNotMerge, conformed_table, plain_schema
from tidelog.pipelines.lake.iceberg_table import IcebergTable, NewFile, SpecChanged
from tidelog.pipelines.lake.table_rows import RowMaker, dead_rows, without
from tidelog.pipelines.local_work import LocalWork
from tidelog.pipelines.offset_planning import Offsets
from tidelog.pipelines.progress import OffsetCommitter
from tidelog.pipelines.query_metrics import SourceProgress
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.source_options import SourceOptions
from tidelog.pipelines.work import Progress

log = logging.getLogger(__name__)

#: rows in memory that become files
FILE_ROWS_BYTES = 128 << 20
#: a look at a topic that had nothing new
IDLE_SECONDS = 0.25
_DELETED = "__deleted"
Found = dict[TopicPartition, set[int]]


@dataclass(frozen=True, slots=True)
class Pace:
    """When a batch is due."""

    #: between the beginnings of two batches, unless there is a whole batch to read
    pause_seconds: float
    batch_records: int
    #: what is there at the start, then end
    available_now: bool = False


class Stopped(Exception):
    """A stop was asked for in the middle of a batch, which is as if it had not begun."""


class _Pending:
    """Rows on their way into the files of one commit."""

    def __init__(self, table: IcebergTable, writer: ThreadPoolExecutor) -> None:
        self.table = table
        self.count = 0
        self._files: list[NewFile] = []
        self._writer = writer
        self._rows: list[pa.Table] = []
        self._bytes = 0
        self._writing: Future[list[NewFile]] | None = None

    def add(self, rows: pa.Table, deletes: pa.Array | None = None) -> None:
        assert deletes is None
        self._rows.append(rows)
        self._bytes += rows.nbytes
        self.count += len(rows)
        if self._bytes >= FILE_ROWS_BYTES:
            self._write()

    def commit(self, cluster: str, end: Offsets, *, anyway: bool = False) -> bool:
        """Commit all rows; without any, only if the position is to be said `anyway`."""
        files = self.take_files()
        if files or anyway:
            self.table.commit(files, cluster, end)
        return bool(files) or anyway

    def take_files(self) -> list[NewFile]:
        """All files; they are the caller's."""
        if self._rows:
            self._write()
        self.settle()
        files, self._files = self._files, []
        return files

    def settle(self) -> None:
        """Wait for the files that are being written: the table may be changed then."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._files += writing.result()

    def discard(self) -> None:
        """Delete the files that nobody has taken."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.exception() is None:
            self._files += writing.result()
        self.table.discard(self._files)
        self._files = []

    def _write(self) -> None:
        self.settle()
        schema = self.table.schema
        rows = pa.concat_tables([conformed_table(one, schema) for one in self._rows])
        self._rows, self._bytes = [], 0
        self._writing = self._writer.submit(self.table.write, rows)


class _Newest:
    """The newest row of each key, on their way into one commit."""

    def __init__(self, table: IcebergTable, column: str) -> None:
        self.table = table
        self.count = 0
        self._column = column
        self._rows: list[pa.Table] = []
        self._bytes = 0

    def add(self, rows: pa.Table, deletes: pa.Array | None = None) -> None:
        assert deletes is not None
        self._rows.append(rows.append_column(_DELETED, deletes))
        self._bytes += rows.nbytes
        self.count += len(rows)
        if self._bytes >= FILE_ROWS_BYTES:
            newest = self._newest()
            self._rows, self._bytes = [newest], newest.nbytes // 2

    def commit(self, cluster: str, end: Offsets, *, anyway: bool = False) -> bool:
        """Put them in the place of those with the same keys."""
        if self._rows:
            newest = self._newest()
            keys = newest.column(self._column).combine_chunks()
            rows = newest.filter(pc.invert(newest.column(_DELETED))).drop_columns([_DELETED])
            self.table.replace(rows, keys, self._column, cluster, end)
        elif anyway:
            self.table.commit([], cluster, end)
        return bool(self._rows) or anyway

    def settle(self) -> None:
        """Nothing is being written."""

    def discard(self) -> None:
        """Nothing has been written."""

    def _newest(self) -> pa.Table:
        schema = self.table.schema.append(pa.field(_DELETED, pa.bool_()))
        rows = pa.concat_tables([conformed_table(one, schema) for one in self._rows])
        # A key is in one partition.
        offsets = rows.column(self._column.replace("key", "offset")).to_numpy()
        order = np.argsort(offsets, kind="stable")
        keys = rows.column(self._column).combine_chunks().dictionary_encode().indices.to_numpy()
        last = np.zeros(int(keys.max()) + 1, np.int64)
        last[keys[order]] = order
        return rows.take(pa.array(np.sort(last)))


class _Batch:
    """What becomes of a range of offsets: rows, and dead letters where there are some."""

    def __init__(
        self,
        table: IcebergTable,
        dead_letters: Callable[[bool], IcebergTable | None],
        writer: ThreadPoolExecutor,
        key: str | None,
    ) -> None:
        self.rows = _Pending(table, writer) if key is None else _Newest(table, key)
        self.dead: _Pending | None = None
        self._dead_letters = dead_letters
        self._writer = writer

    @property
    def dead_count(self) -> int:
        return 0 if self.dead is None else self.dead.count

    def add_dead(self, letters: pa.Table) -> None:
        if self.dead is None:
            table = self._dead_letters(True)
            assert table is not None
            self.dead = _Pending(table, self._writer)
        self.dead.add(letters)

    def commit(self, cluster: str, end: Offsets) -> bool:
        """False when there was nothing to commit: markers of transactions alone."""
        if self.dead is not None:
            before = self.dead.table.position
            ahead: Offsets = {} if before is None else before.offsets
            furthest = {where: max(offset, ahead.get(where, 0)) for where, offset in end.items()}
            self.dead.commit(cluster, {**ahead, **furthest}, anyway=True)
        return self.rows.commit(cluster, end, anyway=self.dead is not None)

    def discard(self) -> None:
        for pending in (self.rows, self.dead):
            if pending is not None:
                pending.discard()


class Loading:
    """One run, in the thread of its work."""

    def __init__(
        self,
        work: LocalWork,
        cluster: Cluster,
        source: SourceOptions,
        maker: RowMaker,
        table: IcebergTable,
        dead_letters: Callable[[bool], IcebergTable | None],
        pace: Pace,
        upkeep: Callable[[], None],
        key: str | None = None,
    ) -> None:
        self._work = work
        self._source = source
        self._offsets = QueryOffsets(source, cluster)
        self._committer = OffsetCommitter(cluster, source.group_id, source.group_id_prefix)
        self._cluster = cluster
        self._maker = maker
        self._table = table
        #: the table of records that are no rows; True makes it
        self._dead_letters = dead_letters
        self._pace = pace
        self._upkeep = upkeep
        #: the column of which the table has each value once; None for a row for each record
        self._key = key
        self._cluster_id = ""
        #: records that are dead letters since a run that did not come to commit the others
        self._dead_already: Found = {}
        self._dead_until: Offsets = {}
        self._known: set[pa.Schema] = set()
        self._progress = Progress(work.name)
        self._started = time.monotonic()

    def run(self) -> None:
        """Until there is nothing left to do, or a stop is asked for."""
        with ThreadPoolExecutor(1, thread_name_prefix="table-files") as writer:
            position = self._begin()
            if self._pace.available_now:
                self._offsets.stop_at_present()
            while not self._work.stopping.is_set():
                began = time.monotonic()
                end = self._offsets.next_end(position, limited=True)
                fresh = sum(max(0, end[where] - position.get(where, 0)) for where in end)
                if not fresh and self._pace.available_now:
                    return
                if fresh:
                    try:
                        self._load(position, end, writer)
                    except Stopped:
                        return
                    position = end
                    self._upkeep()
                self._tell(position)
                if not self._pace.available_now and fresh < self._pace.batch_records:
                    pause = self._pace.pause_seconds if fresh else IDLE_SECONDS
                    self._work.stopping.wait(max(0.0, began + pause - time.monotonic()))

    # The beginning

    def _begin(self) -> Offsets:
        self._cluster.topics([])
        self._cluster_id = self._cluster.cluster_id or ""
        found = self._table.position
        if found is None:
            dead = self._dead_letters(False)
            if dead is not None and dead.position is not None:
                # Its offsets are of a table that is gone, and maybe of another topic of that name.
                raise BadOption(
                    f"table {dead.name} has dead letters of this pipeline from before table "
                    f"{self._table.name} was made or rolled back: rename or drop it, or give this one "
                    "another --name"
                )
            start = self._offsets.starting()
            self._table.commit([], self._cluster_id, start)
            return start
        if found.cluster != self._cluster_id:
            raise BadOption(
                f"table {self._table.name} was filled by this pipeline from another cluster, "
                f"{found.cluster}: give this one another --name, or another table"
            )
        self._offsets.check_subscription()
        topics = {where.topic for where in self._offsets.partitions()}
        others = sorted({where.topic for where in found.offsets} - topics)
        if others and not self._source.pattern:
            raise BadOption(
                f"table {self._table.name} was filled by this pipeline from topic {others[0]}: "
                "give this one another --name, or read that topic as well"
            )
        self._look_for_dead_letters(found.offsets)
        return dict(found.offsets)

    def _look_for_dead_letters(self, position: Offsets) -> None:
        """Those that were committed and the rows of their batch were not."""
        dead = self._dead_letters(False)
        if dead is None or dead.position is None:
            return
        ahead = {where for where, end in dead.position.offsets.items() if end > position.get(where, 0)}
        if not ahead:
            return
        first = min(position.get(where, 0) for where in ahead)
        rows = dead.scan(("topic", "partition", "offset"), f"offset >= {first}")
        found: Found = defaultdict(set)
        for topic, partition, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            found[TopicPartition(topic, partition)].add(offset)
        self._dead_already, self._dead_until = dict(found), dead.position.offsets
        log.info("%d dead letters are there already", len(rows))

    # A batch

    def _load(self, start: Offsets, end: Offsets, writer: ThreadPoolExecutor) -> None:
        began = time.monotonic()
        while True:
            batch = _Batch(self._table, self._dead_letters, writer, self._key)
            try:
                self._read(start, end, batch)
                committed = batch.commit(self._cluster_id, end)
                break
            except SpecChanged:
                log.info("table %s is partitioned otherwise now: the batch is read again", self._table.name)
                self._look_for_dead_letters(start)
            finally:
                batch.discard()
        if all(end.get(where, 0) >= offset for where, offset in self._dead_until.items()):
            self._dead_already = {}
        self._note(batch.rows.count, batch.dead_count, time.monotonic() - began, committed=committed)

    def _read(self, start: Offsets, end: Offsets, batch: _Batch) -> None:
        for wanted in self._offsets.batch_ranges(start, end):
            found = read_range(
                self._source.client,
                wanted,
                Columns(headers=True),
                patience_ms=self._source.poll_timeout_ms,
                fail_on_data_loss=self._source.fail_on_data_loss,
            )
            for records in found:
                if self._work.stopping.is_set():
                    raise Stopped
                self._add(without(records, self._dead_already), batch)

    def _add(self, records: pa.RecordBatch, batch: _Batch) -> None:
        made = self._maker.rows(records)
        if made.dead is not None:
            batch.add_dead(made.dead)
        for piece in made.pieces:
            if not len(piece.rows):
                continue
            try:
                self._make_room(piece.rows.schema, batch)
            except DoNotMerge as fault:
                places = range(len(records)) if piece.places is None else piece.places.tolist()
                batch.add_dead(dead_rows(records, dict.fromkeys(places, str(fault))))
                continue
            batch.rows.add(piece.rows, piece.deletes)

    def _make_room(self, schema: pa.Schema, batch: _Batch) -> None:
        """Columns for rows of a new kind; raises DoNotMerge."""
        if schema not in self._known:
            batch.rows.settle()
            self._table.grow(plain_schema(schema))
            self._known.add(schema)

    # Reports

    def _note(self, rows: int, dead: int, seconds: float, *, committed: bool) -> None:
        before, count = self._progress, rows + dead
        self._progress = Progress(
            self._work.name,
            batch_id=0 if before.batch_id is None else before.batch_id + 1,
            input_rows=count,
            processed_rows_per_second=count / max(seconds, 1e-6),
            batch_ms=int(seconds * 1000),
            rows=before.rows + count,
            dead_letters=before.dead_letters + dead,
            commits=before.commits + committed,
        )

    def _tell(self, position: Offsets) -> None:
        self._committer.processed(position)
        latest = self._offsets.latest()
        behind = [max(0, end - position.get(where, 0)) for where, end in latest.items()]
        now = self._progress
        rate = now.rows / max(time.monotonic() - self._started, 1e-6)
        source = SourceProgress(
            ", ".join(sorted({where.topic for where in latest})),
            now.input_rows,
            rate,
            now.processed_rows_per_second,
            sum(behind),
            min(behind, default=None),
            max(behind, default=None),
            sum(behind) / len(behind) if behind else None,
        )
        self._work.tell(
            Progress(
                now.name,
                now.batch_id,
                now.input_rows,
                rate,
                now.processed_rows_per_second,
                now.batch_ms,
                sum(behind),
                now.rows,
                now.dead_letters,
                "waiting for records" if not sum(behind) else "reading",
                (source,),
                commits=now.commits,
            )
        )
