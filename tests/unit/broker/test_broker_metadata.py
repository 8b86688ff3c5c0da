"""Metadata: one command at a time, durable before answered, and what happens when the store misbehaves."""

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidelog.broker.background import InlineBackground
from tidelog.broker.metadata import ATTEMPTS_MAX, QUEUE_MAX, Metadata
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
    Done,
    ProducerIdBlock,
    RegisterBroker,
    Result,
    TopicCreated,
    TopicReference,
    TopicSpec,
)
from tidelog.coordination.simulated import SimulatedStore
from tidelog.coordination.store import StoreError, Write
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import Endpoint, MetadataCorruptError
from tidelog.model.settings import BrokerSettings


class DeferredBackground:
    """Keeps work until the test lets it happen."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.work.append((work, then))

    def step(self) -> None:
        work, then = self.work.pop(0)
        then(work())


def opened(store: SimulatedStore, background: Any = None) -> Metadata:
    metadata = Metadata(store, BrokerSettings.resolve(), background or InlineBackground(), Random(5))
    metadata.load()
    return metadata


def run(metadata: Metadata, command: Command) -> tuple[Result, ...]:
    answers: list[tuple[Result, ...]] = []
    metadata.submit(command, answers.append)
    [results] = answers
    return results


def register(metadata: Metadata) -> None:
    assert run(metadata, RegisterBroker(1, {"PLAINTEXT": Endpoint("host", 9092)})) == (Done(),)


def codes(results: tuple[Result, ...]) -> list[ErrorCode]:
    return [result.code if isinstance(result, Refused) else ErrorCode.NONE for result in results]


def test_a_restart_finds_the_same_cluster() -> None:
    store = SimulatedStore()
    metadata = opened(store)
    register(metadata)
    run(
        metadata, CreateTopics((TopicSpec("orders", 12, configs={"retention.ms": "5"}), TopicSpec("gone", 3)))
    )
    run(metadata, DeleteTopics((TopicReference("gone"),)))
    run(metadata, AllocateProducerIds(1))
    change = ConfigChange("log.retention.ms", ConfigOperation.SET, "9")
    run(metadata, AlterConfigs((ConfigChanges(ConfigResourceType.BROKER, "", (change,)),)))
    again = opened(store.reopen())
    for part in ("cluster_id", "controller_id", "brokers", "topics", "topic_names_by_id", "broker_configs"):
        assert getattr(again.image, part) == getattr(metadata.image, part), part
    assert again.image.next_producer_id == 1000
    assert len(again.image.topics["orders"].partitions) == 12
    assert run(again, AllocateProducerIds(1)) == (ProducerIdBlock(1000, 1000),)


def test_the_cluster_id_stays() -> None:
    store = SimulatedStore()
    first = opened(store).cluster_id
    assert len(first) == 22
    assert opened(store.reopen()).cluster_id == first
    adopted = Metadata(SimulatedStore(), BrokerSettings.resolve(), InlineBackground(), Random(1))
    assert adopted.load("from-the-log-directories").cluster_id == "from-the-log-directories"


def test_answers_wait_for_the_store_and_commands_for_each_other() -> None:
    background = DeferredBackground()
    metadata = opened(SimulatedStore(), background)
    order: list[str] = []
    metadata.listen(lambda old, new, records: order.append(f"image {old.version}->{new.version}"))
    metadata.submit(
        RegisterBroker(1, {"PLAINTEXT": Endpoint("host", 1)}), lambda results: order.append("registered")
    )
    metadata.submit(
        CreateTopics((TopicSpec("a"),)), lambda results: order.append(f"created {codes(results)[0]}")
    )
    metadata.submit(
        CreateTopics((TopicSpec("a"),)), lambda results: order.append(f"again {codes(results)[0]}")
    )
    assert len(background.work) == 1 and not order
    background.step()
    assert order == ["image 2->3", "registered"] and "a" not in metadata.image.topics
    background.step()
    # The third command is decided against the image that has the topic, and needs no store.
    assert order[2:] == ["image 3->4", "created 0", "again 36"]
    assert not background.work


def test_a_command_submitted_while_answering_is_carried_out() -> None:
    metadata = opened(SimulatedStore())
    register(metadata)
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
    register(metadata)
    run(metadata, CreateTopics((TopicSpec("a", 2),)))
    assert [(old.version, new.version, count) for old, new, count in heard] == [(2, 3, 2), (3, 4, 3)]
    assert "a" in heard[1][1].topics and "a" not in heard[1][0].topics


def test_a_failing_store_refuses_every_item_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = SimulatedStore()
    metadata = opened(store)
    register(metadata)
    before = metadata.image
    store.fail_next()
    with caplog.at_level(logging.ERROR):
        results = run(metadata, CreateTopics((TopicSpec("a"), TopicSpec("b"))))
    assert codes(results) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert metadata.image is before and "could not be stored" in caplog.text
    assert codes(run(metadata, CreateTopics((TopicSpec("a"),)))) == [ErrorCode.NONE]


def test_a_conflict_is_decided_again_on_the_newest_image() -> None:
    store = SimulatedStore()
    metadata = opened(store)
    register(metadata)
    rival = opened(store)
    assert codes(run(rival, CreateTopics((TopicSpec("a", 3),)))) == [ErrorCode.NONE]
    # Our image does not have the topic yet: the store does, so the answer must be that it exists.
    assert codes(run(metadata, CreateTopics((TopicSpec("a", 3),)))) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert len(metadata.image.topics["a"].partitions) == 3
    run(rival, AllocateProducerIds(2))
    assert run(metadata, AllocateProducerIds(1)) == (ProducerIdBlock(1000, 1000),)


def test_conflicts_are_retried_a_few_times_only() -> None:
    store = SimulatedStore()
    metadata = opened(store)
    register(metadata)
    store.conflict_next(ATTEMPTS_MAX - 1)
    assert codes(run(metadata, CreateTopics((TopicSpec("a"),)))) == [ErrorCode.NONE]
    store.conflict_next(ATTEMPTS_MAX)
    assert codes(run(metadata, CreateTopics((TopicSpec("b"),)))) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "b" not in metadata.image.topics
    assert codes(run(metadata, CreateTopics((TopicSpec("b"),)))) == [ErrorCode.NONE]


def test_a_store_that_fails_while_reloading_refuses() -> None:
    store = SimulatedStore()
    background = DeferredBackground()
    metadata = opened(store, background)
    results: list[tuple[Result, ...]] = []
    store.conflict_next()
    metadata.submit(RegisterBroker(1, {}), results.append)
    background.step()
    _, then = background.work.pop(0)
    then(StoreError("gone"))
    assert codes(results[0]) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_the_queue_has_an_end() -> None:
    background = DeferredBackground()
    metadata = opened(SimulatedStore(), background)
    results: list[tuple[Result, ...]] = []
    for _ in range(QUEUE_MAX + 2):
        metadata.submit(RegisterBroker(1, {}), results.append)
    assert codes(results[0]) == [ErrorCode.REQUEST_TIMED_OUT] and len(results) == 1


def test_an_answer_that_raises_does_not_stop_the_next_command() -> None:
    background = DeferredBackground()
    metadata = opened(SimulatedStore(), background)
    results: list[tuple[Result, ...]] = []

    def broken(_: tuple[Result, ...]) -> None:
        raise RuntimeError("a bug in a handler")

    metadata.submit(RegisterBroker(1, {}), broken)
    metadata.submit(RegisterBroker(2, {}), results.append)
    with pytest.raises(RuntimeError):
        background.step()
    background.step()
    assert results == [(Done(),)]


def test_unknown_and_damaged_entries_stop_the_start() -> None:
    for key, value in (("surprise", b"{}"), ("topics/a", b"{")):
        store = SimulatedStore()
        store.commit([Write(key, value)])
        with pytest.raises(MetadataCorruptError):
            opened(store)
