"""Domain events: how they are kept and counted, and what a cluster tells when things happen to it."""

import logging

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.support.placed_topics import place_topic
from tests.support.prometheus_text import read, value
from tests.unit.broker.node import ManualClock, NodeUnderTest, produce_frame
from tidelog.broker.runtime.events import KEPT_MAX, PER_CAUSE_MAX, Events
from tidelog.model.events import (
    BROKER_CAME,
    BROKER_WENT,
    CONTROLLER_ELECTED,
    ISR_EXPANDED,
    ISR_SHRANK,
    LEADER_ELECTED,
    LEADER_LOST,
    LOG_COMPACTED,
    SESSION_LOST,
    DomainEvent,
)
from tidelog.records.builder import build_batch
from tidelog.records.record import Record


@pytest.fixture
def events() -> Events:
    return Events(ManualClock(), 3)


def told(broker: object, kind: str) -> list[DomainEvent]:
    return [event for event in broker.metrics.events.after(0) if event.kind == kind]  # type: ignore[attr-defined]


class TestStream:
    def test_numbers_grow_and_are_asked_by(self, events: Events) -> None:
        for number in range(5):
            events.emit("thing", {"n": number}, cause_id=f"cause-{number}")
        assert [event.fields["n"] for event in events.after(3)] == [3, 4]
        assert [event.number for event in events.after(0, count_max=2)] == [4, 5]

    def test_only_the_newest_are_kept(self, events: Events) -> None:
        for number in range(KEPT_MAX + 10):
            events.emit("thing", {}, cause_id=f"cause-{number}")
        assert len(events.after(0)) == KEPT_MAX
        assert events.after(0)[0].number == 11
        assert events.counts == {"thing": KEPT_MAX + 10}

    def test_one_cause_does_not_push_everything_else_out(self, events: Events) -> None:
        events.emit("first", {})
        for _ in range(3 * PER_CAUSE_MAX):
            events.emit("thing", {}, cause_id="change-7")
        assert len(events.after(0)) == PER_CAUSE_MAX + 1
        assert events.counts["thing"] == 3 * PER_CAUSE_MAX

    def test_listeners_hear_what_is_kept(self, events: Events) -> None:
        heard: list[DomainEvent] = []
        events.listen(heard.append)
        events.emit("thing", {"a": 1}, cause="a reason", cause_id="change-1")
        assert [event.kind for event in heard] == ["thing"]

    def test_a_line_for_people_and_a_record_for_machines(
        self, events: Events, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, logger="tidelog.events"):
            events.emit("ISR shrank", {"topic": "t", "isr": (1, 2)}, cause="it was slow", cause_id="change-9")
        [record] = caplog.records
        assert record.getMessage() == "ISR shrank: topic=t isr=[1,2] because it was slow (change-9)"
        assert record.event["fields"] == {"topic": "t", "isr": (1, 2)}  # type: ignore[attr-defined]
        assert record.event["cause_id"] == "change-9"  # type: ignore[attr-defined]

    def test_what_is_bad_is_a_warning(self, events: Events, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, logger="tidelog.events"):
            events.emit(SESSION_LOST, {})
            events.emit(LEADER_ELECTED, {})
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.fixture
def cluster() -> InMemoryCluster:
    found = InMemoryCluster(seed=5)
    place_topic(found, "t", 1, 2, 3)
    return found


