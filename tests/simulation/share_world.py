"""A world from one seed: members of a share group, one partition with its leader, a share coordinator.

All are unreliable. Requests and answers are lost and late, members fall silent and come back, the leader
crashes (its locks are gone) and is followed by another while it lives on unaware, the coordinator crashes
(the unreplicated tail of its log is gone), writes reach it twice or long after they were given up, timers
fire late, records are deleted. The log has batches of all sizes, holes, control batches and aborted
transactions. After every step must hold:

- nobody acquires what another member has locked at the same leader, or says anything of it
- what a member was told is done with is stored, is never delivered again, and survives every crash
- the delivery count is that of the deliveries this leader knows of, never less, and never above the limit
- a record that failed rests as long as it must; a dead letter is written only for what is stored as archived
- no offset is passed over by the start unless its record was dealt with, or delivered as often as allowed
- what is at rest is stored; the runs lie side by side, and what is indexed and counted of them is so

When the faults end everything is dealt with, and what is stored says so.
"""

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tests.simulation.group_world import Broken, must
from tests.simulation.share_source_log import SourceLog
from tidelog.model.effects import Append, CancelTimer, Effect, RecordPair, Reply, Send, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage
from tidelog.shares.commands import (
    Acknowledge,
    AcknowledgementBatch,
    Acquire,
    DeadLettersWritten,
    Fence,
    FindInitialOffset,
    InitialOffsetFound,
    LogStartMoved,
    Open,
    ReadShareState,
    ReleaseMember,
    ShareCommand,
    StateRead,
    StateWritten,
    TimerFired,
    WriteDeadLetters,
    WriteShareState,
)
from tidelog.shares.coordinator import ShareCoordinator
from tidelog.shares.coordinator_commands import CoordinatorCommand, InitializeState, ReadState, WriteState
from tidelog.shares.redelivery import rest_ms
from tidelog.shares.schemas import ShareKey
from tidelog.shares.settings import ShareCoordinatorSettings, SharePartitionSettings
from tidelog.shares.share_partition import Phase, SharePartition
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import TERMINAL, TRANSITIONS, AcknowledgeType, AcquireMode, RecordState

TOPIC_ID = UUID(int=3)
KEY = ShareKey("g", TOPIC_ID, 0)
IMAGE = ClusterImage(
    version=1,
    topics={"t": TopicImage("t", TOPIC_ID, (PartitionImage(1, 0, (1,), (1,)),))},
    topic_names_by_id={TOPIC_ID: "t"},
)
FAULTS_MS = 12_000
SETTLE_MS = 60_000
LOCK_MS = 1_000
STORE_TIMEOUT_MS = 700
#: nobody waits longer for an answer of a leader that lives: two writes that time out, and a rest between them
PARKED_MAX_MS = 5_000
RETRIED = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))


class Lock(NamedTuple):
    member: str
    until_ms: int


_NO_LOCK = Lock("", 0)


class Failed(NamedTuple):
    """When a delivery of a record failed at this leader, and which one it was."""

    at_ms: int
    deliveries: int
    rests: bool


class Leader:
    """A leader of the partition in one epoch, and what is known of its deliveries."""

    def __init__(self, world: "ShareWorld", epoch: int) -> None:
        self.partition = SharePartition(KEY, epoch, world.settings)
        self.epoch = epoch
        self.lives = True
        self.locks: dict[int, Lock] = {}
        self.counts: dict[int, int] = {}
        self.loaded: dict[int, int] = {}
        """The counts it began with."""
        self.failed: dict[int, Failed] = {}
        self.states: dict[int, RecordState] = {}
        """Of the records in flight, after the last step."""
        self.timer_ms: int | None = None
        self.timer_serial = 0
        self.asked: dict[int, tuple[int, Callable[[dict[str, object]], None]]] = {}


