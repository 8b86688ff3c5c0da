"""Delayed records with unchanged clients: librdkafka and kafka-python produce and read.

On one broker, and on three whose leader of the delay topic is killed with SIGKILL while records wait.
"""

import time
from collections.abc import Generator, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import InvalidRecordError

from tests.conformance.conftest import BROKER_SETTINGS
from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name
from tidelog.testing.broker import RunningBroker
from tidelog.testing.cluster import RunningCluster

CLIENTS = ("librdkafka", "kafka-python")
RECORDS = 60
PATIENCE_SECONDS = 90.0


@pytest.fixture(scope="module")
def bootstrap(oracle: bool) -> Iterator[str]:
    if oracle:
        pytest.skip("delay topics are Tidelog's own")
    with RunningBroker(BROKER_SETTINGS, mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture
def topics(bootstrap: str) -> tuple[str, str]:
    """A delay topic and its target."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    target, delayed = new_name("orders"), new_name("later")
    wanted = [NewTopic(target, 1, 1), NewTopic(delayed, 1, 1, config={"tidelog.delay.target": target})]
    for each in admin.create_topics(wanted, operation_timeout=DEADLINE_SECONDS).values():
        each.result(DEADLINE_SECONDS)
    return delayed, target


def send(client: str, bootstrap: str, topic: str, due_ms: dict[int, int]) -> None:
    """Records with their due times, the last ones first."""
    rows = [(b"k%d" % number, b"%d" % number, b"%d" % due) for number, due in reversed(due_ms.items())]
    if client == "librdkafka":
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for key, value, due in rows:
            producer.produce(topic, value, key, headers={"tidelog-deliver-at": due})
        assert producer.flush(DEADLINE_SECONDS) == 0
    else:
        sender = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        sent = [sender.send(topic, value, key, [("tidelog-deliver-at", due)]) for key, value, due in rows]
        for each in sent:
            each.get(DEADLINE_SECONDS)
        sender.close()


def read(client: str, bootstrap: str, topic: str, count: int) -> list[tuple[int, int]]:
    """What a read_committed reader sees, each with the time of its arrival, until a while after the last."""
    found: list[tuple[int, int]] = []
    until = time.monotonic() + PATIENCE_SECONDS
    reader = _rdkafka(bootstrap, topic) if client == "librdkafka" else _kafka_python(bootstrap, topic)
    for value in reader:
        now_ms = int(time.time() * 1_000)
        if value is not None:
            found.append((int(value), now_ms))
            if len(found) >= count:
                until = min(until, time.monotonic() + 2.0)
        if time.monotonic() > until:
            reader.close()
            break
    return found


def _rdkafka(bootstrap: str, topic: str) -> "Generator[bytes | None, None, None]":
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": new_name("reader"),
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while True:
            message = consumer.poll(0.2)
            yield None if message is None or message.error() else message.value()
    finally:
        consumer.close()


def _kafka_python(bootstrap: str, topic: str) -> "Generator[bytes | None, None, None]":
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    place = KafkaPythonPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    try:
        while True:
            batches = consumer.poll(200)
            yield None
            for records in batches.values():
                yield from (record.value for record in records)
    finally:
        consumer.close()


def check(found: list[tuple[int, int]], due_ms: dict[int, int]) -> None:
    assert [number for number, _ in found] == sorted(due_ms, key=lambda number: due_ms[number])
    assert not [number for number, at_ms in found if at_ms < due_ms[number]], "early"


@pytest.mark.parametrize("client", CLIENTS)
def test_records_come_in_order_when_they_are_due(
    bootstrap: str, topics: tuple[str, str], client: str
) -> None:
    delayed, target = topics
    first_ms = int(time.time() * 1_000) + 2_000
    due_ms = {number: first_ms + 30 * number for number in range(RECORDS)}
    send(client, bootstrap, delayed, due_ms)
    check(read(client, bootstrap, target, RECORDS), due_ms)


def test_bad_headers_are_refused_and_tombstones_cancel(bootstrap: str, topics: tuple[str, str]) -> None:
    delayed, target = topics
    sender = KafkaProducer(bootstrap_servers=bootstrap, acks="all", retries=0)
    with pytest.raises(InvalidRecordError):
        sender.send(delayed, b"1", b"k", [("tidelog-delay-ms", b"soon")]).get(DEADLINE_SECONDS)
    sender.close()
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    bad: dict[str, str | bytes | None] = {"tidelog-deliver-at": "tomorrow"}
    producer.produce(delayed, b"2", b"k", headers=bad, on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_SECONDS)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.INVALID_RECORD
    for key in (b"a", b"b"):
        producer.produce(delayed, b"3" if key == b"a" else b"4", key, headers={"tidelog-delay-ms": "3000"})
    producer.produce(delayed, None, b"a")
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert [number for number, _ in read("librdkafka", bootstrap, target, 1)] == [4]


def test_the_death_of_a_leader_loses_and_repeats_nothing(oracle: bool) -> None:
    if oracle:
        pytest.skip("delay topics are Tidelog's own")
    with RunningCluster(3, {"min.insync.replicas": "2"}) as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("later", tidelog_delay_target="orders")
        first_ms = int(time.time() * 1_000) + 2_000
        due_ms = {number: first_ms + 50 * number for number in range(RECORDS)}
        send("kafka-python", cluster.bootstrap, "later", due_ms)
        time.sleep(max(0.0, first_ms / 1_000 + 1.0 - time.time()))
        cluster.kill(cluster.leader("later", 0))
        check(read("librdkafka", cluster.bootstrap, "orders", RECORDS), due_ms)
