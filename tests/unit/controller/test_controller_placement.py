"""Replica placement: even, rack-aware, and the same for the same start."""

from collections import Counter

import pytest

from tidelog.controller.placement import place, rack_alternated


def test_one_broker_takes_everything() -> None:
    assert place({1: None}, 3, 1, start=5, shift=9) == [(1,), (1,), (1,)]


def test_leaders_and_followers_are_spread_evenly() -> None:
    brokers: dict[int, str | None] = dict.fromkeys(range(5))
    placed = place(brokers, 100, 3, start=2, shift=1)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {20}
    assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {60}
    followers_of_zero = Counter(follower for leader, *rest in placed if leader == 0 for follower in rest)
    assert set(followers_of_zero) == {1, 2, 3, 4}


def test_racks_alternate_in_the_line() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}
    assert rack_alternated(racks) == (0, 2, 4, 1, 3)
    assert rack_alternated({}) == ()


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("shift", range(6))
def test_replicas_use_every_rack_before_one_twice(start: int, shift: int) -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    for replicas in place(racks, 24, 3, start=start, shift=shift):
        assert len(set(replicas)) == 3
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    for replicas in place(racks, 24, 5, start=start, shift=shift):
        assert len(set(replicas)) == 5
        assert max(Counter(racks[broker] for broker in replicas).values()) == 2


def test_partitions_added_later_go_on_where_the_first_ended() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(4))
    whole = place(racks, 10, 2, start=1, shift=2)
    assert whole[:6] + place(racks, 4, 2, first_partition=6, start=1, shift=2) == whole


def test_too_few_brokers_are_the_callers_bug() -> None:
    with pytest.raises(AssertionError):
        place({1: None}, 1, 2)