class Member:
    """Fetches, works for a while, and says what became of it; or falls silent."""

    def __init__(self, world: "ShareWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.silent_until_ms = 0

    def fetch(self) -> None:
        world = self.world
        world.later(world.random.randint(50, 250), self.fetch)
        if self.silent_until_ms > world.now_ms:
            return
        leader = world.leader
        if leader is None or not leader.partition.may_acquire:
            return
        acquired = world.acquire(leader, self.name)
        if acquired and not world.chance(0.04):  # else the answer is lost
            for first, last, _ in acquired:
                delay_ms = world.random.randint(1, 300)
                if world.chance(0.15):
                    delay_ms = LOCK_MS - world.random.randint(-20, 60)
                world.later(delay_ms, lambda first=first, last=last: self.work_done(leader, first, last))  # type: ignore[misc]

    def work_done(self, leader: Leader, first: int, last: int) -> None:
        world = self.world
        if self.silent_until_ms > world.now_ms or world.chance(0.05):
            return
        if world.chance(0.1):
            world.say(leader, self.name, (AcknowledgementBatch(first, last, (AcknowledgeType.RENEW,)),))
            world.later(world.random.randint(100, 900), lambda: self.work_done(leader, first, last))
            return
        batches = [AcknowledgementBatch(first, last, self.types(first, last))]
        if last > first and world.random.random() < 0.3:
            middle = world.random.randint(first, last - 1)
            batches = [
                AcknowledgementBatch(first, middle, self.types(first, middle)),
                AcknowledgementBatch(middle + 1, last, self.types(middle + 1, last)),
            ]
        world.say(leader, self.name, tuple(batches))

    def types(self, first: int, last: int) -> tuple[int, ...]:
        world = self.world
        if not world.faulty or world.random.random() < 0.6:
            return (AcknowledgeType.ACCEPT,)
        kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        if world.random.random() < 0.6:
            return (world.random.choice(kinds),)
        return tuple(world.random.choices(kinds, (6, 3, 1), k=last - first + 1))


class ShareWorld:
    """The seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.started_ms = self.now_ms
        self.faulty = True
        self.steps = 0
        self.trace = hashlib.sha256()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._token = 0
        self.settings = SharePartitionSettings(
            record_lock_duration_ms=LOCK_MS,
            delivery_count_limit=self.random.choice((2, 3, 5, 10)),
            partition_max_record_locks=self.random.choice((30, 100)),
            read_committed=seed % 2 == 0,
            auto_offset_reset="earliest",
            retry_backoff_ms=self.random.choice((0, 0, 150)),
            retry_backoff_max_ms=600,
            dead_letter_topic="dlq.g" if seed % 3 == 0 else None,
            append_retry_ms=100,
        )
        self.source = SourceLog(self.random)
        self.members = [Member(self, name) for name in ("a", "b", "c", "d")]
        self.leader: Leader | None = None
        self.epoch = 0
        # The share coordinator and its log.
        self.machine: ShareCoordinator | None = None
        self.log: list[RecordPair] = []
        self.replicated = 0
        self.unreplicated: list[tuple[int, int]] = []
        self.follower = self.new_coordinator()
        self.followed = 0
        self.waiting: dict[int, Callable[[dict[str, object]], None]] = {}
        # What is known of the records.
        self.dealt_with: set[int] = set()
        """Somebody accepted, or rejected, whatever became of that."""
        self.told_done: set[int] = set()
        """Somebody accepted, or rejected, and was told that this counts."""
        self.deliveries: dict[int, int] = {}
        self.letters: set[int] = set()
        self.sayings: dict[int, tuple[str, tuple[AcknowledgementBatch, ...]]] = {}

    # ------------------------------------------------------------ time

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now_ms + max(0, delay_ms), self._serial, action))

    def chance(self, probability: float) -> bool:
        return self.faulty and self.random.random() < probability

    def network(self, action: Callable[[], None], *, lost: float = 0.03) -> None:
        """Deliver, now or late, once or twice or never."""
        if self.chance(lost):
            return
        for _ in range(2 if self.chance(0.03) else 1):
            delay_ms = self.random.randint(1, 3_000) if self.chance(0.04) else self.random.randint(1, 15)
            self.later(delay_ms, action)

    def run_until(self, until_ms: int) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = until_ms

    def new_token(self) -> int:
        self._token += 1
        return self._token

    # ------------------------------------------------------------ the share coordinator

    def new_coordinator(self) -> ShareCoordinator:
        machine = ShareCoordinator(0, ShareCoordinatorSettings(updates_per_snapshot=7))
        machine.observe(IMAGE)
        return machine

    def start_coordinator(self) -> None:
        machine = self.new_coordinator()
        for offset, (key, value) in enumerate(self.log):
            machine.apply(key, value, offset)
        self.machine = machine
        self.unreplicated = [(-1, len(self.log))]
        token = machine.hold_reads()
        self.later(self.random.randint(1, 50), lambda: self.replicate(machine, token, len(self.log)))
        self.coordinate(machine, machine.loaded(self.now_ms))
        if self.machine is machine and not machine.stored:
            self.ask_coordinator(InitializeState(self.new_token(), KEY, 1), lambda _: None)

    def crash_coordinator(self) -> None:
        if self.machine is None:
            return
        self.machine = None
        kept = self.random.randint(self.replicated, len(self.log))
        del self.log[kept:]
        self.waiting.clear()
        self.later(self.random.randint(1, 800), self.start_coordinator)

    def ask_coordinator(
        self, command: CoordinatorCommand, answer: Callable[[dict[str, object]], None]
    ) -> None:
        machine = self.machine
        if machine is None:
            answer({"error_code": ErrorCode.NOT_COORDINATOR})
            return
        self.waiting[command.token] = answer  # type: ignore[union-attr]
        self.coordinate(machine, machine.handle(command, self.now_ms))

    def coordinate(self, machine: ShareCoordinator, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                if self.chance(0.12):
                    error = ErrorCode.NOT_ENOUGH_REPLICAS
                    self.coordinate(machine, machine.append_refused(effect.token, error, self.now_ms))
                    continue
                base = len(self.log)
                self.log += effect.records
                self.coordinate(machine, machine.wrote(effect.token, base, self.now_ms))
                end, token = len(self.log), effect.token
                delay_ms = self.random.randint(1, 900) if self.chance(0.05) else self.random.randint(1, 10)
                self.later(
                    delay_ms,
                    lambda end=end, token=token: self.replicate(machine, token, end),  # type: ignore[misc]
                )
            elif isinstance(effect, Reply):
                answer = self.waiting.pop(effect.token, None)
                if answer is not None:
                    answer(dict(effect.response))

    def replicate(self, machine: ShareCoordinator, token: int, end: int) -> None:
        """All up to `end` is replicated, so what came before is too."""
        if machine is not self.machine:
            return
        self.replicated = max(self.replicated, end)
        if token in machine._outbox.pending:
            self.coordinate(machine, machine.appended(token, self.now_ms))

    def follow(self) -> ShareCoordinator:
        """What is stored for good."""
        for offset in range(self.followed, self.replicated):
            self.follower.apply(*self.log[offset], offset)
        self.followed = self.replicated
        return self.follower

    # ------------------------------------------------------------ leaders

    def start_leader(self) -> None:
        self.epoch += 1
        leader = self.leader = Leader(self, self.epoch)
        self.step(leader, Open())

    def crash_leader(self) -> None:
        """Or it goes on for a while, without knowing that it is the leader no more."""
        leader = self.leader
        if leader is None:
            return
        self.leader = None
        if self.random.random() < 0.5:
            self.stop(leader)
        else:
            self.later(self.random.randint(1, 1_500), lambda: self.stop(leader))
        self.later(self.random.randint(1, 400), self.start_leader)

    def stop(self, leader: Leader) -> None:
        if leader.lives:
            self.step(leader, Fence(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        leader.lives = False

    def step(self, leader: Leader, command: ShareCommand) -> None:
        if not leader.lives:
            return
        self.steps += 1
        effects = leader.partition.handle(command, self.now_ms)
        self.trace.update(f"{self.now_ms} {leader.epoch} {command} {effects}".encode())
        for effect in effects:
            self.carry_out(leader, effect)
        self.check(leader)
        if leader is self.leader and leader.partition.phase in (Phase.FAILED, Phase.FENCED):
            # As a broker does: whoever asks next begins anew.
            self.leader, leader.lives = None, False
            self.later(self.random.randint(1, 50), self.start_leader)

    def carry_out(self, leader: Leader, effect: Effect) -> None:
        match effect:
            case Reply(token, response):
                must(token in leader.asked, "somebody is answered twice")
                _, answer = leader.asked.pop(token)
                answer(dict(response))
            case SetTimer(_, deadline_ms):
                self.arm(leader, deadline_ms)
            case CancelTimer():
                leader.timer_ms = None
                leader.timer_serial += 1
            case Send(message):
                self.send(leader, message)
            case TellEvent():
                pass

    def arm(self, leader: Leader, deadline_ms: int) -> None:
        leader.timer_ms = deadline_ms
        leader.timer_serial += 1
        serial = leader.timer_serial

        def fire() -> None:
            if leader.timer_serial == serial:
                leader.timer_ms = None
                self.step(leader, TimerFired(KEY))

        late_ms = self.random.randint(0, 80) if self.chance(0.2) else 0
        self.later(deadline_ms - self.now_ms + late_ms, fire)

    def send(self, leader: Leader, message: object) -> None:
        match message:
            case ReadShareState():
                self.store(
                    leader,
                    lambda token: ReadState(token, KEY, leader.epoch),
                    lambda answer: self.state_read(leader, answer),
                )
            case FindInitialOffset():
                start = self.source.start
                self.later(self.random.randint(1, 30), lambda: self.step(leader, InitialOffsetFound(start)))
            case WriteShareState():
                self.store(
                    leader,
                    lambda token: WriteState(
                        token,
                        KEY,
                        message.state_epoch,
                        message.leader_epoch,
                        message.start_offset,
                        message.batches,
                        message.delivery_complete_count,
                    ),
                    lambda answer: StateWritten(message.number, answer["error_code"]),  # type: ignore[arg-type]
                )
            case WriteDeadLetters():
                self.write_letters(leader, message)

    def store(
        self,
        leader: Leader,
        command: Callable[[int], CoordinatorCommand],
        verdict: Callable[[dict[str, object]], ShareCommand],
    ) -> None:
        """Ask the share coordinator as a broker does: again while there is none, and not for ever."""
        given: list[bool] = []

        def give(answer: dict[str, object]) -> None:
            if not given:
                given.append(True)
                self.step(leader, verdict(answer))

        def answered(answer: dict[str, object]) -> None:
            if answer["error_code"] in RETRIED:
                self.later(50, attempt) if not given else None
            else:
                self.network(lambda: give(answer))

        def attempt() -> None:
            self.network(lambda: self.ask_coordinator(command(self.new_token()), answered))

        attempt()
        self.later(STORE_TIMEOUT_MS, lambda: give({"error_code": ErrorCode.REQUEST_TIMED_OUT}))

    def state_read(self, leader: Leader, answer: dict[str, object]) -> StateRead:
        """The counts that this leader begins with."""
        if answer["error_code"] is not ErrorCode.NONE:
            return StateRead(error=answer["error_code"])  # type: ignore[arg-type]
        batches = tuple(StateBatch(**batch) for batch in answer["state_batches"])  # type: ignore[attr-defined]
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                leader.counts[offset] = leader.loaded[offset] = batch.delivery_count
                leader.failed[offset] = Failed(self.now_ms, batch.delivery_count, True)
        return StateRead(int(answer["state_epoch"]), int(answer["start_offset"]), batches)  # type: ignore[call-overload]

    def write_letters(self, leader: Leader, message: WriteDeadLetters) -> None:
        must(message.topic is not None, "a dead letter without a topic")
        offsets = range(message.first_offset, message.last_offset + 1)
        stored = self.follow().stored[KEY]
        states = {
            offset: batch.delivery_state
            for batch in stored.batches
            for offset in range(max(batch.first_offset, offsets[0]), min(batch.last_offset, offsets[-1]) + 1)
        }
        for offset in offsets:
            archived = offset < stored.start_offset or states.get(offset, 0) >= RecordState.ARCHIVING
            must(archived, f"a dead letter for {offset}, which is not stored as archived")
            must(offset in self.deliveries, f"a dead letter for {offset}, which nobody ever had")

        def written() -> None:
            failed = self.chance(0.2)
            if not failed:
                self.letters.update(offsets)
            error = ErrorCode.NOT_ENOUGH_REPLICAS if failed else ErrorCode.NONE
            self.step(leader, DeadLettersWritten(offsets[0], offsets[-1], error, failed))

        self.later(self.random.randint(1, 300), written)

    # ------------------------------------------------------------ what members do

    def acquire(self, leader: Leader, member: str) -> list[tuple[int, int, int]]:
        partition = leader.partition
        offset = partition.next_fetch_offset
        if offset < self.source.start:
            self.step(leader, LogStartMoved(self.source.start))
            offset = partition.next_fetch_offset
        batches = self.source.read(offset, self.random.randint(1, 5))
        found: list[tuple[int, int, int]] = []

        def answer(response: dict[str, object]) -> None:
            found.extend(tuple(record.values()) for record in response["acquired_records"])  # type: ignore[attr-defined]
            for first, last, count in found:
                for acquired in range(first, last + 1):
                    self.check_delivery(leader, member, acquired, count)

        command = Acquire(
            self.new_token(),
            member,
            self.random.choice((1, 3, 10, 500)),
            offset,
            batches,
            self.random.choice((1, 10, 500)),
            self.random.choice(list(AcquireMode)),
            self.source.aborted_in(batches),
        )
        leader.asked[command.token] = self.now_ms, answer
        self.step(leader, command)
        return found

    def check_delivery(self, leader: Leader, member: str, offset: int, count: int) -> None:
        lock = leader.locks.get(offset)
        if lock is not None and lock.until_ms > self.now_ms:
            raise Broken(f"{member} acquired {offset}, which {lock.member} has locked")
        must(offset not in self.told_done, f"{offset} was delivered after it was done with")
        must(offset in self.source.records, f"{offset} was delivered, and has no record")
        if self.settings.read_committed:
            must(offset not in self.source.aborted_offsets, f"{offset} was delivered, and was aborted")
        known = leader.counts.get(offset, 0)
        must(count == known + 1, f"{offset} has delivery count {count} after {known}")
        most = max(self.settings.delivery_count_limit, leader.loaded.get(offset, 0) + 1)
        must(count <= most, f"{offset} is delivered for the {count}th time")
        failed = leader.failed.get(offset)
        if failed is not None and failed.rests:
            due_ms = failed.at_ms + rest_ms(failed.deliveries, self.settings)
            must(due_ms <= self.now_ms, f"{offset} did not rest until {due_ms}")
        leader.counts[offset] = count
        leader.locks[offset] = Lock(member, self.now_ms + LOCK_MS)
        leader.failed[offset] = Failed(self.now_ms + LOCK_MS, count, True)
        self.deliveries[offset] = self.deliveries.get(offset, 0) + 1

    def say(self, leader: Leader, member: str, batches: tuple[AcknowledgementBatch, ...]) -> None:
        for batch in batches:
            for offset, kind in _each(batch):
                if kind in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
                    self.dealt_with.add(offset)

        def receive() -> None:
            if not leader.lives:
                return
            token, start = self.new_token(), leader.partition.runs.start
            held = all(
                offset < start or leader.locks.get(offset, _NO_LOCK).member == member
                for batch in batches
                for offset, _ in _each(batch)
            )

            def answer(response: dict[str, object]) -> None:
                must(held or response["error_code"] is not ErrorCode.NONE, f"{member} did not hold {batches}")
                self.said(leader, member, batches, response)

            leader.asked[token] = self.now_ms, answer
            self.step(leader, Acknowledge(token, member, batches))

        self.network(receive)

    def said(
        self,
        leader: Leader,
        member: str,
        batches: tuple[AcknowledgementBatch, ...],
        answer: dict[str, object],
    ) -> None:
        """The leader has answered: what it says must be so, now and for ever."""
        if answer["error_code"] is not ErrorCode.NONE:
            return
        stored = self.follow().stored.get(KEY)
        assert stored is not None
        states = {
            offset: batch
            for batch in stored.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for batch in batches:
            for offset, kind in _each(batch):
                if offset < self.source.start:
                    continue
                lock = leader.locks.get(offset)
                mine = lock is not None and lock.member == member
                if kind is AcknowledgeType.RENEW:
                    if mine and offset >= leader.partition.runs.start:
                        leader.locks[offset] = Lock(member, self.now_ms + LOCK_MS)
                        leader.failed[offset] = Failed(self.now_ms + LOCK_MS, leader.counts[offset], True)
                    continue
                if mine:
                    del leader.locks[offset]
                    leader.failed[offset] = Failed(self.now_ms, leader.counts[offset], True)
                if offset < stored.start_offset:
                    self.told_done.add(offset) if kind is not AcknowledgeType.RELEASE else None
                    continue
                kept = states.get(offset)
                if kept is None:
                    raise Broken(f"{offset} was acknowledged and is not stored")
                must(kept.delivery_count >= leader.counts[offset], f"{offset} is stored with {kept}")
                if kind is not AcknowledgeType.RELEASE:
                    self.told_done.add(offset)
                    done = kept.delivery_state >= RecordState.ACKNOWLEDGED
                    must(done, f"{offset} was done with and is stored as {kept}")

    # ------------------------------------------------------------ faults

    def trouble(self) -> None:
        if not self.faulty:
            return
        self.later(self.random.randint(100, 700), self.trouble)
        what = self.random.random()
        if what < 0.2:
            self.crash_leader()
        elif what < 0.4:
            self.crash_coordinator()
        elif what < 0.6:
            member = self.random.choice(self.members)
            member.silent_until_ms = self.now_ms + self.random.randint(100, 3_000)
            if self.leader is not None and self.random.random() < 0.5:
                self.release(self.leader, member.name)
        elif what < 0.66:
            self.delete_records()

    def release(self, leader: Leader, member: str) -> None:
        rests = self.random.random() < 0.5

        def answer(response: dict[str, object]) -> None:
            if response["error_code"] is ErrorCode.NONE:
                for offset, lock in list(leader.locks.items()):
                    if lock.member == member and offset in mine:
                        del leader.locks[offset]
                        leader.failed[offset] = Failed(self.now_ms, leader.counts[offset], rests)

        mine = {
            offset
            for run in leader.partition.runs
            if run.member_id == member and run.target is None
            for offset in range(run.first, run.last + 1)
        }
        token = self.new_token()
        leader.asked[token] = self.now_ms, answer
        self.step(leader, ReleaseMember(token, member, rests))

    def delete_records(self) -> None:
        source = self.source
        source.start = self.random.randint(source.start, source.end)
        if self.leader is not None and self.random.random() < 0.7:
            self.step(self.leader, LogStartMoved(source.start))

    def produce(self) -> None:
        if self.faulty:
            self.source.append_some()
            self.later(self.random.randint(20, 200), self.produce)

    # ------------------------------------------------------------ what must hold

    def check(self, leader: Leader) -> None:
        partition = leader.partition
        if partition.phase is not Phase.ACTIVE:
            return
        self.check_runs(partition)
        self.check_transitions(leader)
        if self.steps % 10 == 0:
            self.check_at_rest(leader)
        self.check_start(partition.runs.start)
        for since_ms, _ in leader.asked.values():
            must(self.now_ms - since_ms < PARKED_MAX_MS, "somebody waits for ever")
        if any(run.state is RecordState.ACQUIRED and run.target is None for run in partition.runs):
            must(leader.timer_ms is not None, "a lock without a timer")

    def check_runs(self, partition: SharePartition) -> None:
        runs, position, done, ready = partition.runs, partition.runs.start, 0, []
        for run in runs:
            must(run.first == position and run.last >= run.first, f"{run} does not begin at {position}")
            position = run.last + 1
            done += len(run) if run.is_terminal else 0
            if run.is_ready:
                must(run.state is RecordState.AVAILABLE and run.target is None, f"{run} is ready")
                ready.append(run.first)
            if run.state is RecordState.ACQUIRED:
                must(bool(run.member_id), f"{run} belongs to nobody")
        must(position == runs.end, f"the runs end at {position}, not at {runs.end}")
        must(done == partition.delivery_complete_count, f"{done} are done with, not what is counted")
        must(ready == runs._ready, f"ready are {ready}, not {runs._ready}")

    def check_transitions(self, leader: Leader) -> None:
        """Records change as the table says."""
        states = {
            offset: run.state for run in leader.partition.runs for offset in range(run.first, run.last + 1)
        }
        for offset in leader.states.keys() & states.keys():
            change = leader.states[offset], states[offset]
            must(change[0] is change[1] or change in TRANSITIONS, f"{offset} went from {change}")
        leader.states = states

    def check_at_rest(self, leader: Leader) -> None:
        """Where nothing is on its way, all that is in memory is stored."""
        partition = leader.partition
        if leader is not self.leader or partition._writing or partition._waiting or partition._unsaved:
            return
        stored = self.follow().stored[KEY]
        if stored.leader_epoch > leader.epoch:
            return
        states = {
            offset: batch.rank
            for batch in stored.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for run in partition.runs:
            if run.state is RecordState.ACQUIRED or not run.delivery_count:
                continue
            for offset in range(max(run.first, stored.start_offset), run.last + 1):
                found = states.get(offset, (0, RecordState.AVAILABLE))
                # A write that was given up may be stored all the same.
                must(found >= (run.delivery_count, run.state), f"{offset} of {run} is stored as {found}")

    def check_start(self, start: int) -> None:
        limit = self.settings.delivery_count_limit
        for offset in range(self.passed, start):
            if offset < self.source.start or offset not in self.source.records or offset in self.dealt_with:
                continue
            if self.settings.read_committed and offset in self.source.aborted_offsets:
                continue
            deliveries = self.deliveries.get(offset, 0)
            must(deliveries >= limit, f"{offset} was passed over after {deliveries} deliveries")
            if self.settings.dead_letter_topic is not None:
                must(offset in self.letters, f"{offset} has no dead letter")
        self.passed = max(self.passed, start)

    passed = 0

    def simulate(self) -> str:
        """Faults for a while, then none; returns the trace."""
        self.start_coordinator()
        self.later(20, self.start_leader)
        for member in self.members:
            self.later(self.random.randint(1, 200), member.fetch)
        self.later(1, self.produce)
        self.later(500, self.trouble)
        self.run_until(self.started_ms + FAULTS_MS)
        self.faulty = False
        for member in self.members:
            member.silent_until_ms = 0
        for _ in range(SETTLE_MS // 1_000):
            self.run_until(self.now_ms + 1_000)
            if self.is_settled():
                break
        self.check_settled()
        return self.trace.hexdigest()

    def is_settled(self) -> bool:
        leader = self.leader
        return (
            leader is not None
            and leader.partition.phase is Phase.ACTIVE
            and leader.partition.runs.start >= self.last_record + 1
            and not leader.asked
        )

    @property
    def last_record(self) -> int:
        """The last offset somebody has to deal with."""
        hidden = self.source.aborted_offsets if self.settings.read_committed else set()
        wanted = (offset for offset in self.source.records - hidden if offset >= self.source.start)
        return max(wanted, default=-1)

    def check_settled(self) -> None:
        leader = self.leader
        assert leader is not None
        must(self.is_settled(), f"not settled: {leader.partition} {list(leader.partition.runs)[:4]}")
        stored = self.follow().stored[KEY]
        start = stored.start_offset
        must(start > self.last_record, f"stored in the end: start {start}, not after {self.last_record}")
        fresh = self.new_coordinator()
        for offset, (key, value) in enumerate(self.log):
            fresh.apply(key, value, offset)
        assert self.machine is not None
        living = self.machine.stored[KEY].snapshot()
        must(fresh.stored[KEY].snapshot() == living, "loading gives another state")
        must(
            all(batch.delivery_state is not RecordState.ACQUIRED for batch in stored.batches), "a stored lock"
        )
        in_flight = leader.partition.count()
        left = sum(count for state, count in in_flight.items() if state not in TERMINAL)
        must(left == 0, f"left over: {in_flight}")


def _each(batch: AcknowledgementBatch) -> list[tuple[int, AcknowledgeType]]:
    offsets = range(batch.first_offset, batch.last_offset + 1)
    types = batch.types * len(offsets) if len(batch.types) == 1 else batch.types
    return [(offset, AcknowledgeType(kind)) for offset, kind in zip(offsets, types, strict=True)]
