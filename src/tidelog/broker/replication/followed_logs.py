"""What a follower does with its logs: appends what the leader has, cuts what it does not have, or refuses to.

The watermark and the start of the log follow the leader's. With `flush.messages` an offset is fetched, and so
acknowledged, only when what lies before it is on the disk.

A log is never cut below its high watermark unless a leader was elected uncleanly since it was written: what
is committed there may be on no other disk. Such a partition is not fetched any more from this leader in this
epoch (`refuses_cut`). What is asked of the leader, and when, is in `replica_fetcher`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.maintenance.checkpoints import Checkpoints
from tidelog.broker.maintenance.flusher import Flusher
from tidelog.broker.maintenance.log_maintenance import LogMaintenance
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replication.disk_faults import DiskFaults
from tidelog.broker.replication.throttling import ReplicationThrottle
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.turn import Turn
from tidelog.model.events import COMMITTED_RECORDS_CUT, CUT_REFUSED
from tidelog.model.identifiers import TopicPartition
from tidelog.model.ports import Clock
from tidelog.protocol.fetch_client import AnsweredPartition
from tidelog.replication.follower import truncation_offset

log = logging.getLogger(__name__)

FLUSH_WAIT_MS = 60_000


class RefusedCut(NamedTuple):
    """A follower whose leader lacks records that were committed, though it was elected cleanly."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    #: where the leader's log and this one part
    offset: int


class _FlushWait(DelayedOperation):
    """Waits until a followed log is on the disk up to where it ends now."""

    __slots__ = ("_partition", "_then", "_to_offset")

    def __init__(self, partition: Partition, then: Callable[[], None]) -> None:
        super().__init__()
        self._partition = partition
        self._then = then
        self._to_offset = partition.log.log_end_offset

    def ready(self, progressed: Watched) -> bool:
        return self._partition.log.recovery_point >= self._to_offset

    def complete(self, *, expired: bool) -> None:
        self._then()


