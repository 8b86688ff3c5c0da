"""The roles of the replicas here: a replica leads its partition, or follows who does, or nobody.

A replica stands in `Replicas.led` while this broker leads its partition, else in `Replicas.followed`. Its
waiters are settled when it leads no more; the coordinators hear of the partitions of their topics
(`RoleListener`). Which role a replica has is said by the image (`replication`), or by the outcome of an ISR
change (`isr_changes`), which comes before the image. Nothing here opens or deletes a log.

Until this life of the broker is registered it leads only what has no other replica: in an image from before
its start it may still be the leader of partitions whose log it has just lost the end of. So it is again when
its session is lost: others may lead what the image says it leads.
"""

from typing import Protocol

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.isr_changes import IsrChanges
from tidelog.broker.replication.replica_fetcher import ReplicaFetchers
from tidelog.broker.replication.replica_log_reports import ReplicaLogReports
from tidelog.broker.runtime.purgatory import Purgatory
from tidelog.broker.runtime.topic_traffic import TopicTraffic
from tidelog.broker.runtime.turn import Turn
from tidelog.model.identifiers import NO_LEADER
from tidelog.model.image import PartitionImage
from tidelog.model.log_config import LogConfig


class RoleListener(Protocol):
    """Who coordinates what is in the partitions that this broker leads."""

    def leads(self, partition: Partition) -> None:
        """A partition is led here from now on, or under a newer leader epoch."""

    def leads_no_more(self, partition: Partition) -> None: ...

    def reconfigured(self, partition: Partition) -> None:
        """A partition, in either role, has other settings."""

    def topic_deleted(self, topic: str) -> None: ...


class Roles:
    """The roles of one broker's replicas."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        isr_changes: IsrChanges,
        fetchers: ReplicaFetchers,
        log_reports: ReplicaLogReports,
        listener: RoleListener,
        turn: Turn,
        purgatory: Purgatory,
        traffic: TopicTraffic,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._isr_changes = isr_changes
        self._fetchers = fetchers
        self._log_reports = log_reports
        self._listener = listener
        self._turn = turn
        self._purgatory = purgatory
        self._traffic = traffic

    def __repr__(self) -> str:
        return f"<Roles of {self._replicas!r}>"

    def opened(self, partition: Partition) -> None:
        """A replica is here: it follows nobody, to begin with."""
        self._replicas.followed[partition.topic, partition.index] = partition
        self._traffic.opened(partition)

    def give(self, partition: Partition, state: PartitionImage, *, trusted: bool) -> None:
        """Give a replica the role that its partition's record says; one that is not trusted does not lead."""
        partition.unclean_leader_epoch = state.unclean_leader_epoch
        alone, fenced = len(state.replicas) == 1, self._metadata.fenced
        if state.leader == self._metadata.node_id and (alone or not fenced) and trusted:
            self.lead(partition, state)
        else:
            self._follow(partition, state)
            if state.leader == NO_LEADER and not fenced and trusted:
                self._log_reports.consider(partition)

    def lead(self, partition: Partition, state: PartitionImage) -> None:
        """Lead a partition; or, leading it already, take over a newer record of it."""
        was_leading, old_epoch = partition.leads, partition.leader_epoch
        replicas = partition.replicas
        if len(state.replicas) == 1:
            replicas = None
        elif replicas is None:
            replicas = self._isr_changes.replicas_of(partition, state)
        elif not replicas.update(
            state, epoch_start_offset=partition.log.log_end_offset, now_ms=partition.monotonic_ms()
        ):
            return
        if not was_leading:
            self._traffic.settle(partition)
            self._fetchers.leave(partition)
            del self._replicas.followed[partition.topic, partition.index]
        partition.lead(self._metadata.node_id, state.leader_epoch, replicas)
        self._replicas.led[partition.topic, partition.index] = partition
        if not was_leading or old_epoch != state.leader_epoch:
            # A coordinator that goes on with a newer epoch keeps what it has: its log is the same.
            self._listener.leads(partition)
        if replicas is not None:
            self._isr_changes.consider_all(partition)
            if state.last_known_elr and partition.not_enough_replicas() is None:
                self._isr_changes.confirm(partition)
        self._turn.note_progress(partition)

    def _follow(self, partition: Partition, state: PartitionImage) -> None:
        follows = not self._metadata.fenced and state.leader != self._metadata.node_id
        leader_id = state.leader if follows else NO_LEADER
        if (
            not partition.leads
            and partition.leader_id == leader_id
            and partition.leader_epoch == state.leader_epoch
        ):
            return
        was_leading = partition.leads
        if was_leading:
            self._traffic.settle(partition)
            del self._replicas.led[partition.topic, partition.index]
            self._replicas.followed[partition.topic, partition.index] = partition
        else:
            self._fetchers.leave(partition)
        partition.follow(leader_id, state.leader_epoch)
        if was_leading:
            self._listener.leads_no_more(partition)
            self._settle_waiters(partition)
        if leader_id != NO_LEADER and partition.flush_fault is None:
            self._fetchers.follow(partition)

    def stop_following(self, partition: Partition) -> None:
        """A follower takes no more records until a restart."""
        if not partition.leads:
            self._fetchers.leave(partition)

    def reconfigure(self, partition: Partition, config: LogConfig) -> None:
        """Obey new settings; fewer replicas in sync may be enough now."""
        partition.reconfigure(config)
        self._listener.reconfigured(partition)
        if partition.leads and partition.advance_high_watermark():
            self._turn.note_progress(partition)

    def let_go(self, partition: Partition) -> None:
        """A replica is given up: it is none of this broker's any more."""
        key = (partition.topic, partition.index)
        if partition.leads:
            self._listener.leads_no_more(partition)
        else:
            self._fetchers.leave(partition)
        self._replicas.led.pop(key, None)
        self._replicas.followed.pop(key, None)
        self._traffic.removed(partition)
        partition.follow(NO_LEADER, partition.leader_epoch)
        self._settle_waiters(partition)

    def topic_deleted(self, topic: str) -> None:
        """All replicas of a topic were given up, and it does not come back."""
        self._traffic.forget_topic(topic)
        self._listener.topic_deleted(topic)

    def stop(self) -> None:
        """Fetch no more and propose nothing."""
        self._isr_changes.stop()
        self._log_reports.stop()
        self._fetchers.stop()

    def _settle_waiters(self, partition: Partition) -> None:
        """Answer everyone who waits for a partition that is not led here any more."""
        for waiter in list(partition.waiters):
            waiter.lost(partition)
        self._purgatory.settle(partition)
