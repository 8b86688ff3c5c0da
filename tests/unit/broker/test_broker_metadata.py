"""Metadata of one broker: one command at a time, durable before answered, and a store that misbehaves."""

import logging
from random import Random
from typing import Any

import pytest

from tests.support.simulated_store import SimulatedStore
from tests.unit.broker.doors import DoorUnderTest, World, codes
from tests.unit.broker.node import ManualClock
from tidelog.broker.metadata.change_log import CHANGES_KEPT
from tidelog.broker.metadata.controller_runtime import ATTEMPTS_MAX, QUEUE_MAX, TRIM_EVERY
from tidelog.broker.metadata.metadata import LifecycleCallbacks, Metadata, Registration
from tidelog.broker.runtime.background import InlineBackground
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.peers import NoPeers
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    CreateTopics,
    DeleteTopics,
    ProducerIdBlock,
    Result,
    TopicCreated,
    TopicReference,
    TopicSpec,
)
from tidelog.coordination.store import Write
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import Endpoint, MetadataCorruptError
from tidelog.model.settings import BrokerSettings


def loaded(store: SimulatedStore, cluster_id: str | None = None) -> Metadata:
    clock = ManualClock()
    metadata = Metadata(
        lambda: store,
        BrokerSettings.resolve(),
        InlineBackground(),
        Random(5),
        Timers(clock),
        NoPeers(lambda call: call()),
        1,
        Events(clock, 1),
        LifecycleCallbacks(),
    )
    metadata.load(cluster_id)
    return metadata


def opened(store: SimulatedStore) -> Metadata:
    """The metadata of a broker that became the controller of its cluster of one."""
    metadata = loaded(store)
    started: list[Refused | None] = []
    metadata.start(lambda: Registration({"PLAINTEXT": Endpoint("host", 9092)}), started.append)
    assert started == [None] and metadata.is_controller
    return metadata


def run(metadata: Metadata, command: Command) -> tuple[Result, ...]:
    answers: list[tuple[Result, ...]] = []
    metadata.submit(command, answers.append)
    [results] = answers
    return results


def test_a_restart_finds_the_same_cluster() -> None:
    store = SimulatedStore()
    metadata = opened(store)
    run(
        metadata, CreateTopics((TopicSpec("orders", 12, configs={"retention.ms": "5"}), TopicSpec("gone", 3)))
    )
    run(metadata, DeleteTopics((TopicReference("gone"),)))
    run(metadata, AllocateProducerIds(1))
    change = ConfigChange("log.retention.ms", ConfigOperation.SET, "9")
    run(metadata, AlterConfigs((ConfigChanges(ConfigResourceType.BROKER, "", (change,)),)))
    again = loaded(store.reopen())
    for part in ("cluster_id", "controller_id", "brokers", "topics", "topic_names_by_id", "broker_configs"):
        assert getattr(again.image, part) == getattr(metadata.image, part), part
    assert again.image.next_producer_id == 1000
    assert len(again.image.topics["orders"].partitions) == 12
    second = opened(store.reopen())
    assert run(second, AllocateProducerIds(1)) == (ProducerIdBlock(1000, 1000),)
    assert second.image.controller_epoch == 2
    assert second.broker_epoch > metadata.broker_epoch


def test_the_cluster_id_stays() -> None:
    store = SimulatedStore()
    first = opened(store).cluster_id
    assert len(first) == 22
    assert opened(store.reopen()).cluster_id == first
    assert loaded(SimulatedStore(), "from-the-log-directories").cluster_id == "from-the-log-directories"


def alone() -> tuple[World, DoorUnderTest]:
    world = World()
    door = world.door(1)
    world.settle()
    return world, door


