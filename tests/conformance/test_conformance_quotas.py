"""Quotas with real clients: set by the command line, told to the client, and kept."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.conformance.drivers.contract import new_name

LIMIT = 200_000
#: what the windows of a client that begins hold
BURST = 10 * LIMIT
SECONDS_MAX = 60

Cli = Callable[..., Any]


@pytest.fixture
def limited(bootstrap: str) -> Iterator[tuple[str, Cli]]:
    """A client id, and the command that sets its limits; they are taken away at the end."""
    client_id = new_name("limited")

    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "tidelog.cli", "quota", *words, "--json", "--bootstrap", bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
        assert done.returncode == 0, (words, done.stderr)
        return json.loads(done.stdout)

    yield client_id, run
    run("unset", "producer_byte_rate", "consumer_byte_rate", "--client-id", client_id)
    assert run("list", "--client-id", client_id) == []


def produce(bootstrap: str, client_id: str, topic: str, size_bytes: int) -> list[float]:
    """Write records of one kilobyte; the throttle times, in seconds, that the client was told."""
    throttles: list[float] = []
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "batch.size": 20_000,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )

    def delivered(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(size_bytes // 1000):
        producer.produce(topic, b"v" * 1000, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0 and not failed
    return throttles


def test_a_producer_is_slowed_down_and_told(
    bootstrap: str, make_topics: Callable[..., None], limited: tuple[str, Cli]
) -> None:
    client_id, cli = limited
    topic = new_name("quota")
    make_topics([topic])
    cli("set", f"producer_byte_rate={LIMIT}", "--client-id", client_id)
    [row] = cli("list", "--client-id", client_id)
    assert row["limits"] == {"producer_byte_rate": LIMIT}
    begun = time.monotonic()
    throttles = produce(bootstrap, client_id, topic, BURST + 4 * LIMIT)
    assert any(throttle > 0 for throttle in throttles), "the client was not told"
    assert time.monotonic() - begun > 2
    begun = time.monotonic()
    assert produce(bootstrap, new_name("free"), topic, BURST + 4 * LIMIT) == []
    assert time.monotonic() - begun < 15


def test_a_consumer_is_slowed_down_and_gets_everything(
    bootstrap: str, make_topics: Callable[..., None], limited: tuple[str, Cli]
) -> None:
    client_id, cli = limited
    topic = new_name("quota")
    make_topics([topic])
    count = (BURST + 4 * LIMIT) // 1000
    produce(bootstrap, new_name("free"), topic, count * 1000)
    cli("set", f"consumer_byte_rate={LIMIT}", "--client-id", client_id)
    throttles: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "fetch.message.max.bytes": 50_000,
            "throttle_cb": lambda event: throttles.append(event.throttle_time),
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun = time.monotonic()
    offsets: list[int] = []
    while len(offsets) < count and time.monotonic() - begun < SECONDS_MAX:
        for message in consumer.consume(500, timeout=1):
            assert message.error() is None
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)
    consumer.close()
    assert offsets == list(range(count))
    assert any(throttle > 0 for throttle in throttles), "the client was not told"
    assert time.monotonic() - begun > 2
