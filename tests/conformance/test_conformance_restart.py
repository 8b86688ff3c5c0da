"""What a client may expect after a restart of the broker. These tests start brokers of their own."""

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from tests.conformance.conformance_wire import stored_batches
from tests.conformance.drivers.confluent import consumer, producer, read_all, send
from tests.conformance.drivers.contract import DEADLINE_SECONDS, Message, new_name

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker

pytestmark = pytest.mark.skipif(
    "TIDELOG_TEST_BOOTSTRAP" in os.environ,
    reason="only a broker that the tests started themselves is restarted",
)


@pytest.fixture
def broker() -> Iterator["RunningBroker"]:
    from tidelog.testing.broker import RunningBroker

    with RunningBroker(mode="process") as running:
        yield running


@pytest.fixture
def make(broker: "RunningBroker") -> Callable[..., str]:
    def make_topic(partitions: int = 1, **config: str) -> str:
        name = new_name("restart")
        wanted = NewTopic(
            name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()}
        )
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        client.create_topics([wanted], operation_timeout=DEADLINE_SECONDS)[name].result(DEADLINE_SECONDS)
        return name

    return make_topic


def topic_id(bootstrap: str, topic: str) -> str:
    client = AdminClient({"bootstrap.servers": bootstrap})
    described = client.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_SECONDS)
    return str(described.topic_id)


def numbered(count: int, first: int = 0) -> list[Message]:
    return [
        Message(value=b"%d" % number, key=b"k", headers=(("h", b"v"),))
        for number in range(first, first + count)
    ]


def test_records_and_offsets(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic = make()
    assert not any(send(producer(broker.bootstrap, compression_type="zstd"), topic, numbered(100)))
    before = read_all(broker.bootstrap, topic, 100)
    broker.restart()
    assert read_all(broker.bootstrap, topic, 100) == before
    assert not any(send(producer(broker.bootstrap), topic, numbered(10, first=100)))
    after = read_all(broker.bootstrap, topic, 110)
    assert [message.offset for message in after] == list(range(110))
    assert [message.value for message in after] == [b"%d" % number for number in range(110)]


def test_log_start_offset(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic = make()
    assert not any(send(producer(broker.bootstrap), topic, numbered(10)))
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = client.delete_records([TopicPartition(topic, 0, 6)]).values()
    future.result(DEADLINE_SECONDS)
    broker.restart()
    reader = consumer(broker.bootstrap)
    try:
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (6, 10)
    finally:
        reader.close()


def test_topics_ids_and_settings(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic = make(3, retention_ms="123456", cleanup_policy="compact")
    gone = make()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_topics([gone])[gone].result(DEADLINE_SECONDS)
    before = topic_id(broker.bootstrap, topic)
    cluster = client.describe_cluster().result(DEADLINE_SECONDS).cluster_id
    broker.restart()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = client.list_topics(timeout=10).topics
    assert gone not in topics
    assert len(topics[topic].partitions) == 3
    assert topic_id(broker.bootstrap, topic) == before
    assert client.describe_cluster().result(DEADLINE_SECONDS).cluster_id == cluster
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = client.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    assert (entries["retention.ms"].value, entries["cleanup.policy"].value) == ("123456", "compact")


def test_an_idempotent_producer_goes_on(broker: "RunningBroker", make: Callable[..., str]) -> None:
    """The same producer, its id and sequence, across the restart: every record once and in order."""
    topic = make()
    client = producer(
        broker.bootstrap, enable_idempotence=True, batch_num_messages=5, reconnect_backoff_max_ms=200
    )
    assert not any(send(client, topic, numbered(50)))
    broker.restart()
    assert not any(send(client, topic, numbered(50, first=50)))
    assert [message.value for message in read_all(broker.bootstrap, topic, 100)] == [
        b"%d" % n for n in range(100)
    ]
    batches = stored_batches(broker.bootstrap, topic)
    assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]


def test_producer_ids_are_not_given_twice(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic = make()
    for turn in range(3):
        if turn:
            broker.restart()
        assert not any(send(producer(broker.bootstrap, enable_idempotence=True), topic, numbered(1)))
    assert len({batch.producer_id for batch in stored_batches(broker.bootstrap, topic)}) == 3


def test_committed_offsets(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic, group = make(), new_name("group")
    client = consumer(broker.bootstrap, group_id=group)
    client.commit(offsets=[TopicPartition(topic, 0, 7, metadata="here")], asynchronous=False)
    client.close()
    broker.restart()
    client = consumer(broker.bootstrap, group_id=group)
    try:
        (found,) = client.committed([TopicPartition(topic, 0)], timeout=10)
        assert (found.offset, found.metadata) == (7, "here")
    finally:
        client.close()


def test_a_waiting_consumer_reconnects(broker: "RunningBroker", make: Callable[..., str]) -> None:
    """A consumer that was connected before the restart reads what is written after it."""
    topic = make()
    client = consumer(broker.bootstrap, reconnect_backoff_max_ms=200)
    try:
        client.assign([TopicPartition(topic, 0, 0)])
        assert client.poll(0.3) is None
        broker.restart()
        assert not any(send(producer(broker.bootstrap), topic, numbered(1)))
        assert first_value(client) == b"0"
    finally:
        client.close()


def first_value(client: Consumer) -> bytes | None:
    """The first message; a lost connection on the way to it is an event, not a failure."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        event = client.poll(0.2)
        if event is not None and event.error() is None:
            value: bytes | None = event.value()
            return value
        if event is not None:
            assert event.error().code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN), (  # type: ignore[union-attr]
                event.error()
            )
    raise AssertionError("the consumer did not come back")
