"""Transactions with real clients: open and aborted data is not read, and zombies are fenced.

Each runs on one broker and on three with three replicas, where the leaders of the partitions and the
coordinator of the transaction are different brokers. Several batches in flight are a matter of their own
there: see transaction_load.py, and transactions_long.py for many of them.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.structs import OffsetAndMetadata

from tests.conformance import transaction_load
from tests.conformance.conftest import BROKER_SETTINGS
from tests.conformance.drivers.contract import DEADLINE_SECONDS, TopicMaker, new_name, require_program
from tests.conformance.drivers.java import jars

if TYPE_CHECKING:
    from tidelog.testing.broker import RunningBroker

JAVA_SOURCE = Path(__file__).parent / "java" / "Transactions.java"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
restarts = pytest.mark.skipif(
    "TIDELOG_TEST_BOOTSTRAP" in os.environ,
    reason="only a broker that the tests started themselves is restarted",
)


BROKERS = [
    pytest.param(1, marks=pytest.mark.xdist_group("transactions-1"), id="one-broker"),
    pytest.param(3, marks=pytest.mark.xdist_group("transactions-3"), id="three-brokers"),
]
IN_FLIGHT_COUNT = 12


@pytest.fixture(scope="module", params=BROKERS)
def brokers(request: pytest.FixtureRequest, oracle: bool) -> int:
    """How many brokers there are; a foreign cluster is what it is."""
    count: int = request.param
    if oracle and count != len(os.environ["TIDELOG_TEST_BOOTSTRAP"].split(",")):
        pytest.skip(f"the cluster under test has not {count} brokers")
    return count


@pytest.fixture(scope="module")
def bootstrap(brokers: int, oracle: bool) -> Iterator[str]:
    if oracle:
        yield os.environ["TIDELOG_TEST_BOOTSTRAP"]
    elif brokers == 1:
        from tidelog.testing.broker import RunningBroker

        with RunningBroker(BROKER_SETTINGS, mode="process") as broker:
            yield broker.bootstrap
    else:
        from tidelog.testing.cluster import RunningCluster

        replicas = {"offsets.topic.replication.factor": "3", "min.insync.replicas": "2"}
        with RunningCluster(brokers, {**BROKER_SETTINGS, **replicas}) as cluster:
            yield cluster.bootstrap


@pytest.fixture(scope="module")
def make_topic(bootstrap: str, brokers: int) -> TopicMaker:
    """Create a topic with as many replicas as there are brokers."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def make(partitions: int = 1, prefix: str = "transactions", **config: str) -> str:
        name = new_name(prefix)
        wanted = NewTopic(name, partitions, brokers, config=config)
        admin.create_topics([wanted], operation_timeout=DEADLINE_SECONDS)[name].result(DEADLINE_SECONDS)
        return name

    return make


@pytest.fixture
def topic(make_topic: TopicMaker) -> str:
    return make_topic()


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    options = {name.replace("_", "."): value for name, value in settings.items()}
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **options})
    made.init_transactions(DEADLINE_SECONDS)
    return made


def send(to: Producer, topic: str, values: list[str], partition: int = 0) -> None:
    for value in values:
        to.produce(topic, value, partition=partition)
    assert to.flush(DEADLINE_SECONDS) == 0


