"""Power cuts: what `flush.messages` promises holds for a whole broker on a disk that forgets.

A broker on a simulated disk serves random requests from a seed until the power fails in the middle of some
disk operation. The disk then loses what was not synced, in any combination that a real one might. The next
broker must have every record that was acknowledged on the topic with `flush.messages=1`; on the others it
must have whole records that were sent, some perhaps missing.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.in_process import InProcessBroker, StandingClock, batch_now
from tests.chaos.kafka_wire import produce_frame, read_produced
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.simulated_store import SimulatedStore
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import PendingAnswer
from tidelog.records.batch import iterate_headers
from tidelog.records.record import iterate_records

FOLDER = "/data"
SEEDS = 150
CUTS_PER_SEED = 3
STEPS_MAX = 120
TOPICS = {
    "flushed": {"flush_messages": "1", "segment_bytes": "3000"},
    "counted": {"flush_messages": "4", "segment_bytes": "3000"},
    "lazy": {"segment_bytes": "2000"},
}


class World:
    """A broker, the disk under it, and what it acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.store = SimulatedStore()
        self.clock = StandingClock()
        self.node = InProcessBroker(FOLDER, self.disk, self.store, clock=self.clock)
        for name, configs in TOPICS.items():
            self.node.create_topic(name, **configs)  # type: ignore[arg-type]
        answer = self.node.ask("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
        self.producer_id = int(answer.producer_id)
        self.sequence = 0
        self.unanswered: tuple[int, bytes] | None = None
        #: per topic, values by offset: acknowledged, and all that were ever sent
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in TOPICS}
        self.sent: dict[str, list[bytes]] = {name: [] for name in TOPICS}
        self.number = 0

    def run_until_cut(self) -> None:
        self.disk.cut_power_at(self.random.randint(1, 400))
        try:
            for _ in range(STEPS_MAX):
                self._step()
            self.disk.cut_power_at(1)
            self._produce("flushed")
        except PowerCut:
            return

    def _step(self) -> None:
        chance = self.random.random()
        if chance < 0.1:
            self.node.advance(self.random.choice((1_000, 5_000, 61_000)))
        elif chance < 0.4:
            self._produce_idempotent()
        else:
            self._produce(self.random.choice(list(TOPICS)))

    def _values(self, topic: str) -> list[bytes]:
        values = []
        for _ in range(self.random.choice((1, 1, 2, 5))):
            values.append(b"%s-%d-" % (topic.encode(), self.number) + bytes(self.random.randrange(150)))
            self.number += 1
        self.sent[topic] += values
        return values

    def _produce(self, topic: str) -> None:
        values = self._values(topic)
        produced = self.node.produce(topic, 0, batch_now(*values, timestamp_ms=self.clock.time_ms))
        assert produced.error == 0
        self._acknowledge(topic, produced.base_offset, values)

    def _produce_idempotent(self) -> None:
        """One record at a time; one without an answer is sent again after the restart."""
        if self.unanswered is None:
            value = b"idempotent-%d" % self.sequence
            self.sent["flushed"].append(value)
            self.unanswered = (self.sequence, value)
            self.sequence += 1
        sequence, value = self.unanswered
        batch = batch_now(
            value,
            timestamp_ms=self.clock.time_ms,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        produced = self.node.produce("flushed", 0, batch)
        assert produced.error == 0, f"sequence {sequence} was refused: {produced}"
        self.unanswered = None
        self._acknowledge("flushed", produced.base_offset, [value])

    def _acknowledge(self, topic: str, base_offset: int, values: list[bytes]) -> None:
        for index, value in enumerate(values):
            self.acknowledged[topic][base_offset + index] = value

    def restart(self) -> None:
        """Start on what the disk still has, and compare."""
        self.disk = self.disk.crash()
        self.store = self.store.reopen()
        self.node = InProcessBroker(FOLDER, self.disk, self.store, clock=self.clock)
        for topic in TOPICS:
            self._check(topic)

    def _check(self, topic: str) -> None:
        found = read_all(self.node, topic)
        assert list(found) == sorted(found), f"{topic}: offsets ascend"
        if topic == "flushed":
            assert list(found) == list(range(len(found))), "offsets without gaps"
            for offset, value in self.acknowledged[topic].items():
                assert found.get(offset) == value, f"{value!r} was acknowledged at {offset}"
            assert len(set(found.values())) == len(found), "a record is there twice"
        assert set(found.values()) <= set(self.sent[topic]), f"{topic}: records nobody sent"
        # What the power cut took away is gone for good; the model forgets it too.
        self.acknowledged[topic] = dict(found)


def read_all(node: InProcessBroker, topic: str) -> dict[int, bytes]:
    """Every record of a topic's only partition, by offset."""
    found: dict[int, bytes] = {}
    offset = node.fetch(topic, 0, 0).log_start_offset
    while True:
        fetched = node.fetch(topic, 0, offset)
        assert fetched.error == 0
        if not fetched.records:
            return found
        view = memoryview(fetched.records)
        for position, header in iterate_headers(view):
            for record in iterate_records(view[position : position + header.size_bytes], header):
                assert record.value is not None
                found[record.offset] = record.value
            offset = header.next_offset


@pytest.mark.parametrize("group", range(6))
def test_what_was_acknowledged_and_flushed_survives(group: int) -> None:
    for seed in range(group, SEEDS, 6):
        world = World(seed)
        for _ in range(CUTS_PER_SEED):
            world.run_until_cut()
            world.restart()


class HeldBackground:
    """Background work that waits until it is let go, as an fsync on a slow disk does."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.held.append(lambda: then(work()))

    def release(self) -> None:
        while self.held:
            self.held.pop(0)()


@pytest.fixture
def world() -> World:
    return World(1)


def hold_flushes(world: World) -> HeldBackground:
    held = HeldBackground()
    world.node.broker.flusher._background = held  # type: ignore[assignment]
    return held


def send(world: World, batch: bytes) -> Any:
    dispatcher = world.node.broker.make_dispatcher()
    frame = memoryview(bytearray(produce_frame("flushed", 0, batch)))[4:]
    return dispatcher.handle(ConnectionContext("127.0.0.1", 2, "PLAINTEXT"), frame)


def test_an_answer_waits_for_the_flush(world: World) -> None:
    held = hold_flushes(world)
    answer = send(world, batch_now(b"value"))
    assert isinstance(answer, PendingAnswer) and answer.chunks is None
    held.release()
    assert read_produced(answer.chunks[4:]).error == 0  # type: ignore[index]


def test_the_answer_to_a_retry_waits_for_the_flush_of_the_first_attempt(world: World) -> None:
    """A client that lost its connection before the flush sends again: no earlier promise for that."""
    held = hold_flushes(world)
    batch = batch_now(b"value", producer_id=world.producer_id, producer_epoch=0, base_sequence=0)
    first = send(world, batch)
    second = send(world, batch)
    assert isinstance(first, PendingAnswer) and first.chunks is None
    assert isinstance(second, PendingAnswer) and second.chunks is None, "acknowledged before it was flushed"
    held.release()
    assert read_produced(second.chunks[4:]).base_offset == read_produced(first.chunks[4:]).base_offset  # type: ignore[index]