def test_answers_wait_for_the_store_and_commands_for_each_other() -> None:
    world, door = alone()
    order: list[str] = []
    door.metadata.listen(lambda old, new, records: order.append(f"image {sorted(new.topics)}"))
    for text in ("first", "second"):
        door.metadata.submit(
            CreateTopics((TopicSpec("a"),)),
            lambda results, text=text: order.append(f"{text} {codes(results)[0]}"),  # type: ignore[misc]
        )
    assert not order and len(world.queue) == 1
    world.settle()
    # The second command is decided against the image that has the topic, and needs no store.
    assert order == ["image ['a']", "first 0", "second 36"]


def test_a_command_submitted_while_answering_is_carried_out() -> None:
    metadata = opened(SimulatedStore())
    seen: list[str] = []

    def then(results: tuple[Result, ...]) -> None:
        assert isinstance(results[0], TopicCreated)
        seen.append(results[0].name)
        if len(seen) < 500:
            metadata.submit(CreateTopics((TopicSpec(f"t{len(seen)}"),)), then)

    metadata.submit(CreateTopics((TopicSpec("t0"),)), then)
    assert len(seen) == 500 == len(metadata.image.topics)


def test_listeners_hear_the_images_before_the_answer() -> None:
    metadata = opened(SimulatedStore())
    heard: list[tuple[ClusterImage, ClusterImage, int]] = []
    metadata.listen(lambda old, new, records: heard.append((old, new, len(records))))
    run(metadata, CreateTopics((TopicSpec("a", 2),)))
    [(old, new, count)] = heard
    assert new.version == old.version + 1 and count == 3
    assert "a" in new.topics and "a" not in old.topics


def test_the_change_log_is_trimmed() -> None:
    store = SimulatedStore()
    metadata = opened(store)
    for _ in range(400):
        run(metadata, AllocateProducerIds(1))
    numbers = sorted(int(entry.key.removeprefix("changes/")) for entry in store.load("changes/"))
    assert numbers[-1] == metadata.sequence and numbers == list(range(numbers[0], numbers[-1] + 1))
    assert CHANGES_KEPT <= len(numbers) < CHANGES_KEPT + TRIM_EVERY


def test_a_failing_store_is_asked_again_until_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    world, door = alone()
    before = door.metadata.image
    door.store.fail_next(3)
    answers = door.create("a")
    with caplog.at_level(logging.ERROR):
        world.advance(2_000)
    assert codes(answers[0]) == [ErrorCode.NONE] and "a" in door.metadata.image.topics
    assert caplog.text.count("does not answer") == 1

    before = door.metadata.image
    door.store.fail_next(10_000)
    answers = door.submit(CreateTopics((TopicSpec("b"), TopicSpec("c"))), timeout_ms=5_000)
    world.advance(4_900)
    assert not answers
    world.advance(200)
    assert codes(answers[0]) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert door.metadata.image is before
    door.store.fail_next(-10_000)
    answers = door.create("d")
    world.advance(2_000)
    assert codes(answers[0]) == [ErrorCode.NONE]
    assert sorted(door.metadata.image.topics) == ["a", "d"]


def test_a_conflict_makes_the_controller_look_at_its_seat_and_decide_again() -> None:
    world, door = alone()
    door.store.conflict_next(1)
    answers = door.create("a")
    world.advance(1_000)
    assert codes(answers[0]) == [ErrorCode.NONE]
    assert door.metadata.is_controller


def test_an_answer_that_was_lost_does_not_leave_the_outcome_open() -> None:
    for seed in range(8):
        world = World(seed)
        door = world.door(1)
        world.settle()
        commits = len(world.cluster.commits)
        door.store.lose_answer_next()
        answers = door.create("a", 3)
        world.settle()
        # Created once, whether the first commit happened or not.
        assert codes(answers[0]) == [ErrorCode.NONE]
        assert len(door.metadata.image.topics["a"].partitions) == 3
        assert len(world.cluster.commits) == commits + 1
        door.create("b")
        world.settle()
        assert "b" in door.metadata.image.topics


