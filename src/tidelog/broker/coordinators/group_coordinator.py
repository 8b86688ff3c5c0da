"""The group coordinator of a node: one `GroupMachine` for each led partition of `__consumer_offsets`.

A group belongs to partition `hash(group id) mod partitions`, with Java's string hash, as in every Kafka.
`coordinator_runtime` carries the machines' effects out. A machine serves as soon as its log is read; reads
of offsets wait until what was read is replicated.
"""

from collections.abc import Hashable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tidelog.broker.coordinators.coordinator_runtime import CoordinatorRuntime, LogEntry, Shard
from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.marker import Marker
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.coordinators.topic_expressions import TopicExpressions
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.groups import arguments
from tidelog.groups.commands import (
    Command,
    DeleteShareState,
    ExpireOffsets,
    ForgetTopic,
    InitializeShareState,
    ShareStateAnswered,
    TimerFired,
)
from tidelog.groups.consumer_schemas import Partition as TopicIdPartition
from tidelog.groups.machine import GroupMachine
from tidelog.groups.member_memory import MemberMemory
from tidelog.groups.settings import GroupSettings
from tidelog.model.effects import Reply
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import random_uuid
from tidelog.model.ports import Clock
from tidelog.model.settings import BrokerSettings
from tidelog.shares.coordinator_commands import DeleteState, InitializeState
from tidelog.shares.schemas import ShareKey

if TYPE_CHECKING:
    from tidelog.broker.coordinators.share_state_requests import StateAnswer
    from tidelog.broker.coordinators.sharing import Sharing

MINUTE_MS = 60_000
_NO_TOKEN = -1
_EXPIRY_TICK = "group offsets expiry"
_EXPIRY_INTERVAL = "offsets.retention.check.interval.ms"


