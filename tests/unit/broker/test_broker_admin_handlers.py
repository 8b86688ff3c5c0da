"""Reassignments, elections and registrations through the real codec, in every version they serve."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.broker.test_broker_metadata_handlers import ROWS, Node
from tidelog.controller.commands import TopicSpec
from tidelog.model.errors import ErrorCode


def versions(module: str) -> range:
    return range(ROWS[module].min_version, ROWS[module].max_version + 1)


@pytest.fixture
def node() -> Node:
    node = Node(3)
    node.create(TopicSpec("t", -1, -1, assignments=((0, (1, 2)), (1, (2, 3)))))
    assert [partition.replicas for partition in node.image.topics["t"].partitions] == [(1, 2), (2, 3)]
    return node


def reassign(node: Node, version: int, targets: dict[int, Any], topic: str = "t", **fields: Any) -> list[int]:
    rows = [SimpleNamespace(partition_index=index, replicas=to) for index, to in targets.items()]
    body = SimpleNamespace(topics=[SimpleNamespace(name=topic, partitions=rows)], **fields)
    answer = node.ask("alter_partition_reassignments", version, body)
    assert answer.error_code.value == 0
    (found,) = answer.responses
    assert found.name == topic
    assert [row.partition_index for row in found.partitions] == list(targets)
    assert all((row.error_message is None) == (row.error_code.value == 0) for row in found.partitions)
    return [row.error_code.value for row in found.partitions]


def moving(node: Node, topics: Any = None) -> dict[tuple[str, int], tuple[Any, Any, Any]]:
    answer = node.ask("list_partition_reassignments", 0, SimpleNamespace(topics=topics))
    assert answer.error_code.value == 0
    return {
        (topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


@pytest.mark.parametrize("version", versions("alter_partition_reassignments"))
def test_a_move_is_begun_listed_and_taken_back(node: Node, version: int) -> None:
    assert moving(node) == {}
    assert reassign(node, version, {0: [3, 2], 1: None, 7: [1]}) == [
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert moving(node) == {("t", 0): ((3, 2, 1), (3,), (1,))}
    asked = [
        SimpleNamespace(name="t", partition_indexes=[1, 0, 9]),
        SimpleNamespace(name="?", partition_indexes=[0]),
    ]
    assert moving(node, asked) == {("t", 0): ((3, 2, 1), (3,), (1,))}
    assert moving(node, asked[1:]) == {}
    assert reassign(node, version, {0: None}) == [ErrorCode.NONE]
    assert moving(node) == {}
    assert reassign(node, version, {0: [1, 99]}) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_the_replication_factor_may_be_held(node: Node) -> None:
    held = {"allow_replication_factor_change": False}
    assert reassign(node, 1, {0: [1, 2, 3]}, **held) == [ErrorCode.INVALID_REPLICATION_FACTOR]  # type: ignore[arg-type]
    assert reassign(node, 1, {0: [1, 2, 3]}, allow_replication_factor_change=True) == [ErrorCode.NONE]


def elect(node: Node, version: int, partitions: Any, election_type: int = 0) -> tuple[int, dict[Any, int]]:
    topics = partitions
    if partitions is not None:
        topics = [SimpleNamespace(topic=name, partitions=indexes) for name, indexes in partitions.items()]
    body = SimpleNamespace(topic_partitions=topics, timeout=timedelta(seconds=30))
    if version >= 1:
        body.election_type = election_type
    answer = node.ask("elect_leaders", version, body)
    rows = {
        (topic.topic, row.partition_id): row.error_code.value
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }
    return (answer.error_code.value if version >= 1 else 0), rows


@pytest.mark.parametrize("version", versions("elect_leaders"))
def test_elections_that_are_not_needed_say_so_or_are_left_out(node: Node, version: int) -> None:
    assert elect(node, version, {"t": [0, 0, 5], "?": [0]}) == (
        0,
        {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("?", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    )
    assert elect(node, version, None) == (0, {})


@pytest.mark.parametrize("version", versions("elect_leaders"))
def test_the_preferred_replica_leads_again(node: Node, version: int) -> None:
    # The reassignment is at its end at once, for both are in sync: 2 is the preferred leader of 0 now.
    assert reassign(node, 0, {0: [2, 1]}) == [0]
    assert node.image.topics["t"].partitions[0].leader == 1
    assert elect(node, version, None) == (0, {("t", 0): ErrorCode.NONE})
    assert node.image.topics["t"].partitions[0].leader == 2


def test_an_unknown_kind_of_election_is_refused_as_a_whole(node: Node) -> None:
    assert elect(node, 2, {"t": [0]}, 7) == (ErrorCode.INVALID_REQUEST, {("t", 0): ErrorCode.INVALID_REQUEST})
    assert elect(node, 1, {"t": [0]}, 1) == (0, {("t", 0): ErrorCode.ELECTION_NOT_NEEDED})


def cluster(node: Node, version: int, **fields: Any) -> dict[int, bool]:
    body = SimpleNamespace(include_cluster_authorized_operations=False, **fields)
    answer = node.ask("describe_cluster", version, body)
    return {row.broker_id: getattr(row, "is_fenced", False) for row in answer.brokers}


def test_a_broker_that_is_gone_is_shown_on_request_and_can_be_unregistered(node: Node) -> None:
    assert cluster(node, 2, endpoint_type=1, include_fenced_brokers=True) == {1: False, 2: False, 3: False}
    node.others[1].close()
    assert cluster(node, 0) == cluster(node, 1, endpoint_type=1) == {1: False, 2: False}
    assert cluster(node, 2, endpoint_type=1, include_fenced_brokers=False) == {1: False, 2: False}
    assert cluster(node, 2, endpoint_type=1, include_fenced_brokers=True) == {1: False, 2: False, 3: True}
    answer = node.ask("unregister_broker", 0, SimpleNamespace(broker_id=3))
    assert (answer.error_code.value, answer.error_message) == (0, None)
    assert cluster(node, 2, endpoint_type=1, include_fenced_brokers=True) == {1: False, 2: False}
    answer = node.ask("unregister_broker", 0, SimpleNamespace(broker_id=3))
    assert answer.error_code.value == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert answer.error_message
