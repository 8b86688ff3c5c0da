"""confluent-kafka: the Python face of librdkafka.

Whole topics are read from offset 0, not from OFFSET_BEGINNING: librdkafka asks for the latter before it knows
the leader and then waits half a second, which a matrix of tests cannot afford.
"""

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.conformance.drivers.contract import (
    ALL_CODECS,
    DEADLINE_SECONDS,
    Ability,
    DriverTimeout,
    Headers,
    Message,
    in_order,
)


def producer(bootstrap: str, **settings: object) -> Producer:
    """A producer whose settings are written with underscores for dots."""
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **_dotted(settings)})


def consumer(bootstrap: str, **settings: object) -> Consumer:
    base = {
        "bootstrap.servers": bootstrap,
        "group.id": "conformance-unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
    }
    return Consumer({**base, **_dotted(settings)})


def send(client: Producer, topic: str, messages: Sequence[Message]) -> list[KafkaError | None]:
    """Produce and wait; the delivery reports' errors in the order of the messages."""
    reports: list[KafkaError | None] = [None] * len(messages)

    def report_to(index: int) -> object:
        def report(error: KafkaError | None, _: object) -> None:
            reports[index] = error

        return report

    for index, message in enumerate(messages):
        client.produce(
            topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers) or None,
            partition=message.partition,
            timestamp=message.timestamp_ms or 0,
            on_delivery=report_to(index),  # type: ignore[arg-type]
        )
    left = client.flush(DEADLINE_SECONDS)
    if left:
        raise DriverTimeout(f"{left} of {len(messages)} messages to {topic} were not delivered")
    return reports


def poll_messages(
    client: Consumer, count: int, deadline_seconds: float = DEADLINE_SECONDS
) -> list[tuple[str, Message]]:
    """The next `count` messages with their topics."""
    received: list[tuple[str, Message]] = []
    deadline = time.monotonic() + deadline_seconds
    while len(received) < count:
        if time.monotonic() > deadline:
            raise DriverTimeout(f"read {len(received)} of {count} messages")
        for raw in client.consume(count - len(received), timeout=0.2):
            if raw.error():
                raise KafkaException(raw.error())
            received.append((raw.topic(), as_message(raw)))  # type: ignore[arg-type]
    return received


def as_message(raw: object) -> Message:
    return Message(
        value=raw.value(),  # type: ignore[attr-defined]
        key=raw.key(),  # type: ignore[attr-defined]
        headers=tuple(raw.headers() or ()),  # type: ignore[attr-defined]
        partition=raw.partition(),  # type: ignore[attr-defined]
        timestamp_ms=raw.timestamp()[1],  # type: ignore[attr-defined]
        offset=raw.offset(),  # type: ignore[attr-defined]
    )


def read_all(
    bootstrap: str, topic: str, count: int, partition_count: int = 1, **settings: object
) -> list[Message]:
    """The first `count` messages of the topic, without a group."""
    client = consumer(bootstrap, **settings)
    try:
        client.assign([TopicPartition(topic, index, 0) for index in range(partition_count)])
        return in_order([message for _, message in poll_messages(client, count)])
    finally:
        client.close()


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


class ConfluentDriver:
    name = "confluent-kafka"
    codecs = ALL_CODECS
    can = frozenset(Ability)

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        client = producer(bootstrap, compression_type=codec, acks=acks)
        errors = [error for error in send(client, topic, messages) if error is not None]
        assert not errors, errors

    def presents(self, headers: Headers) -> Headers:
        return headers

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        client = consumer(bootstrap)
        try:
            client.assign(
                [TopicPartition(topic, index, 0) for topic in counts for index in range(partition_count)]
            )
            received: dict[str, list[Message]] = {topic: [] for topic in counts}
            for topic, message in poll_messages(client, sum(counts.values())):
                received[topic].append(message)
        finally:
            client.close()
        return {topic: in_order(messages) for topic, messages in received.items()}
