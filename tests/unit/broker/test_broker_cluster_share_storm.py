"""Share groups while brokers die and come back, one after the other: what was accepted never comes again, and
everything else does. The members are as simple as can be; the same seed gives the same story.
"""

from random import Random
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.unit.broker.share_members import ACCEPT, GROUP, RELEASE, batches, rows
from tests.unit.broker.test_broker_cluster_share_groups import KEYS, Sharer
from tidelog.client.requests import (
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.errors import ErrorCode

PRODUCED = 60
ROUNDS_MAX = 600
KILLS = 4


class Stormy(Sharer):
    """A member that begins anew whenever something goes wrong."""

    def try_call(self, api: str, version: int, **fields: Any) -> Any:
        """The answer, or None if the connection or the broker is gone."""
        connection, leader_id = self.connection, self.leader_id
        assert connection is not None
        key = KEYS[api]
        body = encode_request(key, version, fields)
        node = self.cluster.nodes[leader_id]
        answer = connection.send(frame_prefix(key, version, 1, b"test", len(body))[4:] + body)
        until_ms = self.cluster.clock.time_ms + 20_000
        while not answer and not node.dead and not connection.closed:
            if self.cluster.clock.time_ms >= until_ms or not self.cluster.step(until_ms):
                break
        if answer.data is None:
            self.connection = None
            return None
        view = memoryview(answer.data)[4:]
        return decode_response(key, version, response_body(view, flexible_answer(key, version)))

    def round(self, said: list[tuple[int, int, int]]) -> tuple[dict[int, int], bool]:
        """Fetch once, saying that; the offsets that were acquired with their counts, and whether what was
        said is stored.
        """
        if self.connection is None:
            leader = self.cluster.leader("t")
            if leader is None:
                self.cluster.run_for(200)
                return {}, False
            self.connection = self.cluster.connect(leader.node_id)
            self.leader_id, self.session_epoch = leader.node_id, 0
            said = []
        part = {"partition_index": 0, "acknowledgement_batches": batches(said)}
        answer = self.try_call(
            "ShareFetch",
            2,
            group_id=GROUP,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait=100,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=5,
            batch_size=5,
            share_acquire_mode=1,
            topics=[{"topic_id": self.topic_id, "partitions": [part]}],
            forgotten_topics_data=[],
        )
        if answer is None or int(answer.error_code):
            self.connection = None
            return {}, False
        self.session_epoch += 1
        row = rows(answer).get(0)
        if row is None:
            return {}, bool(said)
        stored = bool(said) and ErrorCode(int(row.acknowledge_error_code)) is ErrorCode.NONE
        if int(row.error_code) == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.connection = None
        counts = {
            offset: each.delivery_count
            for each in row.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        return counts, stored


@pytest.mark.parametrize("seed", range(4))
def test_what_was_accepted_never_comes_again_and_all_else_does(seed: int) -> None:
    random = Random(seed)
    cluster = InMemoryCluster(
        seed=seed + 1,
        offsets_topic_num_partitions="2",
        share_coordinator_state_topic_num_partitions="3",
        group_share_min_record_lock_duration_ms="1000",
    )
    cluster.create_topic("t", min_insync_replicas="2")
    client = Stormy(cluster)
    client.coordinator(GROUP, 0)
    changes = [
        {"name": name, "config_operation": 0, "value": value}
        for name, value in {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": "2000",
            "share.delivery.count.limit": "10",
        }.items()
    ]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": changes}
    client.ask(1, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    for number in range(PRODUCED // 5):
        leader = cluster.leader("t")
        assert leader is not None
        produced = cluster.produce(leader.node_id, "t", *(b"%d" % (5 * number + each) for each in range(5)))
        cluster.run_until(lambda produced=produced: produced)  # type: ignore[misc]
        assert produced.error is ErrorCode.NONE
    members = [Stormy(cluster, name) for name in ("one", "two")]
    members[0].join()
    accepted: set[int] = set()
    unknown: set[int] = set()
    held: dict[str, dict[int, int]] = {member.member_id: {} for member in members}
    dead_id: int | None = None
    kills = 0
    for turn in range(ROUNDS_MAX):
        if len(accepted | unknown) == PRODUCED and turn > ROUNDS_MAX // 2:
            break
        if turn % 12 == 11:
            if dead_id is not None:
                cluster.restart(dead_id)
                dead_id = None
            elif kills < KILLS:
                dead_id = random.choice([node.node_id for node in cluster.living])
                cluster.kill(dead_id)
                kills += 1
            cluster.run_for(random.choice([50, 500, 2_000]))
        member = random.choice(members)
        mine = held[member.member_id]
        kinds = {offset: ACCEPT if random.random() < 0.7 else RELEASE for offset in sorted(mine)}
        said = [(offset, offset, kind) for offset, kind in kinds.items()]
        counts, stored = member.round(said)
        held[member.member_id] = counts
        said_accepted = {offset for offset, kind in kinds.items() if kind == ACCEPT}
        if stored:
            accepted |= said_accepted
        elif member.connection is None:
            # Nobody knows whether it was stored: it may come again, or not.
            unknown |= said_accepted
        again = counts.keys() & accepted
        assert not again, f"turn {turn}: {sorted(again)} were accepted before"
    missing = set(range(PRODUCED)) - accepted - unknown
    assert not missing, f"{sorted(missing)} never came"
    assert kills == KILLS and len(accepted) > PRODUCED // 2
