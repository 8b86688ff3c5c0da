"""Share groups on several brokers: state kept elsewhere, leaders and coordinators that die or move."""

from typing import Any

import pytest

from tests.support.in_memory_cluster import Connection, InMemoryCluster
from tests.unit.broker.share_members import ACCEPT, GROUP, RELEASE, batches, rows, taken
from tidelog.broker.coordinators.share_state_requests import coordinator_key
from tidelog.client.requests import (
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import APIS

KEYS = {row.name: row.key for row in APIS.values()}
RETRIED = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class Sharer:
    """A member of a share group that follows leaders and coordinators."""

    def __init__(self, cluster: InMemoryCluster, member_id: str = "m") -> None:
        self.cluster = cluster
        self.member_id = member_id
        self.topic_id = cluster.living[0].broker.image.topics["t"].topic_id
        self.epoch = 0
        self.session_epoch = 0
        self.connection: Connection | None = None
        self.leader_id = -1

    def call(self, connection: Connection, api: str, version: int, **fields: Any) -> Any:
        key = KEYS[api]
        body = encode_request(key, version, fields)
        answer = connection.send(frame_prefix(key, version, 1, b"test", len(body))[4:] + body)
        self.cluster.run_until(lambda: answer)
        assert answer.data is not None
        return decode_response(
            key, version, response_body(memoryview(answer.data)[4:], flexible_answer(key, version))
        )

    def ask(self, node_id: int, api: str, version: int, **fields: Any) -> Any:
        return self.call(self.cluster.connect(node_id), api, version, **fields)

    def coordinator(self, key: str, key_type: int) -> int:
        """Who coordinates, when somebody does."""
        for _ in range(100):
            node_id = self.cluster.living[0].node_id
            [found] = self.ask(
                node_id, "FindCoordinator", 6, coordinator_keys=[key], key_type=key_type
            ).coordinators
            if not int(found.error_code):
                return int(found.node_id)
            self.cluster.run_for(100)
        raise AssertionError(f"nobody coordinates {key}")

    def heartbeat(self) -> Any:
        for _ in range(100):
            answer = self.ask(
                self.coordinator(GROUP, 0),
                "ShareGroupHeartbeat",
                1,
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=self.epoch,
                subscribed_topic_names=["t"],
            )
            error = ErrorCode(int(answer.error_code))
            if error is ErrorCode.NONE:
                self.epoch = answer.member_epoch
                return answer
            assert error in RETRIED, answer
            self.cluster.run_for(100)
        raise AssertionError("the group is not coordinated")

    def join(self) -> "Sharer":
        for _ in range(50):
            answer = self.heartbeat()
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return self
            self.cluster.run_for(200)
        raise AssertionError("it was assigned nothing")

    def connect(self) -> None:
        """A new session with whoever leads."""
        self.cluster.run_until(lambda: self.cluster.leader("t") is not None)
        leader = self.cluster.leader("t")
        assert leader is not None
        self.connection = self.cluster.connect(leader.node_id)
        self.leader_id, self.session_epoch = leader.node_id, 0

    def fetch(self, *said: tuple[int, int, int]) -> Any:
        if self.connection is None:
            self.connect()
        assert self.connection is not None
        part = {"partition_index": 0, "acknowledgement_batches": batches(said)}
        answer = self.call(
            self.connection,
            "ShareFetch",
            2,
            group_id=GROUP,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait=500,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=[{"topic_id": self.topic_id, "partitions": [part]}],
            forgotten_topics_data=[],
        )
        assert not int(answer.error_code), answer
        self.session_epoch += 1
        return answer

    def take(self) -> list[bytes]:
        """Until something comes."""
        for _ in range(60):
            found = taken(self.fetch())
            if found:
                return found
            self.cluster.run_for(100)
        return []


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster(offsets_topic_num_partitions="2", share_coordinator_state_topic_num_partitions="3")
    made.create_topic("t")
    client = Sharer(made)
    client.coordinator(GROUP, 0)
    change = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": [change]}
    [row] = client.ask(1, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False).responses
    assert not int(row.error_code)
    return made


def produce(cluster: InMemoryCluster, *values: bytes) -> None:
    cluster.run_until(lambda: cluster.leader("t") is not None)
    leader = cluster.leader("t")
    assert leader is not None
    produced = cluster.produce(leader.node_id, "t", *values)
    cluster.run_until(lambda: produced)
    assert produced.error is ErrorCode.NONE


def test_state_is_kept_by_a_share_coordinator_wherever_it_is(cluster: InMemoryCluster) -> None:
    produce(cluster, b"a", b"b", b"c")
    member = Sharer(cluster).join()
    assert member.take() == [b"a", b"b", b"c"]
    answer = member.fetch((0, 1, ACCEPT), (2, 2, RELEASE))
    assert rows(answer)[0].acknowledge_error_code == 0
    summaries = [
        machine.stored
        for node in cluster.living
        for machine in node.broker.shares.get().coordinator.loaded_machines()
        if machine.stored
    ]
    [stored] = summaries
    assert [state.start_offset for state in stored.values()] == [2]


@pytest.mark.parametrize("victim", ["leader", "share coordinator", "group coordinator"])
def test_what_was_accepted_stays_so_when_a_broker_dies(cluster: InMemoryCluster, victim: str) -> None:
    produce(cluster, b"a", b"b", b"c")
    member = Sharer(cluster).join()
    assert member.take() == [b"a", b"b", b"c"]
    assert rows(member.fetch((0, 0, ACCEPT)))[0].acknowledge_error_code == 0
    [shared] = cluster.broker(member.leader_id).shares.get().partitions
    key = shared.machine.key
    victims = {
        "leader": member.leader_id,
        "share coordinator": member.coordinator(coordinator_key(key), 2),
        "group coordinator": member.coordinator(GROUP, 0),
    }
    dead_id = victims[victim]
    cluster.kill(dead_id)
    cluster.run_for(1_000)
    produce(cluster, b"d")
    survivor = Sharer(cluster, "survivor").join()
    assert survivor.heartbeat().member_epoch > 0
    if dead_id == member.leader_id:
        # The locks died with the leader.
        assert survivor.take() == [b"b", b"c", b"d"]
        assert rows(survivor.fetch((1, 3, ACCEPT)))[0].acknowledge_error_code == 0
    else:
        assert survivor.take() == [b"d"]
        assert rows(survivor.fetch((3, 3, ACCEPT)))[0].acknowledge_error_code == 0
        assert rows(member.fetch((1, 2, ACCEPT)))[0].acknowledge_error_code == 0
    assert taken(survivor.fetch()) == []


def test_a_leader_that_is_one_no_more_says_who_is(cluster: InMemoryCluster) -> None:
    produce(cluster, b"a", b"b")
    member = Sharer(cluster).join()
    assert member.take() == [b"a", b"b"]
    old_id = member.leader_id
    cluster.expire_session(old_id)
    cluster.run_until(lambda: (node := cluster.leader("t")) is not None and node.node_id != old_id)
    cluster.run_for(2_000)
    answer = member.fetch((0, 0, ACCEPT))
    row = rows(answer)[0]
    assert ErrorCode(int(row.acknowledge_error_code)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    new_leader = cluster.leader("t")
    assert new_leader is not None
    assert row.current_leader.leader_id == new_leader.node_id
    assert [endpoint.node_id for endpoint in answer.node_endpoints] == [new_leader.node_id]
    assert len(cluster.broker(old_id).shares.get().partitions) == 0
    member.connect()
    assert member.take() == [b"a", b"b"]
