"""Records read for pages and files: a bounded look into a topic with a consumer of its own.

A look begins at the newest records, at the beginning, at an offset or at a time, and ends when it has enough
records, has come to where the logs ended when it began, or has used up its limits of scanned records and
time. The consumer is assigned by hand and commits nothing: it is in no group.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.offsets import known_offsets
from tidelog.client.client_settings import READ_COMMITTED, READ_UNCOMMITTED
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.console.faults import NOT_FOUND, ConsoleFault, explained
from tidelog.console.kafka_client import KafkaClient
from tidelog.console.record_filter import Predicate
from tidelog.console.record_view import RecordView

SCANNED_RECORDS_MAX = 200_000
SCAN_SECONDS_MAX = 8.0
PAGE_RECORDS_MAX = 500
EXPORT_RECORDS_MAX = 100_000
EXPORT_SECONDS_MAX = 60.0
CONSUME_BATCH = 500
#: a call waits for a full batch of records, which a page's worth seldom is
POLL_SECONDS = 0.02

CONSUMER_PROPERTIES = {
    "group.id": "tidelog-console-unused",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    # What a page shows is little: a full prefetch queue would only cost the brokers.
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 16_384,
}


class From(Enum):
    """Where a look begins."""

    NEWEST = "newest"
    BEGINNING = "beginning"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Look:
    """What is wanted: `number` is the offset or the time in ms of those beginnings."""

    topic: str
    partitions: tuple[int, ...]
    start: From = From.NEWEST
    number: int = 0
    limit: int = 50
    predicate: Predicate | None = None
    key: bytes | None = None
    committed_only: bool = True
    scanned_max: int = SCANNED_RECORDS_MAX
    seconds_max: float = SCAN_SECONDS_MAX

    def wants(self, record: RecordView) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        return self.predicate is None or self.predicate(record)

    @property
    def picky(self) -> bool:
        return self.predicate is not None or self.key is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look brought; `complete` is False where it stopped at a limit."""

    records: tuple[RecordView, ...]
    scanned: int
    complete: bool
    #: earliest and end offsets by partition when the look began
    ends: dict[int, tuple[int, int]]


