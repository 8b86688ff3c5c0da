"""The group coordinator of a node: one `GroupMachine` for each led partition of `__consumer_offsets`.

It carries out the machines' effects: appends to the partition's log, answers parked requests, sets timers.
It loads a machine by replaying the log when the node becomes leader, and lets it go when it is leader no
more. A group belongs to partition `hash(group id) mod partitions`, with Java's string hash, as in every
Kafka.

Session timers move with every heartbeat. A timer that moves later keeps its place in the node's heap and is
set again when it fires too early, so that a heartbeat costs no heap operation.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.parking import Waiter
from tidelog.controller.commands import CreateTopics
from tidelog.controller.internal_topics import internal_topic
from tidelog.groups.commands import Command, ExpireOffsets, ForgetTopic, TimerFired
from tidelog.groups.machine import GroupMachine
from tidelog.groups.settings import GroupSettings
from tidelog.model.effects import Append, CancelTimer, Effect, Event, Reply, SetTimer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, NO_PRODUCER_ID
from tidelog.model.settings import BrokerSettings
from tidelog.records.builder import CONTROL_COMMIT, control_type
from tidelog.records.record import Record, iterate_records
from tidelog.records.stored_fields import UnreadableRecord

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.parking import Watched
    from tidelog.broker.partition import Partition

log = logging.getLogger(__name__)

Answer = Callable[[Mapping[str, object]], None]

LOAD_RECORDS_PER_TURN = 5_000
"""How many records are replayed before the event loop gets its turn."""

MINUTE_MS = 60_000


def java_string_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 code units, as an unsigned 32-bit number."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        hashed = (31 * hashed + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return hashed


def coordinator_partition(key: str, partition_count: int) -> int:
    """The partition of an internal topic that a group or a transactional id belongs to."""
    return (java_string_hash(key) & 0x7FFFFFFF) % partition_count


def group_settings(settings: BrokerSettings) -> GroupSettings:
    policy = settings.get_str("group.consumer.migration.policy").lower()
    return GroupSettings(
        group_min_session_timeout_ms=settings.get_int("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=settings.get_int("group.max.session.timeout.ms"),
        group_initial_rebalance_delay_ms=settings.get_int("group.initial.rebalance.delay.ms"),
        group_max_size=settings.get_int("group.max.size"),
        offset_metadata_max_bytes=settings.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.get_int("offsets.retention.minutes") * MINUTE_MS,
        consumer_session_timeout_ms=settings.get_int("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=settings.get_int("group.consumer.heartbeat.interval.ms"),
        consumer_max_size=settings.get_int("group.consumer.max.size"),
        consumer_assignors=settings.get_list("group.consumer.assignors"),
        allows_upgrade=policy in ("bidirectional", "upgrade"),
        allows_downgrade=policy in ("bidirectional", "downgrade"),
    )


LogEntry = tuple[Record, int, bool | None]
"""A record, the producer in whose transaction it is (or -1), and for a marker whether it commits."""


def _entries(partition: "Partition") -> Iterator[LogEntry]:
    """Everything in the log that a group machine is made of, in order."""
    for header, batch in partition.read_batches(0):
        if header.control:
            for record in iterate_records(batch, header):
                yield record, header.producer_id, control_type(record) == CONTROL_COMMIT
            continue
        producer_id = header.producer_id if header.transactional else NO_PRODUCER_ID
        for record in iterate_records(batch, header):
            yield record, producer_id, None


class ReplicationWait(Waiter):
    """Waits until the high watermark passes an append of ours, or the commit timeout."""

    __slots__ = ("_end_offset", "_partition", "_verdict")

    def __init__(self, partition: "Partition", end_offset: int, verdict: Callable[[bool], None]) -> None:
        super().__init__()
        self._partition = partition
        self._end_offset = end_offset
        self._verdict = verdict

    def ready(self, progressed: "Watched") -> bool:
        return self._partition.high_watermark >= self._end_offset

    def complete(self, *, expired: bool) -> None:
        self._verdict(self._partition.high_watermark >= self._end_offset)


class _Shard:
    """One led partition: its machine, its timers, and what is left to load."""

    __slots__ = ("armed_ms", "due_ms", "loading", "machine", "partition")

    def __init__(self, partition: "Partition", machine: GroupMachine, entries: Iterator[LogEntry]) -> None:
        self.partition = partition
        self.machine = machine
        self.loading: Iterator[LogEntry] | None = entries
        self.due_ms: dict[Hashable, int] = {}
        """When each timer is really due, in monotonic time."""
        self.armed_ms: dict[Hashable, int] = {}
        """When the node's heap wakes us for it: then or earlier."""


