"""Live tails: records as they arrive, at most TAILS_MAX at a time.

A tail shows people what happens; it is no consumer that must see all. Tails of the same partitions share a
feed: one thread with one consumer, which reads a small piece in each round, hands out at most
ROUND_RECORDS_MAX records, and where more arrive jumps to the end and counts what it left out. So neither a
fast topic nor many people who look at it cost the brokers more than a slow one. A filter looks at up to
ROUND_FILTERED_MAX records in a round before the feed jumps.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from tidelog.console.faults import UNAVAILABLE, ConsoleFault
from tidelog.console.kafka_client import KafkaClient
from tidelog.console.record_filter import Predicate
from tidelog.console.record_reader import record_of
from tidelog.console.record_view import RecordView, record_row
from tidelog.console.schema_registry import SchemaRegistry

TAILS_MAX = 32
ROUND_SECONDS = 0.5
ROUND_RECORDS_MAX = 100
ROUND_FILTERED_MAX = 2_000

TAIL_PROPERTIES = {
    "group.id": "tidelog-console-unused",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 250,
    "queued.min.messages": ROUND_RECORDS_MAX,
    "queued.max.messages.kbytes": 1_024,
    # A round shows little; whoever reads more than it shows takes time from those who need it.
    "fetch.message.max.bytes": 65_536,
}

Row = dict[str, Any]
Formats = tuple[str, str]
#: receives (rows, left out since the last call); called in the feed's thread
Receiver = Callable[[list[Row], int], None]
FeedKey = tuple[str, tuple[int, ...]]


class Tail:
    """One live tail; `stop` ends it."""

    def __init__(
        self,
        starts: dict[int, int],
        predicate: Predicate | None,
        formats: Formats,
        receiver: Receiver,
        closed: Callable[["Tail"], None],
    ) -> None:
        self.starts = starts
        self.predicate = predicate
        self.formats = formats
        self.receiver = receiver
        self._closed = closed

    def stop(self) -> None:
        self._closed(self)


class Tails:
    """The open tails, counted, with the feeds that they share."""

    def __init__(self, client: KafkaClient, schemas: SchemaRegistry | None = None) -> None:
        self._client = client
        self._schemas = schemas
        self._lock = threading.Lock()
        self._feeds: dict[FeedKey, Feed] = {}

    def __len__(self) -> int:
        return sum(len(feed.tails) for feed in self._feeds.values())

    @property
    def feeds_count(self) -> int:
        return len(self._feeds)

    def open(
        self,
        topic: str,
        starts: dict[int, int],
        predicate: Predicate | None,
        formats: Formats,
        receiver: Receiver,
    ) -> Tail:
        """Begin a tail at these offsets; ConsoleFault when there are too many."""
        key = (topic, tuple(sorted(starts)))
        tail = Tail(starts, predicate, formats, receiver, lambda tail: self._closed(key, tail))
        with self._lock:
            if len(self) >= TAILS_MAX:
                raise ConsoleFault(
                    f"{TAILS_MAX} live tails are open", "Close one in another window.", UNAVAILABLE
                )
            feed = self._feeds.get(key)
            if feed is None or not feed.running:
                feed = self._feeds[key] = Feed(self._client, topic, starts, self._schemas)
                feed.tails = (tail,)
                feed.start()
            else:
                feed.tails = (*feed.tails, tail)
        return tail

    def _closed(self, key: FeedKey, tail: Tail) -> None:
        with self._lock:
            feed = self._feeds.get(key)
            if feed is None:
                return
            feed.tails = tuple(one for one in feed.tails if one is not tail)
            if not feed.tails:
                del self._feeds[key]
                feed.stop()

    def wake(self) -> None:
        """Call every tail's receiver with nothing, so that it looks whether it should go on."""
        with self._lock:
            tails = [tail for feed in self._feeds.values() for tail in feed.tails]
        for tail in tails:
            tail.receiver([], 0)

    def close(self) -> None:
        with self._lock:
            for feed in self._feeds.values():
                feed.stop()
            self._feeds.clear()


class Feed(threading.Thread):
    """What reads some partitions of a topic for its tails; `stop` ends it within a round."""

    def __init__(
        self, client: KafkaClient, topic: str, starts: dict[int, int], schemas: SchemaRegistry | None
    ) -> None:
        super().__init__(name=f"console-tail-{topic}", daemon=True)
        self._client = client
        self._topic = topic
        self._next = dict(starts)
        self._schemas = schemas
        self._stop_requested = threading.Event()
        #: replaced, never changed: the thread reads it without a lock
        self.tails: tuple[Tail, ...] = ()

    @property
    def running(self) -> bool:
        return not self._stop_requested.is_set()

    def stop(self) -> None:
        self._stop_requested.set()

    def run(self) -> None:
        try:
            consumer = Consumer(self._client.client_properties(TAIL_PROPERTIES))
            try:
                consumer.assign([TopicPartition(self._topic, *item) for item in self._next.items()])
                while self.running:
                    self._round(consumer)
            finally:
                consumer.close()
        except KafkaException:
            # Nothing arrives any more; the next tail of these partitions gets another feed.
            self._stop_requested.set()

    def _round(self, consumer: Consumer) -> None:
        ends = time.monotonic() + ROUND_SECONDS
        wanted = ROUND_FILTERED_MAX if any(tail.predicate for tail in self.tails) else ROUND_RECORDS_MAX
        messages = consumer.consume(wanted, ROUND_SECONDS)
        records: list[RecordView] = []
        left_out = 0
        for message in messages:
            record = record_of(message)
            if record is None:
                continue
            left_out += max(0, record.offset - self._next.get(record.partition, record.offset))
            self._next[record.partition] = record.offset + 1
            records.append(record)
        if records:
            # Those too that were opened while this round waited.
            self._hand_out(self.tails, records, left_out)
        if len(messages) >= wanted:
            self._stop_requested.wait(max(0.0, ends - time.monotonic()))
            for number in self._next:
                consumer.seek(TopicPartition(self._topic, number, OFFSET_END))

    def _hand_out(self, tails: tuple[Tail, ...], records: list[RecordView], left_out: int) -> None:
        """Give each tail its rows; what several show is worked out once."""
        made: dict[tuple[int, Formats], Row] = {}
        for tail in tails:
            rows: list[Row] = []
            unshown = left_out
            for number, record in enumerate(records):
                if record.offset < tail.starts.get(record.partition, 0):
                    continue
                if tail.predicate is not None and not tail.predicate(record):
                    continue
                if len(rows) >= ROUND_RECORDS_MAX:
                    unshown += 1
                    continue
                key = (number, tail.formats)
                if key not in made:
                    made[key] = record_row(record, *tail.formats, self._schemas)
                rows.append(made[key])
            if rows or unshown:
                tail.receiver(rows, unshown)
