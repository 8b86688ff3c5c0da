"""One share partition: what a share group has of one partition, at the partition's leader. A pure machine.

    effects = partition.handle(command, now_ms)

Records are acquired from memory: a lock is not stored. What members say of them is stored before it counts,
in one write at a time to the share coordinator: what is said meanwhile goes with the next one. The end of a
lock counts at once, and is stored with the next write. So a leader that takes over knows all that anybody was
told, and delivers again what was acquired and not acknowledged.

A write that fails takes back what it was to store: the records are acquired as before, or available if their
lock has ended. It may have been stored all the same; the share coordinator lets nothing go backwards.

    EMPTY ─ Open ─▶ READING ─ StateRead ─▶ FINDING (a first offset) ─▶ ACTIVE
    READING ─ an error ─▶ FAILED      any ─ an older epoch, or Fence ─▶ FENCED
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

from tidelog.model.effects import Effect
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.step_effects import StepEffects
from tidelog.shares import acknowledging, dead_letters, redelivery
from tidelog.shares.acquisition import Acquisition
from tidelog.shares.commands import (
    Acknowledge,
    Acquire,
    DeadLettersWritten,
    Fence,
    FindInitialOffset,
    InitialOffsetFound,
    LogStartMoved,
    Open,
    ReadShareState,
    Reconfigure,
    ReleaseMember,
    ShareCommand,
    StateRead,
    StateWritten,
    TimerFired,
    Wake,
    WriteDeadLetters,
    WriteShareState,
)
from tidelog.shares.fetched import OffsetRange
from tidelog.shares.runs import Run, Runs
from tidelog.shares.schemas import UNINITIALIZED_OFFSET, ShareKey
from tidelog.shares.settings import SharePartitionSettings, initial_offset
from tidelog.shares.state_batches import StateBatch, StateBatches
from tidelog.shares.states import TERMINAL, AcknowledgeType, RecordState

_FENCED = frozenset(
    (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
)
#: the share partition is not there any more: whoever asks next begins anew
_GONE = frozenset(
    (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST)
)
_UNAVAILABLE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


class Phase(Enum):
    EMPTY = "Empty"
    READING = "Reading"
    FINDING = "Finding"
    ACTIVE = "Active"
    FAILED = "Failed"
    FENCED = "Fenced"


class _Waiting(NamedTuple):
    """Acknowledgements that wait to be stored; all of their ranges have a target."""

    token: int
    ranges: list[OffsetRange]
    rests: bool


class _Writing(NamedTuple):
    """A write on its way."""

    waiting: list[_Waiting]
    ranges: list[OffsetRange]
    """What changed without anybody's waiting for it."""
    message: WriteShareState