def group_settings(settings: BrokerSettings) -> GroupSettings:
    policy = settings.get_str("group.consumer.migration.policy").lower()
    return GroupSettings(
        group_min_session_timeout_ms=settings.get_int("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=settings.get_int("group.max.session.timeout.ms"),
        group_initial_rebalance_delay_ms=settings.get_int("group.initial.rebalance.delay.ms"),
        group_max_size=settings.get_int("group.max.size"),
        members_bytes_max=settings.get_int("tidelog.group.members.bytes.max"),
        offset_metadata_max_bytes=settings.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.get_int("offsets.retention.minutes") * MINUTE_MS,
        consumer_session_timeout_ms=settings.get_int("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=settings.get_int("group.consumer.heartbeat.interval.ms"),
        consumer_min_session_timeout_ms=settings.get_int("group.consumer.min.session.timeout.ms"),
        consumer_max_session_timeout_ms=settings.get_int("group.consumer.max.session.timeout.ms"),
        consumer_min_heartbeat_interval_ms=settings.get_int("group.consumer.min.heartbeat.interval.ms"),
        consumer_max_heartbeat_interval_ms=settings.get_int("group.consumer.max.heartbeat.interval.ms"),
        consumer_max_size=settings.get_int("group.consumer.max.size"),
        consumer_assignors=settings.get_list("group.consumer.assignors"),
        allows_upgrade=policy in ("bidirectional", "upgrade"),
        allows_downgrade=policy in ("bidirectional", "downgrade"),
        share_session_timeout_ms=settings.get_int("group.share.session.timeout.ms"),
        share_heartbeat_interval_ms=settings.get_int("group.share.heartbeat.interval.ms"),
        share_min_session_timeout_ms=settings.get_int("group.share.min.session.timeout.ms"),
        share_max_session_timeout_ms=settings.get_int("group.share.max.session.timeout.ms"),
        share_min_heartbeat_interval_ms=settings.get_int("group.share.min.heartbeat.interval.ms"),
        share_max_heartbeat_interval_ms=settings.get_int("group.share.max.heartbeat.interval.ms"),
        share_max_size=settings.get_int("group.share.max.size"),
    )


class GroupCoordinator(CoordinatorRuntime[GroupMachine, Command]):
    """Runs the machines of the partitions this node leads."""

    kind = "group"

    def __init__(
        self,
        topic: InternalTopic,
        appends: ReplicatedAppends,
        settings: LiveSettings,
        clock: Clock,
        timers: Timers,
        jobs: BackgroundJobs,
        events: Events,
        *,
        metadata: Metadata,
        topic_expressions: TopicExpressions,
        random: Random,
        shares: "Deferred[Sharing]",
    ) -> None:
        super().__init__(topic, appends, settings, clock, timers, jobs, events)
        self._metadata = metadata
        self._topic_expressions = topic_expressions
        self._random = random
        self._shares = shares
        self._settings = group_settings(settings.current)
        self._memory = MemberMemory(self._held_bytes)

    def _held_bytes(self) -> int:
        """What members make this broker keep."""
        return sum(shard.machine.held_bytes() for shard in self._shards.values())

    def _new_machine(self, partition: Partition) -> GroupMachine:
        return GroupMachine(partition.index, self._settings, self._topic_expressions, self._memory)

    def _apply(self, machine: GroupMachine, entry: LogEntry) -> None:
        record, producer_id, ended = entry
        if ended is not None:
            machine.end_transaction(producer_id, ended)
        elif record.key is not None:
            machine.apply(record.key, record.value, record.offset, producer_id)

    def _serve(self, shard: Shard[GroupMachine]) -> None:
        end_offset = shard.partition.log.log_end_offset
        shard.loading = False
        self._run(shard, shard.machine.loaded(self._clock.now_ms()))
        if shard.partition.high_watermark < end_offset:
            self._await_replication(shard, shard.machine.hold_reads(), end_offset)

    def _refusal(self, command: Command) -> Reply | None:
        return arguments.refusal(command, self._settings)

    def _timer_command(self, key: Hashable) -> Command:
        return TimerFired(key)

    def _handle(self, shard: Shard[GroupMachine], command: Command) -> None:
        shard.machine.observe(self._metadata.image)
        super()._handle(shard, command)

    def _adopt_settings(self) -> None:
        self._settings = group_settings(self._settings_source)
        for shard in self._shards.values():
            shard.machine.reconfigure(self._settings)

    def _send(self, shard: Shard[GroupMachine], message: object) -> None:
        """Ask the share coordinators of all partitions that a share group begins with, or forgets."""
        assert isinstance(message, InitializeShareState | DeleteShareState)
        number, group_id = message.number, message.group_id
        commands: dict[TopicIdPartition, InitializeState | DeleteState] = {}
        if isinstance(message, InitializeShareState):
            for place, offset in message.start_offsets:
                commands[place] = InitializeState(
                    _NO_TOKEN, ShareKey(group_id, *place), message.state_epoch, offset
                )
        else:
            for place in message.partitions:
                commands[place] = DeleteState(_NO_TOKEN, ShareKey(group_id, *place))
        results: dict[TopicIdPartition, ErrorCode] = {}

        def answered(place: TopicIdPartition, answer: "StateAnswer") -> None:
            results[place] = answer.error
            if len(results) == len(commands):
                # On a turn of its own: the machine may be in the middle of what it asked for.
                self._timers.set((self.kind, "share state", object()), self._clock.now_ms(), tell)

        def tell() -> None:
            if self._leads(shard):
                self._handle(shard, ShareStateAnswered(number, group_id, tuple(results.items())))

        persister = self._shares.get().persister
        for place, command in commands.items():
            persister.ask(command, partial(answered, place))

    # ------------------------------------------------------------ ticks and events of the broker

    def _start_ticks(self) -> None:
        self._schedule(_EXPIRY_TICK, self.expire_offsets, _EXPIRY_INTERVAL)

    def _stop_ticks(self) -> None:
        self._jobs.cancel(_EXPIRY_TICK)

    def expire_offsets(self) -> None:
        """The expiry tick, every `offsets.retention.check.interval.ms`."""
        self._tick(ExpireOffsets())

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone: forget the offsets that groups committed for it."""
        self._tick(ForgetTopic(topic))

    # ------------------------------------------------------------ asking, called by handlers

    def end_transaction(self, partition_index: int, marker: Marker) -> ErrorCode:
        """Write a transaction's marker to `__consumer_offsets` and let its offsets count, or forget them."""
        shard = self._shards.get(partition_index)
        if shard is None or shard.loading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        refused = shard.partition.append_marker(**marker._asdict(), now_ms=self._clock.now_ms())
        if refused is not None:
            return refused.code
        shard.machine.end_transaction(marker.producer_id, marker.committed)
        end_offset = shard.partition.log.log_end_offset
        if shard.partition.high_watermark < end_offset:
            self._await_replication(shard, shard.machine.hold_reads(), end_offset)
        return ErrorCode.NONE

    def new_member_suffix(self) -> str:
        return str(random_uuid(self._random))
