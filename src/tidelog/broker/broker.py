"""One node without sockets: settings, metadata, partitions, and the parts that serve them.

The broker follows the cluster image: a topic that appears gets its logs opened, one that goes gets them
deleted, a setting that changes is obeyed from then on. Everything runs on one event loop; `background` runs
what would block it.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.background import Background
from tidelog.broker.background_jobs import BackgroundJobs
from tidelog.broker.directory_failures import DirectoryFailures
from tidelog.broker.dispatch import Request
from tidelog.broker.features import (
    ELR_VERSION,
    ELR_VERSION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
)
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.flusher import Flusher
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.image_events import tell as tell_of_image
from tidelog.broker.liveness import Liveness
from tidelog.broker.log_moves import LogMoves
from tidelog.broker.long_checks import LongChecks
from tidelog.broker.metadata import Metadata, Registration
from tidelog.broker.metrics import Metrics
from tidelog.broker.newcomers import Newcomers
from tidelog.broker.parking import Parking
from tidelog.broker.partition import Partition
from tidelog.broker.peers import NoPeers, Peers
from tidelog.broker.placements import Placements, replica_counts
from tidelog.broker.produce_shapes import KnownShapes
from tidelog.broker.producer_ids import ProducerIds
from tidelog.broker.replication import Replication
from tidelog.broker.store_session import OpenStore
from tidelog.broker.timers import Timers
from tidelog.broker.turns import TurnBackground, TurnPeers
from tidelog.broker.users import BrokerUsers
from tidelog.controller.commands import ShutDownBroker
from tidelog.coordination import opening
from tidelog.coordination.store import CoordinationStore
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import RESERVED_DIRECTORIES, TopicPartition
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import Endpoint, MetadataRecord
from tidelog.model.ports import Clock
from tidelog.model.replication_settings import RACK_AWARE_SELECTOR
from tidelog.model.settings import BrokerSettings
from tidelog.protocol import messages
from tidelog.protocol.api_versions import Feature
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import LogDirectoryUnusable, refuse_used, stored_cluster_id
from tidelog.storage.partition_metadata import read_topic_id

if TYPE_CHECKING:
    from tidelog.broker.authorization import Authorization
    from tidelog.broker.group_coordinator import GroupCoordinator
    from tidelog.broker.quotas import Quotas
    from tidelog.broker.topic_expressions import TopicExpressions
    from tidelog.broker.transaction_coordinator import TransactionCoordinator

__all__ = ["Broker", "Request"]

log = logging.getLogger(__name__)

#: the broker-level settings every broker shares are kept under this name
CLUSTER_DEFAULTS = ""
#: how long a clean stop waits for other brokers to take over
HAND_OVER_MS_MAX = 5_000
#: logs closed at the same time at a clean stop; the disk syncs several as fast as one
CLOSING_THREADS = 8


class Broker:
    """A broker: everything but the sockets."""

    # Made when it is opened.
    log_directories: LogDirectories
    metadata: Metadata
    housekeeping: Housekeeping
    producer_ids: ProducerIds
    #: called when the session was given up for want of progress
    on_lapsed: Callable[[], None] = staticmethod(lambda: None)
    _was_registered = False

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        random: Random,
        background: Background,
        disk: Disk,
        endpoints: Mapping[str, Endpoint],
        store: CoordinationStore | None = None,
        open_store: OpenStore | None = None,
        peers: Peers | None = None,
        authentication_background: Background | None = None,
        store_background: Background | None = None,
        check_background: Background | None = None,
    ) -> None:
        self.static_settings = self.settings = settings
        self.clock = clock
        self.random = random
        self.background: Background = TurnBackground(background, self._end_turn)
        #: checks passwords and tokens; has threads of its own, so that trying many keeps nobody else waiting
        self.authentication_background: Background = authentication_background or self.background
        #: for calls of the coordination store: no disk keeps them waiting
        self._store_background: Background = TurnBackground(store_background or background, self._end_turn)
        self.long_checks = LongChecks(self, check_background or background)
        self.users = BrokerUsers(self)
        #: who may do what; None where everybody may do everything
        self.authorization: Authorization | None = None
        #: how much of everything clients may; None where nobody has a limit
        self.quotas: Quotas | None = None
        self.node_id = settings.node_id
        self.endpoints = endpoints
        self.features: dict[str, Feature] = {
            TRANSACTION_VERSION: TRANSACTION_VERSION_FEATURE,
            ELR_VERSION: ELR_VERSION_FEATURE,
        }
        self.metrics = Metrics(clock, settings.node_id)
        self.timers = Timers(clock)
        self.jobs = BackgroundJobs(self.timers, self.metrics.events)
        self.liveness = Liveness(clock, self.timers, opening.session_timeout_ms(settings))
        self.peers: Peers = (
            NoPeers(lambda call: self.timers.set(object(), clock.now_ms(), call))
            if peers is None
            else TurnPeers(peers, self._end_turn)
        )
        self.parking = Parking(self.timers, settings.get_int("tidelog.parked.requests.max"))
        self.fetch_sessions = FetchSessions(
            settings.get_int("max.incremental.fetch.session.cache.slots"), random
        )
        self.fetch_bytes_max = settings.get_int("fetch.max.bytes")
        #: whether consumers are sent to a replica in their rack
        self.rack_aware_reads = settings.get("replica.selector.class") == RACK_AWARE_SELECTOR
        self.disk = disk
        self._open_store = open_store or (self._open_configured_store if store is None else lambda: store)
        #: the replicas here that lead their partition, and those that follow (see replication)
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.followed: dict[tuple[str, int], Partition] = {}
        self.progressed: list[Partition] = []
        #: topics with a log that the disk would not let us open
        self.unopened_topics: set[str] = set()
        self.produce_shapes = KnownShapes()
        #: the version of the image, and when the requests of this turn arrived: at hand for every request
        self.image_version = -1
        self.turn_ms = clock.now_ms()
        self.flusher = Flusher(self.background, self._flushed, self._flush_failed, self.metrics)
        self.replication = Replication(self)
        self.log_moves = LogMoves(self)
        self.placements = Placements(self)
        self.directory_failures = DirectoryFailures(self)
        self._ends_in_doubt = False

    @functools.cached_property
    def newcomers(self) -> Newcomers:
        """Connections on which nothing was asked yet."""
        return Newcomers(self.clock)

    # The coordinators are made when they are first asked for: importing them takes a tenth of a start.

    @functools.cached_property
    def groups(self) -> "GroupCoordinator":
        """The coordinator of consumer groups."""
        from tidelog.broker.group_coordinator import GroupCoordinator

        return GroupCoordinator(self)

    @functools.cached_property
    def transactions(self) -> "TransactionCoordinator":
        """The coordinator of transactions."""
        from tidelog.broker.transaction_coordinator import TransactionCoordinator

        return TransactionCoordinator(self)

    @functools.cached_property
    def topic_expressions(self) -> "TopicExpressions":
        """What clients' regular expressions stand for."""
        from tidelog.broker.topic_expressions import TopicExpressions

        return TopicExpressions(self.background)

    @staticmethod
    def warm() -> None:
        """Import what the first clients will need; for another thread, once the broker serves."""
        import tidelog.broker.group_coordinator
        import tidelog.broker.transaction_coordinator  # noqa: F401

        messages.warm()

    @property
    def image(self) -> ClusterImage:
        """The newest metadata."""
        return self.metadata.image

    def inter_broker_endpoint(self, broker_id: int) -> Endpoint | None:
        """Where another broker listens for its peers, as far as the newest metadata knows."""
        known = self.image.brokers.get(broker_id)
        return None if known is None else known.endpoints.get(self.settings.inter_broker_listener_name)

    # -- life

    def open(self) -> None:
        """Load the metadata, lock the log directories and open every log; blocks until recovered."""
        # Before anything is written: the store may lie in a directory that is another broker's.
        refuse_used(self.disk, self.settings.log_dirs)
        if self._open_store == self._open_configured_store:
            self._refuse_lost_metadata()
        self.metadata = Metadata(
            self._open_store,
            self.static_settings,
            self._store_background,
            self.random,
            self.timers,
            self.peers,
            self.node_id,
        )
        self.metadata.events = self.metrics.events
        self.metadata.on_fenced = self._fenced
        self.metadata.on_registered = self._registered
        self.metadata.may_enter = lambda: self.liveness.disk_answers
        self.liveness.on_lapse = self._lapse
        self.liveness.end_session = self.metadata.end_session
        self.metadata.on_session = self.liveness.granted
        image = self.metadata.load()
        self._open_directories(image)
        self.producer_ids = ProducerIds(self.metadata, self.node_id)
        self._adopt_settings(image)
        if self.settings.get("authorizer.class.name"):
            from tidelog.broker.authorization import Authorization

            self.authorization = Authorization(self, image)
        self._adopt_quotas(image)
        self._set_strays_aside(image)
        self.housekeeping = Housekeeping(self)
        self.replication.open_all(image)
        self.log_directories.take_back_recovery_points()
        self.metadata.listen(self._image_changed)
        self.image_version = image.version
        self.housekeeping.start()
        self.users.start()

    def _refuse_lost_metadata(self) -> None:
        """Begin no new cluster beside data of one: its metadata is in a directory that is away, or lost."""
        directories = self.settings.log_dirs
        if self.settings.get("zookeeper.connect"):
            return
        path = opening.embedded_path(self.static_settings)
        cluster_id = None if path.exists() else stored_cluster_id(self.disk, directories)
        if cluster_id is not None:
            raise LogDirectoryUnusable(
                f"{path}, the metadata of cluster {cluster_id}, is not there, but data of that cluster is in "
                f"{', '.join(directories)}: mount the directory that is missing, or restore the file"
            )

    def _open_configured_store(self) -> CoordinationStore:
        return opening.open_store(self.static_settings)

    def _open_directories(self, image: ClusterImage) -> None:
        self.log_directories = LogDirectories.open(
            self.disk,
            self.settings.log_dirs,
            cluster_id=image.cluster_id,
            node_id=self.node_id,
            replica_counts=replica_counts(image, self.node_id),
            lost=self.settings.get_list("tidelog.lost.directories"),
        )
        # One that is there now is none of them, should it fail later.
        self.placements.given_up = tuple(
            each
            for each in self.settings.get_list("tidelog.lost.directories")
            if self.log_directories.directory_by_id(each) is None
        )
        for offline in self.log_directories.offline:
            log.error("log.dirs: %s is offline: %s", offline.path, offline.reason)

    def _set_strays_aside(self, image: ClusterImage) -> None:
        """Take logs out of the way that belong to no topic, or to a deleted one of the same name.

        A topic is deleted in the metadata first; a crash right after that leaves its folders behind. Where a
        power cut took the note of the topic's id, a replica that is not in sync begins anew: its log might be
        that of a deleted topic of the name, and whatever counts is with the others. One in sync keeps it: a
        new topic has no members in sync that were away when it was made.
        """

        def believed(place: TopicPartition) -> str | None:
            state = image.partition(*place)
            if state is None or self.node_id not in state.replicas:
                return None
            directory_id = state.directory_of(self.node_id)
            known = directory_id not in RESERVED_DIRECTORIES or state.counts_on(self.node_id)
            return directory_id if known else None

        for stored in self.log_directories.stored_partitions(believed):
            name, index = stored.topic_partition
            topic = image.topics.get(name)
            noted_id = read_topic_id(self.disk, stored.path)
            state = image.partition(name, index)
            if topic is not None and state is not None and self.node_id in state.replicas:
                nameless = noted_id is None and not stored.directory.clean_shutdown
                counts = self.node_id in (*state.isr, *state.elr, *state.last_known_elr)
                if noted_id in (None, topic.topic_id) and not (nameless and not counts):
                    continue
            aside = self.log_directories.set_aside(stored, UUID(int=self.random.getrandbits(128), version=4))
            log.warning("%s is no replica of this broker and was set aside as %s", stored.path, aside)

    def register(self, then: Callable[[Refused | None], None]) -> None:
        """Tell the cluster that this broker is here and where to reach it; `then` when the cluster knows."""
        self._ends_in_doubt = not self.log_directories.kept_their_ends
        if self._ends_in_doubt:
            log.warning("the machine was restarted without a clean stop: the logs may have lost their ends")
        self.metadata.start(self._registration, then)

    def _registered(self) -> None:
        """The cluster knows this life of the broker: it has the roles that the image gives it."""
        first, self._was_registered = not self._was_registered, True
        if first:
            # The cluster knows; later incarnations of this process have lost nothing more.
            self._ends_in_doubt = False
            self.log_directories.note_boot()
            self.log_directories.forget_unfinished_copies()
        self.replication.activate()
        if first:
            self.placements.start()
            self.log_moves.resume()
        self.placements.tell_losses()

    def _lapse(self, cause: str) -> None:
        """No progress for too long: give up the session and the roles, and have all connections closed."""
        self.metadata.lapse(cause)
        self.on_lapsed()

    def _fenced(self) -> None:
        """The session is over: whatever the image says, others may lead what this broker led."""
        self.produce_shapes.forget()
        self.image_version = -1
        self.replication.deactivate()

    def _registration(self) -> Registration:
        """What this broker tells of itself when it registers: as things are now."""
        directories = self.log_directories
        return Registration(
            self.endpoints,
            self.settings.rack,
            tuple(each.directory_id for each in directories.directories),
            len(directories.offline),
            self.placements.at_start(self.image),
            unclean_shutdown=self._ends_in_doubt,
            lost_directories=self.placements.given_up,
        )

    def hand_over(self, then: Callable[[], None]) -> None:
        """Before a clean stop: have the other brokers lead what this one leads, as far as they can."""
        others = [broker for broker in self.image.alive_brokers.values() if broker.id != self.node_id]
        epoch = self.metadata.broker_epoch
        if not others or epoch < 0 or not self.settings.get_bool("controlled.shutdown.enable"):
            then()
            return
        command = ShutDownBroker(self.node_id, epoch)
        self.metadata.submit(command, lambda results: then(), timeout_ms=HAND_OVER_MS_MAX)

    def leave_cluster(self) -> None:
        """End the session with the coordination store; blocks, may be called twice or before `open`."""
        if hasattr(self, "metadata"):
            self.metadata.stop()

    def stop_chores(self) -> None:
        """Begin no more work in the background, so that what is under way can be waited for."""
        self.jobs.stop()
        self.liveness.stop()
        self.replication.stop()
        self.placements.stop()
        self.housekeeping.stop()

    def close(self) -> None:
        """Make everything durable and leave the mark of a clean stop."""
        self.stop_chores()
        self.leave_cluster()
        self.log_directories.close(high_watermarks=self.high_watermarks(), threads=CLOSING_THREADS)

    # -- partitions

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker leads it."""
        return self.partitions.get((topic, index))

    def replica(self, topic: str, index: int) -> Partition | None:
        """The replica of a partition on this broker, in either role."""
        key = (topic, index)
        return self.partitions.get(key) or self.followed.get(key)

    def replicas(self) -> Iterator[Partition]:
        """All replicas on this broker."""
        return chain(self.partitions.values(), self.followed.values())

    def find_partition(self, topic: str | UUID, index: int) -> tuple[Partition | None, ErrorCode]:
        """The led partition by its topic's name or id, or the error that says why there is none."""
        if isinstance(topic, str):
            name: str | None = topic
        else:
            name = self.image.topic_names_by_id.get(topic)
            if name is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
        partition = self.partitions.get((name, index))  # type: ignore[arg-type]
        if partition is None:
            return None, self.absence(name, index)  # type: ignore[arg-type]
        return partition, ErrorCode.NONE

    def absence(self, topic: str, index: int) -> ErrorCode:
        """Why a partition is not led here: another broker should lead it, or it does not exist."""
        if (topic, index) in self.replication.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        state = self.image.partition(topic, index)
        elsewhere = state is not None and state.leader != self.node_id
        if elsewhere or (topic, index) in self.followed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @staticmethod
    def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode:
        """Compare the leader epoch a client believes in with ours (KIP-320); -1 asks for no check."""
        if epoch < 0 or epoch == partition.leader_epoch:
            return ErrorCode.NONE
        return (
            ErrorCode.FENCED_LEADER_EPOCH
            if epoch < partition.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )

    def advance_log_start(self, partition: Partition, offset: int) -> None:
        """Delete the records before an offset; whole segments leave the disk a little later."""
        files = partition.log.advance_log_start(offset)
        self.housekeeping.remove_later(files, partition.config.file_delete_delay_ms)
        self.housekeeping.checkpoint()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermark of every replica here."""
        return {TopicPartition(each.topic, each.index): each.high_watermark for each in self.replicas()}

    def note_progress(self, partition: Partition) -> None:
        """Have the partition's waiters woken at the end of this turn."""
        partition.progressing = True
        self.progressed.append(partition)

    def _end_turn(self) -> None:
        if self.progressed:
            self.wake_progressed()

    def wake_progressed(self) -> None:
        """Wake the waiters of every partition that moved on."""
        progressed, self.progressed = self.progressed, []
        for partition in progressed:
            partition.progressing = False
        for partition in progressed:
            self.parking.wake(partition)
            if partition.commits:
                self.settle_commits(partition)
        if self.replication.feeds.due:
            self.replication.feeds.answer_due()

    def settle_commits(self, partition: Partition) -> None:
        """Answer those whose records are committed now; all of them if the partition is led elsewhere."""
        while (waiter := partition.take_committed()) is not None:
            if waiter.lot is not None and waiter.ready(partition):
                self.parking.finish(waiter, expired=False)

    def _flushed(self, partition: Partition) -> None:
        self.parking.wake(partition)

    def _flush_failed(self, partition: Partition, fault: OSError) -> None:
        from tidelog.broker.handlers.produce import ProduceWaiter

        if partition.flush_fault is not None:
            self.log_directories.sync_failed(TopicPartition(partition.topic, partition.index))
            self.replication.sync_failed(partition)
        self.directory_failures.noticed(fault, partition)
        for waiter in [w for w in partition.waiters if isinstance(w, ProduceWaiter)]:
            waiter.flush_failed(partition)

    # -- following the image

    def _image_changed(self, old: ClusterImage, new: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        self.image_version = new.version
        self.produce_shapes.forget()
        if old.broker_configs != new.broker_configs:
            self._adopt_settings(new)
        if self.authorization is not None and old.acls is not new.acls:
            self.authorization.adopt(new)
        if old.client_quotas is not new.client_quotas:
            self._adopt_quotas(new)
        self.replication.image_changed(old, new)
        decides = self.metadata.is_controller
        sequence = self.metadata.sequence
        tell_of_image(self.metrics.events, self.node_id, old, new, sequence=sequence, decides=decides)
        if self.progressed:
            self.wake_progressed()

    def _adopt_quotas(self, image: ClusterImage) -> None:
        if self.quotas is not None and image.client_quotas:
            self.quotas.adopt(image)
        elif image.client_quotas:
            from tidelog.broker.quotas import Quotas

            self.quotas = Quotas(self, image)
        else:
            self.quotas = None

    def _adopt_settings(self, image: ClusterImage) -> None:
        cluster = image.broker_configs.get(CLUSTER_DEFAULTS, {})
        own = image.broker_configs.get(str(self.node_id), {})
        self.settings = self.static_settings.with_dynamic(cluster, own)
        self.fetch_bytes_max = self.settings.get_int("fetch.max.bytes")
        for topic in image.topics.values():
            self.replication.reconfigure_topic(topic)

    def open_unopened(self) -> None:
        """Try again to open the logs that could not be opened."""
        names, self.unopened_topics = self.unopened_topics, set()
        for name in names:
            topic = self.image.topics.get(name)
            if topic is not None:
                self.replication.place_topic(topic)

    def __repr__(self) -> str:
        return f"<Broker {self.node_id} partitions={len(self.partitions)} parked={self.parking.count}>"
