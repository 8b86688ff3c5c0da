"""kafka-python: a client written in Python alone."""

import time
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.conformance.drivers.contract import (
    ALL_CODECS,
    ANY_PARTITION,
    DEADLINE_SECONDS,
    Ability,
    DriverTimeout,
    Headers,
    Message,
    in_order,
)


def as_message(raw: object) -> Message:
    return Message(
        value=raw.value,  # type: ignore[attr-defined]
        key=raw.key,  # type: ignore[attr-defined]
        headers=tuple((name, value) for name, value in raw.headers),  # type: ignore[attr-defined]
        partition=raw.partition,  # type: ignore[attr-defined]
        timestamp_ms=raw.timestamp,  # type: ignore[attr-defined]
        offset=raw.offset,  # type: ignore[attr-defined]
    )


def poll_messages(
    client: KafkaConsumer, count: int, deadline_seconds: float = DEADLINE_SECONDS
) -> list[tuple[str, Message]]:
    received: list[tuple[str, Message]] = []
    deadline = time.monotonic() + deadline_seconds
    while len(received) < count:
        if time.monotonic() > deadline:
            raise DriverTimeout(f"read {len(received)} of {count} messages")
        for records in client.poll(timeout_ms=2_000, max_records=count - len(received)).values():
            received.extend((raw.topic, as_message(raw)) for raw in records)
    return received


class KafkaPythonDriver:
    name = "kafka-python"
    codecs = ALL_CODECS
    can = frozenset(Ability) - {Ability.NULL_HEADER}

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        client = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=False,
            linger_ms=0,
        )
        try:
            futures = [
                client.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=None if message.partition == ANY_PARTITION else message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            for future in futures:
                future.get(timeout=DEADLINE_SECONDS)
        finally:
            client.close(timeout=5)

    def presents(self, headers: Headers) -> Headers:
        return headers

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        client = KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        try:
            client.assign(
                [TopicPartition(topic, index) for topic in counts for index in range(partition_count)]
            )
            received: dict[str, list[Message]] = {topic: [] for topic in counts}
            for topic, message in poll_messages(client, sum(counts.values())):
                received[topic].append(message)
        finally:
            client.close()
        return {topic: in_order(messages) for topic, messages in received.items()}
