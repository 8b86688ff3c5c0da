"""Writes the rows of one task of the sink, for one attempt of it.

Rows are gathered from Spark's small batches, encoded (`record_batches`) and sent. Exactly once means in a
transaction that is open when the attempt reports. One that has been open for half of its time is aborted:
from then on the attempt is *held*. It writes in transactions of a few seconds, aborts each, and the driver
publishes the records once the batch is decided (`commit_protocol`). So no reader waits for an attempt that
takes hours. With two-phase commit a transaction has no time, and stays open.

Rows arrive in a thread of their own, because Spark may let an attempt wait for them for any time, and the
transaction must not.
"""

import contextlib
import logging
import queue
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidelog.client.cluster import LATEST
from tidelog.client.faults import ClientFault, Refusal
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import UNKNOWN_OFFSET
from tidelog.client.transactional_writer import Producer, TransactionalWriter, init_producer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.commit_protocol import Span, Transaction
from tidelog.pipelines.record_batches import (
    BadRow,
    Numbers,
    Rows,
    Stamp,
    choose_partitions,
    encode_batches,
)
from tidelog.pipelines.shared_clusters import cluster_of
from tidelog.pipelines.sink_options import SinkOptions

log = logging.getLogger(__name__)

#: rows are gathered up to this size before they are encoded: Spark's batches are small
GATHER_BYTES = 4 << 20
#: how long a transaction of a held attempt is open, and how often its age is looked at
HELD_SECONDS = 2.0
LOOK_SECONDS = 0.5
_ARRIVED_MAX = 4
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_MESSAGE_BYTES_HINT = (
    "; the topic's max.message.bytes bounds a batch: set kafka.batch.size lower, or that higher"
)
#: the transaction's time was over: it was aborted, which is what was wanted
_TIMED_OUT = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE}
)


class TaskWriter:
    """Writes the rows of one task, for one attempt of it."""

    def __init__(self, options: SinkOptions, transactional_id: str | None) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._cluster = cluster_of(options.settings)
        self._writer: TransactionalWriter | None = None
        self._stamp = Stamp()
        self._sequences: dict[str, dict[int, int]] = {}
        self._partition_counts: dict[str, int] = {}
        self._placed: dict[TopicPartition, tuple[int, int]] = {}
        self._opened_at = 0.0
        self._open_seconds_max = options.transaction_timeout_ms / 2000
        self.records = 0
        self.two_phase = False
        #: whether the transaction was aborted, for the driver to publish what it had
        self.is_held = False

    def write(self, batches: Iterable[pa.RecordBatch]) -> Transaction | None:
        """Write all; the transaction is open when this returns, or held, and aborted when it raises."""
        try:
            arriving = batches if self._transactional_id is None else arrivals(batches, LOOK_SECONDS)
            for table in _gathered(arriving):
                if table is not None:
                    self._write_some(table)
                elif self._writer is not None:
                    self._writer.flush()  # there is time, and all should be confirmed before it is over
                self._hold_what_is_old()
            if self._writer is None:
                return None
            self._writer.flush()
            if self.is_held:
                self._hold()
            self._note_places()
            self._find_unknown_ends()
        except BaseException as fault:
            self._give_up()
            self._cluster.close()
            if isinstance(fault, Refusal) and fault.code in _TOO_LARGE:
                raise BadRow(str(fault) + _MESSAGE_BYTES_HINT) from fault
            raise
        producer = self._writer.producer
        if producer.transactional_id is None:
            return None
        return Transaction(producer.transactional_id, producer.producer_id, producer.producer_epoch)

    def spans(self) -> tuple[Span, ...]:
        """Where the records lie, after `write`."""
        return tuple(Span(*place, *ends) for place, ends in sorted(self._placed.items()))

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
        self._sequences.clear()
        return self._writer_of(producer)

    def _writer_of(self, producer: Producer) -> TransactionalWriter:
        timeout_ms = self._options.delivery_timeout_ms
        return TransactionalWriter(self._cluster, producer, delivery_timeout_ms=timeout_ms)

    # Transactions that last for long

    def _hold_what_is_old(self) -> None:
        writer = self._writer
        if writer is None or not writer.is_open or self.two_phase:
            return
        if time.monotonic() - self._opened_at >= self._open_seconds_max:
            writer.flush()
            self._hold()

    def _hold(self) -> None:
        """Abort what is written, all of which was confirmed: the driver knows where it is."""
        assert self._writer is not None
        producer = self._writer.producer
        self._note_places()
        self.is_held = True
        self._open_seconds_max = min(self._open_seconds_max, HELD_SECONDS)
        try:
            self._writer.end(committed=False)
            self._writer = self._writer_of(producer)
        except Refusal as refusal:
            if refusal.code not in _TIMED_OUT:
                raise
            self._writer = self._open()
            # The driver tells the records of an attempt by the id.
            if self._writer.producer.producer_id != producer.producer_id:
                raise

    def _note_places(self) -> None:
        assert self._writer is not None
        for place, (first, end) in self._writer.placed.items():
            known = self._placed.get(place, (first, end))
            self._placed[place] = (min(first, known[0]), end)

    def _find_unknown_ends(self) -> None:
        unknown = [place for place, (_, end) in self._placed.items() if end == UNKNOWN_OFFSET]
        if unknown and self._transactional_id is not None:
            ends = self._cluster.list_offsets(dict.fromkeys(unknown, LATEST))
            for place in unknown:
                self._placed[place] = (self._placed[place][0], ends[place].offset)

    # Rows

    def _write_some(self, table: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._open()
        if not self._writer.is_open:
            self._opened_at = time.monotonic()
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


def arrivals(batches: Iterable[pa.RecordBatch], look_seconds: float) -> Iterator[pa.RecordBatch | None]:
    """What arrives, and None whenever nothing has for so long."""
    arrived: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(_ARRIVED_MAX)
    given_up = threading.Event()

    def put(what: pa.RecordBatch | BaseException | None) -> None:
        while not given_up.is_set():
            with contextlib.suppress(queue.Full):
                arrived.put(what, timeout=look_seconds)
                return

    def take() -> None:
        try:
            for batch in batches:
                put(batch)
                if given_up.is_set():
                    return
            put(None)
        except BaseException as fault:  # raised where the rows are waited for
            put(fault)

    # A daemon: what has failed must not wait for rows that nobody wants any more.
    threading.Thread(target=take, name="rows", daemon=True).start()
    try:
        while True:
            try:
                found = arrived.get(timeout=look_seconds)
            except queue.Empty:
                yield None
                continue
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        given_up.set()


def _gathered(batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch | None]:
    """Batches of a good size, and the Nones between them."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch is None:
            yield None
            continue
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
