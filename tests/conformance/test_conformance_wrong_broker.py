"""Who asks the wrong broker is told who leads, and where (KIP-951), as by Apache Kafka.

Three brokers. Produce tells from version 10 on, Fetch from version 16 on, of a leader that a client may go on
with at once; older versions tell nothing, since their readers would not look.

What is wrong with a request to a coordinator is said by every broker, whoever coordinates.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.drivers.contract import new_name
from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.testing.cluster import RunningCluster

BY_NAME = {api.name: api for api in APIS.values()}
NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 6, 74, 75
COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID = 15, 16, 25
INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT = 24, 26
INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT = 42, 50
FIRST_PRODUCE_BY_ID, FIRST_FETCH_BY_ID = 13, 13


class Cluster:
    """A topic led by broker 1 in epoch 0, then by broker 2 in epoch 1; broker 3 has no replica."""

    def __init__(self, running: RunningCluster) -> None:
        self.running = running
        self.topic = new_name("led")
        assignment = {"partition_index": 0, "broker_ids": [1, 2]}
        topic = {"name": self.topic, "num_partitions": -1, "replication_factor": -1, "configs": []}
        created = self.ask(
            1,
            "CreateTopics",
            7,
            topics=[{**topic, "assignments": [assignment]}],
            timeout=9_000,
        )
        self.topic_id = created.topics[0].topic_id
        running.wait_in_sync([self.topic])
        deadline = time.monotonic() + 15
        while not all(self._knows_the_leader(broker_id) for broker_id in (1, 2, 3)):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _knows_the_leader(self, broker_id: int) -> bool:
        [topic] = self.ask(broker_id, "Metadata", 8, topics=[{"name": self.topic}]).topics
        return [int(partition.leader_id) for partition in topic.partitions] == [1]

    def ask(self, broker_id: int, name: str, version: int, **fields: Any) -> Any:
        address = self.running.address(broker_id)
        host, port = address.rsplit(":", 1)
        link = Link.open(host, int(port), ClientSettings.from_options({"bootstrap.servers": address}))
        try:
            api = BY_NAME[name]
            ticket = link.send(api.key, version, messages.encode_request(api, version, fields))
            return messages.decode_response(api, version, link.receive(ticket))
        finally:
            link.close()

    def find_coordinator(self, key: str, key_type: int = 0) -> int:
        deadline = time.monotonic() + 15
        while True:
            answer = self.ask(1, "FindCoordinator", 3, key=key, key_type=key_type)
            if answer.error_code != COORDINATOR_NOT_AVAILABLE:
                return int(answer.node_id)
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def produce(self, broker_id: int, version: int, **how: Any) -> Any:
        records = bytes(build_batch([Record(0, 1, None, b"v", ())], **how))
        named = {"topic_id": self.topic_id} if version >= FIRST_PRODUCE_BY_ID else {"name": self.topic}
        topic = {**named, "partition_data": [{"index": 0, "records": records}]}
        return self.ask(
            broker_id,
            "Produce",
            version,
            transactional_id=None,
            acks=-1,
            timeout=9_000,
            topic_data=[topic],
        )

    def fetch(self, broker_id: int, version: int, leader_epoch: int) -> Any:
        partition = {
            "partition": 0,
            "fetch_offset": 0,
            "current_leader_epoch": leader_epoch,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        named = {"topic_id": self.topic_id} if version >= FIRST_FETCH_BY_ID else {"topic": self.topic}
        waits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
        session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
        topics = [{**named, "partitions": [partition]}]
        return self.ask(broker_id, "Fetch", version, **waits, **session, topics=topics)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with RunningCluster(3) as running:
        yield Cluster(running)


def endpoints(answer: Any) -> list[tuple[int, str]]:
    return [(node.node_id, f"{node.host}:{node.port}") for node in answer.node_endpoints]


@pytest.mark.parametrize("broker_id", [2, 3])
@pytest.mark.parametrize("idempotent", [False, True])
def test_produce_tells_the_leader(cluster: Cluster, broker_id: int, idempotent: bool) -> None:
    how = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if idempotent else {}
    leader = (1, cluster.running.address(1))
    for version in (9, 10, 12, 13):
        answer = cluster.produce(broker_id, version, **how)
        row = answer.responses[0].partition_responses[0]
        assert row.error_code == NOT_LEADER
        if version >= 10:
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (1, 0)
            assert endpoints(answer) == [leader]
    row = cluster.produce(1, 12).responses[0].partition_responses[0]
    assert (row.error_code, row.current_leader.leader_id) == (0, -1), "who leads does not say so"


def test_fetch_tells_the_leader(cluster: Cluster) -> None:
    for version in (12, 15, 16, 18):
        answer = cluster.fetch(3, version, leader_epoch=0)
        row = answer.responses[0].partitions[0]
        told = version >= 16
        assert row.error_code == NOT_LEADER
        assert row.current_leader.leader_id == (1 if told else -1)
        if told:
            assert row.current_leader.leader_epoch == 0
            assert endpoints(answer) == [(1, cluster.running.address(1))]


def test_a_follower_says_first_that_it_does_not_know_an_epoch(cluster: Cluster) -> None:
    asked = {"current_leader_epoch": 5}
    end = {"partition": 0, "leader_epoch": 7, **asked}
    last = {"partition_index": 0, "timestamp": -1, **asked}
    for broker_id, expected in ((1, UNKNOWN_LEADER_EPOCH), (2, UNKNOWN_LEADER_EPOCH), (3, NOT_LEADER)):
        topics: list[dict[str, Any]] = [{"topic": cluster.topic, "partitions": [end]}]
        ended = cluster.ask(broker_id, "OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics)
        topics = [{"name": cluster.topic, "partitions": [last]}]
        listed = cluster.ask(broker_id, "ListOffsets", 6, replica_id=-1, isolation_level=0, topics=topics)
        fetched = cluster.fetch(broker_id, 10, leader_epoch=5)
        rows = ended.topics[0], listed.topics[0], fetched.responses[0]
        assert [row.partitions[0].error_code for row in rows] == [expected] * 3


def test_a_client_with_an_old_epoch_is_told_the_new_one(cluster: Cluster) -> None:
    wanted = {"name": cluster.topic, "partitions": [{"partition_index": 0, "replicas": [2, 1]}]}
    cluster.ask(1, "AlterPartitionReassignments", 0, timeout=9_000, topics=[wanted])
    elected = {"topic": cluster.topic, "partitions": [0]}
    cluster.ask(
        1,
        "ElectLeaders",
        2,
        election_type=0,
        topic_partitions=[elected],
        timeout=9_000,
    )
    cluster.running.wait_in_sync([cluster.topic])
    leader, deadline = 2, time.monotonic() + 10
    while True:
        epoch = cluster.fetch(3, 17, leader_epoch=-1).responses[0].partitions[0].current_leader
        # Broker 3 hears of the election a moment after those who took part.
        if epoch.leader_id == leader or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert epoch.leader_id == leader and epoch.leader_epoch > 0
    answer = cluster.fetch(leader, 17, leader_epoch=0)
    row = answer.responses[0].partitions[0]
    assert row.error_code == FENCED_LEADER_EPOCH
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (leader, epoch.leader_epoch)
    assert endpoints(answer) == [(leader, cluster.running.address(leader))]


def test_who_does_not_coordinate_keeps_the_member_id_to_itself(cluster: Cluster) -> None:
    asked = {
        "group_id": new_name("group"),
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "nobody",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    found = cluster.find_coordinator(str(asked["group_id"]))
    for broker_id in (1, 2, 3):
        answer = cluster.ask(broker_id, "JoinGroup", 5, **asked)
        expected = (UNKNOWN_MEMBER_ID, "nobody") if broker_id == found else (NOT_COORDINATOR, "")
        assert (answer.error_code, answer.member_id) == expected


def test_who_does_not_coordinate_a_group_adds_nothing_to_a_transaction(cluster: Cluster) -> None:
    transaction, group = new_name("transaction"), new_name("group")
    elsewhere = cluster.find_coordinator(group) % 3 + 1
    coordinator = cluster.find_coordinator(transaction, key_type=1)
    made = cluster.ask(
        coordinator, "InitProducerId", 4, transactional_id=transaction, transaction_timeout=60_000
    )
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    answer = cluster.ask(
        elsewhere,
        "TxnOffsetCommit",
        5,
        transactional_id=transaction,
        group_id=group,
        producer_id=made.producer_id,
        producer_epoch=made.producer_epoch,
        topics=[{"name": cluster.topic, "partitions": [offset]}],
    )
    assert answer.topics[0].partitions[0].error_code == NOT_COORDINATOR
    known = cluster.ask(coordinator, "DescribeTransactions", 0, transactional_ids=[transaction])
    assert (known.transaction_states[0].transaction_state, list(known.transaction_states[0].topics)) == (
        "Empty",
        [],
    )


NOBODY: dict[str, Any] = {"group_id": "", "member_id": "nobody"}
PRODUCER: dict[str, Any] = {"transactional_id": "", "producer_id": 7, "producer_epoch": 0}
JOIN: dict[str, Any] = {
    "rebalance_timeout": 10_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}
FAULTS: list[tuple[str, int, dict[str, Any], int]] = [
    ("JoinGroup", 3, {**JOIN, "group_id": "", "session_timeout": 10_000}, INVALID_GROUP_ID),
    ("JoinGroup", 3, {**JOIN, "group_id": "short", "session_timeout": -1}, INVALID_SESSION_TIMEOUT),
    ("SyncGroup", 0, {**NOBODY, "generation_id": 1, "assignments": []}, INVALID_GROUP_ID),
    ("Heartbeat", 0, {**NOBODY, "generation_id": 1}, INVALID_GROUP_ID),
    ("LeaveGroup", 0, NOBODY, INVALID_GROUP_ID),
    ("ConsumerGroupHeartbeat", 1, {**NOBODY, "member_epoch": 0}, INVALID_REQUEST),
    ("ConsumerGroupHeartbeat", 1, {**NOBODY, "group_id": "g", "member_epoch": -3}, INVALID_REQUEST),
    ("OffsetDelete", 0, {"group_id": "", "topics": []}, INVALID_GROUP_ID),
    ("InitProducerId", 0, {"transactional_id": "", "transaction_timeout": 1_000}, INVALID_REQUEST),
    ("InitProducerId", 0, {"transactional_id": "x", "transaction_timeout": 0}, INVALID_TRANSACTION_TIMEOUT),
    ("EndTxn", 0, {**PRODUCER, "committed": True}, INVALID_REQUEST),
    ("AddOffsetsToTxn", 0, {**PRODUCER, "group_id": "g"}, INVALID_REQUEST),
]


@pytest.mark.parametrize(("name", "version", "fields", "error"), FAULTS)
def test_every_broker_says_what_is_wrong_with_a_request(
    cluster: Cluster, name: str, version: int, fields: dict[str, Any], error: int
) -> None:
    answers = [cluster.ask(broker_id, name, version, **fields).error_code for broker_id in (1, 2, 3)]
    assert answers == [error] * 3
