"""The share partitions of a broker: one `SharePartition` for each group and partition that it fetches from.

This carries out what the machines ask for: answers, timers, state at share coordinators, places in the log,
and fetches that wait and may go on. A share partition begins when a member fetches from it first, and ends
with the leadership, with a fault, or when the last share session of its group on this broker is over: what is
not in memory is at the share coordinator.

A step that is under way is ended before the next one of its share partition begins, for what one step asks
for may be answered at once.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tidelog.broker.coordinators.dead_letter_writer import DeadLetterWriter
from tidelog.broker.coordinators.share_group_settings import share_partition_settings
from tidelog.broker.coordinators.share_persister import SharePersister
from tidelog.broker.coordinators.share_priorities import WINDOW_BYTES, WINDOW_RECORDS, look, looks_into
from tidelog.broker.coordinators.share_reading import SharedRead, read_shared, readable_bytes
from tidelog.broker.coordinators.share_state_requests import StateAnswer
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedOperation
from tidelog.broker.runtime.share_counts import ShareCounts, ShareGroupCounts
from tidelog.broker.runtime.timers import Timers
from tidelog.broker.runtime.turn import Turn
from tidelog.model.effects import CancelTimer, Effect, Reply, Send, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.ports import Clock
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
from tidelog.shares.coordinator_commands import ReadState, WriteState
from tidelog.shares.fetched import OffsetRange
from tidelog.shares.schemas import ShareKey
from tidelog.shares.settings import (
    END_OF_LOG,
    START_OF_LOG,
    InitialOffset,
    SharePartitionSettings,
)
from tidelog.shares.share_partition import Phase, SharePartition
from tidelog.shares.states import AcquireMode, RecordState

log = logging.getLogger(__name__)

Answer = Callable[[Mapping[str, Any]], None]
Indexed = TypeVar("Indexed")

_NO_TOKEN = -1
#: how soon to look again for the end of what is committed, which a new leader learns late
WATERMARK_RETRY_MS = 50
#: how many reads that find nothing to deliver one fetch makes
VAIN_READS_MAX = 64
#: groups whose settings are kept at hand
KNOWN_SETTINGS_MAX = 1_000


class SharedPartition:
    """One share partition: its machine, its log, who waits for it, and steps that are still to come."""

    __slots__ = (
        "closing",
        "commits",
        "counts",
        "machine",
        "partition",
        "progressing",
        "running",
        "steps",
        "waiters",
        "writes",
    )

    def __init__(self, machine: SharePartition, partition: Partition, counts: ShareGroupCounts) -> None:
        self.counts = counts
        """Of its group, on this broker."""
        self.machine = machine
        self.partition = partition
        self.waiters: dict[DelayedOperation, None] = {}
        self.commits: tuple[()] = ()
        self.progressing = False
        self.running = False
        self.steps: deque[ShareCommand] = deque()
        self.writes = 0
        """Writes and dead letters under way."""
        self.closing = False
        """Nobody fetches any more: it goes as soon as nothing is under way."""

    def take_committed(self) -> None:
        """Nobody waits for commits here."""

    def __repr__(self) -> str:
        return f"<SharedPartition {self.machine!r} waiters={len(self.waiters)}>"

    @property
    def fault(self) -> Refused | None:
        """Why it can go on no more; None while it can."""
        return self.machine.fault if self.machine.phase in (Phase.FAILED, Phase.FENCED) else None


class SharePartitions:
    """All of one broker."""

    def __init__(
        self,
        persister: SharePersister,
        dead_letters: DeadLetterWriter,
        metadata: Metadata,
        settings: LiveSettings,
        clock: Clock,
        timers: Timers,
        turn: Turn,
        events: Events,
        counts: ShareCounts,
        has_members: Callable[[str], bool],
    ) -> None:
        """`has_members` says whether a group has share sessions on this broker."""
        self._persister = persister
        self._dead_letters = dead_letters
        self._metadata = metadata
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._turn = turn
        self._events = events
        self._counts = counts
        self._has_members = has_members
        self._by_key: dict[ShareKey, SharedPartition] = {}
        self._by_group: dict[str, dict[SharedPartition, None]] = {}
        self._by_partition: dict[Partition, dict[SharedPartition, None]] = {}
        self._answers: dict[int, Answer] = {}
        self._next_token = 0
        self._configs = metadata.image.group_configs
        self._settings_source = settings.current
        self._known_settings: dict[str, SharePartitionSettings] = {}

    def __repr__(self) -> str:
        return f"<SharePartitions {len(self._by_key)}>"

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[SharedPartition]:
        return iter(self._by_key.values())

    # ------------------------------------------------------------ finding

    def find(self, key: ShareKey) -> SharedPartition | None:
        """The share partition if it is there already."""
        return self._by_key.get(key)

    def open(self, key: ShareKey, partition: Partition) -> SharedPartition:
        """The share partition of a partition led here; its state is asked for if need be."""
        self._follow_settings()
        shared = self._by_key.get(key)
        if shared is not None and shared.partition is partition and shared.fault is None:
            shared.closing = False
            return shared
        if shared is not None:
            self._forget(shared)
        machine = SharePartition(key, partition.leader_epoch, self._settings_of(key.group_id))
        counts = self._counts.of(key.group_id, self._by_group.__contains__)
        shared = self._by_key[key] = SharedPartition(machine, partition, counts)
        self._by_group.setdefault(key.group_id, {})[shared] = None
        self._by_partition.setdefault(partition, {})[shared] = None
        self._step(shared, Open())
        return shared

    def _settings_of(self, group_id: str) -> SharePartitionSettings:
        found = self._known_settings.get(group_id)
        if found is None:
            configs = self._configs.get(group_id, {})
            found = share_partition_settings(self._settings.current, configs)
            if len(self._known_settings) >= KNOWN_SETTINGS_MAX:
                self._known_settings.clear()
            self._known_settings[group_id] = found
        return found

    def _follow_settings(self) -> None:
        """Take over what was set for groups, or for all of them, since the last look."""
        configs, source = self._metadata.image.group_configs, self._settings.current
        if configs is self._configs and source is self._settings_source:
            return
        self._configs, self._settings_source = configs, source
        self._known_settings.clear()
        for key, shared in list(self._by_key.items()):
            settings = self._settings_of(key.group_id)
            if settings != shared.machine.settings:
                self._step(shared, Reconfigure(settings))

    def lock_duration_ms(self, group_id: str) -> int:
        """For how long members of a group have records for themselves."""
        self._follow_settings()
        return self._settings_of(group_id).record_lock_duration_ms

    # ------------------------------------------------------------ what members do

    def available_bytes(self, shared: SharedPartition, wanted_bytes: int) -> int:
        """How much a fetch would find; no more than is wanted is counted exactly."""
        self._follow_log_start(shared)
        machine = shared.machine
        if not machine.may_acquire:
            return 0
        read_committed = machine.settings.read_committed
        return readable_bytes(
            shared.partition, machine.next_fetch_offset, wanted_bytes, read_committed=read_committed
        )

    def acquire(
        self,
        shared: SharedPartition,
        member_id: str,
        *,
        records_max: int,
        bytes_max: int,
        batch_size: int,
        mode: AcquireMode,
    ) -> tuple[list[Mapping[str, int]], list[memoryview]]:
        """Acquire records for a member: which, and the batches that have them."""
        machine = shared.machine
        for _ in range(VAIN_READS_MAX):
            self._follow_log_start(shared)
            if not machine.may_acquire or shared.running:
                break
            offset = machine.next_fetch_offset
            prioritized = shared.partition.config.tidelog_priority_enable
            read = read_shared(
                shared.partition,
                offset,
                max(records_max, WINDOW_RECORDS) if prioritized else records_max,
                max(bytes_max, WINDOW_BYTES) if prioritized else bytes_max,
                read_committed=machine.settings.read_committed,
            )
            if not read.batches:
                break
            acquired = self._acquire(shared, member_id, records_max, batch_size, mode, read)
            if acquired:
                ranges = [OffsetRange(each["first_offset"], each["last_offset"]) for each in acquired]
                return acquired, read.only(ranges) if prioritized else read.records(ranges)
            if machine.next_fetch_offset <= offset:
                break
        return [], []

    def _acquire(
        self,
        shared: SharedPartition,
        member_id: str,
        records_max: int,
        batch_size: int,
        mode: AcquireMode,
        read: SharedRead,
    ) -> list[Mapping[str, int]]:
        found: list[Mapping[str, int]] = []
        token = self._token(lambda fields: found.extend(fields["acquired_records"]))
        command = Acquire(
            token,
            member_id,
            records_max,
            read.fetch_offset,
            read.headers(),
            batch_size,
            mode,
            read.aborted,
        )
        if looks_into(shared.partition.config):
            looked = look(shared.partition, read, self._clock.now_ms())
            command = replace(
                command, batches=looked.batches, expired=looked.expired, preferred=looked.preferred
            )
        self._step(shared, command)
        if found:
            deliveries = shared.counts.deliveries
            for each in found:
                deliveries[each["delivery_count"]] += each["last_offset"] - each["first_offset"] + 1
        return found

    def acknowledge(
        self,
        shared: SharedPartition,
        member_id: str,
        batches: tuple[AcknowledgementBatch, ...],
        then: Callable[[Refused | None], None],
    ) -> None:
        """Store what a member says of its records; `then`, perhaps at once, with what is wrong with it."""
        self._follow_settings()

        answer = partial(_acknowledged, shared.counts, batches, then)
        self._step(shared, Acknowledge(self._token(answer), member_id, batches))

    def release(self, group_id: str, member_id: str, *, rests: bool) -> None:
        """A member's session is over: others get what it has not acknowledged."""
        is_last = not self._has_members(group_id)
        for shared in list(self._by_group.get(group_id, ())):
            shared.closing = is_last
            self._step(shared, ReleaseMember(self._token(_nothing), member_id, rests))

    def _drop_idle(self, shared: SharedPartition) -> None:
        """Nobody fetches; once nothing is under way all there is to know is at the share coordinator."""
        counts = shared.machine.count()
        if not (shared.writes or counts[RecordState.ARCHIVING] or counts[RecordState.ACQUIRED]):
            self._forget(shared)

    # ------------------------------------------------------------ counting

    def of_group(self, group_id: str | None) -> list[SharedPartition]:
        """The share partitions of a group that are here, or of all groups."""
        return list(self._by_key.values() if group_id is None else self._by_group.get(group_id, ()))

    def counted(self, group_id: str | None) -> list[tuple[str, ShareGroupCounts]]:
        """What was counted of a group, or of each."""
        groups = self._counts.groups
        return [
            (name, groups[name]) for name in (groups if group_id is None else [group_id]) if name in groups
        ]

    def settle(self) -> None:
        """Somebody looks: add what the machines have counted meanwhile."""
        for shared in self._by_key.values():
            self._settle(shared)

    def _settle(self, shared: SharedPartition) -> None:
        machine = shared.machine
        if machine.lock_expiries:
            shared.counts.lock_expiries += machine.lock_expiries
            machine.lock_expiries = 0

    # ------------------------------------------------------------ leadership

    def leads_no_more(self, partition: Partition) -> None:
        """Another broker leads the partition: whoever waits here must ask there."""
        for shared in list(self._by_partition.get(partition, ())):
            self._step(shared, Fence(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self._forget(shared)

    def _forget(self, shared: SharedPartition) -> None:
        key = shared.machine.key
        self._settle(shared)
        if self._by_key.get(key) is shared:
            del self._by_key[key]
            _discard(self._by_group, key.group_id, shared)
            _discard(self._by_partition, shared.partition, shared)
        if shared.fault is None:
            self._step(shared, Fence(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._timers.cancel(("share partition", shared))

    def _follow_log_start(self, shared: SharedPartition) -> None:
        machine = shared.machine
        start_offset = shared.partition.log.log_start_offset
        if machine.phase is Phase.ACTIVE and machine.runs.start < start_offset:
            self._step(shared, LogStartMoved(start_offset))

    # ------------------------------------------------------------ carrying out steps

    def _token(self, answer: Answer) -> int:
        token = self._next_token
        self._next_token += 1
        self._answers[token] = answer
        return token

    def _step(self, shared: SharedPartition, command: ShareCommand) -> None:
        """Hand a command to the machine; one after the other, whatever they set in motion."""
        shared.steps.append(command)
        if shared.running:
            return
        shared.running = True
        try:
            while shared.steps:
                for effect in shared.machine.handle(shared.steps.popleft(), self._clock.now_ms()):
                    self._carry_out(shared, effect)
        finally:
            shared.running = False
        if shared.closing and self._by_key.get(shared.machine.key) is shared:
            self._drop_idle(shared)

    def _carry_out(self, shared: SharedPartition, effect: Effect) -> None:
        match effect:
            case Reply():
                self._answers.pop(effect.token)(effect.response)
            case SetTimer():
                self._timers.set(
                    ("share partition", shared), effect.deadline_ms, partial(self._fired, shared, effect.key)
                )
            case CancelTimer():
                self._timers.cancel(("share partition", shared))
            case Send():
                self._send(shared, effect.message)
            case TellEvent():
                place = f"{shared.partition}@{shared.partition.log.log_end_offset}"
                self._events.emit(effect.kind, effect.fields, cause=effect.cause, cause_id=place)

    def _fired(self, shared: SharedPartition, key: object) -> None:
        self._step(shared, TimerFired(key))

    def _send(self, shared: SharedPartition, message: object) -> None:
        key = shared.machine.key
        match message:
            case Wake():
                if shared.waiters:
                    # Not in this turn: it may be just waking those who wait.
                    again = partial(self._turn.note_progress, shared)
                    self._timers.set(("share waiters", shared), self._clock.now_ms(), again)
            case ReadShareState():
                command = ReadState(_NO_TOKEN, key, message.leader_epoch)
                self._persister.ask(command, partial(self._state_read, shared))
            case WriteShareState():
                shared.writes += 1
                write = WriteState(
                    _NO_TOKEN,
                    key,
                    message.state_epoch,
                    message.leader_epoch,
                    message.start_offset,
                    message.batches,
                    message.delivery_complete_count,
                )
                self._persister.ask(write, partial(self._state_written, shared, message.number))
            case FindInitialOffset():
                self._find_initial_offset(shared, message.wanted)
            case WriteDeadLetters():
                shared.writes += 1
                then = partial(self._letters_written, shared, message)
                self._dead_letters.write(key, shared.partition, message, then)

    def _state_read(self, shared: SharedPartition, answer: StateAnswer) -> None:
        read = StateRead(
            answer.state_epoch, answer.start_offset, answer.batches, answer.error, answer.message
        )
        self._step(shared, read)

    def _state_written(self, shared: SharedPartition, number: int, answer: StateAnswer) -> None:
        shared.writes -= 1
        self._step(shared, StateWritten(number, answer.error, answer.message))

    def _letters_written(
        self, shared: SharedPartition, message: WriteDeadLetters, error: ErrorCode, retriable: bool
    ) -> None:
        shared.writes -= 1
        if not retriable and message.topic is not None:
            counts = shared.counts
            count = message.last_offset - message.first_offset + 1
            if error is ErrorCode.NONE:
                counts.dead_letters += count
            else:
                counts.dead_letters_given_up += count
        written = DeadLettersWritten(message.first_offset, message.last_offset, error, retriable)
        self._step(shared, written)

    def _find_initial_offset(self, shared: SharedPartition, wanted: InitialOffset) -> None:
        partition = shared.partition
        if wanted == START_OF_LOG:
            self._step(shared, InitialOffsetFound(partition.log.log_start_offset))
            return
        if shared.fault is None and not partition.knows_its_watermark:
            again = partial(self._find_initial_offset, shared, wanted)
            self._timers.set_after(("share partition", shared), WATERMARK_RETRY_MS, again)
            return
        offset = partition.high_watermark
        if wanted != END_OF_LOG:
            try:
                found = partition.log.offset_by_timestamp(wanted.timestamp_ms)
            except OSError as fault:
                log.error("%s could not be searched: %s", partition, fault)
                partition.on_fault(fault, partition)
                self._step(shared, Fence(ErrorCode.KAFKA_STORAGE_ERROR))
                return
            if found is not None:
                offset = min(offset, found.offset)
        self._step(shared, InitialOffsetFound(offset))


def _discard(index: dict[Indexed, dict[SharedPartition, None]], by: Indexed, shared: SharedPartition) -> None:
    found = index[by]
    found.pop(shared, None)
    if not found:
        del index[by]


def _nothing(fields: Mapping[str, Any]) -> None:
    """Nobody waits for this answer."""


def _acknowledged(
    counts: ShareGroupCounts,
    batches: tuple[AcknowledgementBatch, ...],
    then: Callable[[Refused | None], None],
    fields: Mapping[str, Any],
) -> None:
    """Count what is stored, and tell."""
    if fields["error_code"] is ErrorCode.NONE:
        by_type = counts.acknowledgements
        for batch in batches:
            if len(batch.types) == 1:
                by_type[batch.types[0]] += batch.last_offset - batch.first_offset + 1
            else:
                for kind in batch.types:
                    by_type[kind] += 1
    _told(then, fields)


def _told(then: Callable[[Refused | None], None], fields: Mapping[str, Any]) -> None:
    error = fields["error_code"]
    then(None if error is ErrorCode.NONE else Refused(error, fields["error_message"] or ""))
