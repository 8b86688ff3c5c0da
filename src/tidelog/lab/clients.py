"""Ordinary clients as the steps of a scenario use them: confluent-kafka, with what comes back as values."""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tidelog.lab.events import EventStream

FLUSH_SECONDS = 20.0
READ_SECONDS_MAX = 30.0
POLL_SECONDS = 0.1

#: librdkafka tells every lost connection on standard error, which a lesson about lost connections knows
QUIET = {"log_level": 0}


class Delivery(NamedTuple):
    """What became of one record that was sent: where it is, or the error's name."""

    topic: str
    key: str | None
    value: str | None
    partition: int
    offset: int
    error: str | None
    latency_ms: float
    timestamp_ms: int = -1

    @property
    def acknowledged(self) -> bool:
        return self.error is None


class ReadRecord(NamedTuple):
    """A record that was read."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def client_config(bootstrap: str, options: dict[str, Any]) -> dict[str, Any]:
    """librdkafka's settings: `enable_idempotence=True` stands for enable.idempotence."""
    dotted = {name.replace("_", "."): value for name, value in options.items()}
    return {"bootstrap.servers": bootstrap, "error_cb": _heard, **QUIET, **dotted}


def _heard(error: KafkaError) -> None:
    """What is wrong with a connection shows in the deliveries and reads; it is not told twice."""


def text(data: object) -> str | None:
    """Keys and values as text."""
    if data is None:
        return None
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data)


class Sender:
    """A producer that keeps what became of every record."""

    def __init__(self, bootstrap: str, events: EventStream, **options: Any) -> None:
        self._producer = Producer(client_config(bootstrap, options))
        self._events = events
        self._lock = threading.Lock()
        self.deliveries: list[Delivery] = []

    def __repr__(self) -> str:
        return f"<Sender {len(self.deliveries)} delivered, {len(self._producer)} under way>"

    @property
    def client(self) -> Producer:
        """confluent-kafka's own producer."""
        return self._producer

    def send(
        self,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None = None,
        *,
        partition: int | None = None,
        **more: Any,
    ) -> None:
        """Hand a record to the producer; it goes out when the producer thinks it is time."""
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        sent_at = time.monotonic()

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._note(error, message, sent_at)

        self._producer.produce(topic, value=value, key=key, on_delivery=delivered, **place, **more)
        self._producer.poll(0)

    def flush(self, timeout_seconds: float = FLUSH_SECONDS) -> list[Delivery]:
        """Wait until the fate of everything sent is known, or the time is over; all deliveries so far."""
        self._producer.flush(timeout_seconds)
        return list(self.deliveries)

    def fates(self, timeout_seconds: float = FLUSH_SECONDS) -> list[Delivery]:
        """As `flush`, for steps that cannot go on without knowing; raises TimeoutError in words."""
        deliveries = self.flush(timeout_seconds)
        if waiting := len(self._producer):
            raise TimeoutError(
                f"{timeout_seconds:g} s after sending, nobody has answered for {waiting} of"
                f" {waiting + len(deliveries)} records"
            )
        return deliveries

    def abandon(self) -> None:
        """Forget what is still under way, as an application that dies does."""
        self._producer.purge()
        self._producer.flush(1)

    def _note(self, error: KafkaError | None, message: Message, sent_at: float) -> None:
        name = None if error is None else error.name()
        partition, offset, topic = message.partition(), message.offset(), message.topic()
        delivery = Delivery(
            topic or "",
            text(message.key()),
            text(message.value()),
            -1 if partition is None else partition,
            -1 if offset is None else offset,
            name,
            (time.monotonic() - sent_at) * 1000,
            message.timestamp()[1],
        )
        with self._lock:
            self.deliveries.append(delivery)
        place = f"{delivery.topic}-{delivery.partition}"
        told = f"{delivery.value!r} is in {place} at {delivery.offset}"
        if name is not None:
            told = f"{delivery.value!r} for {place}: {name}"
        self._events.emit(
            "delivered" if name is None else "not-delivered",
            told,
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            key=delivery.key,
            value=delivery.value,
            error=name,
        )


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    partitions: Sequence[int],
    start_offset: int,
    timeout_seconds: float = READ_SECONDS_MAX,
    **options: Any,
) -> list[ReadRecord]:
    """Every record of the partitions from `start_offset` (-2: the beginning) to their present end.

    Records come in the order in which the client handed them out.
    """
    settings = {
        "group_id": "lab-reader",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
        "isolation_level": "read_uncommitted",
        "fetch_wait_max_ms": 50,
        **options,
    }
    consumer = Consumer(client_config(bootstrap, settings))
    found: list[ReadRecord] = []
    missing = set(partitions)
    deadline = time.monotonic() + timeout_seconds
    try:
        consumer.assign([TopicPartition(topic, number, start_offset) for number in partitions])
        while missing:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the end of {topic} {sorted(missing)} was not reached")
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(_read_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                missing.discard(_number(message.partition()))
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def _read_record(message: Message) -> ReadRecord:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return ReadRecord(
        _number(message.partition()),
        _number(message.offset()),
        text(message.key()),
        text(message.value()),
        message.timestamp()[1],
        tuple((str(name), value if isinstance(value, bytes) else None) for name, value in pairs),
    )


def _number(value: int | None) -> int:
    assert value is not None
    return value


def pairs_of(records: Iterable[str | tuple[str | None, str | None]]) -> list[tuple[str | None, str | None]]:
    """(key, value) of every record; a bare text is a value without a key."""
    return [(None, record) if isinstance(record, str) else record for record in records]