class RecordReader:
    """Makes looks; each has a consumer of its own, closed with it."""

    def __init__(self, client: KafkaClient, admin: ClusterAdmin) -> None:
        self._client = client
        self._admin = admin

    def look(self, look: Look) -> Seen:
        """Records in the order to show them: the newest first for NEWEST, else by time."""
        ends = self._ends(look)
        progress = _Progress()
        found: list[RecordView] = []
        # The newest of every partition are wanted, so all of them are read; else the first ones suffice.
        enough = None if look.start is From.NEWEST else look.limit
        for record in self._scan(look, self._starts(look, ends), ends, progress):
            found.append(record)
            if enough is not None and len(found) >= enough:
                break
            if enough is None and len(found) > 4 * max(look.limit, PAGE_RECORDS_MAX):
                found = _newest(found, look.limit)
        if look.start is From.NEWEST:
            found = _newest(found, look.limit)
        else:
            found.sort(key=_by_time)
        return Seen(tuple(found), progress.scanned, progress.complete, ends)

    def stream(self, look: Look) -> Iterator[RecordView]:
        """The records of a look one by one, for files; in the order of each partition."""
        ends = self._ends(look)
        yield from islice(self._scan(look, self._starts(look, ends), ends, _Progress()), look.limit)

    def one(self, topic: str, partition: int, offset: int) -> RecordView:
        """The record at an offset, or the next one after a gap that compaction or a transaction left."""
        return self.one_and_next(topic, partition, offset)[0]

    def one_and_next(self, topic: str, partition: int, offset: int) -> tuple[RecordView, int | None]:
        """The same with the offset of the record after it; None where it is the last one."""
        look = Look(topic, (partition,), From.OFFSET, offset, 2, committed_only=False)
        found = sorted(self.look(look).records, key=lambda record: record.offset)
        if not found:
            raise ConsoleFault(
                f"{topic}-{partition} has no record at offset {offset}",
                "It may have been deleted by retention or not be written yet.",
                NOT_FOUND,
            )
        return found[0], found[1].offset if len(found) > 1 else None

    def _ends(self, look: Look) -> dict[int, tuple[int, int]]:
        keys = [(look.topic, partition) for partition in look.partitions]
        first = known_offsets(self._admin, keys, EARLIEST)
        isolation = READ_COMMITTED if look.committed_only else READ_UNCOMMITTED
        last = known_offsets(self._admin, keys, LATEST, isolation)
        return {number: (first[key], last[key]) for key in keys if (number := key[1]) >= 0 and key in last}

    def _starts(self, look: Look, ends: dict[int, tuple[int, int]]) -> dict[int, int]:
        if look.start is From.TIME:
            keys = [(look.topic, partition) for partition in ends]
            at = known_offsets(self._admin, keys, look.number)
            return {
                number: at[(look.topic, number)] if at.get((look.topic, number), -1) >= 0 else end
                for number, (_, end) in ends.items()
            }
        starts = {}
        for number, (first, end) in ends.items():
            if look.start is From.BEGINNING:
                starts[number] = first
            elif look.start is From.OFFSET:
                starts[number] = min(max(first, look.number), end)
            else:
                # A filter wants more behind it than a page of records.
                back = look.scanned_max // max(1, len(ends)) if look.picky else look.limit
                starts[number] = max(first, end - back)
        return starts

    def _scan(
        self,
        look: Look,
        starts: dict[int, int],
        ends: dict[int, tuple[int, int]],
        progress: "_Progress",
    ) -> Iterator[RecordView]:
        left = {number: ends[number][1] for number, start in starts.items() if start < ends[number][1]}
        if not left:
            return
        deadline = time.monotonic() + look.seconds_max
        isolation = "read_committed" if look.committed_only else "read_uncommitted"
        properties = {**CONSUMER_PROPERTIES, "isolation.level": isolation}
        with explained(f"the records of {look.topic!r} cannot be read"):
            consumer = Consumer(self._client.client_properties(properties))
        try:
            consumer.assign([TopicPartition(look.topic, number, starts[number]) for number in left])
            while left:
                if progress.scanned >= look.scanned_max or time.monotonic() > deadline:
                    progress.complete = False
                    return
                with explained(f"the records of {look.topic!r} cannot be read"):
                    messages = consumer.consume(CONSUME_BATCH, POLL_SECONDS)
                for message in messages:
                    record = record_of(message)
                    if record is None:
                        continue
                    progress.scanned += 1
                    if record.offset < ends[record.partition][1] and look.wants(record):
                        yield record
                # Control records are never handed out, so positions tell how far we are, not records.
                self._forget_finished(consumer, look.topic, left)
        finally:
            consumer.close()

    def _forget_finished(self, consumer: Consumer, topic: str, left: dict[int, int]) -> None:
        asked = [TopicPartition(topic, number) for number in left]
        finished = [
            item.partition for item in consumer.position(asked) if item.offset >= left[item.partition]
        ]
        for number in finished:
            del left[number]


class _Progress:
    """How a scan went; a value that the scan fills in."""

    def __init__(self) -> None:
        self.scanned = 0
        self.complete = True


def _by_time(record: RecordView) -> tuple[int, int, int]:
    return (record.timestamp_ms or 0, record.partition, record.offset)


def _newest(found: list[RecordView], limit: int) -> list[RecordView]:
    return sorted(found, key=_by_time, reverse=True)[:limit]


def record_of(message: Any) -> RecordView | None:
    """A client's message as a value; None for an error, which a consumer reports in a message's place."""
    if message.error() is not None:
        return None
    kind, timestamp_ms = message.timestamp()
    headers = tuple(
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in (message.headers() or [])
    )
    return RecordView(
        message.topic(),
        message.partition(),
        message.offset(),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        "LogAppendTime" if kind == TIMESTAMP_LOG_APPEND_TIME else "CreateTime",
        message.key(),
        message.value(),
        headers,
    )