class FollowedLogs:
    """The logs of one broker whose partitions are led elsewhere."""

    def __init__(
        self,
        log_maintenance: LogMaintenance,
        checkpoints: Checkpoints,
        flusher: Flusher,
        disk_faults: DiskFaults,
        throttle: ReplicationThrottle,
        clock: Clock,
        turn: Turn,
        purgatory: Purgatory,
        events: Events,
    ) -> None:
        self._log_maintenance = log_maintenance
        self._checkpoints = checkpoints
        self._flusher = flusher
        self._disk_faults = disk_faults
        self._throttle = throttle
        self._clock = clock
        self._turn = turn
        self._purgatory = purgatory
        self._events = events
        #: followers that would have to cut what is committed, and do not
        self.refused_cuts: dict[TopicPartition, RefusedCut] = {}

    def __repr__(self) -> str:
        return f"<FollowedLogs refused_cuts={len(self.refused_cuts)}>"

    def left(self, partition: Partition) -> None:
        """A partition is not followed any more, or under another leader or epoch."""
        self.refused_cuts.pop(partition.place, None)

    # -- appending

    def append(self, partition: Partition, answered: AnsweredPartition[UUID]) -> bool:
        """Do what the leader did; False if that cannot be done now."""
        if len(answered.records):
            refused = partition.append_fetched(answered.records, self._clock.now_ms())
            if refused is not None:
                log.error("%s cannot follow: %s", partition, refused.message)
                return False
        moved = partition.learn_high_watermark(answered.high_watermark)
        start_offset = min(answered.log_start_offset, partition.high_watermark)
        if start_offset > partition.log.log_start_offset:
            try:
                self._log_maintenance.advance_log_start(partition, start_offset)
            except OSError as fault:
                log.error("%s cannot follow its leader's log start: %s", partition, fault)
                partition.on_fault(fault, partition)
                return False
        if moved:
            self._turn.note_progress(partition)
        return True

    def when_flushed(self, partition: Partition, then: Callable[[], None]) -> None:
        """Flush a log, and call back when it is on the disk, or that takes too long."""
        waiter = _FlushWait(partition, then)
        self._purgatory.park(waiter, (partition,), self._clock.now_ms() + FLUSH_WAIT_MS)
        self._flusher.request(partition)

    def throttle_ms(self, partition: Partition, answered: AnsweredPartition[UUID]) -> int:
        """Records have come: how long to wait before more of them are fetched."""
        entries = partition.config.follower_replication_throttled_replicas
        if (
            not entries
            or partition.log.log_end_offset >= answered.high_watermark
            or not self._throttle.holds(entries, partition.index)
        ):
            return 0
        self._throttle.spend(len(answered.records))
        return self._throttle.delay_ms()

    # -- cutting

    @staticmethod
    def divergence(partition: Partition, diverging_epoch: tuple[int, int]) -> int:
        """Where to cut a log that the leader says is not like its own."""
        log.info("%s diverges from its leader: %s", partition, diverging_epoch)
        return truncation_offset(
            diverging_epoch,
            epoch_end_offset=partition.log.epoch_end_offset,
            log_end_offset=partition.log.log_end_offset,
            high_watermark=partition.high_watermark,
        )

    def refuses_cut(self, partition: Partition, offset: int) -> bool:
        """Whether committed records would go that must not: then the leader is followed no more.

        Another leader, or the same one under a new epoch, is followed again.
        """
        if offset >= partition.high_watermark or partition.may_lose_committed:
            return False
        high_watermark = partition.high_watermark
        refused = RefusedCut(partition.leader_id, partition.leader_epoch, high_watermark, offset)
        self.refused_cuts[partition.place] = refused
        log.error(
            "%s does not follow broker %d: it would lose the committed records %d to %d, which the leader "
            "does not have though it was elected cleanly; see 'tidelog doctor'",
            partition,
            partition.leader_id,
            offset,
            high_watermark - 1,
        )
        fields = {"topic": partition.topic, "partition": partition.index, **refused._asdict()}
        cause = "the leader lacks committed records"
        self._events.emit(CUT_REFUSED, fields, cause=cause, cause_id=f"{partition}@{offset}")
        return True

    def cut(self, cuts: Sequence[tuple[Partition, int]], *, fully: bool = False) -> bool:
        """Cut the logs of followed partitions at batch boundaries; `fully` begins them anew at the offset.

        False if they cannot be cut now, perhaps some of them.
        """
        try:
            self._truncate(cuts, fully=fully)
        except OSError as fault:
            for partition, _ in cuts:
                log.error("%s could not be cut: %s", partition, fault)
            self._disk_faults.noticed(fault)
            return False
        return True

    def _truncate(self, cuts: Sequence[tuple[Partition, int]], *, fully: bool) -> None:
        """A checkpoint on the disk may say that parts which go now were flushed, or committed. It is taken
        back before the first log is cut. That committed records go is told loudly."""
        taken_back = False
        for partition, offset in cuts:
            lowest = 0 if fully else offset
            if partition.log.recovery_point > lowest or partition.high_watermark > lowest:
                partition.log.lower_recovery_point(lowest)
                if partition.high_watermark > offset:
                    self._tell_of_loss(partition, offset)
                partition.high_watermark = min(partition.high_watermark, lowest)
                taken_back = True
        if taken_back:
            self._checkpoints.write_now()
        for partition, offset in cuts:
            if fully:
                partition.log.truncate_fully_and_start_at(offset)
                partition.high_watermark = offset
            else:
                partition.log.truncate_to(partition.log.boundary_at(offset))
                partition.high_watermark = min(partition.high_watermark, partition.log.log_end_offset)

    def _tell_of_loss(self, partition: Partition, offset: int) -> None:
        """Committed records go, since a leader was elected that did not have them."""
        log.error(
            "%s loses committed records, %d to %d: its leader, broker %d, was elected uncleanly",
            partition,
            offset,
            partition.high_watermark - 1,
            partition.leader_id,
        )
        fields = {
            "topic": partition.topic,
            "partition": partition.index,
            "leader": partition.leader_id,
            "from": partition.high_watermark,
            "to": offset,
        }
        cause = f"a leader was elected uncleanly in epoch {partition.unclean_leader_epoch}"
        cause_id = f"{partition}@{offset}"
        self._events.emit(COMMITTED_RECORDS_CUT, fields, cause=cause, cause_id=cause_id)