def test_the_queue_has_an_end() -> None:
    _, door = alone()
    results: list[tuple[Result, ...]] = []
    for _ in range(QUEUE_MAX + 2):
        door.metadata.submit(AllocateProducerIds(1), results.append)
    assert len(results) == 2
    assert {codes(result)[0] for result in results} == {ErrorCode.REQUEST_TIMED_OUT}


def test_an_answer_that_raises_does_not_stop_the_next_command() -> None:
    world, door = alone()

    def broken(_: tuple[Result, ...]) -> None:
        raise RuntimeError("a bug in a handler")

    door.metadata.submit(AllocateProducerIds(1), broken)
    answers = door.submit(AllocateProducerIds(1))
    with pytest.raises(RuntimeError):
        world.settle()
    world.settle()
    assert answers == [(ProducerIdBlock(1000, 1000),)]


def test_a_listener_that_raises_does_not_stop_the_next_command() -> None:
    world, door = alone()
    fail = [True]

    def listener(*_: Any) -> None:
        if fail.pop() if fail else False:
            raise RuntimeError("a bug in a listener")

    door.metadata.listen(listener)
    first, second = door.create("a"), door.create("b")
    with pytest.raises(RuntimeError):
        world.settle()
    world.settle()
    assert codes(first[0]) == codes(second[0]) == [ErrorCode.NONE]


def test_damaged_entries_stop_the_start() -> None:
    store = SimulatedStore()
    store.commit([Write("topics/a", b"{")])
    with pytest.raises(MetadataCorruptError):
        loaded(store)


def test_what_a_broker_without_a_cluster_stored_is_taken_over() -> None:
    store = SimulatedStore()
    store.commit(
        [
            Write("cluster", b'{"cluster_id":"old"}'),
            Write("controller", b'{"broker_id":1,"epoch":4}'),
            Write("brokers/1", b'{"endpoints":{"PLAINTEXT":["host",9092]},"rack":null}'),
            Write("topics/t", b'{"id":"3a0c4f2e-5c1d-4d4e-9a55-0d2f6a3c7b11"}'),
            Write(
                "partitions/t/0",
                b'{"isr":[1],"leader":1,"leader_epoch":0,"partition_epoch":0,"replicas":[1]}',
            ),
        ]
    )
    metadata = opened(store)
    assert metadata.image.controller_epoch == 5 and metadata.cluster_id == "old"
    assert metadata.image.topics["t"].partitions[0].leader == 1
    assert store.reopen().get("controller") is None


def test_attempts_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who ignores the fence changes the metadata before every commit."""
    world, door = alone()
    rival, commit = world.cluster.open(), door.store.commit
    attempts: list[int] = []

    def disturbed(writes: Any) -> Any:
        attempts.append(len(writes))
        rival.commit([Write("changes", b"%d" % door.metadata.sequence)])
        return commit(writes)

    monkeypatch.setattr(door.store, "commit", disturbed)
    answers = door.create("a")
    world.settle()
    assert codes(answers[0]) == [ErrorCode.UNKNOWN_SERVER_ERROR] and len(attempts) == ATTEMPTS_MAX
    monkeypatch.undo()
    answers = door.create("a")
    world.settle()
    assert codes(answers[0]) == [ErrorCode.NONE]


def test_a_decision_that_raises_does_not_stop_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    world, door = alone()
    broken = CreateTopics((TopicSpec("a"),))
    controller = door.metadata._controller_runtime._controller
    handle = controller.handle

    def fail(command: Command, *others: Any) -> Any:
        if command is broken:
            raise RuntimeError("a bug in the controller")
        return handle(command, *others)

    monkeypatch.setattr(controller, "handle", fail)
    first = door.create("c")
    lost, second = door.submit(broken), door.create("b")
    with pytest.raises(RuntimeError):
        world.settle()
    world.advance(1_000)
    assert codes(first[0]) == codes(second[0]) == [ErrorCode.NONE]
    world.advance(30_000)
    assert codes(lost[0]) == [ErrorCode.REQUEST_TIMED_OUT]
