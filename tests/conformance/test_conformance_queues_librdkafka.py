"""Share groups with librdkafka's share consumer (a preview: version 1 of the APIs, no renewals), here and on
Apache Kafka alike.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from tests.conformance.drivers.contract import new_name

PATIENCE_SECONDS = 60.0
QUIET_SECONDS = 3.0
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def queue(make_topics: Callable[..., None], configure_group: Callable[[str, dict[str, str]], None]) -> str:
    """A topic of two partitions whose group, of the same name, begins at the start."""
    name = new_name("queue")
    make_topics([name], 2)
    configure_group(name, {"share.auto.offset.reset": "earliest"})
    return name


def send(bootstrap: str, topic: str, count: int) -> set[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap})
    values = {b"%d" % number for number in range(count)}
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    return values


def member(bootstrap: str, group: str, mode: str) -> Any:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": mode}
    consumer = ShareConsumer(settings)
    consumer.subscribe([group])
    return consumer


def polled(consumer: Any) -> list[Any]:
    messages = list(consumer.poll(0.5))
    for message in messages:
        assert message.error() is None, message.error()
    return messages


def test_what_is_accepted_by_the_next_poll_never_comes_again(bootstrap: str, queue: str) -> None:
    values = send(bootstrap, queue, 200)
    seen: Counter[bytes] = Counter()
    with member(bootstrap, queue, "implicit") as consumer:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < len(values) and time.monotonic() < until:
            seen.update(message.value() for message in polled(consumer))
        results = consumer.commit_sync(30)
    assert all(fault is None for fault in results.values())
    assert seen == Counter(values)
    with member(bootstrap, queue, "implicit") as consumer:
        until = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < until:
            assert polled(consumer) == []


def test_records_are_accepted_released_and_rejected(bootstrap: str, queue: str) -> None:
    send(bootstrap, queue, 60)
    deliveries: Counter[int] = Counter()
    done: set[int] = set()
    with member(bootstrap, queue, "explicit") as consumer:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(done) < 60 and time.monotonic() < until:
            for message in polled(consumer):
                number = int(message.value())
                deliveries[number] += 1
                kind = ACCEPT
                if number % 5 == 0 and deliveries[number] == 1:
                    kind = RELEASE
                elif number % 7 == 3:
                    kind = REJECT
                consumer.acknowledge(message, kind)
                if kind is not RELEASE:
                    done.add(number)
            for fault in consumer.commit_sync(30).values():
                assert fault is None
    assert done == set(range(60))
    assert deliveries == Counter({number: 2 if number % 5 == 0 else 1 for number in range(60)})


def test_two_members_have_each_record_once(bootstrap: str, queue: str) -> None:
    seen: Counter[bytes] = Counter()
    consumers = [member(bootstrap, queue, "implicit") for _ in range(2)]
    try:
        values = send(bootstrap, queue, 400)
        until = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < len(values) and time.monotonic() < until:
            for consumer in consumers:
                seen.update(message.value() for message in polled(consumer))
    finally:
        for consumer in consumers:
            consumer.close()
    assert seen == Counter(values)
