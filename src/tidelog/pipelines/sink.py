"""Topics as a Spark sink: `df.write` and `df.writeStream` with `format("tidelog")`.

A task encodes the Arrow batches it is given (`record_batches`) and writes them as a producer of its own. With
delivery=exactly_once that is a transaction which the task leaves open and reports; the driver commits those
of a batch as one (`commit_protocol`, docs/adr/0012). With delivery=at_least_once the records are visible as
they arrive, and a task that is tried again writes them again.

Spark makes the writer of a stream anew for every call in the driver, so nothing is kept here between two of
them: what the commit has to know, the tasks' messages carry.

A batch job without a name of its own (txnAppId) has a random one, which dies with its driver. What that means
is in docs/adr/0012 too: no two-phase commit, a commit that is not given up once it may be decided, and an
abort that looks for what lost tasks left.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, LinkFault, Refusal
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.transactional_writer import TransactionalWriter, init_producer
from tidelog.model.errors import ErrorCode
from tidelog.pipelines.commit_protocol import (
    Committed,
    End,
    LostTransactions,
    Transaction,
    abandon,
    commit,
    transaction_name,
)
from tidelog.pipelines.record_batches import (
    BadRow,
    Numbers,
    Rows,
    Stamp,
    choose_partitions,
    encode_batches,
)
from tidelog.pipelines.sink_commits import SinkCommits
from tidelog.pipelines.sink_options import SinkOptions, check_columns

log = logging.getLogger(__name__)

#: rows are gathered up to this size before they are encoded: Spark's batches are small
GATHER_BYTES = 4 << 20
#: between two tries to finish a job that may be decided
RETRY_SECONDS = 1.0
#: how long a failed job looks for what its tasks left
ABANDON_MS_MAX = 30_000
#: and how often it looks again for what they still begin
LATE_LOOK_SECONDS = 0.5
LATE_LOOKS_MAX = 10
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_MESSAGE_BYTES_HINT = (
    "; the topic's max.message.bytes bounds a batch: set kafka.batch.size lower, or that higher"
)


@dataclass(frozen=True)
class TaskWrote(WriterCommitMessage):
    """What a task tells the driver."""

    query: str
    #: None when it had no rows, or wrote without a transaction
    transaction: Transaction | None
    records: int
    #: when the driver planned the write, on the clock of the driver's machine
    planned_at: float
    two_phase: bool


class TaskWriter:
    """Writes the rows of one task, for one attempt of it."""

    def __init__(self, options: SinkOptions, transactional_id: str | None) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._cluster = Cluster(options.settings)
        self._writer: TransactionalWriter | None = None
        self._stamp = Stamp()
        self._sequences: dict[str, dict[int, int]] = {}
        self._partition_counts: dict[str, int] = {}
        self.records = 0
        self.two_phase = False

    def write(self, batches: Iterator[pa.RecordBatch]) -> Transaction | None:
        """Write all; the transaction is open when this returns, and aborted when it raises."""
        try:
            for table in _gathered(batches):
                self._write_some(table)
            if self._writer is None:
                return None
            self._writer.flush()
        except BaseException as fault:
            self._give_up()
            if isinstance(fault, Refusal) and fault.code in _TOO_LARGE:
                raise BadRow(str(fault) + _MESSAGE_BYTES_HINT) from fault
            raise
        finally:
            self._cluster.close()
        producer = self._writer.producer
        if producer.transactional_id is None:
            return None
        return Transaction(producer.transactional_id, producer.producer_id, producer.producer_epoch)

    def _give_up(self) -> None:
        if self._writer is None:
            return
        try:
            self._writer.end(committed=False)
        except ClientFault as fault:
            # The next commit of the query sweeps it away, or its timeout does.
            log.warning("a failed task could not abort its transaction: %s", fault)

    def _open(self) -> TransactionalWriter:
        options = self._options
        producer = init_producer(
            self._cluster,
            self._transactional_id,
            options.transaction_timeout_ms,
            two_phase=options.two_phase and self._transactional_id is not None,
        )
        self.two_phase = producer.two_phase
        self._stamp = Stamp(producer.producer_id, producer.producer_epoch, self._transactional_id is not None)
        return TransactionalWriter(self._cluster, producer, delivery_timeout_ms=options.delivery_timeout_ms)

    def _write_some(self, table: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._open()
        for topic, rows in self._by_topic(table):
            self._write_topic(topic, rows)
        self.records += table.num_rows

    def _by_topic(self, table: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, table
            return
        names = table.column("topic")
        if names.null_count:
            raise BadRow("a row has no topic: the column 'topic' is null")
        encoded = names.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            if len(encoded.dictionary) == 1:
                yield name, table
            else:
                yield name, table.take(pa.array(np.flatnonzero(indices == index)))

    def _write_topic(self, topic: str, table: pa.RecordBatch) -> None:
        assert self._writer is not None
        options = self._options
        rows = _rows_of(table)
        count = self._partition_count(topic)
        explicit = _column(table, "partition")
        try:
            partitions = choose_partitions(rows.keys, count, random.randrange(count), explicit)
        except BadRow as fault:
            raise BadRow(f"topic {topic}: {fault}") from None
        encoded = encode_batches(
            rows,
            partitions,
            self._sequences.setdefault(topic, {}),
            self._stamp,
            batch_bytes=options.batch_bytes,
            codec=options.codec,
            level=options.level,
        )
        self._writer.send([BatchToSend(topic, batch.partition, batch.data) for batch in encoded])

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = len(self._cluster.topic(topic).partitions)
        return self._partition_counts[topic]


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= GATHER_BYTES:
            yield _as_one(waiting)
            waiting, size = [], 0
    if waiting:
        yield _as_one(waiting)


def _as_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _column(table: pa.RecordBatch, name: str) -> pa.Array | None:
    index = table.schema.get_field_index(name)
    return None if index < 0 else table.column(index)


def _rows_of(table: pa.RecordBatch) -> Rows:
    keys, headers, timestamps = (_column(table, name) for name in ("key", "headers", "timestamp"))
    return Rows(
        pa.nulls(table.num_rows, pa.binary()) if keys is None else keys.cast(pa.binary()),
        table.column("value").cast(pa.binary()),
        _timestamps_ms(timestamps, table.num_rows),
        headers,
    )


def _timestamps_ms(column: pa.Array | None, count: int) -> Numbers:
    """When each record is from: the column, where it says so, else now."""
    now_ms = int(time.time() * 1000)
    if column is None or column.null_count == len(column):
        return np.full(count, now_ms, dtype=np.int64)
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values = micros.fill_null(now_ms * 1000).to_numpy(zero_copy_only=False)
    return np.asarray(values // 1000, dtype=np.int64)


def _write_task(
    options: SinkOptions, query: str, batch_id: int, planned_at: float, iterator: Iterator[pa.RecordBatch]
) -> TaskWrote:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    transactional_id = None
    if options.exactly_once:
        # Attempts never share an id: the late one of two must not abort what the other has reported.
        transactional_id = transaction_name(query, batch_id, partition, uuid.uuid4().hex[:12])
    writer = TaskWriter(options, transactional_id)
    transaction = writer.write(iterator)
    return TaskWrote(query, transaction, writer.records, planned_at, writer.two_phase)


def _commit(
    options: SinkOptions,
    batch_id: int,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    wrote = [message for message in messages if isinstance(message, TaskWrote)]
    if not options.exactly_once or not wrote:
        return
    with _commits(options, wrote) as commits:
        done: Committed = commits.run(commit(wrote[0].query, batch_id, _transactions(wrote)))
    log.info("batch %d of %s: %s", batch_id, wrote[0].query, done)


def _transactions(wrote: Sequence[TaskWrote]) -> tuple[Transaction, ...]:
    return tuple(message.transaction for message in wrote if message.transaction is not None)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Abort what was reported, if a task is missing: then there was no commit.

    Otherwise there was one that failed. It may have decided the batch, and what is decided must not be
    aborted: the next commit of the query settles it.
    """
    if all(message is not None for message in messages):
        return
    wrote = [message for message in messages if isinstance(message, TaskWrote)]
    transactions = _transactions(wrote)
    if not transactions:
        return
    try:
        with _commits(options, wrote) as commits:
            commits.execute(End(transactions, committed=False))
    except ClientFault as fault:
        log.warning("a failed write could not abort its transactions: %s", fault)


