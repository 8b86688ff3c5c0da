"""Moves, elections and transactions of a cluster of three through confluent-kafka and kafka-python."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, TopicPartitionReplica
from kafka import TopicPartition as PurePythonTopicPartition
from kafka.errors import NoError

from tidelog.model.settings import BrokerSettings
from tidelog.server.process import BrokerThread
from tidelog.testing.cluster import RunningCluster

SECONDS_MAX = 30.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about in {SECONDS_MAX} s")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(3) as cluster:
        yield cluster


@pytest.fixture
def pure_admin(cluster: RunningCluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    yield client
    client.close()


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def test_a_partition_moves_to_another_broker_and_back_to_its_preferred_leader(
    cluster: RunningCluster, pure_admin: KafkaAdminClient
) -> None:
    cluster.create_topic("moving", partitions=1, replication_factor=1)
    fill(cluster.bootstrap, "moving", 1_000)
    home = cluster.leader("moving", 0)
    goal = home % 3 + 1
    place = PurePythonTopicPartition("moving", 0)
    assert pure_admin.alter_partition_reassignments({place: [goal]}) == {place: None}
    wait_until(lambda: cluster.partition("moving", 0).replicas == (goal,), "the move")
    assert pure_admin.list_partition_reassignments() == {}
    refused = pure_admin.alter_partition_reassignments({place: None})
    assert refused[place].__name__ == "NoReassignmentInProgressError"

    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("moving", 0, 0)])
    read: list[Any] = []
    wait_until(lambda: read.extend(consumer.consume(1_000, 1.0)) or len(read) >= 1_000, "reading all")  # type: ignore[func-returns-value]
    consumer.close()
    assert [message.value() for message in read] == [b"%d" % number for number in range(1_000)]

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition("moving", 0)
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS_MAX)
    assert outcome[partition].code() == KafkaError.ELECTION_NOT_NEEDED


def test_the_preferred_leader_is_elected_by_request(cluster: RunningCluster) -> None:
    cluster.create_topic("led", partitions=3)
    cluster.wait_in_sync()
    home = cluster.leader("led", 0)
    cluster.stop(home)
    wait_until(lambda: cluster.leader("led", 0) not in (home, -1), "another leader")
    cluster.start(home)
    cluster.wait_in_sync()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition("led", 0)
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS_MAX)
    assert outcome[partition] is None
    wait_until(lambda: cluster.leader("led", 0) == home, "the preferred leader")


def test_transactions_whose_partitions_and_coordinator_are_on_several_brokers(
    cluster: RunningCluster,
) -> None:
    cluster.create_topic("sums", partitions=6)
    assert {cluster.leader("sums", index) for index in range(6)} == {1, 2, 3}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "across"})
    producer.init_transactions(SECONDS_MAX)
    for number in range(20):
        producer.begin_transaction()
        for index in range(6):
            producer.produce("sums", b"%d" % number, partition=index)
        if number % 4 == 3:
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
        if number == 10:
            cluster.kill(cluster.leader("__transaction_state", _partition_of("across", cluster)))
    cluster.start()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "sums",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition("sums", index, 0) for index in range(6)])
    read: list[Any] = []
    wait_until(lambda: read.extend(consumer.consume(100, 0.5)) or len(read) >= 90, "all that was committed")  # type: ignore[func-returns-value]
    consumer.close()
    committed = [b"%d" % number for number in range(20) if number % 4 != 3]
    for index in range(6):
        assert [message.value() for message in read if message.partition() == index] == committed


def _partition_of(transactional_id: str, cluster: RunningCluster) -> int:
    from tidelog.broker.coordinators.internal_topic import coordinator_partition

    return coordinator_partition(transactional_id, 50)


def test_a_replica_moves_between_the_folders_of_a_broker(tmp_path: Path) -> None:
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    settings = {"log.dirs": ",".join(folders), "listeners": "PLAINTEXT://127.0.0.1:0"}
    broker = BrokerThread(BrokerSettings.resolve(settings))
    broker.start()
    try:
        # The first record makes the topic.
        fill(broker.bootstrap, "t", 5_000)
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        node_id = admin.describe_cluster()["brokers"][0]["broker_id"]

        def folders_of_t() -> set[tuple[str, bool]]:
            (described,) = admin.describe_log_dirs()
            return {
                (row["log_dir"], part["is_future_key"])
                for row in described["log_dirs"]
                for topic in row["topics"]
                if topic["name"] == "t"
                for part in topic["partitions"]
            }

        ((home, _),) = folders_of_t()
        (goal,) = set(folders) - {home}
        replica = TopicPartitionReplica("t", 0, node_id)
        assert admin.alter_replica_log_dirs({replica: goal}) == {replica: NoError}
        wait_until(lambda: folders_of_t() == {(goal, False)}, "the move")
        fill(broker.bootstrap, "t", 10)
        refused = admin.alter_replica_log_dirs({replica: "/nowhere"})
        assert refused[replica].__name__ == "LogDirNotFoundError"
        admin.close()
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        read: list[Any] = []
        wait_until(lambda: read.extend(consumer.consume(1_000, 1.0)) or len(read) >= 5_010, "reading all")  # type: ignore[func-returns-value]
        consumer.close()
        assert [message.offset() for message in read] == list(range(5_010))
    finally:
        broker.stop()


def test_javas_admin_client_shows_eligible_leaders() -> None:
    from tests.conformance.drivers.java import run_java

    settings = {"broker.session.timeout.ms": "3000"}
    with RunningCluster(3, settings) as cluster:
        cluster.create_topic("orders", 12, min_insync_replicas=2)
        cluster.wait_in_sync()
        told = dict(run_java(cluster.bootstrap, "eligible", "orders"))
        assert {told[f"elr.{n}"] for n in range(12)} == {told[f"last.{n}"] for n in range(12)} == {"[]"}
        assert told["feature"] == "1"
        for victim, left in ((3, {1, 2}), (2, {1})):
            cluster.kill(victim)
            wait_until(
                lambda left=left: all(set(p.isr) == left for p in cluster.view(1).partitions),  # type: ignore[misc]
                "smaller ISRs",
            )
        told = dict(run_java(cluster.address(1), "eligible", "orders"))
        assert {told[f"elr.{n}"] for n in range(12)} == {"[2]"}, told
        assert {told[f"last.{n}"] for n in range(12)} == {"[]"}, told
