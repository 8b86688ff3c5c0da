"""The share coordinator: epochs, snapshots, and what survives."""

from typing import Any
from uuid import UUID

from tidelog.model.effects import Append, Effect, RecordPair, Reply
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage
from tidelog.shares.coordinator import ShareCoordinator
from tidelog.shares.coordinator_commands import (
    CoordinatorCommand,
    DeleteState,
    ForgetTopics,
    InitializeState,
    ReadState,
    ReadSummary,
    SnapshotCold,
    WriteState,
)
from tidelog.shares.schemas import ShareKey
from tidelog.shares.settings import ShareCoordinatorSettings
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import RecordState

TOPIC = UUID(int=5)
KEY = ShareKey("g", TOPIC, 1)
SETTINGS = ShareCoordinatorSettings(updates_per_snapshot=3, cold_snapshot_interval_ms=1_000)
PARTITION = PartitionImage(1, 0, (1,), (1,))
IMAGE = ClusterImage(
    version=1, topics={"t": TopicImage("t", TOPIC, (PARTITION,) * 2)}, topic_names_by_id={TOPIC: "t"}
)
AVAILABLE, ACKNOWLEDGED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED


class Coordinator:
    """The machine over a log in memory; appends are written and replicated at once unless told otherwise."""

    def __init__(self, log: list[RecordPair] | None = None) -> None:
        self.machine = ShareCoordinator(0, SETTINGS)
        self.machine.observe(IMAGE)
        self.log: list[RecordPair] = []
        self.answers: dict[int, Any] = {}
        self.now_ms = 1_000
        self.replicates = True
        self.open: list[int] = []
        for offset, (key, value) in enumerate(log or ()):
            self.machine.apply(key, value, offset)
            self.log.append((key, value))
        self.machine.loaded(self.now_ms)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.answers[effect.token] = effect.response
            elif isinstance(effect, Append):
                base = len(self.log)
                self.log += effect.records
                self.carry_out(self.machine.wrote(effect.token, base, self.now_ms))
                if self.replicates:
                    self.carry_out(self.machine.appended(effect.token, self.now_ms))
                else:
                    self.open.append(effect.token)

    def do(self, command: CoordinatorCommand) -> Any:
        """The answer, None while there is none."""
        self.carry_out(self.machine.handle(command, self.now_ms))
        return self.answers.get(getattr(command, "token", -1))

    def begin(self, state_epoch: int = 1, start_offset: int = 0) -> None:
        assert self.do(InitializeState(1, KEY, state_epoch, start_offset))["error_code"] is ErrorCode.NONE

    def write(self, token: int, *batches: StateBatch, start: int = 0, leader: int = 0, state: int = 1) -> Any:
        return self.do(WriteState(token, KEY, state, leader, start, batches, 0))

    def read(self, token: int, leader_epoch: int = -1) -> Any:
        return self.do(ReadState(token, KEY, leader_epoch))


def batches(answer: Any) -> list[tuple[int, int, int, int]]:
    return [tuple(batch.values()) for batch in answer["state_batches"]]


def test_what_is_written_can_be_read() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.write(2, StateBatch(0, 4, ACKNOWLEDGED, 1), StateBatch(5, 9, AVAILABLE, 2))
    answer = coordinator.write(3, StateBatch(5, 6, ACKNOWLEDGED, 2), start=2)
    assert answer["error_code"] is ErrorCode.NONE
    read = coordinator.read(4)
    assert (read["state_epoch"], read["start_offset"]) == (1, 2)
    assert batches(read) == [(2, 4, 2, 1), (5, 6, 2, 2), (7, 9, 0, 2)]


def test_nothing_is_written_or_read_before_it_is_initialized() -> None:
    coordinator = Coordinator()
    assert coordinator.write(1)["error_code"] is ErrorCode.INVALID_REQUEST
    assert coordinator.read(2)["error_code"] is ErrorCode.INVALID_REQUEST
    summary = coordinator.do(ReadSummary(3, KEY))
    assert (summary["error_code"], summary["start_offset"]) == (ErrorCode.NONE, -1)


def test_older_epochs_are_fenced() -> None:
    coordinator = Coordinator()
    coordinator.begin(state_epoch=5)
    assert coordinator.read(2, leader_epoch=3)["error_code"] is ErrorCode.NONE
    assert coordinator.write(3, leader=2, state=5)["error_code"] is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.read(4, leader_epoch=2)["error_code"] is ErrorCode.FENCED_LEADER_EPOCH
    assert coordinator.write(5, leader=3, state=4)["error_code"] is ErrorCode.FENCED_STATE_EPOCH
    assert coordinator.write(6, leader=3, state=5)["error_code"] is ErrorCode.NONE
    older = coordinator.do(InitializeState(7, KEY, 4, 0))
    assert older["error_code"] is ErrorCode.FENCED_STATE_EPOCH
    loaded = Coordinator(coordinator.log)
    assert loaded.write(8, leader=2, state=5)["error_code"] is ErrorCode.FENCED_LEADER_EPOCH