def _commits(options: SinkOptions, wrote: Sequence[TaskWrote]) -> SinkCommits:
    age_ms = (time.monotonic() - min(message.planned_at for message in wrote)) * 1000
    two_phase = all(message.two_phase for message in wrote if message.transaction is not None)
    return SinkCommits(options.settings, options.transaction_timeout_ms, age_ms, two_phase)


def _commit_job(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Commit a job whose name nobody else has: once it may be decided, only this driver can finish it."""
    wrote = [message for message in messages if isinstance(message, TaskWrote)]
    if not options.exactly_once or not wrote:
        return
    query = wrote[0].query
    give_up_at = min(message.planned_at for message in wrote) + options.transaction_timeout_ms / 1000
    may_be_decided = False
    while True:
        with _commits(options, wrote) as commits:
            try:
                done = commits.run(commit(query, 0, _transactions(wrote)))
            except (LinkFault, Refusal) as fault:
                may_be_decided |= commits.may_be_decided
                is_final = isinstance(fault, Refusal) and not fault.retriable
                if not may_be_decided or is_final or time.monotonic() >= give_up_at:
                    raise
                log.warning("%s is decided, but not visible yet; it is tried again: %s", query, fault)
            else:
                break
        sleep(RETRY_SECONDS)
    log.info("job %s: %s", query, done)
    _forget(options, wrote)


def _forget(options: SinkOptions, wrote: Sequence[TaskWrote]) -> None:
    try:
        with _commits(options, wrote) as commits:
            commits.forget(wrote[0].query)
    except ClientFault as fault:
        log.warning("%s is written, but its records in the commit log stay: %s", wrote[0].query, fault)


def _abandon_job(
    options: SinkOptions, query: str, planned_at: float, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """End what a failed job left, also what its tasks did not live to report."""
    if not options.exactly_once:
        return
    wrote = [message for message in messages if isinstance(message, TaskWrote)]
    timeout_ms = min(options.settings.api_timeout_ms, ABANDON_MS_MAX)
    settings = replace(options.settings, api_timeout_ms=timeout_ms)
    age_ms = (time.monotonic() - planned_at) * 1000
    was_committing = all(message is not None for message in messages)
    try:
        with SinkCommits(settings, options.transaction_timeout_ms, age_ms, two_phase=False) as commits:
            steps = abandon(query, 0, _transactions(wrote), was_committing=was_committing)
            done = commits.run(steps)
            if not was_committing:
                _sweep_late(commits, query)
    except (ClientFault, LostTransactions) as fault:
        log.warning("a failed write could not abort its transactions, which time out: %s", fault)
        return
    if done.was_decided_before:
        log.warning("%s was decided before it failed: all of it is visible", query)


def _sweep_late(commits: SinkCommits, query: str) -> None:
    """End what tasks begin that Spark has given up, but whose workers live on for a moment."""
    quiet = 0
    for _ in range(LATE_LOOKS_MAX):
        time.sleep(LATE_LOOK_SECONDS)
        swept = commits.run(abandon(query, 0, (), was_committing=False)).swept
        quiet = 0 if swept else quiet + 1
        if quiet == 2:
            return


class TidelogStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.planned_at = time.monotonic()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor: write the rows of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark runs write() in tasks only"
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert query_id is not None and batch_id is not None, "Spark names query and batch in every task"
        query = self.options.transactional_id_prefix + query_id
        return _write_task(self.options, query, int(batch_id), self.planned_at, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver: make the batch visible, once."""
        _commit(self.options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver: a task failed for good, or the commit did."""
        _abort(self.options, messages)


class TidelogBatchWriter(DataSourceArrowWriter):
    """The sink of a batch job; docs/adr/0012 says what it is promised.

    Spark pickles it, so tasks, commit and abort have the same name of the job.
    """

    def __init__(self, options: SinkOptions) -> None:
        self.is_named = options.application is not None
        # What a job without a name leaves open nobody would ever end: it has to time out.
        self.options = options if self.is_named else replace(options, two_phase=False)
        self.planned_at = time.monotonic()
        application = options.application or f"job-{uuid.uuid4().hex}"
        self.query = options.transactional_id_prefix + application
        self.version = 0 if options.version is None else options.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor: write the rows of one task."""
        return _write_task(self.options, self.query, self.version, self.planned_at, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: make it visible."""
        if self.is_named:
            _commit(self.options, self.version, messages)
        else:
            _commit_job(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: a task failed for good, or the commit did."""
        if self.is_named:
            _abort(self.options, messages)
        else:
            _abandon_job(self.options, self.query, self.planned_at, messages)


def batch_writer(options: SinkOptions, schema: StructType) -> TidelogBatchWriter:
    """The writer of `df.write`; raises BadOption for columns that cannot be written."""
    check_columns(schema, options.topic)
    return TidelogBatchWriter(options)


def stream_writer(options: SinkOptions, schema: StructType) -> TidelogStreamWriter:
    """The writer of `df.writeStream`."""
    check_columns(schema, options.topic)
    return TidelogStreamWriter(options)
