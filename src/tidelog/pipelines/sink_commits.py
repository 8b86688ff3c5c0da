"""Carries the commit protocol out on a cluster: the requests of `commit_protocol` as requests of Kafka's.

The commit log is the compacted topic `__tidelog_spark_commits` of the cluster that is written to. A query has
one partition of it, by the murmur2 of its name, and two keys:

    <query>         the newest decision, written in a transaction of the query's driver id
    <query>/done    the number of the newest batch whose transactions are all ended

It is read from its start to the high watermark, uncommitted records and markers included: a query must see
its own decision even while another query's transaction holds the last stable offset back. A decision counts
when a commit marker follows it, or when none follows and it lies before the last stable offset: then its
marker went with an earlier cleaning, which takes aborted records before their markers. Beyond that offset
nothing is cleaned, so a decision without a marker there is one that a newer driver has not committed yet.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.client.faults import Refusal
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import RecordWriter
from tidelog.client.transactional_writer import (
    ONGOING,
    Producer,
    TransactionalWriter,
    describe_transactions,
    end_transactions,
    init_producer,
    open_transactions,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.commit_protocol import (
    COMMIT_LOG_TOPIC,
    NOTHING_DONE,
    Claim,
    CommitDecision,
    CommitLog,
    Committed,
    Decision,
    Driver,
    DropDecision,
    End,
    ListOpen,
    MarkDone,
    Outcome,
    ReadCommitLog,
    Request,
    Steps,
    StillOpen,
    Transaction,
    WriteDecision,
    driver_transactional_id,
)
from tidelog.pipelines.record_batches import murmur2
from tidelog.pipelines.target_topics import create_topics
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import CONTROL_COMMIT, build_batch, control_type
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records

log = logging.getLogger(__name__)

COMMIT_LOG_PARTITIONS = 8
#: As small as brokers allow: compaction leaves the newest segment alone, and each commit reads what is left.
COMMIT_LOG_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
#: the driver's own transaction lives for so long at most, and for a quarter of the tasks' time
DRIVER_TIMEOUT_MS_MAX = 60_000
READ_PATIENCE_MS = 30_000

#: somebody else has the id now, or the coordinator has given up on the transaction
_NO_LONGER_OURS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


def done_key(query: str) -> bytes:
    return f"{query}/done".encode()


class SinkCommits:
    """Runs the driver's side of commits; a context manager, used by one commit at a time."""

    def __init__(
        self,
        settings: ClientSettings,
        transaction_timeout_ms: int,
        transactions_age_ms: float,
        two_phase: bool,
    ) -> None:
        self._cluster = Cluster(replace(settings, isolation_level=READ_UNCOMMITTED))
        self._timeout_ms = transaction_timeout_ms
        self._age_ms = transactions_age_ms
        self._measured_at = time.monotonic()
        self._two_phase = two_phase
        self._deciding: TransactionalWriter | None = None
        #: whether a decision was asked for and may have come true, whatever was answered
        self.may_be_decided = False

    def __enter__(self) -> "SinkCommits":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def run(self, steps: Steps) -> Committed:
        """Carry a commit out; raises what the protocol raises, and ClientFault when the cluster is away."""
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as finished:
                committed: Committed = finished.value
                return committed
            answer = self.execute(request)

    def execute(self, request: Request) -> Any:
        """One request of the protocol."""
        match request:
            case Claim():
                return self._claim(request.query)
            case ReadCommitLog():
                return self._read_log(request.query)
            case StillOpen():
                return self._still_open(request.transactions)
            case WriteDecision():
                return self._write_decision(request.driver, request.decision)
            case CommitDecision():
                return self._end_decision(committed=True)
            case DropDecision():
                self._end_decision(committed=False)
                return None
            case End():
                return self._end(request.transactions, request.committed)
            case MarkDone():
                return self._mark_done(request.query, request.batch_id)
            case ListOpen():
                found = open_transactions(self._cluster, request.prefix)
                return [Transaction(str(one.transactional_id), *one[1:3]) for one in found]

    # The driver id

    def _claim(self, query: str) -> Driver:
        self._commit_log_place(query)  # there must be a log before anybody can decide
        timeout_ms = min(DRIVER_TIMEOUT_MS_MAX, max(1_000, self._timeout_ms // 4))
        producer = init_producer(self._cluster, driver_transactional_id(query), timeout_ms)
        return Driver(driver_transactional_id(query), producer.producer_id, producer.producer_epoch)

    def _write_decision(self, driver: Driver, decision: Decision) -> bool:
        self._deciding = TransactionalWriter(self._cluster, Producer(*driver))
        record = Record(0, int(time.time() * 1000), decision.query.encode(), decision.to_json())
        batch = build_batch(
            [record],
            codec=Codec.ZSTD,
            producer_id=driver.producer_id,
            producer_epoch=driver.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        place = self._commit_log_place(decision.query)
        try:
            self._deciding.send([BatchToSend(place.topic, place.partition, batch)])
            self._deciding.flush()
        except Refusal as refusal:
            if refusal.code in _NO_LONGER_OURS:
                return False
            raise
        return True

    def _end_decision(self, *, committed: bool) -> bool:
        assert self._deciding is not None
        self.may_be_decided |= committed
        try:
            self._deciding.end(committed=committed)
        except Refusal as refusal:
            if refusal.code in _NO_LONGER_OURS:
                self.may_be_decided = False
                return False
            raise
        return True

    # The commit log

    def _commit_log_place(self, query: str) -> TopicPartition:
        count = len(self._commit_log_topic().partitions)
        number = int(murmur2(pa.array([query.encode()]))[0]) & 0x7FFFFFFF
        return TopicPartition(COMMIT_LOG_TOPIC, number % count)

    def _commit_log_topic(self) -> Any:
        found = self._cluster.topics([COMMIT_LOG_TOPIC])
        if COMMIT_LOG_TOPIC not in found:
            create_topics(self._cluster, {COMMIT_LOG_TOPIC: COMMIT_LOG_PARTITIONS}, COMMIT_LOG_CONFIGS)
            return self._cluster.topic(COMMIT_LOG_TOPIC)
        return found[COMMIT_LOG_TOPIC]

    def _read_log(self, query: str) -> CommitLog:
        place = self._commit_log_place(query)
        start = self._cluster.list_offsets({place: EARLIEST})[place].offset
        stable = self._cluster.list_offsets({place: LATEST}, READ_COMMITTED)[place].offset
        end = self._cluster.list_offsets({place: LATEST})[place].offset
        reader = _LogReader(query, stable)
        for piece in PartitionReader(self._cluster, place).slices(start, end, READ_PATIENCE_MS):
            reader.take(piece.records, end)
        return reader.log()

    def _mark_done(self, query: str, batch_id: int) -> None:
        place = self._commit_log_place(query)
        record = Record(0, int(time.time() * 1000), done_key(query), str(batch_id).encode())
        # Not idempotent: to say it twice does no harm.
        writer = RecordWriter(self._cluster, None)
        writer.send(BatchToSend(place.topic, place.partition, build_batch([record])))
        writer.flush()

    def forget(self, query: str) -> None:
        """Remove a query that will never commit again from the log."""
        place = self._commit_log_place(query)
        now_ms = int(time.time() * 1000)
        records = [Record(0, now_ms, key, None) for key in (query.encode(), done_key(query))]
        writer = RecordWriter(self._cluster, None)
        writer.send(BatchToSend(place.topic, place.partition, build_batch(records)))
        writer.flush()

    # The tasks' transactions

    def _still_open(self, transactions: Sequence[Transaction]) -> tuple[Transaction, ...]:
        age_ms = self._age_ms + (time.monotonic() - self._measured_at) * 1000
        if not self._two_phase and age_ms > self._timeout_ms / 2:
            return ()
        described = describe_transactions(self._cluster, [one.transactional_id for one in transactions])
        if described is None:
            return tuple(transactions)
        return tuple(
            one
            for one in transactions
            if (found := described.get(one.transactional_id)) is not None
            and found.state == ONGOING
            and (found.producer_id, found.producer_epoch) == (one.producer_id, one.producer_epoch)
        )

    def _end(self, transactions: Sequence[Transaction], committed: bool) -> list[Outcome]:
        answers = end_transactions(
            self._cluster, [Producer(*transaction) for transaction in transactions], committed=committed
        )
        for name, code in answers.items():
            if code is ErrorCode.NONE or code in _NO_LONGER_OURS:
                continue
            refusal = Refusal(code, f"ending the transaction of {name!r}")
            if committed:
                # Not lost: whoever may end it can still do so.
                raise refusal
            log.warning("%s: it is left open until its timeout", refusal)
        return [
            Outcome.ENDED if answers[one.transactional_id] is ErrorCode.NONE else Outcome.LOST
            for one in transactions
        ]


class _LogReader:
    """Finds what counts for one query among everything in its partition."""

    def __init__(self, query: str, stable_offset: int) -> None:
        self._key = query.encode()
        self._stable_offset = stable_offset
        self._done_key = done_key(query)
        self._decision: Decision | None = None
        #: offset and decision by producer id
        self._undecided: dict[int, tuple[int, Decision]] = {}
        self._done_batch_id = NOTHING_DONE

    def take(self, records: memoryview, end_offset: int) -> None:
        for position, header in iterate_headers(records):
            if header.base_offset >= end_offset:
                return
            batch = records[position : position + header.size_bytes]
            if header.control:
                undecided = self._undecided.pop(header.producer_id, None)
                if undecided is not None and any(
                    control_type(record) == CONTROL_COMMIT for record in iterate_records(batch, header)
                ):
                    self._decision = undecided[1]
                continue
            for record in iterate_records(batch, header):
                if record.value is None:
                    self._forget(record.key)
                elif record.key == self._key:
                    decision = Decision.from_json(record.value)
                    self._undecided[header.producer_id] = (header.base_offset, decision)
                elif record.key == self._done_key:
                    self._done_batch_id = int(record.value)

    def _forget(self, key: bytes | None) -> None:
        if key == self._key:
            self._decision = None
            self._undecided.clear()
        elif key == self._done_key:
            self._done_batch_id = NOTHING_DONE

    def log(self) -> CommitLog:
        for offset, decision in self._undecided.values():
            is_newest = self._decision is None or decision.batch_id > self._decision.batch_id
            if offset < self._stable_offset and is_newest:
                self._decision = decision
        return CommitLog(self._decision, self._done_batch_id)