class SharePartition:
    """The records in flight of one group in one partition."""

    def __init__(self, key: ShareKey, leader_epoch: int, settings: SharePartitionSettings) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.phase = Phase.EMPTY
        self.fault: Refused | None = None
        """Why it failed, or is fenced."""
        self.state_epoch = 0
        self.runs = Runs(0)
        self.delivery_complete_count = 0
        """How many of the records in flight are done with."""
        self.lock_expiries = 0
        """Of how many records the lock has ended; whoever counts them sets it back."""
        self._settings = settings
        self._effects = StepEffects(key.partition)
        self._waiting: list[_Waiting] = []
        self._unsaved: list[OffsetRange] = []
        self._gaps: list[OffsetRange] = []
        """Archived because no record is there; stored when something else is, or when the start moves."""
        self._stored_start = 0
        self._writing: _Writing | None = None
        self._number = 0
        self._write_after_ms = 0
        self._letters_again: list[tuple[int, OffsetRange]] = []
        self._armed_ms: int | None = None
        self._is_woken = False

    def __repr__(self) -> str:
        group, _, partition = self.key
        return f"<SharePartition {group}:{partition} {self.phase.name} {self.runs!r}>"

    # ------------------------------------------------------------ looking

    @property
    def settings(self) -> SharePartitionSettings:
        return self._settings

    @property
    def next_fetch_offset(self) -> int:
        """Where to read for the next Acquire."""
        return self.runs.next_fetch_offset

    @property
    def may_acquire(self) -> bool:
        """Is there anything to get for a member, if the log has it?"""
        if self.phase is not Phase.ACTIVE:
            return False
        return self.runs.has_ready or self.runs.window < self._settings.partition_max_record_locks

    def count(self) -> dict[RecordState, int]:
        """How many records in flight are in each state."""
        counts = dict.fromkeys(RecordState, 0)
        for run in self.runs:
            counts[run.state] += len(run)
        return counts

    # ------------------------------------------------------------ one step

    def handle(self, command: ShareCommand, now_ms: int) -> list[Effect]:
        if self.phase in (Phase.FAILED, Phase.FENCED):
            self._refuse(command)
        else:
            self._take(command, now_ms)
            self._finish(now_ms)
        return self._effects.take()

    def _take(self, command: ShareCommand, now_ms: int) -> None:
        match command:
            case Acquire():
                self._acquire(command, now_ms)
            case Acknowledge():
                self._acknowledge(command, now_ms)
            case StateWritten():
                self._written(command, now_ms)
            case TimerFired():
                self._timer_fired(now_ms)
            case ReleaseMember():
                self._release_member(command)
            case DeadLettersWritten():
                self._letters_written(command, now_ms)
            case LogStartMoved():
                self._log_start_moved(command.log_start_offset)
            case Open():
                if self.phase is Phase.EMPTY:
                    self.phase = Phase.READING
                    self._effects.send(ReadShareState(self.leader_epoch))
            case StateRead():
                self._state_read(command, now_ms)
            case InitialOffsetFound():
                if self.phase is Phase.FINDING:
                    self._begin(command.offset, (), now_ms)
            case Reconfigure():
                self._settings = command.settings
                self._is_woken = True
            case Fence():
                self._end(Phase.FENCED, Refused(command.error, "The share partition is fenced."))

    def _refuse(self, command: ShareCommand) -> None:
        assert self.fault is not None
        match command:
            case Acquire():
                self._effects.reply(command.token, {"acquired_records": ()})
            case Acknowledge() | ReleaseMember():
                self._answer(command.token, self.fault)

    def _answer(self, token: int, refused: Refused | None) -> None:
        code = ErrorCode.NONE if refused is None else refused.code
        message = None if refused is None else refused.message
        self._effects.reply(token, {"error_code": code, "error_message": message})

    def _finish(self, now_ms: int) -> None:
        """What every step ends with: what changed is stored, the clock is set, those who wait are told."""
        if self.phase is Phase.ACTIVE:
            if self._writing is None and now_ms >= self._write_after_ms and self._has_to_write():
                self._write()
            self._arm()
        if self._is_woken:
            self._is_woken = False
            self._effects.send(Wake())

    def _arm(self) -> None:
        times = [self.runs.next_deadline_ms()]
        if self._writing is None and (self._waiting or self._unsaved):
            times.append(self._write_after_ms)
        times += (due_ms for due_ms, _ in self._letters_again)
        deadline_ms = min((time_ms for time_ms in times if time_ms is not None), default=None)
        if deadline_ms == self._armed_ms:
            return
        self._armed_ms = deadline_ms
        if deadline_ms is None:
            self._effects.cancel_timer(self.key)
        else:
            self._effects.set_timer(self.key, deadline_ms)

    def _end(self, phase: Phase, fault: Refused) -> None:
        self.phase, self.fault = phase, fault
        waiting = [*(self._writing.waiting if self._writing is not None else ()), *self._waiting]
        self._waiting, self._writing = [], None
        for acknowledgement in waiting:
            self._answer(acknowledgement.token, fault)
        self._effects.cancel_timer(self.key)
        self._is_woken = True

    # ------------------------------------------------------------ becoming active

    def _state_read(self, command: StateRead, now_ms: int) -> None:
        if self.phase is not Phase.READING:
            return
        if command.error is not ErrorCode.NONE:
            phase = Phase.FENCED if command.error in _FENCED else Phase.FAILED
            self._end(phase, _told(command.error, command.message))
            return
        self.state_epoch = command.state_epoch
        if command.start_offset == UNINITIALIZED_OFFSET:
            self.phase = Phase.FINDING
            self._effects.send(FindInitialOffset(initial_offset(self._settings.auto_offset_reset, now_ms)))
            return
        self._begin(command.start_offset, command.batches, now_ms)

    def _begin(self, start_offset: int, batches: Iterable[StateBatch], now_ms: int) -> None:
        """Records between the stored ones were acquired by somebody and never acknowledged."""
        self.runs = runs = Runs(start_offset)
        self.phase = Phase.ACTIVE
        stored = StateBatches(batches)
        stored.prune(start_offset)
        for batch in stored:
            if batch.first_offset > runs.end:
                self._offer(runs.append(batch.first_offset - 1, RecordState.AVAILABLE), now_ms)
            run = runs.append(batch.last_offset, batch.delivery_state, batch.delivery_count)
            if run.state is RecordState.AVAILABLE:
                self._offer(run, now_ms, rests=True)
            elif run.state is RecordState.ARCHIVING:
                run.reason = dead_letters.reason_after_restart(
                    run.delivery_count, self._settings.delivery_count_limit
                )
                self._send_letters(OffsetRange(run.first, run.last))
            else:
                self.delivery_complete_count += len(run)
        self._stored_start = start_offset
        self._is_woken = True

    # ------------------------------------------------------------ acquiring

    def _acquire(self, command: Acquire, now_ms: int) -> None:
        if self.phase is not Phase.ACTIVE:
            self._effects.reply(command.token, {"acquired_records": ()})
            return
        deadline_ms = now_ms + self._settings.record_lock_duration_ms
        acquisition = Acquisition(self.runs, command, self._settings, deadline_ms)
        acquisition.run(now_ms)
        for run in acquisition.closed:
            self.delivery_complete_count += len(run)
            self._gaps.append(OffsetRange(run.first, run.last))
        for run in acquisition.expired:
            self._archive(run, dead_letters.EXPIRED)
            self._unsaved.append(OffsetRange(run.first, run.last))
        records = tuple(
            {"first_offset": run.first, "last_offset": run.last, "delivery_count": run.delivery_count}
            for run in sorted(acquisition.taken, key=lambda run: run.first)
        )
        self._effects.reply(command.token, {"acquired_records": records})

    # ------------------------------------------------------------ acknowledging

    def _acknowledge(self, command: Acknowledge, now_ms: int) -> None:
        if self.phase is not Phase.ACTIVE:
            self._answer(command.token, Refused(ErrorCode.LEADER_NOT_AVAILABLE, "It is still loading."))
            return
        refused = acknowledging.fault(
            self.runs,
            command.member_id,
            command.batches,
            may_renew=self._settings.renew_acknowledge_enable,
        )
        if refused is not None:
            self._answer(command.token, refused)
            return
        deadline_ms = now_ms + self._settings.record_lock_duration_ms
        ranges: list[OffsetRange] = []
        for batch in command.batches:
            for first, last, kind in acknowledging.said(batch):
                for run in self.runs.isolate(first, last):
                    if kind is AcknowledgeType.RENEW:
                        self.runs.lock(run, command.member_id, deadline_ms)
                        continue
                    self._aim(run, kind)
                    ranges.append(OffsetRange(run.first, run.last))
        self._await(command.token, ranges, rests=True)

    def _aim(self, run: Run, kind: AcknowledgeType) -> None:
        """What an acquired run will be, once that is stored."""
        match kind:
            case AcknowledgeType.ACCEPT:
                run.target = RecordState.ACKNOWLEDGED
            case AcknowledgeType.REJECT:
                run.target, run.reason = self._archived_state, dead_letters.REJECTED
            case AcknowledgeType.RELEASE if run.delivery_count >= self._settings.delivery_count_limit:
                run.target, run.reason = self._archived_state, dead_letters.COUNT_EXCEEDED
            case AcknowledgeType.RELEASE:
                run.target = RecordState.AVAILABLE
            case _:
                run.target = RecordState.ARCHIVED

    @property
    def _archived_state(self) -> RecordState:
        has_topic = self._settings.dead_letter_topic is not None
        return RecordState.ARCHIVING if has_topic else RecordState.ARCHIVED

    def _await(self, token: int, ranges: list[OffsetRange], *, rests: bool) -> None:
        if ranges:
            self._waiting.append(_Waiting(token, ranges, rests))
        else:
            self._answer(token, None)

    def _release_member(self, command: ReleaseMember) -> None:
        ranges = []
        for run in self.runs:
            if run.member_id == command.member_id and run.target is None:
                self._aim(run, AcknowledgeType.RELEASE)
                ranges.append(OffsetRange(run.first, run.last))
        self._await(command.token, ranges, rests=command.rests)

    # ------------------------------------------------------------ what runs become

    def _offer(self, run: Run, now_ms: int, *, rests: bool = False) -> None:
        throttled = redelivery.throttle_count(self._settings.delivery_count_limit)
        if run.delivery_count >= throttled and not run.size_before:
            run.size_before = len(run)
        rest_ms = redelivery.rest_ms(run.delivery_count, self._settings) if rests else 0
        self.runs.offer(run, now_ms + rest_ms, now_ms)
        self._is_woken = self._is_woken or rest_ms == 0

    def _archive(self, run: Run, reason: str) -> None:
        self._close(run, self._archived_state, reason)

    def _close(self, run: Run, state: RecordState, reason: str = "") -> None:
        self.runs.close(run, state, reason)
        if state in TERMINAL:
            self.delivery_complete_count += len(run)

    def _expire(self, run: Run, now_ms: int) -> None:
        """The lock of a run has ended."""
        self.lock_expiries += len(run)
        if run.delivery_count >= self._settings.delivery_count_limit:
            self._archive(run, dead_letters.COUNT_EXCEEDED)
        else:
            self._offer(run, now_ms, rests=True)
        self._unsaved.append(OffsetRange(run.first, run.last))

    def _timer_fired(self, now_ms: int) -> None:
        self._armed_ms = None
        for run in self.runs.expired(now_ms):
            self._expire(run, now_ms)
        if self.runs.rested(now_ms):
            self._is_woken = True
        due = [letters for due_ms, letters in self._letters_again if due_ms <= now_ms]
        self._letters_again = [entry for entry in self._letters_again if entry[0] > now_ms]
        for letters in due:
            self._send_letters(letters)

    def _log_start_moved(self, log_start_offset: int) -> None:
        if self.phase is not Phase.ACTIVE or log_start_offset <= self.runs.start:
            return
        self._drop_before(log_start_offset)
        self._is_woken = True

    def _drop_before(self, offset: int) -> None:
        dropped = self.runs.drop_before(offset)
        self.delivery_complete_count -= sum(len(run) for run in dropped if run.is_terminal)

    # ------------------------------------------------------------ storing

    def _has_to_write(self) -> bool:
        return bool(self._waiting or self._unsaved) or self._start_after() > self._stored_start

    def _start_after(self) -> int:
        """Where the share partition starts once all that changed is stored."""
        for run in self.runs:
            if (run.state if run.target is None else run.target) not in TERMINAL:
                return run.first
        return self.runs.end

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        ranges = [*self._unsaved, *self._gaps]
        self._unsaved, self._gaps = [], []
        start = self._start_after()
        complete_count = self.delivery_complete_count - (start - self.runs.start)
        said = _ranges(waiting)
        for first, last in said:
            done = (run for run in self.runs.covering(first, last) if run.target in TERMINAL)
            complete_count += sum(len(run) for run in done)
        batches = StateBatches()
        for first, last in (*ranges, *said):
            for run in self.runs.covering(max(first, start), last):
                low, high = max(run.first, first, start), min(run.last, last)
                batches.merge((StateBatch(low, high, _stored_state(run), run.delivery_count),))
        self._number += 1
        message = WriteShareState(
            self._number, self.state_epoch, self.leader_epoch, start, complete_count, tuple(batches)
        )
        self._writing = _Writing(waiting, ranges, message)
        self._effects.send(message)

    def _written(self, command: StateWritten, now_ms: int) -> None:
        writing = self._writing
        if writing is None or writing.message.number != command.number:
            return
        self._writing = None
        if command.error is not ErrorCode.NONE:
            self._not_written(writing, _told(command.error, command.message), now_ms)
            return
        for waiting in writing.waiting:
            self._each(waiting.ranges, partial(self._reach_target, now_ms=now_ms, rests=waiting.rests))
            self._answer(waiting.token, None)
        for batch in writing.message.batches:
            if batch.delivery_state is RecordState.ARCHIVING:
                self._send_letters(OffsetRange(batch.first_offset, batch.last_offset))
        for first, last in (*writing.ranges, *_ranges(writing.waiting)):
            self.runs.join(first, last)
        # Not over what was archived since: who takes over would not know of that.
        self._stored_start = max(self._stored_start, writing.message.start_offset)
        if self._stored_start > self.runs.start:
            self._drop_before(self._stored_start)
            self._is_woken = True

    def _each(self, ranges: Iterable[OffsetRange], what: Callable[[Run], None]) -> None:
        for first, last in ranges:
            for run in self.runs.covering(first, last):
                what(run)

    def _reach_target(self, run: Run, now_ms: int, *, rests: bool) -> None:
        if run.target is RecordState.AVAILABLE:
            self._offer(run, now_ms, rests=rests)
        elif run.target is not None:
            self._close(run, run.target, run.reason)

    def _not_written(self, writing: _Writing, refused: Refused, now_ms: int) -> None:
        if refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER or refused.code in _GONE:
            self._waiting = [*writing.waiting, *self._waiting]
            self._end(Phase.FENCED, refused)
            return
        for waiting in writing.waiting:
            self._each(waiting.ranges, partial(self._roll_back, now_ms=now_ms))
            self._answer(waiting.token, refused)
        self._unsaved += writing.ranges
        self._write_after_ms = now_ms + self._settings.append_retry_ms

    def _roll_back(self, run: Run, now_ms: int) -> None:
        if run.target is None:
            return
        run.target, run.reason = None, ""
        if run.deadline_ms <= now_ms:
            self._expire(run, now_ms)

    # ------------------------------------------------------------ dead letters

    def _send_letters(self, stored: OffsetRange) -> None:
        """These records are stored as being archived: now their dead letters may be written. What lies beside
        them in a run may not be stored yet.
        """
        topic = self._settings.dead_letter_topic
        for run in self.runs.covering(stored.first, stored.last):
            if run.state is RecordState.ARCHIVING:
                first, last = max(run.first, stored.first), min(run.last, stored.last)
                self._effects.send(WriteDeadLetters(topic, first, last, run.delivery_count, run.reason))

    def _letters_written(self, command: DeadLettersWritten, now_ms: int) -> None:
        letters = OffsetRange(command.first_offset, command.last_offset)
        if command.retriable:
            self._letters_again.append((now_ms + self._settings.append_retry_ms, letters))
            return
        archiving = [run for run in self.runs.isolate(*letters) if run.state is RecordState.ARCHIVING]
        for run in archiving:
            self._close(run, RecordState.ARCHIVED)
            self._unsaved.append(OffsetRange(run.first, run.last))
        if archiving and command.error is not ErrorCode.NONE:
            fields = {"group": self.key.group_id, "partition": self.key.partition, **letters._asdict()}
            self._effects.event("dead letters given up", fields, command.error.name)


def _ranges(waiting: Iterable[_Waiting]) -> list[OffsetRange]:
    return [range_ for acknowledgement in waiting for range_ in acknowledgement.ranges]


def _stored_state(run: Run) -> RecordState:
    """What the share coordinator is told: it knows no locks."""
    if run.target is not None:
        return run.target
    return RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state


def _told(error: ErrorCode, message: str) -> Refused:
    """What members are told of an error of the share coordinator: they know leaders, not coordinators."""
    if error in _FENCED:
        return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    if error in _GONE:
        return Refused(error, message)
    if error in _UNAVAILABLE:
        return Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, message)
