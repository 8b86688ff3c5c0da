"""ConsumerGroupHeartbeat, ConsumerGroupDescribe and offsets by topic id, on a node with a simulated disk."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.held_background import HeldBackground
from tests.unit.groups.test_groups_handlers import QUICK, ask, decode, join, send, versions
from tests.unit.groups.test_groups_handlers import node as node_fixture
from tidelog.model.errors import ErrorCode

node = node_fixture
NOWHERE = UUID(int=77)


def beat(node: Any, version: int, member_id: str, epoch: int, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
    return ask(node, "consumer_group_heartbeat", version, **{**defaults, **fields})


def enter(node: Any, version: int, member_id: str = "m", **fields: Any) -> Any:
    defaults = {
        "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    return beat(node, version, member_id, 0, **{**defaults, **fields})


@pytest.mark.parametrize("version", versions("consumer_group_heartbeat"))
def test_members_join_are_described_and_leave(node: Any, version: int) -> None:
    answer = enter(node, version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 2)
    assert answer.heartbeat_interval == timedelta(seconds=5)
    topic_id = node.broker.image.topics["t"].topic_id
    assert [(t.topic_id, t.partitions) for t in answer.assignment.topic_partitions] == [(topic_id, (0, 1))]
    owned = ({"topic_id": topic_id, "partitions": (0, 1)},)
    later = beat(node, version, "m", 2, topic_partitions=owned)
    assert (later.error_code, later.member_epoch, later.assignment) == (0, 2, None)
    for describe_version in versions("consumer_group_describe"):
        described = ask(
            node,
            "consumer_group_describe",
            describe_version,
            group_ids=("g", "x", ""),
            include_authorized_operations=True,
        )
        group, unknown, nameless = described.groups
        assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 2, "uniform")
        assert group.authorized_operations > 0
        assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    assert beat(node, version, "m", -1).member_epoch == -1
    assert (
        ask(node, "list_groups", 5, states_filter=(), types_filter=("Consumer",)).groups[0].group_state
        == "Empty"
    )


def test_ids_are_made_by_the_coordinator_only_in_version_0(node: Any) -> None:
    assert len(enter(node, 0, "").member_id) == 36
    assert enter(node, 1, "").error_code == ErrorCode.INVALID_REQUEST


def test_expressions_in_version_1(node: Any) -> None:
    topics = {"subscribed_topic_names": None}
    assert enter(node, 1, subscribed_topic_regex="t.*", **topics).assignment.topic_partitions  # type: ignore[arg-type]
    refused = enter(node, 1, "other", subscribed_topic_regex="(", **topics)
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "(" in refused.error_message


def test_a_member_waits_until_its_expression_is_worked_out_elsewhere(node: Any) -> None:
    background = node.broker.topic_expressions.get()._background = HeldBackground()
    fields = {
        "group_id": "g",
        "member_epoch": 0,
        "rebalance_timeout": timedelta(seconds=5),
        "topic_partitions": (),
    }
    waiting = [
        send(node, "consumer_group_heartbeat", 1, **fields, member_id=name, subscribed_topic_regex=expression)
        for name, expression in (("m", "t.*"), ("n", "("))
    ]
    assert [answer.chunks for answer in waiting] == [None, None]
    assert len(background.held) == 1
    background.step()
    background.step()
    joined, refused = (decode("consumer_group_heartbeat", 1, answer) for answer in waiting)
    assert joined.assignment.topic_partitions
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    # Topics come and go: the member keeps what it has until the expression is held against them.
    node.create_topic("tt", 3)
    assert beat(node, 1, "m", 2).assignment is None
    background.step()
    assert len(beat(node, 1, "m", 2).assignment.topic_partitions) == 2


def test_new_topics_reach_members_with_their_next_heartbeat(node: Any) -> None:
    enter(node, 1, subscribed_topic_names=("t", "late"))
    node.create_topic("late", 3)
    answer = beat(node, 1, "m", 2)
    assert sorted(len(t.partitions) for t in answer.assignment.topic_partitions) == [2, 3]


def test_sessions_end_and_groups_survive_a_restart(node: Any) -> None:
    enter(node, 1)
    for index in range(4):
        node.broker.groups.get().unload(index)
        node.broker.groups.get().load(index)
    assert beat(node, 1, "m", 2).error_code == ErrorCode.NONE
    node.advance(44_999)
    assert beat(node, 1, "m", 2).error_code == ErrorCode.NONE
    node.advance(45_002)
    assert beat(node, 1, "m", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_protocol_can_be_switched_off() -> None:
    from tests.unit.broker.node import NodeUnderTest

    classic_only = NodeUnderTest(**QUICK, group_coordinator_rebalance_protocols="classic")
    assert enter(classic_only, 1).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_coordinator_elsewhere_says_so(node: Any) -> None:
    for index in range(4):
        node.broker.groups.get().unload(index)
    assert enter(node, 1).error_code == ErrorCode.NOT_COORDINATOR
    described = ask(node, "consumer_group_describe", 1, group_ids=("g",), include_authorized_operations=False)
    assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_classic_and_consumer_members_share_a_group(node: Any) -> None:
    enter(node, 1)
    joined = join(node, 3)
    assert (joined.error_code, joined.leader, joined.generation_id) == (0, "", 3)
    identity = {"group_id": "g", "member_id": joined.member_id, "generation_id": 3}
    synced = ask(
        node, "sync_group", 5, assignments=(), protocol_type="consumer", protocol_name="range", **identity
    )
    assert synced.error_code == 0 and synced.assignment.endswith(b"\xff\xff\xff\xff")
    described = ask(node, "consumer_group_describe", 1, group_ids=("g",), include_authorized_operations=False)
    assert [int(member.member_type) for member in described.groups[0].members] == [1, 0]


# ---------------------------------------------------------------- offsets by topic id


def test_offsets_by_topic_id(node: Any) -> None:
    topic_id = node.broker.image.topics["t"].topic_id
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
    bad = {"partition_index": 9, "committed_offset": 7, "committed_metadata": "m"}
    topics = ({"topic_id": topic_id, "partitions": (part, bad)}, {"topic_id": NOWHERE, "partitions": (part,)})
    answer = ask(
        node,
        "offset_commit",
        10,
        group_id="g",
        member_id="",
        generation_id_or_member_epoch=-1,
        topics=topics,
    )
    errors = {
        (topic.topic_id, part.partition_index): ErrorCode(part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    }
    assert errors == {
        (topic_id, 0): ErrorCode.NONE,
        (topic_id, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (NOWHERE, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    asked = (
        {"topic_id": topic_id, "partition_indexes": (0, 1)},
        {"topic_id": NOWHERE, "partition_indexes": (4,)},
    )
    fetched = ask(node, "offset_fetch", 10, groups=({"group_id": "g", "topics": asked},)).groups[0]
    found = {
        (topic.topic_id, part.partition_index): (part.committed_offset, ErrorCode(part.error_code))
        for topic in fetched.topics
        for part in topic.partitions
    }
    assert found == {
        (topic_id, 0): (7, ErrorCode.NONE),
        (topic_id, 1): (-1, ErrorCode.NONE),
        (NOWHERE, 4): (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    }
    everything = ask(node, "offset_fetch", 10, groups=({"group_id": "g", "topics": None},)).groups[0]
    assert [(topic.topic_id, len(topic.partitions)) for topic in everything.topics] == [(topic_id, 1)]


@pytest.mark.parametrize("version", [9, 10])
def test_members_commit_and_fetch_in_their_epoch(node: Any, version: int) -> None:
    enter(node, 1)
    topic_id = node.broker.image.topics["t"].topic_id
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"}
    for epoch, error in ((2, ErrorCode.NONE), (0, ErrorCode.STALE_MEMBER_EPOCH)):
        answer = ask(
            node,
            "offset_commit",
            version,
            group_id="g",
            member_id="m",
            generation_id_or_member_epoch=epoch,
            topics=({"name": "t", "topic_id": topic_id, "partitions": (part,)},),
        )
        assert answer.topics[0].partitions[0].error_code == error
        group = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topics": None}
        assert ask(node, "offset_fetch", version, groups=(group,)).groups[0].error_code == error
