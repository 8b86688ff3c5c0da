"""Carries the commit protocol out on a cluster: the requests of `commit_protocol` as requests of Kafka's.

The commit log is the compacted topic `__tidelog_spark_commits` of the cluster that is written to. A query has
one partition of it, by the murmur2 of its name, and three keys:

    <query>              the newest decision, written in a transaction of the query's driver id
    <query>/published    how far a decided batch is published, written with the records themselves
    <query>/done         the number of the newest batch that is all visible

It is read from its start to the high watermark, uncommitted records and markers included: a query must see
its own decision even while another query's transaction holds the last stable offset back. A decision counts
when a commit marker follows it, or when none follows and it lies before the last stable offset: then its
marker went with an earlier cleaning, which takes aborted records before their markers. Beyond that offset
nothing is cleaned, so a decision without a marker there is one that a newer driver has not committed yet. The
same goes for how far a batch is published.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.client.faults import Refusal
from tidelog.client.key_hash import murmur2
from tidelog.client.partition_reader import PartitionReader
from tidelog.client.produce_requests import BatchToSend
from tidelog.client.record_writer import RecordWriter
from tidelog.client.transaction_states import is_undecided
from tidelog.client.transactional_writer import (
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
    START,
    Claim,
    CommitDecision,
    CommitLog,
    CommitSome,
    CommittedBatch,
    Decision,
    Driver,
    End,
    EndTxnOutcome,
    ListOpen,
    MarkDone,
    PublishPosition,
    PublishSome,
    ReadCommitLog,
    Records,
    Request,
    Steps,
    StillOpen,
    Transaction,
    WhatIsMissing,
    WriteDecision,
    driver_transactional_id,
)
from tidelog.pipelines.held_records import HeldRecords, sequence_after, written_by
from tidelog.pipelines.shared_clusters import cluster_of
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
#: the driver's own transaction lives for so long at most
DRIVER_TIMEOUT_MS_MAX = 60_000
#: what is published in one transaction; it ends long before its time is over
PIECE_BYTES_MAX = 32 << 20
PIECE_SECONDS_MAX = 5.0
PIECE_PART_OF_TIMEOUT = 8
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
#: the id was not used for so long that its end is no longer known (transactional.id.expiration.ms)
_FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


def done_key(query: str) -> bytes:
    return f"{query}/done".encode()


def published_key(query: str) -> bytes:
    return f"{query}/published".encode()


class SinkCommits:
    """Runs the driver's side of commits; a context manager, used by one commit at a time."""

    def __init__(
        self,
        settings: ClientSettings,
        transaction_timeout_ms: int,
        transactions_age_ms: float,
    ) -> None:
        self._cluster = cluster_of(replace(settings, isolation_level=READ_UNCOMMITTED))
        #: by query
        self._places: dict[str, TopicPartition] = {}
        self._timeout_ms = transaction_timeout_ms
        self._age_ms = transactions_age_ms
        self._measured_at = time.monotonic()
        self._deciding: TransactionalWriter | None = None
        #: of the driver's batches, since its claim
        self._sequences: dict[TopicPartition, int] = {}
        #: whether a decision was asked for and may have come true, whatever was answered
        self.may_be_decided = False

    def __enter__(self) -> "SinkCommits":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._cluster.close()

    def run(self, steps: Steps) -> CommittedBatch:
        """Carry a commit out; raises what the protocol raises, and ClientFault when the cluster is away."""
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as finished:
                committed: CommittedBatch = finished.value
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
            case WhatIsMissing():
                return self._what_is_missing(request.transactions, request.records)
            case WriteDecision():
                return self._write_decision(request.driver, request.decision)
            case CommitDecision():
                return self._commit_decision()
            case PublishSome():
                return self._publish_some(request)
            case CommitSome():
                return self._commit_own()
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
        producer = init_producer(self._cluster, driver_transactional_id(query), self._driver_timeout_ms)
        self._sequences.clear()
        return Driver(driver_transactional_id(query), producer.producer_id, producer.producer_epoch)

    @property
    def _driver_timeout_ms(self) -> int:
        return min(DRIVER_TIMEOUT_MS_MAX, self._timeout_ms)

    def _write_decision(self, driver: Driver, decision: Decision) -> bool:
        self._deciding = TransactionalWriter(self._cluster, Producer(*driver))
        try:
            self._note(driver, decision.query, decision.query.encode(), decision.to_json())
            self._deciding.flush()
        except Refusal as refusal:
            if refusal.code in _NO_LONGER_OURS:
                return False
            raise
        return True

    def _note(self, driver: Driver, query: str, key: bytes, value: bytes) -> None:
        """Write to the commit log in the driver's transaction."""
        assert self._deciding is not None
        place = self._commit_log_place(query)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + 1
        batch = build_batch(
            [Record(0, int(time.time() * 1000), key, value)],
            codec=Codec.ZSTD,
            producer_id=driver.producer_id,
            producer_epoch=driver.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self._deciding.send([BatchToSend(place.topic, place.partition, batch)])

    def _commit_decision(self) -> bool:
        self.may_be_decided = True
        self.may_be_decided = self._commit_own()
        return self.may_be_decided

    def _commit_own(self) -> bool:
        assert self._deciding is not None
        try:
            self._deciding.end(committed=True)
        except Refusal as refusal:
            if refusal.code in _NO_LONGER_OURS:
                return False
            raise
        return True

    def _publish_some(self, request: PublishSome) -> PublishPosition | None:
        driver, decision = request.driver, request.decision
        assert decision.records is not None
        self._deciding = TransactionalWriter(self._cluster, Producer(*driver))
        seconds_max = min(PIECE_SECONDS_MAX, self._driver_timeout_ms / 1000 / PIECE_PART_OF_TIMEOUT)
        until, size = time.monotonic() + seconds_max, 0
        position = request.position
        held = HeldRecords(self._cluster, decision.records, request.transactions)
        try:
            for batch in held.batches(position):
                sequence = self._sequences.get(batch.place, 0)
                self._sequences[batch.place] = sequence_after(sequence, batch)
                self._deciding.send([BatchToSend(*batch.place, written_by(batch, driver, sequence))])
                position = batch.position
                size += len(batch.data)
                if size >= PIECE_BYTES_MAX or time.monotonic() >= until:
                    break
            else:
                position = position._replace(is_end=True)
            noted = json.dumps({"batch": decision.batch_id, "position": position}).encode()
            self._note(driver, decision.query, published_key(decision.query), noted)
            self._deciding.flush()
        except Refusal as refusal:
            if refusal.code in _NO_LONGER_OURS:
                return None
            raise
        log.info("batch %d of %s is published up to %s", decision.batch_id, decision.query, position)
        return position

    # The commit log

    def _commit_log_place(self, query: str) -> TopicPartition:
        if query not in self._places:
            count = len(self._commit_log_topic().partitions)
            number = (murmur2(query.encode()) & 0x7FFFFFFF) % count
            self._places[query] = TopicPartition(COMMIT_LOG_TOPIC, number)
        return self._places[query]

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
        keys = (query.encode(), published_key(query), done_key(query))
        records = [Record(0, now_ms, key, None) for key in keys]
        writer = RecordWriter(self._cluster, None)
        writer.send(BatchToSend(place.topic, place.partition, build_batch(records)))
        writer.flush()

    # The tasks' transactions

    def _still_open(self, transactions: Sequence[Transaction]) -> tuple[Transaction, ...]:
        described = describe_transactions(self._cluster, [one.transactional_id for one in transactions])
        if described is None:
            return tuple(transactions)
        return tuple(
            one
            for one in transactions
            if (found := described.get(one.transactional_id)) is not None
            and is_undecided(found.state)
            and (found.producer_id, found.producer_epoch) == (one.producer_id, one.producer_epoch)
        )

    def _what_is_missing(self, transactions: Sequence[Transaction], records: Records | None) -> str | None:
        age = self._age_ms / 1000 + time.monotonic() - self._measured_at
        took = (
            f"{len(transactions)} of its transactions were ended before it was decided, {age:.0f} s after it "
            f"began (kafka.transaction.timeout.ms allows {self._timeout_ms / 1000:g} s)"
        )
        if records is None:
            return f"{took}, and it is not known where their records are"
        count = HeldRecords(self._cluster, records, transactions).missing_count()
        if not count:
            log.info("%s; their records are published", took)
            return None
        topics = ", ".join(sorted({span.topic for span in records.spans}))
        return (
            f"{took}, and {count} of their {records.count_of(transactions)} records are not in the log of "
            f"{topics} any more, so they cannot be published. It is the same batch that is tried next: give "
            "it more time, make it smaller (maxOffsetsPerTrigger), or have the topic keep what was aborted "
            "(min.compaction.lag.ms, retention.ms); see docs/pipelines-sink.md"
        )

    def _end(self, transactions: Sequence[Transaction], committed: bool) -> list[EndTxnOutcome]:
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
        outcomes = {ErrorCode.NONE: EndTxnOutcome.ENDED, _FORGOTTEN: EndTxnOutcome.FORGOTTEN}
        return [outcomes.get(answers[one.transactional_id], EndTxnOutcome.LOST) for one in transactions]


class _LogReader:
    """Finds what counts for one query among everything in its partition."""

    def __init__(self, query: str, stable_offset: int) -> None:
        self._key = query.encode()
        self._published_key = published_key(query)
        self._done_key = done_key(query)
        self._stable_offset = stable_offset
        self._decision: Decision | None = None
        #: the batch, and how far it is published
        self._published = (NOTHING_DONE, START)
        #: offset, key and value by producer id, in transactions whose end was not seen
        self._undecided: dict[int, list[tuple[int, bytes, bytes]]] = {}
        self._done_batch_id = NOTHING_DONE

    def take(self, records: memoryview, end_offset: int) -> None:
        for position, header in iterate_headers(records):
            if header.base_offset >= end_offset:
                return
            batch = records[position : position + header.size_bytes]
            if header.control:
                is_commit = any(
                    control_type(record) == CONTROL_COMMIT for record in iterate_records(batch, header)
                )
                rows = self._undecided.pop(header.producer_id, [])
                # Each transaction of a driver has one record here: those before the last had markers, once.
                for _, key, value in rows if is_commit else rows[:-1]:
                    self._count(key, value)
                continue
            for record in iterate_records(batch, header):
                if record.value is None:
                    self._forget(record.key)
                elif record.key == self._done_key:
                    self._done_batch_id = int(record.value)
                elif record.key is not None and record.key in (self._key, self._published_key):
                    found = (header.base_offset, record.key, record.value)
                    self._undecided.setdefault(header.producer_id, []).append(found)

    def _count(self, key: bytes, value: bytes) -> None:
        if key == self._key:
            self._decision = Decision.from_json(value)
        else:
            document = json.loads(value)
            self._published = (int(document["batch"]), PublishPosition(*document["position"]))

    def _forget(self, key: bytes | None) -> None:
        if key == self._key:
            self._decision = None
            self._undecided.clear()
        elif key == self._done_key:
            self._done_batch_id = NOTHING_DONE

    def log(self) -> CommitLog:
        decision, (batch_id, published) = self._decision, self._published
        for offset, key, value in sorted(one for rows in self._undecided.values() for one in rows):
            if offset >= self._stable_offset:
                continue
            self._count(key, value)
            if decision is not None and key == self._key and self._decision is not None:
                # Its marker is gone, so it is older than what was cleaned less.
                self._decision = max(self._decision, decision, key=lambda one: one.batch_id)
            self._published = max(self._published, (batch_id, published))
        batch_id, published = self._published
        is_of_decision = self._decision is not None and batch_id == self._decision.batch_id
        return CommitLog(self._decision, self._done_batch_id, published if is_of_decision else START)