def test_reading_in_a_new_epoch_is_stored_once() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    for token in (2, 3):
        coordinator.read(token, leader_epoch=7)
    assert len(coordinator.log) == 2


def test_initializing_anew_forgets_what_was() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.read(2, leader_epoch=7)
    coordinator.write(3, StateBatch(0, 4, ACKNOWLEDGED, 1), leader=7)
    coordinator.begin(state_epoch=2, start_offset=100)
    read = coordinator.read(4)
    assert (read["start_offset"], batches(read)) == (100, [])
    assert coordinator.write(5, leader=6, state=2)["error_code"] is ErrorCode.FENCED_LEADER_EPOCH
    summary = coordinator.do(ReadSummary(6, KEY))
    assert summary["delivery_complete_count"] == 0


def test_initializing_twice_in_an_epoch_changes_nothing() -> None:
    coordinator = Coordinator()
    coordinator.begin(start_offset=-1)
    coordinator.write(2, StateBatch(3, 4, ACKNOWLEDGED, 1), start=3)
    size = len(coordinator.log)
    coordinator.begin(start_offset=-1)
    assert len(coordinator.log) == size
    assert coordinator.read(3)["start_offset"] == 3


def test_a_late_write_does_not_take_the_start_back() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.write(2, start=10)
    coordinator.write(3, StateBatch(0, 12, AVAILABLE, 1), start=0)
    read = coordinator.read(4)
    assert (read["start_offset"], batches(read)) == (10, [(10, 12, 0, 1)])


def test_each_few_updates_a_snapshot_makes_the_log_before_redundant() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    for number in range(1, 10):
        coordinator.write(number, StateBatch(number, number, ACKNOWLEDGED, number))
    kinds = [key[1] for key, _ in coordinator.log]
    assert kinds == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]
    assert coordinator.machine.redundant_before() == 8
    late = Coordinator()
    for offset in range(8, 10):
        late.machine.apply(*coordinator.log[offset], offset)
    assert batches(late.read(1)) == batches(coordinator.read(20))


def test_cold_share_partitions_are_written_anew_while_others_are_busy() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.do(InitializeState(2, KEY._replace(partition=0), 1, 0))
    coordinator.now_ms += 1_000
    coordinator.do(SnapshotCold())
    assert len(coordinator.log) == 2, "nothing is written where nothing happens"
    coordinator.write(3, StateBatch(0, 4, ACKNOWLEDGED, 1))
    coordinator.do(SnapshotCold())
    assert coordinator.machine.redundant_before() == 3
    assert batches(Coordinator(coordinator.log[3:]).read(4)) == [(0, 4, 2, 1)]


def test_what_is_deleted_is_gone() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    assert coordinator.do(DeleteState(2, KEY))["error_code"] is ErrorCode.NONE
    assert coordinator.do(DeleteState(3, KEY))["error_code"] is ErrorCode.NONE
    assert coordinator.read(4)["error_code"] is ErrorCode.INVALID_REQUEST
    assert coordinator.machine.redundant_before() is None
    coordinator.begin()
    coordinator.do(ForgetTopics(frozenset((TOPIC,))))
    assert Coordinator(coordinator.log).machine.stored == {}


def test_partitions_that_are_not_there_are_refused() -> None:
    coordinator = Coordinator()
    for token, key in enumerate((KEY._replace(partition=2), KEY._replace(topic_id=UUID(int=6)))):
        answer = coordinator.do(InitializeState(token, key, 1))
        assert answer["error_code"] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    negative = coordinator.do(ReadState(9, KEY._replace(partition=-1)))
    assert negative["error_code"] is ErrorCode.INVALID_REQUEST


def test_answers_wait_for_replication_and_reads_for_what_they_saw() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.replicates = False
    assert coordinator.write(2, StateBatch(0, 4, ACKNOWLEDGED, 1)) is None
    assert coordinator.read(3) is None
    coordinator.carry_out(coordinator.machine.appended(coordinator.open.pop(), coordinator.now_ms))
    assert coordinator.answers[2]["error_code"] is ErrorCode.NONE
    assert batches(coordinator.answers[3]) == [(0, 4, 2, 1)]


def test_who_waits_is_told_when_leadership_goes() -> None:
    coordinator = Coordinator()
    coordinator.begin()
    coordinator.replicates = False
    coordinator.write(2, StateBatch(0, 4, ACKNOWLEDGED, 1))
    coordinator.read(3)
    coordinator.carry_out(coordinator.machine.resign(coordinator.now_ms))
    assert coordinator.answers[2]["error_code"] is ErrorCode.NOT_COORDINATOR
    assert coordinator.answers[3]["error_code"] is ErrorCode.NOT_COORDINATOR
