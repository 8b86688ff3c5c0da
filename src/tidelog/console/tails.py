"""Live tails: records as they arrive, read by a thread each, at most TAILS_MAX at a time.

A tail shows people what happens; it is no consumer that must see all. It reads small pieces, hands out at
most ROUND_RECORDS_MAX records per round, and where more arrive it jumps to the end and counts what it left
out. So a fast topic costs the brokers and the browser no more than a slow one.
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
from tidelog.console.record_view import record_row
from tidelog.console.schema_registry import SchemaRegistry

TAILS_MAX = 32
ROUND_SECONDS = 0.5
ROUND_RECORDS_MAX = 100

TAIL_PROPERTIES = {
    "group.id": "tidelog-console-unused",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 250,
    "queued.min.messages": ROUND_RECORDS_MAX,
    "queued.max.messages.kbytes": 1_024,
    "fetch.message.max.bytes": 262_144,
}

#: receives (rows, left out since the last call); called in the tail's thread
Receiver = Callable[[list[dict[str, Any]], int], None]


class Tails:
    """The open tails, counted."""

    def __init__(self, client: KafkaClient, schemas: SchemaRegistry | None = None) -> None:
        self._client = client
        self._schemas = schemas
        self._lock = threading.Lock()
        self._open: set[Tail] = set()

    def __len__(self) -> int:
        return len(self._open)

    def open(
        self,
        topic: str,
        starts: dict[int, int],
        predicate: Predicate | None,
        formats: tuple[str, str],
        receiver: Receiver,
    ) -> "Tail":
        """Begin a tail at these offsets; ConsoleFault when there are too many."""
        with self._lock:
            if len(self._open) >= TAILS_MAX:
                raise ConsoleFault(
                    f"{TAILS_MAX} live tails are open", "Close one in another window.", UNAVAILABLE
                )
            tail = Tail(
                self._client, topic, starts, predicate, formats, receiver, self._closed, self._schemas
            )
            self._open.add(tail)
        tail.start()
        return tail

    def _closed(self, tail: "Tail") -> None:
        with self._lock:
            self._open.discard(tail)

    def close(self) -> None:
        for tail in list(self._open):
            tail.stop()


class Tail(threading.Thread):
    """One live tail; `stop` ends it within a round."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        starts: dict[int, int],
        predicate: Predicate | None,
        formats: tuple[str, str],
        receiver: Receiver,
        closed: Callable[["Tail"], None],
        schemas: SchemaRegistry | None = None,
    ) -> None:
        super().__init__(name=f"console-tail-{topic}", daemon=True)
        self._client = client
        self._topic = topic
        self._next = dict(starts)
        self._predicate = predicate
        self._formats = formats
        self._receiver = receiver
        self._closed = closed
        self._schemas = schemas
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        self._stop_requested.set()

    def run(self) -> None:
        try:
            consumer = Consumer(self._client.client_properties(TAIL_PROPERTIES))
            try:
                consumer.assign([TopicPartition(self._topic, *item) for item in self._next.items()])
                while not self._stop_requested.is_set():
                    self._round(consumer)
            finally:
                consumer.close()
        except KafkaException:
            # The stream ends; the browser opens another one by itself.
            self._stop_requested.set()
        finally:
            self._closed(self)

    def _round(self, consumer: Consumer) -> None:
        ends = time.monotonic() + ROUND_SECONDS
        messages = consumer.consume(ROUND_RECORDS_MAX, ROUND_SECONDS)
        rows: list[dict[str, Any]] = []
        left_out = 0
        for message in messages:
            record = record_of(message)
            if record is None:
                continue
            left_out += max(0, record.offset - self._next.get(record.partition, record.offset))
            self._next[record.partition] = record.offset + 1
            if self._predicate is None or self._predicate(record):
                rows.append(record_row(record, *self._formats, self._schemas))
        if rows or left_out:
            self._receiver(rows, left_out)
        if len(messages) >= ROUND_RECORDS_MAX and self._predicate is None:
            self._stop_requested.wait(max(0.0, ends - time.monotonic()))
            for number in self._next:
                consumer.seek(TopicPartition(self._topic, number, OFFSET_END))
