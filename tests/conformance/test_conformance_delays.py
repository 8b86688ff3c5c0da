"""Delayed records with unchanged clients: librdkafka, kafka-python, Java and kcat produce and read.

On one broker, and on three whose leader of the delay topic is killed with SIGKILL while records wait.
"""

import os
import select
import subprocess
import time
from collections.abc import Generator, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import InvalidRecordError

from tests.conformance.conftest import BROKER_SETTINGS
from tests.conformance.drivers.contract import DEADLINE_SECONDS, new_name, require_program
from tests.conformance.drivers.java import SOURCE, java_command
from tests.conformance.drivers.kcat import run_kcat
from tidelog.testing.broker import RunningBroker
from tidelog.testing.cluster import RunningCluster

CLIENTS = ("librdkafka", "kafka-python", "java", "kcat")
RECORDS = 60
#: kcat is started for each header
KCAT_RECORDS = 8
JAVA = SOURCE.with_name("Delays.java")
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


def send(client: str, bootstrap: str, topic: str, wait_ms: dict[int, int]) -> dict[int, int]:
    """Records that are due so many milliseconds from now, the last ones first; say when they are due."""
    if client == "java":
        lines = b"".join(b"k%d %d %d\n" % (each, each, wait_ms[each]) for each in reversed(wait_ms))
        [now_ms] = run_java("send", bootstrap, topic, stdin=lines)
        return {number: int(now_ms) + each for number, each in wait_ms.items()}
    due_ms = {number: int(time.time() * 1_000) + each for number, each in wait_ms.items()}
    rows = [(b"k%d" % number, b"%d" % number, b"%d" % due) for number, due in reversed(due_ms.items())]
    if client == "librdkafka":
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for key, value, due in rows:
            producer.produce(topic, value, key, headers={"tidelog-deliver-at": due})
        assert producer.flush(DEADLINE_SECONDS) == 0
    elif client == "kcat":
        for key, value, due in rows:
            words = ["-H", f"tidelog-deliver-at={due.decode()}", "-k", key.decode(), "-p", "0"]
            run_kcat("-P", "-b", bootstrap, "-t", topic, *words, stdin=value)
    else:
        sender = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        sent = [sender.send(topic, value, key, [("tidelog-deliver-at", due)]) for key, value, due in rows]
        for each in sent:
            each.get(DEADLINE_SECONDS)
        sender.close()
    return due_ms


def read(client: str, bootstrap: str, topic: str, count: int) -> list[tuple[int, int]]:
    """What a read_committed reader sees, each with the time of its arrival, until a while after the last."""
    found: list[tuple[int, int]] = []
    if client == "java":
        lines = run_java("read", bootstrap, topic, str(count))
        return [(int(value), int(at_ms)) for value, at_ms in (line.split() for line in lines)]
    until = time.monotonic() + PATIENCE_SECONDS
    readers = {"librdkafka": _rdkafka, "kafka-python": _kafka_python, "kcat": _kcat}
    reader = readers[client](bootstrap, topic)
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


def _kcat(bootstrap: str, topic: str) -> "Generator[bytes | None, None, None]":
    command = [require_program("kcat"), "-C", "-u", "-q", "-b", bootstrap, "-t", topic, "-p", "0"]
    command += ["-o", "beginning", "-X", "isolation.level=read_committed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            while True:
                if select.select([process.stdout], [], [], 0.2)[0]:
                    # One record to a line, each written at once.
                    yield from os.read(process.stdout.fileno(), 65536).split()
                yield None
        finally:
            process.kill()


def run_java(*arguments: str, stdin: bytes = b"") -> list[str]:
    done = subprocess.run(
        java_command(JAVA, *arguments), input=stdin, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return done.stdout.decode().splitlines()


def check(found: list[tuple[int, int]], due_ms: dict[int, int]) -> None:
    assert [number for number, _ in found] == sorted(due_ms, key=lambda number: due_ms[number])
    assert not [number for number, at_ms in found if at_ms < due_ms[number]], "early"


@pytest.mark.parametrize("client", CLIENTS)
def test_records_come_in_order_when_they_are_due(
    bootstrap: str, topics: tuple[str, str], client: str
) -> None:
    delayed, target = topics
    count = KCAT_RECORDS if client == "kcat" else RECORDS
    first_ms = 5_000 if client == "kcat" else 2_000
    due_ms = send(client, bootstrap, delayed, {number: first_ms + 30 * number for number in range(count)})
    check(read(client, bootstrap, target, count), due_ms)


def test_java_is_told_of_a_bad_header_and_its_tombstones_cancel(
    bootstrap: str, topics: tuple[str, str]
) -> None:
    delayed, target = topics
    # The bad record is named, and the other one of its batch goes with it.
    rows = b"k 1 tomorrow\nk 2 1000\nflush\na 3 3000\nb 4 3000\na - -\n"
    said = run_java("send", bootstrap, delayed, "linger.ms=1000", stdin=rows)
    assert said[1:] == ["InvalidRecordException", "KafkaException"]
    assert [number for number, _ in read("librdkafka", bootstrap, target, 1)] == [4]


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
        wait_ms = {number: 2_000 + 50 * number for number in range(RECORDS)}
        due_ms = send("kafka-python", cluster.bootstrap, "later", wait_ms)
        time.sleep(max(0.0, due_ms[0] / 1_000 + 1.0 - time.time()))
        cluster.kill(cluster.leader("later", 0))
        check(read("librdkafka", cluster.bootstrap, "orders", RECORDS), due_ms)
