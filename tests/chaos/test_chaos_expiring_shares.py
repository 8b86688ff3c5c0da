"""Time to live in a share group whose leader dies: by content, with members that go on reading.

Some records have expired when the members begin, the cleaner removes them meanwhile, and the leader of the
partition is killed. Whoever leads: none that has expired is delivered, every other one is. The topic has
priorities, too: what is removed must not keep their window where it is.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tidelog.testing.cluster import RunningCluster

TOPIC, GROUP = "jobs", "workers"
RECORDS = 2_400
MEMBERS = 2
PATIENCE_SECONDS = 100.0
SETTINGS = {
    "min.insync.replicas": "2",
    "log.cleaner.backoff.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
}
TOPIC_SETTINGS: dict[str, Any] = {
    "tidelog_ttl_enable": "true",
    "tidelog_priority_enable": "true",
    "tidelog_priority_ageing_ms": "3600000",
    "segment_bytes": "20000",
    "min_cleanable_dirty_ratio": "0",
    "file_delete_delay_ms": "100",
}


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(3, SETTINGS) as running:
        running.create_topic(TOPIC, **TOPIC_SETTINGS)
        group = ConfigResource(ResourceType.GROUP, GROUP)
        for name, value in (
            ("share.auto.offset.reset", "earliest"),
            ("share.record.lock.duration.ms", "3000"),
        ):
            group.add_incremental_config(
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            )
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.incremental_alter_configs([group])[group].result(30)
        yield running


def expires(number: int) -> bool:
    return number % 3 == 0


def priority(number: int) -> int:
    return 9 if number % 5 == 0 else 0


class Member(threading.Thread):
    """Notes what it is given, in order; what it was given is accepted by its next poll."""

    def __init__(self, bootstrap: str, seen: list[int], over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0}
        self._seen = seen
        self._over = over

    def run(self) -> None:
        settings: dict[str, Any] = {**self._settings, "share.acknowledgement.mode": "implicit"}
        with ShareConsumer(settings) as consumer:
            consumer.subscribe([TOPIC])
            while not self._over.is_set():
                try:
                    messages = list(consumer.poll(0.5))
                except KafkaException:
                    continue  # the leader is being replaced
                self._seen.extend(int(each.value() or b"-1") for each in messages if each.error() is None)
                time.sleep(0.05)


def send(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(RECORDS):
        headers: dict[str, str | bytes | None] = {"tidelog-priority": str(priority(number))}
        if expires(number):
            headers["tidelog-ttl-ms"] = "1"
        producer.produce(TOPIC, str(number), headers=headers)
        if number % 20 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def test_what_has_expired_is_delivered_by_no_leader(cluster: RunningCluster) -> None:
    send(cluster.bootstrap)
    time.sleep(0.1)
    wanted = {number for number in range(RECORDS) if not expires(number)}
    seen: list[int] = []
    over = threading.Event()
    members = [Member(cluster.bootstrap, seen, over) for _ in range(MEMBERS)]
    for each in members:
        each.start()
    until = time.monotonic() + PATIENCE_SECONDS
    at_death: int | None = None
    while not wanted <= set(seen) and time.monotonic() < until:
        if at_death is None and seen:
            victim = cluster.leader(TOPIC, 0)
            cluster.kill(victim)
            at_death = len(set(seen))
        time.sleep(0.02)
    over.set()
    for each in members:
        each.join(30)
    assert not [number for number in seen if expires(number)], "an expired record was delivered"
    assert wanted <= set(seen), f"{len(wanted - set(seen))} were not delivered"
    assert at_death is not None and at_death < len(wanted), "the leader died in the middle"
