"""Looks at a cluster that misbehaves: what is published, in which order, and what is not mistaken."""

import threading
import time
from dataclasses import replace
from typing import Any

from tidelog.admin.share_groups import Starts
from tidelog.admin.snapshot import BrokerView, GroupView, MemberView, PartitionView, Snapshot, TopicView
from tidelog.console.faults import ConsoleFault
from tidelog.console.watcher import EVENTS_MAX, GROUPS_SAMPLED_MAX, TRAFFIC, Watcher

TOPIC = TopicView("t", (PartitionView(0, 1, (1, 2), (1, 2)),))
STATE = Snapshot("c", 1, {1: BrokerView(1, "h", 1), 2: BrokerView(2, "h", 2)}, {"t": TOPIC}, {}, 0.0)


class ScriptedCluster:
    """The clients of a watcher: answers what the test has put here, and notes the order of questions."""

    def __init__(self) -> None:
        self.state = STATE
        self.listing: dict[str, GroupView] = {"g": GroupView("g", "stable", "classic")}
        self.problems: list[str] = []
        self.members: tuple[MemberView, ...] = ()
        self.end = 100
        self.silent: set[tuple[str, int]] = set()
        self.fault: ConsoleFault | None = None
        self.during_groups: Any = lambda: None
        self.described: list[list[str]] = []
        self.share_ids: list[str] = []

    def probe(self) -> None:
        if self.fault is not None:
            raise self.fault

    def snapshot(self, groups: dict[str, GroupView]) -> Snapshot:
        self.probe()
        return replace(self.state, groups=dict(groups))

    def list_groups(self, brokers: dict[int, BrokerView]) -> tuple[dict[str, GroupView], list[str]]:
        self.during_groups()
        return dict(self.listing), list(self.problems)

    def describe_groups(self, types: dict[str, str]) -> dict[str, GroupView]:
        self.described.append(list(types))
        return {name: GroupView(name, "stable", "classic", self.members, described=True) for name in types}

    def committed(self, ids: list[str]) -> dict[str, dict[tuple[str, int], int]]:
        return {name: {("t", 0): 40} for name in ids}

    def sample(
        self, at: float, snapshot: Snapshot, ids: list[str], ends: dict[tuple[str, int], int]
    ) -> dict[str, Starts]:
        self.share_ids = ids
        return {name: {("t", 0): (30, 50)} for name in ids}

    def keep_only(self, names: set[str]) -> None:
        """Counters are none of this cluster's."""

    def ends(self, keys: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {key: self.end for key in keys if key not in self.silent}


def watcher_of(cluster: Any) -> tuple[Watcher, list[float]]:
    now = [1000.0]
    return Watcher(cluster, cluster, cluster, cluster, clock=lambda: now[0]), now


def texts(watcher: Watcher) -> list[str]:
    return [event.text for event in watcher.events]


def test_the_first_look_tells_no_news_but_has_figures() -> None:
    watcher, _ = watcher_of(ScriptedCluster())
    watcher.look()
    assert texts(watcher) == []
    assert watcher.view.snapshot is not None
    assert list(watcher.view.snapshot.groups) == ["g"]
    assert watcher.lag["g"].total == 60
    assert watcher.end_offset("t", 0) == 100


def test_the_lag_of_share_groups_is_what_the_cluster_tells() -> None:
    cluster = ScriptedCluster()
    cluster.listing["q"] = GroupView("q", "stable", "share")
    watcher, _ = watcher_of(cluster)
    watcher.look()
    assert cluster.share_ids == ["q"] and watcher.lag["q"].total == 50
    assert [sample.value for sample in watcher.lag_history.samples("q")] == [50]


def test_a_lost_broker_is_published_before_the_groups_are_known() -> None:
    cluster = ScriptedCluster()
    watcher, _ = watcher_of(cluster)
    watcher.look()
    seen: list[tuple[bool, list[str]]] = []
    told: list[int] = []
    watcher.listen(lambda: told.append(1))

    def note() -> None:
        assert watcher.view.snapshot is not None
        seen.append((2 in watcher.view.snapshot.brokers, texts(watcher)))

    cluster.during_groups = note
    cluster.state = replace(STATE, brokers={1: STATE.brokers[1]})
    watcher.look()
    assert seen == [(False, ["Broker 2 is gone"])]
    assert len(told) == 2


def test_a_group_whose_broker_did_not_answer_is_not_gone() -> None:
    cluster = ScriptedCluster()
    watcher, _ = watcher_of(cluster)
    watcher.look()
    cluster.listing, cluster.problems = {}, ["a broker did not list its groups: timed out"]
    watcher.look()
    assert texts(watcher) == []
    assert watcher.view.snapshot is not None
    assert list(watcher.view.snapshot.groups) == ["g"]
    assert watcher.view.snapshot.problems
    cluster.problems = []
    watcher.look()
    assert texts(watcher) == ["Group g is gone"]
    assert watcher.lag == {}


def test_members_that_join_are_told_once() -> None:
    cluster = ScriptedCluster()
    watcher, _ = watcher_of(cluster)
    watcher.look()
    cluster.members = (MemberView("m", "one", "/h", None, (("t", 0),)),)
    for _ in range(3):
        watcher.look()
    assert texts(watcher) == [
        "one joined group g from /h",
        "1 partition of group g went to another member: t-0 to one",
    ]


def test_an_unreachable_cluster_keeps_what_was_seen_and_is_told_once() -> None:
    cluster = ScriptedCluster()
    watcher, _ = watcher_of(cluster)
    watcher.look()
    cluster.fault = ConsoleFault("nobody is there")
    watcher.look()
    watcher.look()
    assert watcher.view.fault is cluster.fault
    assert watcher.view.snapshot is not None
    cluster.fault = None
    watcher.look()
    assert watcher.view.fault is None
    assert texts(watcher) == ["nobody is there", "The cluster answers again"]


def test_rates_come_from_growing_ends() -> None:
    cluster = ScriptedCluster()
    watcher, now = watcher_of(cluster)
    watcher.look()
    now[0] += 10
    cluster.end = 350
    watcher.look()
    assert watcher.rate_history.latest("t") == 25.0
    assert watcher.rate_history.latest(TRAFFIC) == 25.0
    assert [sample.value for sample in watcher.lag_history.samples("g")] == [60, 310]


def test_many_groups_are_described_in_turn_and_events_are_bounded() -> None:
    cluster = ScriptedCluster()
    names = [f"g{number:03}" for number in range(2 * GROUPS_SAMPLED_MAX)]
    cluster.listing = {name: GroupView(name, "stable", "classic") for name in names}
    watcher, _ = watcher_of(cluster)
    for _ in range(2):
        watcher.look()
    assert sorted(cluster.described[0] + cluster.described[1]) == names
    for _ in range(EVENTS_MAX):
        cluster.state = replace(STATE, controller=3 - cluster.state.controller)
        watcher.look()
    watcher.look()
    assert len(watcher.events) == EVENTS_MAX


def test_a_partition_that_does_not_answer_once_makes_no_jump() -> None:
    cluster = ScriptedCluster()
    pair = TopicView("t", (TOPIC.partitions[0], replace(TOPIC.partitions[0], number=1)))
    cluster.state = replace(STATE, topics={"t": pair})
    watcher, now = watcher_of(cluster)
    for end, silent in ((100, set()), (110, set()), (120, {("t", 0)}), (130, set())):
        cluster.end, cluster.silent = end, silent
        watcher.look()
        now[0] += 10
    assert [sample.value for sample in watcher.rate_history.samples("t")] == [2.0, 1.0, 2.0]
    assert [sample.value for sample in watcher.lag_history.samples("g")] == [60, 70, 70, 90]


def test_a_look_that_fails_is_not_the_last() -> None:
    cluster = ScriptedCluster()
    failed, looked = threading.Event(), threading.Event()

    def fail() -> None:
        cluster.during_groups = looked.set
        failed.set()
        raise KeyError("a bug")

    cluster.during_groups = fail
    watcher = Watcher(cluster, cluster, cluster, cluster, poll_seconds=0.2)  # type: ignore[arg-type]
    watcher.start()
    try:
        assert failed.wait(10)
        deadline = time.monotonic() + 10
        while watcher.view.fault is None and not looked.is_set():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert looked.wait(10), "it went on"
        while watcher.view.fault is not None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        watcher.stop()
