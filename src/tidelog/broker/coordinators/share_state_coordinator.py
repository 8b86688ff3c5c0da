"""The share coordinator of a node: one `ShareCoordinator` for each led partition of `__share_group_state`.

A share partition belongs to partition `hash(group:topic id:partition) mod partitions`, with Java's string
hash, as in every Kafka. `coordinator_runtime` carries the machines' effects out. A machine serves as soon as
its log is read; reads wait until what was read is replicated.

Every few minutes state that was not written for long is written anew, the log before the oldest snapshot
goes, and with it what is kept of topics that were deleted.
"""

from collections.abc import Callable, Hashable
from uuid import UUID

from tidelog.broker.coordinators.coordinator_runtime import CoordinatorRuntime, LogEntry, Shard
from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.replicated_appends import ReplicatedAppends
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.model.effects import Reply
from tidelog.model.ports import Clock
from tidelog.model.settings import BrokerSettings
from tidelog.shares.coordinator import ShareCoordinator
from tidelog.shares.coordinator_commands import CoordinatorCommand, ForgetTopics, SnapshotCold
from tidelog.shares.settings import ShareCoordinatorSettings

_CHORES = "share group state"
#: Kafka's intervals of the same chores, which are no settings
CHORES_MS = 5 * 60 * 1_000


def share_coordinator_settings(settings: BrokerSettings) -> ShareCoordinatorSettings:
    return ShareCoordinatorSettings(
        updates_per_snapshot=settings.get_int("share.coordinator.snapshot.update.records.per.snapshot")
    )


class ShareStateCoordinator(CoordinatorRuntime[ShareCoordinator, CoordinatorCommand]):
    """Runs the machines of the partitions this node leads."""

    kind = "share state"

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
        advance_log_start: Callable[[Partition, int], None],
    ) -> None:
        super().__init__(topic, appends, settings, clock, timers, jobs, events)
        self._metadata = metadata
        self._advance_log_start = advance_log_start
        self._settings = share_coordinator_settings(settings.current)
        self._missing: frozenset[UUID] = frozenset()
        """Topics that were not there when it was last looked: a second time they are gone."""

    def _new_machine(self, partition: Partition) -> ShareCoordinator:
        return ShareCoordinator(partition.index, self._settings)

    def _apply(self, machine: ShareCoordinator, entry: LogEntry) -> None:
        record, _, ended = entry
        if ended is None and record.key is not None:
            machine.apply(record.key, record.value, record.offset)

    def _serve(self, shard: Shard[ShareCoordinator]) -> None:
        end_offset = shard.partition.log.log_end_offset
        shard.loading = False
        self._run(shard, shard.machine.loaded(self._clock.now_ms()))
        if shard.partition.high_watermark < end_offset:
            self._await_replication(shard, shard.machine.hold_reads(), end_offset)

    def _handle(self, shard: Shard[ShareCoordinator], command: CoordinatorCommand) -> None:
        shard.machine.observe(self._metadata.image)
        super()._handle(shard, command)

    def _refusal(self, command: CoordinatorCommand) -> Reply | None:
        return None

    def _timer_command(self, key: Hashable) -> CoordinatorCommand:
        raise AssertionError(f"{self} has no timers")

    def _adopt_settings(self) -> None:
        self._settings = share_coordinator_settings(self._settings_source)
        for shard in self._shards.values():
            shard.machine.reconfigure(self._settings)

    # ------------------------------------------------------------ chores

    def _start_ticks(self) -> None:
        self._jobs.every(_CHORES, lambda: CHORES_MS, self.tidy_up)

    def _stop_ticks(self) -> None:
        self._jobs.cancel(_CHORES)

    def tidy_up(self) -> None:
        """The housekeeping tick."""
        self._forget_deleted_topics()
        self._tick(SnapshotCold())
        for shard in list(self._shards.values()):
            if shard.loading:
                continue
            needed_from = shard.machine.redundant_before()
            if needed_from is None:
                continue
            offset = min(needed_from, shard.partition.high_watermark)
            if offset > shard.partition.log.log_start_offset:
                self._advance_log_start(shard.partition, offset)

    def _forget_deleted_topics(self) -> None:
        """A topic that is missing in two looks is gone. The image may be a moment behind that of the broker
        which coordinated before, so one look is not enough.
        """
        known = self._metadata.image.topic_names_by_id
        stored = {key.topic_id for machine in self.loaded_machines() for key in machine.stored}
        missing = frozenset(topic_id for topic_id in stored if topic_id not in known)
        gone, self._missing = missing & self._missing, missing
        if gone:
            self._tick(ForgetTopics(gone))
