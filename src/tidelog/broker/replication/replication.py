"""Which replicas this broker holds: it follows the cluster image.

A partition with a replica here has its log opened (`replica_homes` says whether it may be, `log_opening` does
it), and a role (`roles`). A replica that is not assigned here any more, or whose topic is gone (its id
decides, not its name), leaves with its log. Where its log is, the cluster is told (`placements`).

The direction: the image and the directories that fail (`directory_failures`) come in here; from here it goes
on to `roles`, `log_moves` and log maintenance, and none of them asks back.
"""

from tidelog.broker.maintenance.log_maintenance import LogMaintenance
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.replication.log_opening import LogOpening
from tidelog.broker.replication.placements import Placements
from tidelog.broker.replication.replica_homes import ReplicaHomes
from tidelog.broker.replication.roles import Roles
from tidelog.broker.runtime.timers import Timers
from tidelog.model.identifiers import TopicPartition
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage
from tidelog.model.log_config import LogConfig

#: when to try again to open logs that could not be opened
UNOPENED_RETRY_MS = 1_000
_UNOPENED_TIMER = "unopened topics"


class Replication:
    """The replicas of one broker."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        homes: ReplicaHomes,
        opening: LogOpening,
        roles: Roles,
        placements: Placements,
        log_moves: LogMoves,
        log_maintenance: LogMaintenance,
        timers: Timers,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._homes = homes
        self._opening = opening
        self._roles = roles
        self._placements = placements
        self._log_moves = log_moves
        self._log_maintenance = log_maintenance
        self._timers = timers
        self._stopped = False
        #: topics with a log that the disk would not let us open; clients are told that it is not here
        self.unopened_topics: set[str] = set()

    def __repr__(self) -> str:
        return f"<Replication of {self._replicas!r}>"

    # -- life

    def open_all(self) -> None:
        """At start: open the logs of every replica here."""
        for topic in self._metadata.image.topics.values():
            self._place_topic(topic)
        self._homes.take_back_high_watermarks()

    def take_roles(self) -> None:
        """This life of the broker is registered: take the roles that the image gives it."""
        if not self._stopped:
            self.open_all()
            self._homes.tell_of_offline()

    def give_up_roles(self) -> None:
        """This life of the broker is over: lead and follow nothing until another one is registered."""
        if self._stopped:
            return
        for partition in list(self._replicas):
            state = self._metadata.image.partition(partition.topic, partition.index)
            if state is not None:
                self._give_role(partition, state)

    def stop(self) -> None:
        """Open nothing more; the roles stay as they are."""
        self._stopped = True
        self._timers.cancel(_UNOPENED_TIMER)
        self._roles.stop()

    # -- following the image

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Open, close and change roles as the new image says."""
        doubts = len(self._replicas.doubts)
        self._forget_deleted(old, new)
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic:
                continue
            if before is not None and before.topic_id != topic.topic_id:
                self._delete_topic(before)
                before = None
            if before is None or before.partitions is not topic.partitions:
                self._place_topic(topic, before)
            if before is not None and before.configs != topic.configs:
                self._reconfigure(topic)
        for name, before in old.topics.items():
            if name not in new.topics:
                self._delete_topic(before)
        if doubts or self._replicas.doubts:
            self._homes.take_back_high_watermarks()

    def adopt_settings(self) -> None:
        """The broker's settings have changed, and with them what topics have no setting of their own for."""
        for topic in self._metadata.image.topics.values():
            self._reconfigure(topic)

    def _reconfigure(self, topic: TopicImage) -> None:
        config = self._opening.config_of(topic)
        for index in range(len(topic.partitions)):
            partition = self._replicas.replica(topic.name, index)
            if partition is not None and partition.config != config:
                self._roles.reconfigure(partition, config)

    def _place_topic(self, topic: TopicImage, before: TopicImage | None = None) -> None:
        """Give the replicas of a topic their roles; `before` is what they were placed by last time."""
        config: LogConfig | None = None
        known = () if before is None else before.partitions
        for index, state in enumerate(topic.partitions):
            if index < len(known) and known[index] is state:
                continue
            place = TopicPartition(topic.name, index)
            partition = self._replicas.replica(topic.name, index)
            if self._metadata.node_id not in state.replicas:
                self._homes.left(place)
                if partition is not None:
                    self._remove(partition)
                continue
            if partition is None:
                if not self._homes.may_open(place, state):
                    continue
                config = config or self._opening.config_of(topic)
                partition = self._open(topic, place, state, config)
            if partition is not None:
                self._give_role(partition, state)
                self._placements.consider(place, state)

    def _open(
        self, topic: TopicImage, place: TopicPartition, state: PartitionImage, config: LogConfig
    ) -> Partition | None:
        directory_id = state.directory_of(self._metadata.node_id)
        partition = self._opening.open(topic, place.partition, config, directory_id)
        if partition is None:
            self.unopened_topics.add(topic.name)
            if not self._stopped:
                self._timers.set_after(_UNOPENED_TIMER, UNOPENED_RETRY_MS, self._open_unopened)
            return None
        self._homes.look_for_loss(place, partition, state)
        self._roles.opened(partition)
        self._log_moves.opened(place)
        return partition

    def _open_unopened(self) -> None:
        """Try again to open the logs that could not be opened."""
        names, self.unopened_topics = self.unopened_topics, set()
        for name in names:
            topic = self._metadata.image.topics.get(name)
            if topic is not None:
                self._place_topic(topic)

    def _give_role(self, partition: Partition, state: PartitionImage) -> None:
        place = partition.place
        trusted = not self._replicas.doubts or not self._homes.in_doubt(place, state)
        self._roles.give(partition, state, trusted=trusted)

    # -- leaving

    def _forget_deleted(self, old: ClusterImage, new: ClusterImage) -> None:
        """Before the logs of deleted topics go."""
        node_id = self._metadata.node_id
        places = [
            TopicPartition(name, index)
            for name, topic in old.topics.items()
            if name not in new.topics or new.topics[name].topic_id != topic.topic_id
            for index, state in enumerate(topic.partitions)
            if node_id in state.replicas
        ]
        if places:
            self._log_maintenance.forget_logs(places)

    def _delete_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self._homes.left(TopicPartition(topic.name, index))
            partition = self._replicas.replica(topic.name, index)
            if partition is not None:
                self._remove(partition)
        self._roles.topic_deleted(topic.name)

    def _remove(self, partition: Partition) -> None:
        """Give up a replica and its log."""
        self._roles.let_go(partition)
        self._log_moves.left(partition)
        self._log_maintenance.delete_log(partition)

    def take_offline(self, partition: Partition, directory_id: str, announced: str | None = None) -> None:
        """The log directory of a replica has failed: neither lead nor follow any more (see
        `ReplicaHomes.failed`)."""
        self._homes.failed(partition.place, directory_id, announced)
        self._roles.let_go(partition)
        self._log_maintenance.forget(partition)

    def flush_failed(self, partition: Partition, fault: OSError) -> None:
        """Where a sync failed others shall lead, and nobody waits for this replica."""
        if partition.flush_fault is not None:
            self._roles.stop_following(partition)
            self._placements.consider(partition.place)
