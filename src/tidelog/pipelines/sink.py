"""Topics as a Spark sink: `df.write` and `df.writeStream` with `format("tidelog")`.

A task writes the Arrow batches it is given as a producer of its own (`task_writer`). With
delivery=exactly_once that is a transaction which the task leaves open, or aborts when it takes too long, and
reports; the driver makes those of a batch visible as one (`commit_protocol`, docs/adr/0012). With
delivery=at_least_once the records are visible as they arrive, and a task that is tried again writes them
again.

Spark makes the writer of a stream anew for every call in the driver, so nothing is kept here between two of
them: what the commit has to know, the tasks' messages carry. Each call is a Python process of its own, so
what only tasks need (Arrow, numpy) is imported there: a micro-batch would wait for it twice.

A batch job without a name of its own (txnAppId) has a random one, which dies with its driver. What that means
is in docs/adr/0012 too: no two-phase commit, a commit that is not given up once it may be decided, and an
abort that looks for what lost tasks left.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.faults import ClientFault, LinkFault, Refusal
from tidelog.pipelines.commit_protocol import (
    CommittedBatch,
    End,
    FencedDriver,
    LostTransactions,
    Records,
    Span,
    Steps,
    Transaction,
    abandon,
    commit,
    transaction_name,
)
from tidelog.pipelines.sink_commits import SinkCommits
from tidelog.pipelines.sink_events import tell
from tidelog.pipelines.sink_options import SinkOptions, check_columns
from tidelog.pipelines.spark_api import (
    HAS_ARROW_STREAM_WRITER,
    DataSourceStreamArrowWriter,
    arrow_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: between two tries to finish a job that may be decided
RETRY_SECONDS = 1.0
#: how long a failed job looks for what its tasks left
ABANDON_MS_MAX = 30_000
#: and how often it looks again for what they still begin
LATE_LOOK_SECONDS = 0.5
LATE_LOOKS_MAX = 10
#: of a Spark that hands over rows
ROWS_PER_BATCH = 10_000


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
    #: whether the transaction was aborted, because the task took long
    is_held: bool = False
    spans: tuple[Span, ...] = ()


def _write_task(
    options: SinkOptions, query: str, batch_id: int, planned_at: float, iterator: "Iterator[pa.RecordBatch]"
) -> TaskWrote:
    from tidelog.pipelines.task_writer import TaskWriter

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    transactional_id = None
    if options.exactly_once:
        # Attempts never share an id: the late one of two must not abort what the other has reported.
        transactional_id = transaction_name(query, batch_id, partition, uuid.uuid4().hex[:12])
    writer = TaskWriter(options, transactional_id)
    transaction = writer.write(iterator)
    return TaskWrote(
        query,
        transaction,
        writer.records,
        planned_at,
        writer.two_phase,
        writer.is_held,
        () if transaction is None else writer.spans(),
    )


def _commit(
    options: SinkOptions,
    batch_id: int,
    messages: Sequence[WriterCommitMessage | None],
) -> None:
    wrote = [message for message in messages if isinstance(message, TaskWrote)]
    if not options.exactly_once or not wrote:
        return
    with _commits(options, wrote) as commits:
        done: CommittedBatch = commits.run(_commit_steps(batch_id, wrote))
    # What was held is in a transaction of its task that was aborted, and in one of the driver's.
    held = sum(one.is_held for one in wrote)
    tell(wrote[0].query, committed=len(_transactions(wrote)), aborted=held)
    log.info("batch %d of %s: %s", batch_id, wrote[0].query, done)


def _commit_steps(batch_id: int, wrote: Sequence[TaskWrote]) -> Steps:
    open_ones, held = (
        tuple(one.transaction for one in wrote if one.transaction is not None and one.is_held == is_held)
        for is_held in (False, True)
    )
    return commit(wrote[0].query, batch_id, open_ones, held, records_of(wrote))


def records_of(wrote: Sequence[TaskWrote]) -> Records:
    """Where the records of all tasks are."""
    spans: dict[tuple[str, int], Span] = {}
    for span in (span for one in wrote for span in one.spans):
        known = spans.get(span[:2], span)
        ends = min(span.first_offset, known.first_offset), max(span.end_offset, known.end_offset)
        spans[span[:2]] = Span(span.topic, span.partition, *ends)
    counts = {one.transaction.producer_id: one.records for one in wrote if one.transaction is not None}
    return Records(tuple(spans[place] for place in sorted(spans)), counts)


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
        tell(wrote[0].query, aborted=len(transactions))
    except ClientFault as fault:
        log.warning("a failed write could not abort its transactions: %s", fault)


def _commits(options: SinkOptions, wrote: Sequence[TaskWrote]) -> SinkCommits:
    age_ms = (time.monotonic() - min(message.planned_at for message in wrote)) * 1000
    return SinkCommits(options.settings, options.transaction_timeout_ms, age_ms)


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
    give_up_at = time.monotonic() + options.transaction_timeout_ms / 1000
    may_be_decided = False
    while True:
        with _commits(options, wrote) as commits:
            try:
                done = commits.run(_commit_steps(0, wrote))
            except (LinkFault, Refusal, FencedDriver) as fault:
                # Nobody else has the name: what fences us is a late claim of our own, or time.
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
        with SinkCommits(settings, options.transaction_timeout_ms, age_ms) as commits:
            steps = abandon(query, 0, _transactions(wrote), was_committing=was_committing)
            done = commits.run(steps)
            if not was_committing:
                _sweep_late(commits, query)
    except (ClientFault, LostTransactions, FencedDriver) as fault:
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

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
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


class TidelogRowStreamWriter(TidelogStreamWriter):
    """The same for Spark 4.0, which hands streams over row by row; slower, and promised the same."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """In an executor: gather rows, then write them as the others do."""
        return super().write(batches_of_rows(iterator, self._schema))


def batches_of_rows(rows: Iterator[Any], schema: StructType) -> "Iterator[pa.RecordBatch]":
    """Rows as Arrow; Spark's times without a zone are those of the worker's machine."""
    import pyarrow as pa

    wanted = arrow_schema(schema)
    while some := list(islice(rows, ROWS_PER_BATCH)):
        columns = [
            pa.array([_plain_value(row[number]) for row in some], field.type)
            for number, field in enumerate(wanted)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [_plain_value(one) for one in value]
    # A struct comes as a Row, which is a tuple with names.
    return _plain_fields(value) if hasattr(value, "asDict") else value


def _plain_fields(row: Any) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in row.asDict().items()}


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

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
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
    return (
        TidelogStreamWriter(options) if HAS_ARROW_STREAM_WRITER else TidelogRowStreamWriter(options, schema)
    )
