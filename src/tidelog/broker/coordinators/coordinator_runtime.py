"""What runs a coordinator's machines: one for each led partition of an internal topic.

A machine says what it wants (`tidelog.model.effects`); this carries it out: appends to the partition's log
and waits for its replicas, answers parked requests, keeps timers. A machine is loaded by replaying the log
when the node becomes leader of the partition, a few thousand records a turn, and let go when it is leader no
more.

Loading reads to the end of the log, past the high watermark: whatever is there may have been acknowledged by
the last leader. But it may also still be lost, so no answer may rest on it before the watermark has passed
it. Unless a coordinator has a finer way, clients are told COORDINATOR_LOAD_IN_PROGRESS until then. An append
counts for the callers when the watermark has passed it.

A timer that moves later keeps its place in the node's heap and is set again when it fires too early, so that
a heartbeat costs no heap operation.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends, ReplicationWait, Verdict
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.model.effects import Append, CancelTimer, Effect, Reply, Send, SetTimer, TellEvent
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_PRODUCER_ID
from tidelog.model.ports import Clock
from tidelog.records.builder import CONTROL_COMMIT, control_type
from tidelog.records.record import Record, iterate_records
from tidelog.records.stored_fields import UnreadableRecord

log = logging.getLogger(__name__)

Answer = Callable[[Mapping[str, object]], None]

#: how many records are replayed before the event loop gets its turn
LOAD_RECORDS_PER_TURN = 5_000
#: of a command that is not handed to a machine
NO_TOKEN = -1


LogEntry = tuple[Record, int, bool | None]
"""A record, the producer in whose transaction it is (or -1), and for a marker whether it commits."""


def entries(partition: Partition) -> Iterator[LogEntry]:
    """Everything in the log that a machine is made of, in order."""
    for header, batch in partition.read_batches(0):
        if header.control:
            for record in iterate_records(batch, header):
                yield record, header.producer_id, control_type(record) == CONTROL_COMMIT
            continue
        producer_id = header.producer_id if header.transactional else NO_PRODUCER_ID
        for record in iterate_records(batch, header):
            yield record, producer_id, None


CommandT = TypeVar("CommandT")


class Machine(Protocol):
    """What the runtime needs of a machine."""

    partition: int

    def handle(self, command: Any, now_ms: int) -> list[Effect]: ...

    def wrote(self, token: int, base_offset: int, now_ms: int) -> list[Effect]: ...

    def appended(self, token: int, now_ms: int) -> list[Effect]: ...

    def append_refused(self, token: int, error: ErrorCode, now_ms: int) -> list[Effect]: ...

    def loaded(self, now_ms: int) -> list[Effect]: ...

    def resign(self, now_ms: int) -> list[Effect]: ...


MachineT = TypeVar("MachineT", bound=Machine)


class Shard(Generic[MachineT]):
    """One led partition: its machine, its timers, what it waits for, and what is left to load."""

    __slots__ = ("armed_ms", "due_ms", "entries", "loading", "machine", "partition", "waits")

    def __init__(self, partition: Partition, machine: MachineT) -> None:
        self.partition = partition
        self.machine = machine
        self.loading = True
        self.entries = entries(partition)
        self.due_ms: dict[Hashable, int] = {}
        """When each timer is really due, in monotonic time."""
        self.armed_ms: dict[Hashable, int] = {}
        """When the node's heap wakes us for it: then or earlier."""
        self.waits: set[ReplicationWait] = set()


