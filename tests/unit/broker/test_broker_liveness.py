"""When a broker gives up its session by itself: the loop, the thread beside it, the disks."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.support.placed_topics import place_topic
from tests.unit.broker.node import ManualClock
from tidelog.broker.runtime.liveness import NEVER_NS, TICKS_COUNTED_MAX, Liveness
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import CreateTopics, DeleteTopics, TopicReference, TopicSpec
from tidelog.model.errors import ErrorCode

SESSION_MS = 9_000
STALL_MS = 6_000


class Disks:
    def __init__(self) -> None:
        self.silent = 0

    def silent_ms(self) -> int:
        return self.silent

    def hanging(self) -> list[str]:
        return ["/data/b"] if self.silent else []


class Loop:
    """A loop that turns as far as it is told to, and the thread beside it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.lapsed: list[str] = []
        self.ended = 0
        self.liveness = Liveness(
            self.clock, self.timers, SESSION_MS, on_lapse=self.lapsed.append, end_session=self._end
        )
        self.disks = Disks()
        self.liveness.disks = self.disks
        self.liveness.start()

    def _end(self) -> None:
        self.ended += 1

    def turn(self, milliseconds: int) -> None:
        """Time passes, and loop and thread go on."""
        for _ in range(0, milliseconds, self.liveness.tick_ms):
            self.clock.time_ms += self.liveness.tick_ms
            self.timers.run_due()
            self.liveness.look()

    def hang(self, milliseconds: int) -> int:
        """Time passes for the thread alone; for how long it says the loop stands."""
        still_ms = 0
        for _ in range(0, milliseconds, self.liveness.tick_ms):
            self.clock.time_ms += self.liveness.tick_ms
            still_ms = self.liveness.look()
        return still_ms


@pytest.mark.parametrize(("granted_ms", "stall_ms"), [(6_000, 4_000), (40_000, STALL_MS), (None, STALL_MS)])
def test_the_limit_follows_from_what_the_store_grants_if_that_is_less(
    granted_ms: int | None, stall_ms: int
) -> None:
    loop = Loop()
    loop.liveness.granted(3_000)
    loop.liveness.granted(granted_ms)
    loop.turn(1_000)
    loop.hang(stall_ms - 2 * loop.liveness.tick_ms)
    assert loop.ended == 0
    loop.hang(2 * loop.liveness.tick_ms)
    assert loop.ended > 0, "others may lead when the store has ended the session"


def test_a_loop_that_turns_keeps_the_session() -> None:
    loop = Loop()
    assert (loop.liveness.stall_ms, loop.liveness.tick_ms) == (STALL_MS, 450)
    loop.turn(60_000)
    assert (loop.lapsed, loop.ended) == ([], 0)


def test_a_stall_below_the_limit_costs_nothing() -> None:
    loop = Loop()
    for _ in range(5):
        loop.turn(900)
        assert 0 < loop.hang(STALL_MS - 1_000) < STALL_MS
        loop.turn(450)
    assert (loop.lapsed, loop.ended) == ([], 0)


def test_a_stall_above_the_limit_costs_the_session_while_it_lasts() -> None:
    loop = Loop()
    loop.turn(900)
    stood_ms = 0
    while not loop.ended:
        stood_ms += 450
        loop.hang(450)
    # The limit and a tick: a quarter of the session timeout is left for the election.
    assert stood_ms <= STALL_MS + 450 <= SESSION_MS * 3 // 4
    loop.hang(900)
    assert loop.ended == 3, "again and again, for a session may be opened meanwhile"
    # The loop comes back, and its first turn finds its lease over, before its timer has run.
    loop.liveness.check(loop.clock.monotonic_ms() * 1_000_000)
    [why] = loop.lapsed
    assert why.startswith("this broker stood still for ")
    loop.liveness.check(loop.clock.monotonic_ms() * 1_000_000)
    loop.turn(60_000)
    assert len(loop.lapsed) == 1
    assert loop.liveness.lapses == {"loop": 1, "disk": 0}


def test_the_timer_finds_the_lease_over_too() -> None:
    loop = Loop()
    loop.turn(900)
    loop.clock.time_ms += STALL_MS + 1_000
    loop.timers.run_due()
    assert loop.lapsed == ["this broker stood still for 7.0 s"]


def test_a_thread_that_slept_itself_does_not_judge_the_loop() -> None:
    loop = Loop()
    loop.turn(900)
    loop.clock.time_ms += 10 * SESSION_MS
    assert loop.liveness.look() == TICKS_COUNTED_MAX * loop.liveness.tick_ms
    assert loop.ended == 0
    # The loop knows all the same that the others may have given it up.
    loop.timers.run_due()
    assert len(loop.lapsed) == 1