def read(
    bootstrap: str, topic: str, partitions: int = 1, isolation_level: str = "read_committed"
) -> list[str]:
    """What a consumer sees up to the end (for read_committed: the last stable offset), by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": new_name("reader"),
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[list[str]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())  # type: ignore[arg-type]
        else:
            values[message.partition()].append(message.value().decode())  # type: ignore[index, union-attr]
    consumer.close()
    return [value for partition in values for value in partition]


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_open_or_aborted_is_not_read(bootstrap: str, topic: str, codec: str) -> None:
    plain = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    mine = producer(bootstrap, new_name("tx"), compression_type=codec)
    mine.begin_transaction()
    send(mine, topic, numbered("committed", 20))
    assert read(bootstrap, topic) == []
    mine.commit_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == numbered("committed", 20)
    mine.begin_transaction()
    send(mine, topic, numbered("aborted", 20))
    send(plain, topic, ["plain"])
    assert read(bootstrap, topic) == numbered("committed", 20), "the open transaction holds the rest back"
    mine.abort_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == [*numbered("committed", 20), "plain"]
    everything = [*numbered("committed", 20), *numbered("aborted", 20), "plain"]
    assert read(bootstrap, topic, isolation_level="read_uncommitted") == everything


def test_several_partitions_end_together(bootstrap: str, make_topic: TopicMaker) -> None:
    topic = make_topic(3)
    mine = producer(bootstrap, new_name("tx"))
    for round_number in range(6):
        mine.begin_transaction()
        for partition in range(3):
            send(mine, topic, [f"{partition}-{round_number}"], partition)
        if round_number % 2:
            mine.abort_transaction(DEADLINE_SECONDS)
        else:
            mine.commit_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic, 3) == [f"{partition}-{n}" for partition in range(3) for n in (0, 2, 4)]


def test_interleaved_producers(bootstrap: str, topic: str) -> None:
    one, two, three = (producer(bootstrap, new_name("tx")) for _ in range(3))
    for mine, name in ((one, "one"), (two, "two"), (three, "three")):
        mine.begin_transaction()
        send(mine, topic, [f"{name}-0"])
    send(one, topic, ["one-1"])
    two.abort_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == []
    one.commit_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == ["one-0"], "the third is still open behind it"
    three.commit_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == ["one-0", "three-0", "one-1"]


def test_a_zombie_is_fenced(bootstrap: str, topic: str) -> None:
    transactional_id = new_name("tx")
    zombie = producer(bootstrap, transactional_id)
    zombie.begin_transaction()
    send(zombie, topic, ["zombie"])
    successor = producer(bootstrap, transactional_id)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(DEADLINE_SECONDS)
    assert fenced.value.args[0].name() == "_FENCED" and fenced.value.args[0].fatal()
    successor.begin_transaction()
    send(successor, topic, ["successor"])
    successor.commit_transaction(DEADLINE_SECONDS)
    assert read(bootstrap, topic) == ["successor"]


def test_an_abandoned_transaction_times_out(bootstrap: str, topic: str) -> None:
    left = producer(bootstrap, new_name("tx"), transaction_timeout_ms=1_000)
    left.begin_transaction()
    send(left, topic, ["left"])
    send(Producer({"bootstrap.servers": bootstrap}), topic, ["behind it"])
    deadline = time.monotonic() + 30
    while read(bootstrap, topic) != ["behind it"]:
        assert time.monotonic() < deadline, "the transaction was not aborted"
        time.sleep(0.2)
    with pytest.raises(KafkaException):
        left.commit_transaction(DEADLINE_SECONDS)


def test_a_timeout_above_the_brokers_limit_is_refused(bootstrap: str) -> None:
    asks_much = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": new_name("tx"),
            "transaction.timeout.ms": 900_001,
        }
    )
    with pytest.raises(KafkaException) as refused:
        asks_much.init_transactions(DEADLINE_SECONDS)
    assert refused.value.args[0].name() == "INVALID_TRANSACTION_TIMEOUT"


def test_offsets_count_when_the_transaction_commits(bootstrap: str, topic: str) -> None:
    group = new_name("group")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    place = TopicPartition(topic, 0)
    mine = producer(bootstrap, new_name("tx"))

    def committed() -> int:
        (found,) = consumer.committed([place], timeout=DEADLINE_SECONDS)
        return int(found.offset)

    mine.begin_transaction()
    mine.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], consumer.consumer_group_metadata())
    mine.commit_transaction(DEADLINE_SECONDS)
    assert committed() == 5
    mine.begin_transaction()
    mine.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], consumer.consumer_group_metadata())
    mine.abort_transaction(DEADLINE_SECONDS)
    assert committed() == 5
    consumer.close()


def test_kafka_python(bootstrap: str, topic: str) -> None:
    mine = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("tx"))
    mine.init_transactions()
    group = new_name("group")
    for number in range(4):
        mine.begin_transaction()
        mine.send(topic, b"%d" % number, partition=0)
        place = KafkaPythonPartition(topic, 0)
        mine.send_offsets_to_transaction({place: OffsetAndMetadata(number + 1, "", -1)}, group)
        if number % 2:
            mine.abort_transaction()
        else:
            mine.commit_transaction()
    mine.close()
    assert read(bootstrap, topic) == ["0", "2"]
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    assert consumer.committed(KafkaPythonPartition(topic, 0)) == 3
    consumer.close()


def test_the_java_client(bootstrap: str, make_topic: TopicMaker) -> None:
    """Transactions v2: every end bumps the epoch; fencing, timeouts and the admin's calls as in Kafka 4."""
    topic = make_topic(2)
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]
    command = [require_program("java"), *options, str(JAVA_SOURCE), bootstrap, topic, new_name("java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "version=2",
        "epoch=1",
        "epoch=2",
        "epoch=3",
        "state=Ongoing",
        "epoch=4",
        "epoch=5",
        "epoch=6",
        "offset=3",
        "state=CompleteCommit",
        "fenced=InvalidProducerEpochException",
        "fenced=ProducerFencedException",
        "late=InvalidTxnStateException",
        "listed=true",
        "open=0",
        "read=committed-0,committed-1,committed-2,second",
        "read=committed-0,committed-1,committed-2,with-offsets",
    ]


@pytest.mark.parametrize("client", transaction_load.CLIENTS)
@pytest.mark.parametrize("brokers", BROKERS[1:], indirect=True)
def test_several_batches_in_flight(bootstrap: str, make_topic: TopicMaker, client: str) -> None:
    """New producers with many batches on their way at once; and commit, begin, send, abort at once."""
    topic = make_topic(6)
    shapes = "in-flight,commit-abort"
    counted, complaints = transaction_load.run(
        client, bootstrap, topic, 6, new_name(client), shapes, IN_FLIGHT_COUNT
    )
    assert counted["failures"] == counted["wrong"] == 0, complaints[-3000:]


# Restarts


@pytest.fixture
def broker() -> Iterator["RunningBroker"]:
    from tidelog.testing.broker import RunningBroker

    settings = {
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with RunningBroker(settings, mode="process") as running:
        yield running


@pytest.fixture
def make(broker: "RunningBroker") -> Callable[..., str]:
    def make_topic(partitions: int = 1) -> str:
        name = new_name("restart")
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        wanted = NewTopic(name, partitions, 1)
        client.create_topics([wanted], operation_timeout=DEADLINE_SECONDS)[name].result(DEADLINE_SECONDS)
        return name

    return make_topic


@restarts
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_open_transaction_survives_the_broker(
    broker: "RunningBroker", make: Callable[..., str], how: str
) -> None:
    topic = make(2)
    mine, other = producer(broker.bootstrap, "mine"), producer(broker.bootstrap, "other")
    for each, name in ((mine, "mine"), (other, "other")):
        each.begin_transaction()
        send(each, topic, numbered(name, 3), 0)
        send(each, topic, numbered(name, 3), 1)
    getattr(broker, how)()
    broker.start()
    assert read(broker.bootstrap, topic, 2) == []
    mine.commit_transaction(DEADLINE_SECONDS)
    other.abort_transaction(DEADLINE_SECONDS)
    assert read(broker.bootstrap, topic, 2) == numbered("mine", 3) * 2


@restarts
def test_ended_transactions_stay_ended(broker: "RunningBroker", make: Callable[..., str]) -> None:
    topic = make(2)
    mine = producer(broker.bootstrap, "mine")
    expected: list[str] = []
    for number in range(4):
        mine.begin_transaction()
        send(mine, topic, [str(number)], 1)
        if number % 2:
            mine.abort_transaction(DEADLINE_SECONDS)
        else:
            mine.commit_transaction(DEADLINE_SECONDS)
            expected.append(str(number))
        broker.kill()
        broker.start()
        assert read(broker.bootstrap, topic, 2) == expected
    successor = producer(broker.bootstrap, "mine")
    successor.begin_transaction()
    send(successor, topic, ["successor"], 1)
    successor.commit_transaction(DEADLINE_SECONDS)
    assert read(broker.bootstrap, topic, 2) == [*expected, "successor"]


@restarts
def test_consume_transform_produce_while_the_broker_is_killed(
    broker: "RunningBroker", make: Callable[..., str]
) -> None:
    """The output has every input once, although broker and worker die in the middle."""
    source, sink = make(), make()
    count = 600
    send(Producer({"bootstrap.servers": broker.bootstrap}), source, [str(number) for number in range(count)])
    kills = iter(range(100, count, 180))
    next_kill = next(kills)
    done, attempts = 0, 0
    while done < count:
        attempts += 1
        assert attempts < 40, f"{done} of {count} after {attempts} lives of the worker"
        worker = producer(broker.bootstrap, "worker", transaction_timeout_ms=10_000)
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "work", "enable.auto.commit": False}
        )
        place = TopicPartition(source, 0)
        (start,) = consumer.committed([place], timeout=DEADLINE_SECONDS)
        done = max(0, start.offset)
        consumer.assign([TopicPartition(source, 0, done)])
        try:
            while done < count:
                messages = consumer.consume(25, timeout=1.0)
                values = [m.value() for m in messages if not m.error()]
                if not values:
                    continue
                worker.begin_transaction()
                for value in values:
                    worker.produce(sink, value, partition=0)
                reached = done + len(values)
                offsets = [TopicPartition(source, 0, reached)]
                worker.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
                killed = reached > next_kill
                if killed:
                    next_kill = next(kills, count + 1)
                    broker.kill()
                    broker.start()
                if attempts % 3 == 1 and reached > 50:
                    break  # the worker dies here, its transaction open
                worker.commit_transaction(DEADLINE_SECONDS)
                if killed:
                    break  # librdkafka waits for ever for a group coordinator that went away and came back
                done = reached
        except KafkaException as failure:
            assert not failure.args[0].fatal(), failure
        finally:
            consumer.close()
    assert read(broker.bootstrap, sink) == [str(number) for number in range(count)]