class CoordinatorRuntime(ABC, Generic[MachineT, CommandT]):
    """Runs the machines of the partitions this node leads."""

    #: a word for it in the keys of timers
    kind: ClassVar[str]

    def __init__(
        self,
        topic: InternalTopic,
        appends: ReplicatedAppends,
        settings: LiveSettings,
        clock: Clock,
        timers: Timers,
        jobs: BackgroundJobs,
        events: Events,
    ) -> None:
        self.topic = topic
        self._appends = appends
        self._live_settings = settings
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._events = events
        self._settings_source = settings.current
        self._shards: dict[int, Shard[MachineT]] = {}
        self._answers: dict[int, Answer] = {}
        self._next_token = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} partitions={len(self._shards)} waiting={len(self._answers)}>"

    # ------------------------------------------------------------ what differs

    @abstractmethod
    def _new_machine(self, partition: Partition) -> MachineT:
        """An empty machine for a partition."""

    @abstractmethod
    def _apply(self, machine: MachineT, entry: LogEntry) -> None:
        """Take one entry of the log in; may raise `UnreadableRecord`."""

    @abstractmethod
    def _adopt_settings(self) -> None:
        """The broker has other settings than before."""

    @abstractmethod
    def _refusal(self, command: CommandT) -> Reply | None:
        """The answer to a command that no coordinator would take."""

    @abstractmethod
    def _timer_command(self, key: Hashable) -> CommandT:
        """The command that says that a timer fired."""

    @abstractmethod
    def _start_ticks(self) -> None:
        """The first partition is led here."""

    @abstractmethod
    def _stop_ticks(self) -> None:
        """The last partition is led here no more."""

    def _send(self, shard: Shard[MachineT], message: object) -> None:
        """Carry a machine's message to whoever it concerns."""
        raise AssertionError(f"{self} sends nothing")

    def _same_leader(self, shard: Shard[MachineT]) -> None:
        """This node leads on, with another leader epoch."""

    def _taken_over(self, shard: Shard[MachineT]) -> None:
        """Everything of a partition is loaded, and served from now on."""

    # ------------------------------------------------------------ life cycle, called by the broker

    def load(self, partition_index: int) -> None:
        """This node leads the partition now: replay its log, then serve what belongs to it."""
        partition = self.topic.leader(partition_index)
        if partition is None:
            return
        known = self._shards.get(partition_index)
        if known is not None and known.partition is partition:
            self._same_leader(known)
            return
        if known is not None:
            self.unload(partition_index)
        if not self._shards:
            self._start_ticks()
        shard = self._shards[partition_index] = Shard(partition, self._new_machine(partition))
        if self._loads_at_once(partition):
            self._load_some(shard)
        else:
            self._load_later(shard)

    def _loads_at_once(self, partition: Partition) -> bool:
        return True

    def _load_later(self, shard: Shard[MachineT]) -> None:
        self._timers.set(
            (self.kind, "load", shard.machine.partition),
            self._clock.now_ms(),
            partial(self._load_some, shard),
        )

    def _load_some(self, shard: Shard[MachineT]) -> None:
        if not self._leads(shard):
            return
        taken = 0
        try:
            for entry in islice(shard.entries, LOAD_RECORDS_PER_TURN):
                taken += 1
                try:
                    self._apply(shard.machine, entry)
                except UnreadableRecord as fault:
                    log.warning("%s: record %d left out: %s", shard.partition, entry[0].offset, fault)
        except Exception as fault:
            self._load_again(shard, fault)
            return
        if taken == LOAD_RECORDS_PER_TURN:
            self._load_later(shard)
        else:
            self._jobs.ran(self._load_job)
            self._serve(shard)

    @property
    def _load_job(self) -> str:
        return f"load of {self.topic.name}"

    def _load_again(self, shard: Shard[MachineT], fault: Exception) -> None:
        """The log could not be read to its end: begin anew after a while, with a new machine."""
        index = shard.machine.partition
        self._jobs.failed(self._load_job, fault, shard.partition)

        def again() -> None:
            if self._leads(shard):
                fresh = self._shards[index] = Shard(shard.partition, self._new_machine(shard.partition))
                self._load_some(fresh)

        self._timers.set_after((self.kind, "load", index), self._jobs.job(self._load_job).retry_ms, again)

    def _serve(self, shard: Shard[MachineT]) -> None:
        """Everything is read: serve it as soon as none of it can be lost any more."""

        def settled(outcome: ErrorCode) -> None:
            if not self._leads(shard):
                return
            if outcome is ErrorCode.REQUEST_TIMED_OUT:
                log.info("%s: loaded, but waiting for its replicas", shard.partition)
                self._serve(shard)
            elif outcome is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                shard.loading = False
                self._run(shard, shard.machine.loaded(self._clock.now_ms()))
                self._taken_over(shard)

        self._when_replicated(shard, shard.partition.log.log_end_offset, settled)

    def _leads(self, shard: Shard[MachineT]) -> bool:
        return self._shards.get(shard.machine.partition) is shard

    def unload(self, partition_index: int) -> None:
        """This node leads the partition no more: everyone who waits is sent elsewhere."""
        shard = self._shards.pop(partition_index, None)
        if shard is None:
            return
        for key in shard.armed_ms:
            self._timers.cancel((self.kind, partition_index, key))
        shard.armed_ms.clear()
        shard.due_ms.clear()
        self._timers.cancel((self.kind, "load", partition_index))
        for wait in shard.waits:
            wait.abandon()
        shard.waits.clear()
        for effect in shard.machine.resign(self._clock.now_ms()):
            if isinstance(effect, Reply):
                self._answer(effect)
        if not self._shards:
            self._stop_ticks()

    # ------------------------------------------------------------ ticks

    def _schedule(self, name: str, tick: Callable[[], None], interval_setting: str) -> None:
        self._jobs.every(name, lambda: self._live_settings.get_int(interval_setting), tick)

    def _tick(self, command: CommandT) -> None:
        """Hand a command to every machine that is loaded; one that fails does not keep it from the others."""
        fault: Exception | None = None
        for shard in list(self._shards.values()):
            if not shard.loading:
                try:
                    self._handle(shard, command)
                except Exception as error:
                    fault = error
        if fault is not None:
            raise fault

    # ------------------------------------------------------------ asking, called by handlers

    def machine_for(self, key: str) -> MachineT | ErrorCode:
        """The machine of a group or a transactional id, to look at; or why there is none here."""
        shard = self._shard_for(key)
        return shard if isinstance(shard, ErrorCode) else shard.machine

    def _shard_for(self, key: str) -> Shard[MachineT] | ErrorCode:
        shard = self._shards.get(self.topic.partition_for(key))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else shard

    def machines(self) -> list[MachineT] | ErrorCode:
        """Every machine of this node, to look at."""
        if any(shard.loading for shard in self._shards.values()):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [shard.machine for shard in self._shards.values()]

    def loaded_machines(self) -> list[MachineT]:
        """The machines that serve already; those that are being loaded are left out."""
        return [shard.machine for shard in self._shards.values() if not shard.loading]

    def ask(self, key: str, make_command: Callable[[int], CommandT], answer: Answer) -> ErrorCode:
        """Hand a command to the machine of `key`; `answer` is called once, perhaps at once.

        `make_command` builds it for a token. An error other than NONE means that nothing was asked. What is
        wrong with the command itself is answered whoever coordinates.
        """
        shard = self._shard_for(key)
        if isinstance(shard, ErrorCode):
            self._follow_settings()
            refusal = self._refusal(make_command(NO_TOKEN))
            if refusal is None:
                return shard
            answer(refusal.response)
            return ErrorCode.NONE
        token = self._next_token
        self._next_token += 1
        self._answers[token] = answer
        self._submit(shard, make_command(token))
        return ErrorCode.NONE

    def _submit(self, shard: Shard[MachineT], command: CommandT) -> None:
        self._handle(shard, command)

    # ------------------------------------------------------------ carrying effects out

    def _handle(self, shard: Shard[MachineT], command: CommandT) -> None:
        self._follow_settings()
        self._run(shard, shard.machine.handle(command, self._clock.now_ms()))

    def _follow_settings(self) -> None:
        if self._live_settings.current is not self._settings_source:
            self._settings_source = self._live_settings.current
            self._adopt_settings()

    def _run(self, shard: Shard[MachineT], effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self._answer(effect)
                case SetTimer():
                    self._set_timer(shard, effect)
                case CancelTimer():
                    self._cancel_timer(shard, effect.key)
                case Append():
                    self._append(shard, effect)
                case Send():
                    self._send(shard, effect.message)
                case TellEvent():
                    place = f"{shard.partition}@{shard.partition.log.log_end_offset}"
                    self._events.emit(effect.kind, effect.fields, cause=effect.cause, cause_id=place)

    def _answer(self, reply: Reply) -> None:
        self._answers.pop(reply.token)(reply.response)

    def _append(self, shard: Shard[MachineT], effect: Append) -> None:
        machine, partition = shard.machine, shard.partition
        now_ms = self._clock.now_ms()
        outcome = partition.append_internal(
            effect.records, now_ms, producer_id=effect.producer_id, producer_epoch=effect.producer_epoch
        )
        if isinstance(outcome, Refused):
            log.warning("%s: %s", partition, outcome.message)
            self._run(shard, machine.append_refused(effect.token, outcome.code, now_ms))
            return
        self._appends.appended(partition)
        self._run(shard, machine.wrote(effect.token, outcome, now_ms))
        self._await_replication(shard, effect.token, outcome + len(effect.records))

    def _await_replication(self, shard: Shard[MachineT], token: int, end_offset: int) -> None:
        """Wait for the replicas; past the commit timeout the callers get an error, and we wait on."""

        def verdict(outcome: ErrorCode) -> None:
            if not self._leads(shard):
                return
            now_ms = self._clock.now_ms()
            if outcome:
                self._run(shard, shard.machine.append_refused(token, outcome, now_ms))
            if outcome is ErrorCode.REQUEST_TIMED_OUT:
                self._await_replication(shard, token, end_offset)
            elif outcome is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._run(shard, shard.machine.appended(token, now_ms))

        self._when_replicated(shard, end_offset, verdict)

    def _when_replicated(self, shard: Shard[MachineT], end_offset: int, verdict: Verdict) -> None:
        """Call `verdict` when the log is replicated up to an offset, or the commit timeout has passed; not
        any more once the shard is let go.
        """
        waits = shard.waits
        wait: ReplicationWait | None = None

        def ended(outcome: ErrorCode) -> None:
            if wait is not None:
                waits.discard(wait)
            verdict(outcome)

        timeout_ms = self._live_settings.get_int("offsets.commit.timeout.ms")
        wait = self._appends.wait(shard.partition, end_offset, timeout_ms, ended)
        if wait is not None:
            waits.add(wait)

    # ------------------------------------------------------------ timers

    def _set_timer(self, shard: Shard[MachineT], effect: SetTimer) -> None:
        clock = self._clock
        due_ms = clock.monotonic_ms() + effect.deadline_ms - clock.now_ms()
        shard.due_ms[effect.key] = due_ms
        armed_ms = shard.armed_ms.get(effect.key)
        if armed_ms is None or due_ms < armed_ms:
            self._arm(shard, effect.key, due_ms)

    def _arm(self, shard: Shard[MachineT], key: Hashable, due_ms: int) -> None:
        clock = self._clock
        shard.armed_ms[key] = due_ms
        deadline_ms = clock.now_ms() + due_ms - clock.monotonic_ms()
        self._timers.set(
            (self.kind, shard.machine.partition, key), deadline_ms, partial(self._fired, shard, key)
        )

    def _cancel_timer(self, shard: Shard[MachineT], key: Hashable) -> None:
        shard.due_ms.pop(key, None)
        if shard.armed_ms.pop(key, None) is not None:
            self._timers.cancel((self.kind, shard.machine.partition, key))

    def _fired(self, shard: Shard[MachineT], key: Hashable) -> None:
        del shard.armed_ms[key]
        due_ms = shard.due_ms[key]
        if self._clock.monotonic_ms() < due_ms:
            self._arm(shard, key, due_ms)
            return
        del shard.due_ms[key]
        self._handle(shard, self._timer_command(key))