class GroupCoordinator:
    """Runs the machines of the partitions this node leads."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings_source = broker.settings
        self._settings = group_settings(broker.settings)
        self._shards: dict[int, _Shard] = {}
        self._answers: dict[int, Answer] = {}
        self._next_token = 0

    def __repr__(self) -> str:
        return f"<GroupCoordinator partitions={len(self._shards)} waiting={len(self._answers)}>"

    # ------------------------------------------------------------ life cycle, called by the broker

    def load(self, partition_index: int) -> None:
        """This node leads the partition now: replay its log, then serve its groups."""
        partition = self._broker.partition(GROUP_METADATA_TOPIC, partition_index)
        if partition is None or partition_index in self._shards:
            return
        machine = GroupMachine(partition_index, self._settings)
        shard = _Shard(partition, machine, _entries(partition))
        self._shards[partition_index] = shard
        if not self._shards.keys() - {partition_index}:
            self._schedule_expiry()
        self._load_some(shard)

    def _load_some(self, shard: _Shard) -> None:
        if shard.loading is None or self._shards.get(shard.machine.partition) is not shard:
            return
        taken = 0
        for record, producer_id, ended in islice(shard.loading, LOAD_RECORDS_PER_TURN):
            taken += 1
            if ended is not None:
                shard.machine.end_transaction(producer_id, ended)
                continue
            if record.key is None:
                continue
            try:
                shard.machine.apply(record.key, record.value, record.offset, producer_id)
            except UnreadableRecord as fault:
                log.warning("%s: record %d left out: %s", shard.partition, record.offset, fault)
        now_ms = self._broker.clock.now_ms()
        if taken == LOAD_RECORDS_PER_TURN:
            self._broker.timers.set(
                ("group load", shard.machine.partition), now_ms, partial(self._load_some, shard)
            )
            return
        shard.loading = None
        self._run(shard, shard.machine.loaded(now_ms))

    def unload(self, partition_index: int) -> None:
        """This node leads the partition no more: everyone who waits is sent elsewhere."""
        shard = self._shards.pop(partition_index, None)
        if shard is None:
            return
        for key in shard.armed_ms:
            self._broker.timers.cancel(("group", partition_index, key))
        shard.armed_ms.clear()
        shard.due_ms.clear()
        self._broker.timers.cancel(("group load", partition_index))
        for effect in shard.machine.resign(self._broker.clock.now_ms()):
            if isinstance(effect, Reply):
                self._answer(effect)
        if not self._shards:
            self._broker.timers.cancel("group offsets expiry")

    def expire_offsets(self) -> None:
        """The housekeeping tick; it sets itself again every `offsets.retention.check.interval.ms`."""
        for shard in list(self._shards.values()):
            if shard.loading is None:
                self._handle(shard, ExpireOffsets())
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        interval_ms = self._broker.settings.get_int("offsets.retention.check.interval.ms")
        deadline_ms = self._broker.clock.now_ms() + interval_ms
        self._broker.timers.set("group offsets expiry", deadline_ms, self.expire_offsets)

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone: forget the offsets that groups committed for it."""
        for shard in list(self._shards.values()):
            if shard.loading is None:
                self._handle(shard, ForgetTopic(topic))

    def create_offsets_topic(self, then: Callable[[], None]) -> None:
        """Ask the controller for `__consumer_offsets`; `then` runs when it has answered, whatever it says."""
        broker = self._broker
        spec = internal_topic(GROUP_METADATA_TOPIC, broker.settings, max(1, len(broker.image.brokers)))
        broker.metadata.submit(CreateTopics((spec,)), lambda _: then())

    # ------------------------------------------------------------ asking, called by handlers

    def partition_for(self, group_id: str) -> int:
        topic = self._broker.image.topics.get(GROUP_METADATA_TOPIC)
        count = len(topic.partitions) if topic is not None and topic.partitions else 0
        return coordinator_partition(
            group_id, count or self._broker.settings.get_int("offsets.topic.num.partitions")
        )

    def machine_for(self, group_id: str) -> GroupMachine | ErrorCode:
        """The machine of a group, to look at; or why there is none here."""
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading is not None else shard.machine

    def machines(self) -> list[GroupMachine] | ErrorCode:
        """Every machine of this node, to look at."""
        if any(shard.loading is not None for shard in self._shards.values()):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return [shard.machine for shard in self._shards.values()]

    def ask(self, group_id: str, command: Callable[[int], Command], answer: Answer) -> ErrorCode:
        """Hand a command to the group's machine; `answer` is called once, perhaps at once.

        `command` builds it for a token. An error other than NONE means that nothing was asked.
        """
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if shard.loading is not None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        token = self._next_token
        self._next_token += 1
        self._answers[token] = answer
        self._handle(shard, command(token))
        return ErrorCode.NONE

    def end_transaction(
        self,
        partition_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> ErrorCode:
        """Write a transaction's marker to `__consumer_offsets` and let its offsets count, or forget them."""
        shard = self._shards.get(partition_index)
        if shard is None or shard.loading is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        refused = shard.partition.append_marker(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            now_ms=self._broker.clock.now_ms(),
        )
        if refused is not None:
            return refused.code
        shard.machine.end_transaction(producer_id, committed)
        return ErrorCode.NONE

    def new_member_suffix(self) -> str:
        return str(UUID(int=self._broker.random.getrandbits(128), version=4))

    # ------------------------------------------------------------ carrying effects out

    def _handle(self, shard: _Shard, command: Command) -> None:
        if self._broker.settings is not self._settings_source:
            self._adopt_settings()
        shard.machine.observe(self._broker.image)
        self._run(shard, shard.machine.handle(command, self._broker.clock.now_ms()))

    def _adopt_settings(self) -> None:
        self._settings_source = self._broker.settings
        self._settings = group_settings(self._settings_source)
        for shard in self._shards.values():
            shard.machine.reconfigure(self._settings)

    def _run(self, shard: _Shard, effects: list[Effect]) -> None:
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
                case Event():
                    log.info("%s %s (%s)", effect.kind, dict(effect.fields), effect.cause)

    def _answer(self, reply: Reply) -> None:
        self._answers.pop(reply.token)(reply.response)

    def _append(self, shard: _Shard, effect: Append) -> None:
        broker, machine, partition = self._broker, shard.machine, shard.partition
        now_ms = broker.clock.now_ms()
        outcome = partition.append_internal(
            effect.records, now_ms, producer_id=effect.producer_id, producer_epoch=effect.producer_epoch
        )
        if isinstance(outcome, Refused):
            self._run(shard, machine.append_refused(effect.token, outcome.code, now_ms))
            return
        if partition.waiters and not partition.progressing:
            broker.note_progress(partition)
        self._run(shard, machine.wrote(effect.token, outcome, now_ms))
        end_offset = outcome + len(effect.records)
        if partition.high_watermark >= end_offset:
            self._run(shard, machine.appended(effect.token, now_ms))
        else:
            self._await_replication(shard, effect.token, end_offset)

    def _await_replication(self, shard: _Shard, token: int, end_offset: int) -> None:
        """Wait for the replicas; past the commit timeout the callers get an error, and we wait on."""
        broker, machine, partition = self._broker, shard.machine, shard.partition

        def verdict(replicated: bool) -> None:
            if self._shards.get(machine.partition) is not shard:
                return
            now_ms = broker.clock.now_ms()
            if replicated:
                self._run(shard, machine.appended(token, now_ms))
            else:
                self._run(shard, machine.append_refused(token, ErrorCode.REQUEST_TIMED_OUT, now_ms))
                self._await_replication(shard, token, end_offset)

        deadline_ms = broker.clock.now_ms() + broker.settings.get_int("offsets.commit.timeout.ms")
        broker.parking.park(ReplicationWait(partition, end_offset, verdict), (partition,), deadline_ms)

    # ------------------------------------------------------------ timers

    def _set_timer(self, shard: _Shard, effect: SetTimer) -> None:
        clock = self._broker.clock
        due_ms = clock.monotonic_ms() + effect.deadline_ms - clock.now_ms()
        shard.due_ms[effect.key] = due_ms
        armed_ms = shard.armed_ms.get(effect.key)
        if armed_ms is None or due_ms < armed_ms:
            self._arm(shard, effect.key, due_ms)

    def _arm(self, shard: _Shard, key: Hashable, due_ms: int) -> None:
        clock = self._broker.clock
        shard.armed_ms[key] = due_ms
        deadline_ms = clock.now_ms() + due_ms - clock.monotonic_ms()
        self._broker.timers.set(
            ("group", shard.machine.partition, key), deadline_ms, partial(self._fired, shard, key)
        )

    def _cancel_timer(self, shard: _Shard, key: Hashable) -> None:
        shard.due_ms.pop(key, None)
        if shard.armed_ms.pop(key, None) is not None:
            self._broker.timers.cancel(("group", shard.machine.partition, key))

    def _fired(self, shard: _Shard, key: Hashable) -> None:
        del shard.armed_ms[key]
        due_ms = shard.due_ms[key]
        if self._broker.clock.monotonic_ms() < due_ms:
            self._arm(shard, key, due_ms)
            return
        del shard.due_ms[key]
        self._handle(shard, TimerFired(key))
