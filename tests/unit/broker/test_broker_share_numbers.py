"""What a broker tells of share groups in numbers: in flight, and counted."""

import json
import struct
from typing import Any

import pytest

from tests.support.prometheus_text import ReadFamily, read, value
from tests.unit.broker.node import NodeUnderTest, joined
from tests.unit.broker.share_members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    SETTINGS,
    ShareMember,
    ask,
    configure,
    produce,
    sharing_node,
)
from tests.unit.broker.test_broker_authorization import GuardedNode
from tidelog.broker.requests.handlers import describe_share_partitions
from tidelog.broker.requests.request import CloseConnection
from tidelog.broker.runtime import share_counts
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.protocol.apis import DESCRIBE_SHARE_PARTITIONS

LOCK_MS = 30_000


@pytest.fixture
def node() -> NodeUnderTest:
    return sharing_node()


def told(node: NodeUnderTest, body: Any) -> Any:
    """The answer to a question about what is in flight."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = node.handle(struct.pack(">hhih", DESCRIBE_SHARE_PARTITIONS, 0, 5, 4) + b"test" + data)
    return json.loads(bytes(joined(answer))[8:])


def busy(node: NodeUnderTest) -> ShareMember:
    """Of ten records a member accepts 0 and 2, releases 1, rejects 3 and keeps the rest."""
    produce(node, *(b"%d" % number for number in range(10)))
    member = ShareMember(node, "one").join()
    assert len(member.take()) == 10
    said = [(0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, ACCEPT), (3, 3, REJECT)]
    assert member.acknowledge(0, *said) is ErrorCode.NONE
    return member


def test_what_is_in_flight_is_told(node: NodeUnderTest) -> None:
    assert told(node, {}) == {"partitions": [], "groups": [], "left_out": 0}
    busy(node)
    node.advance(1_000)
    answer = told(node, {"group": GROUP})
    [row], [group] = answer["partitions"], answer["groups"]
    assert (row["group"], row["topic"], row["partition"], row["phase"]) == (GROUP, "t", 0, "Active")
    assert (row["start_offset"], row["next_offset"]) == (1, 10)
    assert [row[name] for name in ("acquired", "available", "archived", "acknowledged")] == [6, 1, 1, 1]
    assert row["deliveries"] == {"1": 7} and row["members"] == {"one": 6}
    assert 0 < row["lock_ends_in_ms"] <= LOCK_MS - 1_000
    assert (row["records_max"], row["delivery_count_limit"]) == (2_000, 5)
    assert group["deliveries"] == {"1": 10}
    assert group["acknowledgements"] == {"accept": 2, "release": 1, "reject": 1}
    assert group["lock_expiries"] == 0
    assert told(node, {}) == answer
    assert told(node, {"group": "another"})["partitions"] == []


def test_locks_that_end_and_later_deliveries_are_counted(node: NodeUnderTest) -> None:
    member = busy(node)
    node.advance(LOCK_MS + 1)
    assert len(member.take()) == 7
    [row] = told(node, {})["partitions"]
    [group] = told(node, {})["groups"]
    assert group["lock_expiries"] == 6 and group["deliveries"] == {"1": 10, "2": 7}
    assert row["deliveries"] == {"2": 7} and row["available"] == 0
    node.advance(LOCK_MS + 1)
    member.lose_connection()
    answer = told(node, {})
    assert answer["partitions"] == [] and answer["groups"][0]["lock_expiries"] == 13


def test_records_that_rest_are_told_apart(node: NodeUnderTest) -> None:
    configure(node, "tidelog.share.retry.backoff.ms", "60000")
    busy(node)
    [row] = told(node, {})["partitions"]
    assert (row["available"], row["resting"]) == (1, 1)


def test_dead_letters_are_counted(node: NodeUnderTest) -> None:
    node.create_topic("dlq.t", 1, **{"errors.deadletterqueue.group.enable": "true"})
    configure(node, "errors.deadletterqueue.topic.name", "dlq.t")
    busy(node)
    [group] = told(node, {})["groups"]
    assert (group["dead_letters"], group["dead_letters_given_up"]) == (1, 0)


def test_dead_letters_that_are_given_up_are_counted(node: NodeUnderTest) -> None:
    configure(node, "errors.deadletterqueue.topic.name", "dlq.nowhere")
    busy(node)
    [group] = told(node, {})["groups"]
    assert (group["dead_letters"], group["dead_letters_given_up"]) == (0, 1)


def test_what_is_too_much_is_left_out(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    busy(node)
    monkeypatch.setattr(describe_share_partitions, "RUNS_MAX", 3)
    answer = told(node, {})
    assert answer["partitions"] == [] and answer["left_out"] == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"group": 7}', b'{"group": ""}', b"\xff", b"[" * 3_000, b" " * 5_000 + b"{}"]
)
def test_a_question_that_is_none_closes_the_connection(node: NodeUnderTest, body: bytes) -> None:
    with pytest.raises(CloseConnection):
        told(node, body)


def test_who_may_not_describe_the_group_or_the_topic_is_told_nothing() -> None:
    node = GuardedNode(**SETTINGS)
    node.be("root")
    node.create_topic("t", 2)
    ask(node, "FindCoordinator", 3, key=GROUP, key_type=0)
    configure(node, "share.auto.offset.reset", "earliest")
    produce(node, b"a")
    member = ShareMember(node, "one")
    member.context.principal = "User:root"
    assert member.join().take() == [b"a"]
    node.be("mallory")
    assert told(node, {}) == {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}
    assert told(node, {"group": GROUP}) == {"error_code": int(ErrorCode.GROUP_AUTHORIZATION_FAILED)}
    node.allow("mallory", AclOperation.DESCRIBE, ResourceType.GROUP, GROUP)
    assert told(node, {"group": GROUP})["partitions"] == []
    node.allow("mallory", AclOperation.DESCRIBE, ResourceType.TOPIC, "t")
    [row] = told(node, {"group": GROUP})["partitions"]
    assert row["acquired"] == 1
    assert "error_code" in told(node, {})


# -- metrics


def scraped(node: NodeUnderTest) -> dict[str, ReadFamily]:
    return read("".join(node.broker.scrape.get().run()))


def test_metrics_tell_what_is_in_flight_and_what_was_counted(node: NodeUnderTest) -> None:
    node.create_topic("dlq.t", 1, **{"errors.deadletterqueue.group.enable": "true"})
    configure(node, "errors.deadletterqueue.topic.name", "dlq.t")
    member = busy(node)
    found = scraped(node)
    records = "tidelog_share_group_records"
    assert value(found, records, group=GROUP, state="acquired") == 6
    assert value(found, records, group=GROUP, state="available") == 1
    assert value(found, records, group=GROUP, state="archived") == 1
    assert value(found, "tidelog_share_group_members", group=GROUP) == 1
    assert value(found, "tidelog_share_group_lag", group=GROUP) == 7
    assert value(found, "tidelog_share_group_acknowledgements_total", group=GROUP, type="accept") == 2
    assert value(found, "tidelog_share_group_dead_letters_total", group=GROUP, outcome="written") == 1
    assert value(found, "tidelog_share_group_deliveries_total", group=GROUP, delivery="1") == 10
    node.advance(LOCK_MS + 1)
    member.take()
    found = scraped(node)
    assert value(found, "tidelog_share_group_lock_expiries_total", group=GROUP) == 6
    assert value(found, "tidelog_share_group_deliveries_total", group=GROUP, delivery="2") == 7
    assert value(found, "tidelog_share_groups_left_out") == 0


def test_lag_is_told_while_nobody_fetches(node: NodeUnderTest) -> None:
    member = busy(node)
    member.lose_connection()
    produce(node, b"x", b"y")
    found = scraped(node)
    assert value(found, "tidelog_share_group_lag", group=GROUP) == 9
    assert not found["tidelog_share_group_records"].samples
    assert value(found, "tidelog_share_group_acknowledgements_total", group=GROUP, type="accept") == 2


def test_groups_above_the_limit_have_no_series() -> None:
    node = sharing_node(tidelog_metrics_groups_max="1")
    produce(node, b"a", b"b")
    for group in ("g", "h"):
        configure(node, "share.auto.offset.reset", "earliest", group)
        member = ShareMember(node, group, group=group).join()
        assert member.take() == [b"a", b"b"]
        assert member.acknowledge(0, (0, 0, ACCEPT)) is ErrorCode.NONE
    found = scraped(node)
    assert value(found, "tidelog_share_groups_left_out") == 1
    for name in ("members", "lag", "deliveries_total", "lock_expiries_total"):
        assert len(found[f"tidelog_share_group_{name}"].samples) == 1, name


def test_a_broker_without_share_groups_has_no_series_of_them() -> None:
    found = scraped(NodeUnderTest())
    share = [name for name in found if name.startswith("tidelog_share_") and found[name].samples]
    assert share == ["tidelog_share_groups_left_out"]


def test_counts_of_groups_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_counts, "GROUPS_MAX", 2)
    counts = share_counts.ShareCounts()
    here = counts.of("here", lambda name: False)
    counts.of("gone", lambda name: False)
    counts.of("new", lambda name: name == "here")
    assert set(counts.groups) == {"here", "new"} and counts.groups["here"] is here
