"""Changes to a cluster: its topics through `admin`, records through confluent-kafka."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

from tidelog.admin import topics
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.console.faults import UNAVAILABLE, ConsoleFault, explained
from tidelog.console.kafka_client import KafkaClient

Headers = Sequence[tuple[str, bytes | None]]


class ToSend(NamedTuple):
    """A record to write."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


class KafkaChanges:
    """What the console can change; one producer serves all records that it sends."""

    def __init__(self, client: KafkaClient, admin: ClusterAdmin) -> None:
        self._client = client
        self._admin = admin
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def create_topic(
        self, name: str, partitions: int | None, replication_factor: int | None, settings: Mapping[str, str]
    ) -> None:
        topics.create_topic(self._admin, name, partitions, replication_factor, settings)

    def delete_topic(self, name: str) -> None:
        topics.delete_topic(self._admin, name)

    def add_partitions(self, name: str, partitions: int) -> None:
        topics.add_partitions(self._admin, name, partitions)

    def produce(
        self, topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[int, int]:
        """Send one record with acks=all and wait; the partition and offset that it got."""
        ((written, offset),) = self.produce_all([ToSend(topic, partition, key, value, headers)])
        return written, offset

    def produce_all(self, records: Sequence["ToSend"]) -> list[tuple[int, int]]:
        """Send records together and wait for all; the partitions and offsets that they got, in order.

        Those before one that failed may be written: the fault says how many were.
        """
        outcomes: dict[int, tuple[Any, Message]] = {}

        def delivered(number: int, error: Any, message: Message) -> None:
            outcomes[number] = (error, message)

        with explained("the records were not written"):
            producer = self._ready_producer()
            for number, record in enumerate(records):
                producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=-1 if record.partition is None else record.partition,
                    on_delivery=partial(delivered, number),
                )
            producer.flush(self._client.timeout_seconds)
        places: list[tuple[int, int]] = []
        for number in range(len(records)):
            if number not in outcomes:
                raise ConsoleFault(
                    f"only {len(outcomes)} of {len(records)} records are acknowledged so far",
                    "Look at the topic again.",
                    UNAVAILABLE,
                )
            error, message = outcomes[number]
            if error is not None:
                written = sum(one is None for one, _ in outcomes.values())
                raise ConsoleFault(
                    f"{len(outcomes) - written} of {len(records)} records were not written: {error.str()}"
                )
            found_partition, offset = message.partition(), message.offset()
            assert found_partition is not None and offset is not None
            places.append((found_partition, offset))
        return places

    def _ready_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(
                    self._client.client_properties(
                        {
                            "acks": "all",
                            "linger.ms": 0,
                            "message.timeout.ms": int(self._client.timeout_seconds * 1000),
                        }
                    )
                )
            return self._producer
