"""Which replicas this broker holds, and in which role: it follows the cluster image.

A partition with a replica here has its log open, and stands in `broker.partitions` while this broker leads
it, else in `broker.followed`. Leading begins and ends with the image alone. A replica that is not assigned
here any more, or whose topic is gone (its id decides, not its name), leaves with its log.

Until this life of the broker is registered it leads only what has no other replica: in an image from before
its start it may still be the leader of partitions whose log it has just lost the end of. So it is again when
its session is lost: others may lead what the image says it leads.

A replica whose log directory is gone is offline (KIP-858): its log is not begun anew as long as the ISR
counts on it. When the others do without it, it begins in another directory, as a follower that has everything
to fetch.

A log may be there and lack what it had: it ends below the high watermark that was noted for it, or its folder
is gone from a directory that is there. The cluster is told with the registration (`doubts`). Until it knows,
nothing is begun anew, the note stays, and the replica does not lead. A folder that was certainly there, since
the checkpoints speak of it, is a replica that is lost.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.follower_feeds import FollowerFeed, FollowerFeeds
from tidelog.broker.isr_changes import IsrChanges
from tidelog.broker.partition import Partition
from tidelog.broker.replica_fetcher import ReplicaFetcher
from tidelog.broker.replica_log_reports import ReplicaLogReports
from tidelog.model.events import COMMITTED_RECORDS_CUT, CUT_REFUSED
from tidelog.model.identifiers import (
    GROUP_METADATA_TOPIC,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    NO_EPOCH,
    NO_LEADER,
    RESERVED_DIRECTORIES,
    TRANSACTION_STATE_TOPIC,
    UNASSIGNED_DIRECTORY,
    TopicPartition,
)
from tidelog.model.image import ClusterImage, PartitionImage, TopicImage
from tidelog.model.log_config import LogConfig
from tidelog.replication.leader import LeaderReplicas
from tidelog.replication.throttle import Throttle
from tidelog.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

HIGH_WATERMARK_JOB = "high watermark checkpoint"


class OfflineReplica(NamedTuple):
    """A replica that cannot be opened: the id of its log directory, as far as the cluster knows. `lost`: it
    is not in there, it was in one that is gone. `announced`: where the cluster may believe it, though it
    never came there."""

    directory_id: str
    lost: bool
    announced: str | None = None
    #: the leader epoch in which this was found
    leader_epoch: int = NO_EPOCH
    #: the directory that has it, though it has failed: it may come back with it
    failed_directory: str | None = None

    @property
    def placement(self) -> str:
        """Where the cluster shall believe a lost one."""
        return self.failed_directory or LOST_DIRECTORY


class RefusedCut(NamedTuple):
    """A follower whose leader lacks records that were committed, though it was elected cleanly."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    #: where the leader's log and this one part
    offset: int


