"""Changes to a cluster through confluent-kafka: topics, settings, records."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

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
        outcome: list[tuple[Any, Message]] = []
        with explained(f"the record was not written to {topic!r}"):
            producer = self._ready_producer()
            producer.produce(
                topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=-1 if partition is None else partition,
                on_delivery=lambda error, message: outcome.append((error, message)),
            )
            producer.flush(self._client.timeout_seconds)
        if not outcome:
            raise ConsoleFault(
                "the record is still not acknowledged", "Look at the topic again.", UNAVAILABLE
            )
        error, message = outcome[0]
        if error is not None:
            raise ConsoleFault(f"the record was not written: {error.str()}")
        found_partition, offset = message.partition(), message.offset()
        assert found_partition is not None and offset is not None
        return found_partition, offset

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