def test_long_work_on_the_loop_says_that_it_goes_on() -> None:
    loop = Loop()
    for _ in range(20):
        assert loop.hang(STALL_MS // 2) < STALL_MS
        loop.liveness.moved()
    assert (loop.lapsed, loop.ended) == ([], 0)
    loop.hang(STALL_MS + 900)
    loop.liveness.moved()
    assert len(loop.lapsed) == 1


def test_a_disk_that_does_not_answer_costs_the_session_until_it_has_answered_for_a_while() -> None:
    loop = Loop()
    loop.disks.silent = STALL_MS - 1
    loop.turn(900)
    assert loop.lapsed == [] and loop.liveness.disk_answers
    loop.disks.silent = STALL_MS
    loop.turn(900)
    assert loop.lapsed == ["/data/b did not answer for 6.0 s"]
    assert not loop.liveness.disk_answers
    # It answers, hangs again for a moment, and answers: only a while without trouble counts.
    for silent_ms, for_ms in ((0, STALL_MS // 3), (STALL_MS // 2, 450), (0, STALL_MS // 3)):
        loop.disks.silent = silent_ms
        loop.turn(for_ms)
        assert not loop.liveness.disk_answers
    loop.turn(STALL_MS // 2)
    assert loop.liveness.disk_answers
    assert loop.liveness.lapses == {"loop": 0, "disk": 1}
    assert loop.ended == 0


def test_nothing_is_measured_before_the_start_and_after_the_end() -> None:
    loop = Loop()
    loop.liveness.stop()
    assert loop.liveness.lease_end_ns == NEVER_NS
    assert loop.hang(10 * SESSION_MS) == 0
    loop.timers.run_due()
    loop.liveness.moved()
    assert (loop.lapsed, loop.ended) == ([], 0)


class TestCluster:
    def test_a_broker_without_a_session_leads_nothing_until_it_is_registered_again(self) -> None:
        cluster = InMemoryCluster((1, 2, 3))
        place_topic(cluster, "t", 1, 2, 3)
        broker = cluster.nodes[1].broker
        cluster.run_until(lambda: ("t", 0) in broker.replicas.led)
        before = broker.metadata.broker_epoch
        broker.metadata.lapse("for a test")
        # At once, whatever its image says: nothing of the next turn may be answered as a leader.
        assert broker.metadata.fenced and broker.metadata.broker_epoch == -1
        assert broker.replicas.led == {}
        assert broker.replicas.find("t", 0)[1] is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.image.partition("t", 0).leader == 1  # type: ignore[union-attr]
        cluster.run_until(lambda: not broker.metadata.fenced)
        assert broker.metadata.broker_epoch > before
        cluster.run_until(lambda: ("t", 0) in cluster.nodes[2].broker.replicas.led)
        assert ("t", 0) in broker.replicas.followed

    def test_a_broker_whose_disk_hangs_follows_the_image_and_does_not_register(self) -> None:
        cluster = InMemoryCluster((1, 2, 3))
        place_topic(cluster, "t", 1, 2, 3)
        broker = cluster.nodes[1].broker
        cluster.run_until(lambda: ("t", 0) in broker.replicas.led)
        answers = False
        broker.metadata._life = replace(broker.metadata._life, may_enter=lambda: answers)
        broker.metadata.lapse("for a test")
        cluster.run_for(5_000)
        assert broker.metadata.fenced
        state = broker.image.partition("t", 0)
        assert state is not None and state.leader == 2 and 1 not in broker.image.alive_brokers
        place_topic(cluster, "later", 2, 3)
        cluster.run_until(lambda: "later" in broker.image.topics)
        answers = True
        cluster.run_until(lambda: not broker.metadata.fenced)
        cluster.run_until(lambda: 1 in cluster.nodes[2].broker.image.alive_brokers)

    def test_every_session_says_how_long_it_is_believed_in(self, caplog: pytest.LogCaptureFixture) -> None:
        cluster = InMemoryCluster((1, 2))
        node = cluster.nodes[1]
        cluster.run_until(lambda: node.registered)
        assert node.broker.liveness.stall_ms == STALL_MS
        open_store = node.broker.metadata._session._open_store

        def grant() -> Any:
            store: Any = open_store()
            store.granted_timeout_ms = 3_000
            return store

        node.broker.metadata._session._open_store = grant
        node.broker.metadata.lapse("for a test")
        cluster.run_until(lambda: not node.broker.metadata.fenced)
        assert node.broker.liveness.stall_ms == 2_000
        assert "grants sessions of 3000 ms, not of 9000 ms" in caplog.text

    def test_a_topic_of_many_partitions_is_deleted_on_a_slow_disk(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster = InMemoryCluster((1,))
        node = cluster.nodes[1]
        cluster.run_until(lambda: node.registered)
        partitions = tuple((index, (1,)) for index in range(10))
        results: list[Any] = []
        submit = node.broker.metadata.submit
        submit(CreateTopics((TopicSpec("t", assignments=partitions),)), results.extend)
        cluster.run_until(lambda: len(results) == 1)
        node.broker.liveness.start()
        rename = node.disk.rename

        def rename_slowly(source: str, target: str) -> None:
            cluster.clock.time_ms += STALL_MS // 3
            node.broker.liveness.look()
            rename(source, target)

        monkeypatch.setattr(node.disk, "rename", rename_slowly)
        submit(DeleteTopics((TopicReference("t"),)), results.extend)
        cluster.run_until(lambda: len(results) == 2)
        assert "t" not in node.broker.image.topics
        cluster.run_for(1_000)
        assert node.broker.liveness.lapses == {"loop": 0, "disk": 0}

    def test_a_broker_alone_goes_on_with_what_nobody_else_can_lead(self) -> None:
        cluster = InMemoryCluster((1,))
        place_topic(cluster, "t", 1)
        broker = cluster.nodes[1].broker
        broker.metadata.lapse("for a test")
        assert ("t", 0) in broker.replicas.led
        cluster.run_until(lambda: not broker.metadata.fenced)
        assert ("t", 0) in broker.replicas.led
