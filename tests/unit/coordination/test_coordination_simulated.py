"""The faults of the simulated store: each does what its name says, and the same seed does the same."""

from collections.abc import Callable
from random import Random

import pytest

from tests.support.simulated_store import SimulatedCluster, SimulatedStore
from tidelog.coordination.store import (
    ABSENT,
    Committed,
    CommitUnknown,
    Conflict,
    Entry,
    SessionLost,
    StoreError,
    Write,
)


class Queue:
    """A scheduler that a test turns by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def __call__(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_failures_and_conflicts_happen_once_each() -> None:
    store = SimulatedStore()
    store.fail_next()
    with pytest.raises(StoreError):
        store.commit([Write("a", b"1")])
    store.conflict_next()
    assert isinstance(store.commit([Write("a", b"1", ABSENT)]), Conflict)
    assert store.commit([Write("a", b"1", ABSENT)]) == Committed({"a": 1})
    assert store.commits == [(Write("a", b"1", ABSENT),)]


def test_lost_answers_happen_or_not_as_the_seed_says() -> None:
    def history(seed: int) -> list[bool]:
        cluster = SimulatedCluster(Random(seed))
        store = cluster.open()
        for number in range(20):
            store.lose_answer_next()
            with pytest.raises(CommitUnknown):
                store.commit([Write(f"{number:02}", b"")])
        present = {entry.key for entry in cluster.entries()}
        return [f"{number:02}" in present for number in range(20)]

    assert history(1) == history(1)
    assert history(1) != history(2)
    assert {True, False} == set(history(1))


def test_a_partitioned_session_is_deaf_and_mute() -> None:
    outcomes = set()
    for seed in range(10):
        queue = Queue()
        cluster = SimulatedCluster(Random(seed), queue)
        one, two = cluster.open("one"), cluster.open("two")
        calls: list[str] = []
        one.watch("a", lambda calls=calls: calls.append("a"))  # type: ignore[misc]
        one.watch("quiet", lambda calls=calls: calls.append("quiet"))  # type: ignore[misc]
        one.partition()
        with pytest.raises(StoreError):
            one.get("a")
        with pytest.raises(CommitUnknown):
            one.commit([Write("first", b"")])
        with pytest.raises(StoreError) as later:
            one.commit([Write("second", b"")])
        assert not isinstance(later.value, CommitUnknown)
        two.commit([Write("a", b"")])
        queue.run()
        assert calls == []
        one.heal()
        queue.run()
        assert calls == ["a", "quiet"]
        assert one.get("a") == Entry("a", b"", 1)
        assert one.get("second") is None
        outcomes.add(one.get("first") is None)
    assert outcomes == {True, False}


def test_a_call_that_waits_stands_for_later_ones_and_dies_with_a_cut() -> None:
    queue = Queue()
    store = SimulatedCluster(schedule=queue).open()
    calls: list[str] = []
    store.watch("a", lambda: calls.append("a"))
    for _ in range(3):
        store.commit([Write("a", b"")])
    assert len(queue.calls) == 1
    store.partition()
    queue.run()
    assert calls == []
    store.heal()
    queue.run()
    assert calls == ["a"]


def test_a_session_may_have_a_schedule_of_its_own() -> None:
    shared, own = Queue(), Queue()
    cluster = SimulatedCluster(schedule=shared)
    one, two = cluster.open(), cluster.open(schedule=own)
    for store in (one, two):
        store.watch("a", lambda: None)
    one.commit([Write("a", b"")])
    assert (len(shared.calls), len(own.calls)) == (1, 1)


def test_an_expired_session_learns_of_it_when_it_can_be_reached() -> None:
    queue = Queue()
    cluster = SimulatedCluster(schedule=queue)
    one, two = cluster.open("one"), cluster.open("two")
    told: list[str] = []
    one.on_session_lost(lambda: told.append("lost"))
    two.watch("live/", lambda: told.append("gone"))
    one.commit([Write("live/1", b"", ephemeral=True), Write("kept", b"")])
    queue.run()
    told.clear()
    one.partition()
    one.expire()
    assert cluster.sessions == (two,)
    assert two.load("live/") == []
    with pytest.raises(CommitUnknown):
        one.commit([Write("stale", b"")])
    queue.run()
    assert told == ["gone"]
    one.heal()
    queue.run()
    assert told == ["gone", "lost"]
    with pytest.raises(SessionLost):
        one.commit([Write("stale", b"")])
    assert [entry.key for entry in cluster.entries()] == ["kept"]


def test_the_farewell_of_a_partitioned_session_is_not_heard() -> None:
    cluster = SimulatedCluster()
    store = cluster.open()
    store.commit([Write("live/1", b"", ephemeral=True)])
    store.partition()
    store.close()
    assert [entry.key for entry in cluster.entries()] == ["live/1"]
    store.expire()
    assert cluster.entries() == []


def test_reopen_finds_what_a_restarted_process_would() -> None:
    store = SimulatedStore()
    store.commit([Write("kept", b"1"), Write("live/1", b"", ephemeral=True)])
    again = store.reopen()
    assert [entry.key for entry in again.load()] == ["kept"]
    again.commit([Write("kept", b"2")])
    assert store.get("kept") == Entry("kept", b"1", 1)