class TestCluster:
    def test_a_death_is_told_with_one_cause(self, cluster: InMemoryCluster) -> None:
        controller = next(node for node in cluster.living if node.broker.metadata.is_controller)
        victim = next(node.node_id for node in cluster.living if node is not controller)
        place_topic(cluster, "led", victim, controller.node_id)
        before = controller.broker.metrics.events.count
        cluster.kill(victim)
        cluster.run_until(lambda: bool(told(controller.broker, BROKER_WENT)))
        cluster.run_for(100)
        went = told(controller.broker, BROKER_WENT)[-1]
        elected = [e for e in told(controller.broker, LEADER_ELECTED) if e.number > before]
        assert went.fields["id"] == victim and went.cause_id.startswith("change-")
        assert [(e.fields["topic"], e.fields["from"], e.fields["to"]) for e in elected][-1] == (
            "led", victim, controller.node_id
        )  # fmt: skip
        assert {event.cause_id for event in elected} == {went.cause_id}
        shrank = [e for e in told(controller.broker, ISR_SHRANK) if e.fields["topic"] == "led"]
        assert shrank[-1].fields["gone"] == [victim] and shrank[-1].cause_id == went.cause_id

    def test_every_event_is_told_by_one_broker_only(self, cluster: InMemoryCluster) -> None:
        victim = next(node.node_id for node in cluster.living if not node.broker.metadata.is_controller)
        cluster.kill(victim)
        cluster.run_for(3_000)
        tellers = [node.node_id for node in cluster.living if told(node.broker, BROKER_WENT)]
        assert len(tellers) == 1
        shrinks = [
            (event.fields["topic"], event.cause_id)
            for node in cluster.living
            for event in told(node.broker, ISR_SHRANK)
        ]
        assert shrinks and len(shrinks) == len(set(shrinks))

    def test_a_return_expands_the_isr(self, cluster: InMemoryCluster) -> None:
        victim = next(node.node_id for node in cluster.living if not node.broker.metadata.is_controller)
        cluster.kill(victim)
        cluster.run_for(3_000)
        cluster.restart(victim)
        cluster.run_until(lambda: any(told(node.broker, ISR_EXPANDED) for node in cluster.living))
        controller = next(node for node in cluster.living if node.broker.metadata.is_controller)
        assert told(controller.broker, BROKER_CAME)[-1].fields["id"] == victim

    def test_a_partition_without_a_leader_is_told_and_counted(self, cluster: InMemoryCluster) -> None:
        controller = next(node for node in cluster.living if node.broker.metadata.is_controller)
        victim = next(node.node_id for node in cluster.living if node is not controller)
        place_topic(cluster, "alone", victim)
        cluster.kill(victim)
        cluster.run_until(lambda: bool(told(controller.broker, LEADER_LOST)))
        assert told(controller.broker, LEADER_LOST)[-1].fields["topic"] == "alone"
        families = read("".join(controller.broker.scrape.get().run()))
        assert value(families, "tidelog_offline_partitions") == 1

    def test_a_lost_session_is_told_by_who_lost_it(self, cluster: InMemoryCluster) -> None:
        victim = next(node for node in cluster.living if not node.broker.metadata.is_controller)
        cluster.expire_session(victim.node_id)
        cluster.run_until(lambda: bool(told(victim.broker, SESSION_LOST)))
        [lost] = told(victim.broker, SESSION_LOST)
        assert lost.cause_id.startswith("session-") and lost.cause
        families = read("".join(victim.broker.scrape.get().run()))
        assert value(families, "tidelog_session_losses_total") == 1

    def test_a_controller_is_elected_once(self, cluster: InMemoryCluster) -> None:
        elected = [node.node_id for node in cluster.living if told(node.broker, CONTROLLER_ELECTED)]
        controllers = [node.node_id for node in cluster.living if node.broker.metadata.is_controller]
        assert elected == controllers and len(elected) == 1

    def test_under_replicated_partitions_are_those_led_here(self, cluster: InMemoryCluster) -> None:
        victim = next(node.node_id for node in cluster.living if not node.broker.metadata.is_controller)
        cluster.kill(victim)
        cluster.run_for(3_000)
        under = 0.0
        for node in cluster.living:
            families = read("".join(node.broker.scrape.get().run()))
            under += value(families, "tidelog_under_replicated_partitions")
        assert under == 1


class TestCompaction:
    def test_it_is_told_and_counted(self) -> None:
        node = NodeUnderTest(log_cleaner_backoff_ms="100")
        node.create_topic(
            "t", cleanup_policy="compact", segment_bytes="300", min_cleanable_dirty_ratio="0.01"
        )
        record = Record(0, node.clock.now_ms(), b"k", b"x" * 100, ())
        keyed = bytes(build_batch([record]))
        for _ in range(8):
            node.handle(produce_frame(9, keyed))
        node.advance(200)
        [compacted] = told(node.broker, LOG_COMPACTED)
        assert compacted.fields["topic"] == "t"
        cleaner = node.broker.metrics.cleaner
        assert cleaner.rounds == 1
        assert cleaner.records_kept < cleaner.records_read
