"""`tidelog doctor` and real share consumers: one that says nothing, none, letters without a topic."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from tidelog.admin.configs import ConfigResource, alter_configs
from tidelog.cli.connection import Connection
from tidelog.cli.main import tidelog
from tidelog.testing.broker import RunningBroker

PATIENCE_SECONDS = 60.0
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.min.record.lock.duration.ms": "1000",
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


def queue(bootstrap: str, name: str, **settings: str) -> None:
    """A topic with twenty records, and settings of the group of the same name."""
    changed = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "1000",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    alter_configs(Connection(bootstrap).cluster_admin(), ConfigResource.GROUP, name, changed)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        producer.produce(name, b"%d" % number)
    assert producer.flush(30) == 0


def member(bootstrap: str, group: str) -> Any:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer(settings)
    consumer.subscribe([group])
    return consumer


def polled(consumer: Any) -> list[Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (messages := list(consumer.poll(0.5))):
        assert time.monotonic() < deadline
    return messages


def said(bootstrap: str, group: str, *words: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(tidelog, ["doctor", "--json", "--bootstrap", bootstrap, *words])
    assert done.exit_code == code, done.output
    findings = json.loads(done.stdout)["findings"]
    found = [row for row in findings if row["check"] == "share groups"]
    return dict(next((row for row in found if row["subjects"] == [group]), found[0]))


def test_a_member_that_never_says_anything(bootstrap: str) -> None:
    queue(bootstrap, "sleepy")
    with member(bootstrap, "sleepy") as consumer:
        polled(consumer)
        deadline = time.monotonic() + PATIENCE_SECONDS
        found = said(bootstrap, "sleepy", "--watch", "1")
        while found["severity"] != "warning":
            assert time.monotonic() < deadline, found
            found = said(bootstrap, "sleepy", "--watch", "1")
    assert (
        "20 records ended before anything was said of them, 0 were acknowledged; 20 records wait"
        in found["message"]
    )
    # The member has left: nobody reads what it had.
    found = said(bootstrap, "sleepy", "--watch", "0")
    assert found["severity"] == "hint" and "no members, and 20 records wait" in found["message"]


def test_dead_letters_without_a_topic(bootstrap: str) -> None:
    queue(bootstrap, "broken", errors_deadletterqueue_topic_name="dlq.broken")
    with member(bootstrap, "broken") as consumer:
        messages = polled(consumer)
        for message in messages:
            consumer.acknowledge(message, AcknowledgeType.REJECT)
        for fault in consumer.commit_sync(30).values():
            assert fault is None
        found = said(bootstrap, "broken", "--watch", "0", code=1)
    assert found["severity"] == "problem" and "does not exist; " in found["message"]
    assert f"{len(messages)} were given up" in found["message"]
    assert found["next_step"].startswith("tidelog topic create dlq.broken")
