"""Changes to a cluster through confluent-kafka: topics, settings, records."""

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

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

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def create_topic(
        self, name: str, partitions: int | None, replication_factor: int | None, settings: Mapping[str, str]
    ) -> None:
        wanted = NewTopic(
            name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config=dict(settings),
        )
        with explained(f"topic {name!r} was not created"):
            futures = self._client.admin.create_topics([wanted], request_timeout=self._client.timeout_seconds)
            self._client.outcome(futures[name])

    def delete_topic(self, name: str) -> None:
        with explained(f"topic {name!r} was not deleted"):
            futures = self._client.admin.delete_topics([name], request_timeout=self._client.timeout_seconds)
            self._client.outcome(futures[name])

    def add_partitions(self, name: str, partitions: int) -> None:
        with explained(f"topic {name!r} did not get {partitions} partitions"):
            futures = self._client.admin.create_partitions(
                [NewPartitions(name, partitions)], request_timeout=self._client.timeout_seconds
            )
            self._client.outcome(futures[name])

    def set_topic_setting(self, name: str, setting: str, value: str | None) -> None:
        """Give a topic's setting a value, or none to return to what holds without it."""
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(setting, "" if value is None else value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        with explained(f"{setting} of topic {name!r} was not changed"):
            futures = self._client.admin.incremental_alter_configs(
                [resource], request_timeout=self._client.timeout_seconds
            )
            self._client.outcome(futures[resource])

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
