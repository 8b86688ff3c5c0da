"""Reassignment plans: balance, racks, few copies, draining, and the JSON of Kafka's tools."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.admin.reassignment_plan import (
    Assignment,
    Move,
    PlanRefused,
    ReassignmentPlan,
    drain,
    read_plan,
    spread,
    with_leader,
)


def outcome(before: list[Assignment], plan: ReassignmentPlan) -> list[Assignment]:
    moved = {(move.topic, move.partition): move.after for move in plan.moves}
    return [item._replace(replicas=moved.get((item.topic, item.partition), item.replicas)) for item in before]


def held(items: list[Assignment]) -> Counter[int]:
    return Counter(broker for item in items for broker in item.replicas)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Assignment], list[int]]:
    brokers = draw(st.lists(st.integers(1, 9), min_size=3, max_size=7, unique=True))
    factor = draw(st.integers(1, 3))
    count = draw(st.integers(1, 25))
    choose = st.lists(st.sampled_from(brokers), min_size=factor, max_size=factor, unique=True)
    return [Assignment("t", index, tuple(draw(choose))) for index in range(count)], brokers


@given(clusters())
@settings(max_examples=200, deadline=None)
def test_spread_is_even_in_replicas_and_nearly_in_leaders(case: tuple[list[Assignment], list[int]]) -> None:
    before, brokers = case
    after = outcome(before, spread(before, dict.fromkeys(brokers)))
    counts = held(after)
    assert max(counts.values()) - min(counts[broker] for broker in brokers) <= 1
    for item, now in zip(before, after, strict=True):
        assert len(set(now.replicas)) == len(now.replicas) == len(item.replicas)
    led = Counter(item.replicas[0] for item in after)
    for item in after:  # no partition could be led by a replica that leads clearly less
        assert led[item.replicas[0]] - min(led[broker] for broker in item.replicas) <= 1


@given(clusters())
@settings(max_examples=200, deadline=None)
def test_a_balanced_cluster_stays_as_it_is(case: tuple[list[Assignment], list[int]]) -> None:
    before, brokers = case
    racks = dict.fromkeys(brokers)
    after = outcome(before, spread(before, racks))
    assert spread(after, racks).moves == ()


@given(clusters(), st.data())
@settings(max_examples=200, deadline=None)
def test_drain_empties_one_broker_and_moves_nothing_else(
    case: tuple[list[Assignment], list[int]], data: st.DataObject
) -> None:
    before, brokers = case
    leaving = data.draw(st.sampled_from(brokers))
    if max(len(item.replicas) for item in before) >= len(brokers) and held(before)[leaving]:
        with pytest.raises(PlanRefused):
            drain(before, leaving, dict.fromkeys(brokers))
        return
    plan = drain(before, leaving, dict.fromkeys(brokers))
    assert held(outcome(before, plan))[leaving] == 0
    for move in plan.moves:
        assert move.removing == (leaving,) and len(move.adding) == 1


def test_a_new_broker_gets_its_share_and_no_more_is_copied() -> None:
    before = [Assignment("t", index, (1 + index % 2, 2 - index % 2)) for index in range(6)]
    plan = spread(before, dict.fromkeys([1, 2, 3]))
    assert held(outcome(before, plan)) == {1: 4, 2: 4, 3: 4}
    assert sum(len(move.adding) for move in plan.moves) == 4


def test_replicas_go_to_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    before = [Assignment("t", index, (1, 2)) for index in range(4)]
    after = outcome(before, spread(before, racks, replication_factor=1))
    assert all(len(item.replicas) == 1 for item in after)
    grown = outcome(after, spread(after, racks, replication_factor=2))
    assert all({racks[broker] for broker in item.replicas} == {"a", "b"} for item in grown)
    assert set(held(grown).values()) == {2}


def test_drain_keeps_racks_apart() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a", 4: "b"}
    before = [Assignment("t", 0, (1, 2)), Assignment("t", 1, (2, 1)), Assignment("t", 2, (4, 3))]
    assert drain(before, 1, racks).moves == (
        Move("t", 0, (1, 2), (3, 2)),
        Move("t", 1, (2, 1), (2, 3)),
    )


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(PlanRefused, match="3 replicas need"):
        spread([Assignment("t", 0, (1,))], {1: None, 2: None}, replication_factor=3)
    with pytest.raises(PlanRefused, match="without broker 2"):
        drain([Assignment("t", 0, (1, 2))], 2, {1: None, 2: None})


def test_leadership_moves_by_order_alone() -> None:
    item = Assignment("t", 0, (1, 2, 3))
    plan = ReassignmentPlan.between([item], [with_leader(item, 3)])
    assert plan.moves == (Move("t", 0, (1, 2, 3), (3, 1, 2)),)
    assert plan.moves[0].adding == plan.moves[0].removing == ()
    with pytest.raises(PlanRefused, match="no replica"):
        with_leader(item, 9)


def test_json_goes_both_ways() -> None:
    plan = ReassignmentPlan((Move("t", 0, (1,), (1, 2)), Move("u", 3, (2, 1), (3,))))
    assert read_plan(json.dumps(plan.as_json())) == [Assignment("t", 0, (1, 2)), Assignment("u", 3, (3,))]
    assert plan.copied_bytes({("t", 0): 10, ("u", 3): 5}) == 15


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "version"),
        ('{"version": 2, "partitions": []}', "version"),
        ('{"version": 1, "partitions": []}', "no partitions"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "has not"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "twice"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": ["a"]}]}', "numbers"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0}]}', "has not"),
    ],
)
def test_a_bad_plan_is_explained(text: str, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        read_plan(text)


def test_an_unknown_partition_is_refused() -> None:
    with pytest.raises(PlanRefused, match="no partition t-1"):
        ReassignmentPlan.between([Assignment("t", 0, (1,))], [Assignment("t", 1, (1,))])