class Replication:
    """The replicas of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._active = False
        self._stopped = False
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self.isr_changes = IsrChanges(broker)
        self.feeds = FollowerFeeds(broker)
        self.log_reports = ReplicaLogReports(broker)
        #: what replicas here may fetch while they catch up, where a topic says so
        self.throttle = Throttle()
        self._noted_high_watermarks: dict[TopicPartition, int] = {}
        self._noting = False
        #: replicas that cannot be opened because their log directory is not here
        self.offline: dict[TopicPartition, OfflineReplica] = {}
        #: replicas that may lack records they had, until the cluster knows; the leader epoch at that time
        self.doubts: dict[TopicPartition, int] = {}
        #: followers that would have to cut what is committed, and do not
        self.refused_cuts: dict[TopicPartition, RefusedCut] = {}

    # -- life

    def open_all(self, image: ClusterImage) -> None:
        """At start: open the logs of every replica here."""
        for topic in image.topics.values():
            self.place_topic(topic)
        self._take_back_high_watermarks()

    def _take_back_high_watermarks(self) -> None:
        """Write the watermarks down if a log has lost what one of them covered, before anything is appended.

        Other records may take that place, and the next start would take them for committed. The note that
        raises a doubt stays until the cluster knows of it. A full disk must not keep the broker from
        starting: the next checkpoint tries again.
        """
        directories = self._broker.log_directories
        directories.kept = {*self.doubts, *(place for place, each in self.offline.items() if each.lost)}
        places = ((TopicPartition(each.topic, each.index), each) for each in self._replicated())
        if all(
            place in self.doubts or directories.high_watermark(place) <= each.high_watermark
            for place, each in places
        ):
            return
        try:
            self._broker.log_directories.high_watermark_plan(self._broker.high_watermarks()).run()
        except OSError as error:
            log.warning("the high watermarks could not be written: %s", error)

    def activate(self) -> None:
        """This life of the broker is registered: take the roles that the image gives it."""
        if self._active or self._stopped:
            return
        self._active = True
        self.isr_changes.start()
        self._broker.jobs.every(
            HIGH_WATERMARK_JOB,
            lambda: self._broker.settings.get_int("replica.high.watermark.checkpoint.interval.ms"),
            self._note_high_watermarks,
            tells_later=True,
        )
        for topic in self._broker.image.topics.values():
            self.place_topic(topic)
        self._take_back_high_watermarks()
        for place, replica in self.offline.items():
            log.error("%s is offline: its log directory %s is not here", place, replica.directory_id)
        if self._broker.progressed:
            self._broker.wake_progressed()

    def deactivate(self) -> None:
        """This life of the broker is over: lead and follow nothing until another one is registered."""
        if not self._active or self._stopped:
            return
        self._active = False
        broker = self._broker
        for partition in list(broker.replicas()):
            state = broker.image.partition(partition.topic, partition.index)
            if state is not None:
                self._place(partition, state)
        if broker.progressed:
            broker.wake_progressed()

    def stop(self) -> None:
        """Fetch no more and propose nothing."""
        self._stopped = True
        self.isr_changes.stop()
        self.log_reports.stop()
        for fetcher in self.fetchers.values():
            fetcher.stop()
        self.fetchers.clear()

    # -- following the image

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Open, close and change roles as the new image says."""
        doubts = len(self.doubts)
        if old.brokers is not new.brokers:
            self._brokers_changed(old, new)
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic:
                continue
            if before is not None and before.topic_id != topic.topic_id:
                self._delete_topic(before)
                before = None
            if before is None or before.partitions is not topic.partitions:
                self.place_topic(topic, before)
            if before is not None and before.configs != topic.configs:
                self.reconfigure_topic(topic)
        for name, before in old.topics.items():
            if name not in new.topics:
                self._delete_topic(before)
        if doubts or self.doubts:
            self._take_back_high_watermarks()

    def _brokers_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        for broker_id, before in old.brokers.items():
            if broker_id == self._broker.node_id:
                continue
            now = new.brokers.get(broker_id)
            if now is None or not now.alive or now.incarnation != before.incarnation:
                self.feeds.forget(broker_id)
                self._broker.peers.forget(broker_id)
        for partition in self._broker.partitions.values():
            self.isr_changes.consider_all(partition)

    def place_topic(self, topic: TopicImage, before: TopicImage | None = None) -> None:
        """Give the replicas of a topic their roles; `before` is what they were placed by last time."""
        config: LogConfig | None = None
        known = () if before is None else before.partitions
        node_id = self._broker.node_id
        for index, state in enumerate(topic.partitions):
            if index < len(known) and known[index] is state:
                continue
            partition = self._broker.replica(topic.name, index)
            if node_id not in state.replicas:
                self.offline.pop(TopicPartition(topic.name, index), None)
                self.doubts.pop(TopicPartition(topic.name, index), None)
                if partition is not None:
                    self._remove(partition)
                continue
            if partition is None:
                if not self._can_open(TopicPartition(topic.name, index), state):
                    continue
                if config is None:
                    config = self._broker.settings.log_config(topic.configs)
                partition = self._open(topic, index, state, config)
                # Thousands of new logs take their time, but they come about.
                self._broker.liveness.moved()
            if partition is not None:
                self._place(partition, state)
                self._broker.placements.consider(TopicPartition(topic.name, index), state)

    def _place(self, partition: Partition, state: PartitionImage) -> None:
        partition.unclean_leader_epoch = state.unclean_leader_epoch
        alone = len(state.replicas) == 1
        trusted = not self.doubts or not self._in_doubt(
            TopicPartition(partition.topic, partition.index), state
        )
        if state.leader == self._broker.node_id and (alone or self._active) and trusted:
            self.learn(partition, state)
        else:
            self._follow(partition, state)
            if state.leader == NO_LEADER and self._active and not self._stopped and trusted:
                self.log_reports.consider(partition)

    def _can_open(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether the log of a replica is here, or may begin here: not as long as the ISR or the ELR counts
        on one in a directory that is gone, nor while one of this broker's directories is offline."""
        broker = self._broker
        believed = state.directory_of(broker.node_id)
        home = broker.log_directories.home_of(place, believed)
        known = self.offline.get(place)
        announced, failed = (None, None) if known is None else (known.announced, known.failed_directory)
        # The cluster learned of a move that the failure of a directory came before: nothing is there. If this
        # broker was elected uncleanly since, the cluster knows that, and the log begins anew.
        given_up = (
            known is not None
            and state.leader == broker.node_id
            and state.unclean_leader_epoch > known.leader_epoch
        )
        never_moved = home.directory is None and believed == announced and not given_up
        offline = home.offline or never_moved or (home.directory is None and self._may_be_missing(believed))
        if home.directory is None and not offline:
            if self._is_lost(place, state):
                self.offline[place] = OfflineReplica(believed, True, announced, state.leader_epoch, failed)
                return False
            if self._begins_in_doubt(place, state):
                return False
        may_begin_anew = self._active and not home.lost and not state.counts_on(broker.node_id)
        if not offline or (may_begin_anew and not broker.log_directories.offline):
            self.offline.pop(place, None)
            return True
        lost = home.lost or never_moved or (known is not None and known.lost and believed != known.placement)
        found = OfflineReplica(believed, lost, announced, state.leader_epoch, failed)
        self.offline[place] = found
        if never_moved:
            broker.placements.expect(place, found.placement, lambda: None)
        return False

    def _is_lost(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether a log that the partition counts on is gone, and was certainly there."""
        broker = self._broker
        if self._active:
            # The cluster knows soon, or has decided otherwise since.
            known = self.offline.get(place)
            return known is not None and known.lost and state.unclean_leader_epoch <= known.leader_epoch
        if not state.counts_on(broker.node_id):
            return False
        believed = state.directory_of(broker.node_id)
        own = broker.image.brokers.get(broker.node_id)
        if own is not None and MIGRATING_DIRECTORY in own.directories and believed in RESERVED_DIRECTORIES:
            # An older version told neither of all directories nor of the replicas in them.
            return True
        return broker.log_directories.is_noted(place, believed)

    def _begins_in_doubt(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether a log may have been there that is to begin now, as far as the cluster knows.

        After an unclean shutdown all logs are in doubt, and the cluster hears of that.
        """
        broker = self._broker
        doubtful = not self._active and broker.log_directories.kept_their_ends
        if doubtful and len(state.replicas) > 1 and state.counts_on(broker.node_id):
            if place not in self.doubts:
                log.error("%s is counted on, and has no folder: it is in doubt", place)
            self.doubts[place] = state.leader_epoch
        return self._in_doubt(place, state)

    def _in_doubt(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether the cluster still counts on a log that may lack records it had."""
        leader_epoch = self.doubts.get(place)
        if leader_epoch is None:
            return False
        node_id = self._broker.node_id
        counted = node_id in state.isr or node_id in state.elr
        if self._active and (not counted or state.unclean_leader_epoch > leader_epoch):
            del self.doubts[place]
            return False
        return True

    def _doubt_if_short(self, place: TopicPartition, partition: Partition, state: PartitionImage) -> None:
        """A log that ends below its noted high watermark has lost committed records."""
        node_id = self._broker.node_id
        high_watermark = self._broker.log_directories.high_watermark(place)
        end_offset = partition.log.log_end_offset
        counted = node_id in state.isr or node_id in state.elr
        if high_watermark > end_offset and counted and len(state.replicas) > 1:
            log.error(
                "%s has lost committed records: it ends at %d, its high watermark was %d; it is in doubt",
                partition,
                end_offset,
                high_watermark,
            )
            self.doubts[place] = state.leader_epoch

    def _may_be_missing(self, believed: str) -> bool:
        """Before the registration: whether a replica of no known directory may be in one that is gone."""
        if self._active or believed not in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return False
        own = self._broker.image.brokers.get(self._broker.node_id)
        known = () if own is None else own.directories
        directories = self._broker.log_directories
        return any(
            each not in RESERVED_DIRECTORIES and directories.directory_by_id(each) is None for each in known
        )

    def _open(
        self, topic: TopicImage, index: int, state: PartitionImage, config: LogConfig
    ) -> Partition | None:
        broker = self._broker
        place = TopicPartition(topic.name, index)
        try:
            partition_log = self._open_log(place, topic, config, state.directory_of(broker.node_id))
        except OSError as fault:
            # Clients are told that there is no such partition here, and retry; so does housekeeping.
            log.error("the log of %s could not be opened: %s", place, fault)
            broker.unopened_topics.add(topic.name)
            broker.directory_failures.noticed(fault)
            return None
        partition = Partition(
            topic.name,
            topic.topic_id,
            index,
            partition_log,
            state.leader_epoch,
            high_watermark=broker.log_directories.high_watermark(place),
            walk_always=broker.settings.get_str("tidelog.validate.records") == "always",
            decompressed_bytes_max=broker.settings.get_int("tidelog.decompressed.bytes.max"),
            monotonic_ms=broker.clock.monotonic_ms,
        )
        partition.on_fault = broker.directory_failures.noticed
        self._doubt_if_short(place, partition, state)
        broker.followed[topic.name, index] = partition
        broker.metrics.traffic.opened(partition)
        preferred = broker.log_directories.preferred.pop(place, None)
        if preferred is not None:
            broker.log_moves.move(place, preferred.path)
        return partition

    def _open_log(
        self, place: TopicPartition, topic: TopicImage, config: LogConfig, directory_id: str
    ) -> PartitionLog:
        broker = self._broker
        for _ in range(2):
            partition_log = broker.log_directories.open_log(
                place,
                config,
                now_ms=broker.clock.now_ms(),
                topic_id=topic.topic_id,
                producer_id_expiration_ms=broker.settings.get_int("producer.id.expiration.ms"),
                directory_id=directory_id,
            )
            if partition_log.topic_id in (None, topic.topic_id):
                break
            # Left by a deleted topic of the same name.
            broker.housekeeping.discard_log(place, config.file_delete_delay_ms)
        return partition_log

    # -- roles

    def learn(self, partition: Partition, state: PartitionImage) -> None:
        """Lead a partition; or, leading it already, take over a newer record of it."""
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        was_leading, old_epoch = partition.leads, partition.leader_epoch
        end_offset = partition.log.log_end_offset
        replicas = partition.replicas
        if len(state.replicas) == 1:
            replicas = None
        elif replicas is not None:
            if not replicas.update(state, epoch_start_offset=end_offset, now_ms=now_ms):
                return
        else:
            replicas = LeaderReplicas(
                broker.node_id,
                state,
                epoch_start_offset=end_offset,
                now_ms=now_ms,
                lag_max_ms=broker.settings.get_int("replica.lag.time.max.ms"),
                eligible=partial(self._eligible, partition.topic, partition.index),
            )
        if not was_leading:
            broker.metrics.traffic.settle(partition)
            self._stop_fetching(partition)
            del broker.followed[partition.topic, partition.index]
        partition.lead(broker.node_id, state.leader_epoch, replicas)
        broker.partitions[partition.topic, partition.index] = partition
        if not was_leading or old_epoch != state.leader_epoch:
            # A coordinator that goes on with a newer epoch keeps what it has: its log is the same.
            self._load(partition)
        if replicas is not None:
            self.isr_changes.consider_all(partition)
            if state.last_known_elr and partition.not_enough_replicas() is None:
                self.isr_changes.confirm(partition)
        if partition.awaited and not partition.progressing:
            broker.note_progress(partition)

    def _follow(self, partition: Partition, state: PartitionImage) -> None:
        broker = self._broker
        leader_id = state.leader if self._active and state.leader != broker.node_id else NO_LEADER
        if (
            not partition.leads
            and partition.leader_id == leader_id
            and partition.leader_epoch == state.leader_epoch
        ):
            return
        was_leading = partition.leads
        if was_leading:
            broker.metrics.traffic.settle(partition)
            del broker.partitions[partition.topic, partition.index]
            broker.followed[partition.topic, partition.index] = partition
        else:
            self._stop_fetching(partition)
        partition.follow(leader_id, state.leader_epoch)
        if was_leading:
            self._unload(partition)
            self._settle_waiters(partition)
        if leader_id != NO_LEADER and not self._stopped and partition.flush_fault is None:
            fetcher = self.fetchers.get(leader_id)
            if fetcher is None:
                fetcher = self.fetchers[leader_id] = ReplicaFetcher(broker, leader_id)
            fetcher.follow(partition)

    def _stop_fetching(self, partition: Partition) -> None:
        self.refused_cuts.pop(TopicPartition(partition.topic, partition.index), None)
        fetcher = self.fetchers.get(partition.leader_id)
        if fetcher is not None:
            fetcher.leave(partition)
            if not fetcher.partitions:
                fetcher.stop()
                del self.fetchers[partition.leader_id]

    def sync_failed(self, partition: Partition) -> None:
        """A replica takes no more records until a restart: others shall lead, and nobody waits for it."""
        if not partition.leads:
            self._stop_fetching(partition)
        self._broker.placements.consider(TopicPartition(partition.topic, partition.index))

    def _eligible(self, topic: str, index: int, broker_id: int, broker_epoch: int) -> bool:
        """Whether the controller would take a follower into the ISR, as far as the image tells."""
        image = self._broker.image
        found = image.alive_brokers.get(broker_id)
        if found is None or not found.active or broker_epoch not in (-1, found.epoch):
            return False
        state = image.partition(topic, index)
        if state is None or broker_id not in state.replicas:
            return False
        return found.has_online(state.directory_of(broker_id))

    def _load(self, partition: Partition) -> None:
        if partition.topic == GROUP_METADATA_TOPIC:
            self._broker.groups.load(partition.index)
        elif partition.topic == TRANSACTION_STATE_TOPIC:
            self._broker.transactions.load(partition.index)

    def _unload(self, partition: Partition) -> None:
        if partition.topic == GROUP_METADATA_TOPIC:
            self._broker.groups.unload(partition.index)
        elif partition.topic == TRANSACTION_STATE_TOPIC:
            self._broker.transactions.unload(partition.index)

    def _settle_waiters(self, partition: Partition) -> None:
        """Answer everyone who waits for a partition that is not led here any more."""
        for waiter in list(partition.waiters):
            if isinstance(waiter, FollowerFeed):
                waiter.lost(partition)
            else:
                self._broker.parking.finish(waiter, expired=True)
        self._broker.settle_commits(partition)

    # -- leaving

    def _delete_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self.offline.pop(TopicPartition(topic.name, index), None)
            self.doubts.pop(TopicPartition(topic.name, index), None)
            partition = self._broker.replica(topic.name, index)
            if partition is not None:
                self._remove(partition)
        self._broker.metrics.traffic.forget_topic(topic.name)
        self._broker.groups.topic_deleted(topic.name)

    def _remove(self, partition: Partition) -> None:
        """Give up a replica and its log."""
        self._let_go(partition)
        self._broker.log_moves.left(partition)
        self._broker.housekeeping.delete_log(partition)

    def _let_go(self, partition: Partition) -> None:
        broker = self._broker
        key = (partition.topic, partition.index)
        if partition.leads:
            self._unload(partition)
        else:
            self._stop_fetching(partition)
        broker.partitions.pop(key, None)
        broker.followed.pop(key, None)
        broker.metrics.traffic.removed(partition)
        partition.follow(NO_LEADER, partition.leader_epoch)
        self._settle_waiters(partition)
        self._noted_high_watermarks.pop(TopicPartition(*key), None)

    def take_offline(self, partition: Partition, directory_id: str, announced: str | None = None) -> None:
        """The log directory of a replica has failed: neither lead nor follow any more. `announced` is the
        directory to which it was about to move, as the cluster was told: the log never came there."""
        broker = self._broker
        place = TopicPartition(partition.topic, partition.index)
        state = broker.image.partition(*place)
        here = state is not None and broker.node_id in state.replicas
        believed = state.directory_of(broker.node_id) if state is not None and here else directory_id
        lost = announced is not None or believed != directory_id
        leader_epoch = NO_EPOCH if state is None else state.leader_epoch
        self.offline[place] = OfflineReplica(directory_id, lost, announced, leader_epoch, directory_id)
        self.doubts.pop(place, None)
        self._let_go(partition)
        broker.housekeeping.forget(partition)

    def reconfigure_topic(self, topic: TopicImage) -> None:
        """Obey the topic's settings as they are now."""
        broker = self._broker
        config = broker.settings.log_config(topic.configs)
        for index in range(len(topic.partitions)):
            partition = broker.replica(topic.name, index)
            if partition is not None and partition.config != config:
                partition.reconfigure(config)
                if partition.leads and partition.advance_high_watermark():
                    broker.note_progress(partition)

    # -- cutting and checkpoints

    def truncate(self, cuts: Sequence[tuple[Partition, int]], *, fully: bool = False) -> None:
        """Cut the logs of followed partitions at batch boundaries; `fully` begins them anew at the offset.

        A checkpoint on the disk may say that parts which go now were flushed, or committed. It is taken back
        before the first log is cut. Raises `OSError` if that fails; a log that cannot be cut is only logged.
        Whether committed records may go is the caller's to know; that they go is told loudly.
        """
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
            self._broker.log_directories.checkpoint_plan(self._broker.high_watermarks()).run()
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
        self._broker.metrics.events.emit(COMMITTED_RECORDS_CUT, fields, cause=cause, cause_id=cause_id)

    def refuse_cut(self, partition: Partition, offset: int) -> None:
        """A leader that was elected cleanly lacks records that were committed: keep them, follow no more.

        Another leader, or the same one under a new epoch, is followed again.
        """
        high_watermark = partition.high_watermark
        refused = RefusedCut(partition.leader_id, partition.leader_epoch, high_watermark, offset)
        self.refused_cuts[TopicPartition(partition.topic, partition.index)] = refused
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
        self._broker.metrics.events.emit(CUT_REFUSED, fields, cause=cause, cause_id=f"{partition}@{offset}")

    def _note_high_watermarks(self) -> None:
        """Write the high watermarks of replicated partitions down, if one of them moved."""
        if self._stopped or self._noting:
            return
        found = {
            TopicPartition(partition.topic, partition.index): partition.high_watermark
            for partition in self._replicated()
        }
        if found == self._noted_high_watermarks:
            self._broker.jobs.ran(HIGH_WATERMARK_JOB)
            return
        plan = self._broker.log_directories.high_watermark_plan(found)
        self._noting = True
        self._broker.background.run(plan.run, lambda fault: self._noted(found, fault))

    def _noted(self, found: dict[TopicPartition, int], fault: BaseException | None) -> None:
        self._noting = False
        if isinstance(fault, BaseException):
            self._broker.jobs.failed(HIGH_WATERMARK_JOB, fault)
        else:
            self._noted_high_watermarks = found
            self._broker.jobs.ran(HIGH_WATERMARK_JOB)

    def _replicated(self) -> Iterable[Partition]:
        for partition in self._broker.partitions.values():
            if partition.replicas is not None:
                yield partition
        yield from self._broker.followed.values()

    def __repr__(self) -> str:
        return (
            f"<Replication leads={len(self._broker.partitions)} follows={len(self._broker.followed)} "
            f"fetchers={sorted(self.fetchers)}>"
        )
