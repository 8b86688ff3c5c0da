"""One node without sockets: settings, metadata, partitions, and the parts that serve them.

The broker follows the cluster image: a topic that appears gets its logs opened, one that goes gets them
deleted, a setting that changes is obeyed from then on. Everything runs on one event loop; `background` runs
what would block it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

from tidelog.broker.background import Background
from tidelog.broker.dispatch import Request
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.flusher import Flusher
from tidelog.broker.group_coordinator import GroupCoordinator
from tidelog.broker.housekeeping import Housekeeping
from tidelog.broker.metadata import Metadata, Registration
from tidelog.broker.parking import Parking
from tidelog.broker.partition import Partition
from tidelog.broker.peers import NoPeers, Peers
from tidelog.broker.producer_ids import ProducerIds
from tidelog.broker.store_session import OpenStore
from tidelog.broker.timers import Timers
from tidelog.broker.transaction_coordinator import (
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
    TransactionCoordinator,
)
from tidelog.controller.commands import ShutDownBroker
from tidelog.coordination.embedded import EmbeddedStore
from tidelog.coordination.store import CoordinationStore
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tidelog.model.image import ClusterImage, TopicImage
from tidelog.model.metadata import Endpoint, MetadataRecord
from tidelog.model.ports import Clock
from tidelog.model.settings import BrokerSettings
from tidelog.protocol.api_versions import Feature
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.partition_metadata import read_topic_id

__all__ = ["Broker", "Request"]

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.sqlite"
#: the broker-level settings every broker shares are kept under this name
CLUSTER_DEFAULTS = ""
#: how long a clean stop waits for other brokers to take over
HAND_OVER_MS_MAX = 5_000
#: logs closed at the same time at a clean stop; the disk syncs several as fast as one
CLOSING_THREADS = 8


class Broker:
    """A broker: everything but the sockets."""

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
    ) -> None:
        self.static_settings = settings
        self.settings = settings
        self.clock = clock
        self.random = random
        self.background = background
        self.node_id = settings.node_id
        self.endpoints = endpoints
        self.features: dict[str, Feature] = {TRANSACTION_VERSION: TRANSACTION_VERSION_FEATURE}
        self.timers = Timers(clock)
        self.peers: Peers = peers or NoPeers(lambda call: self.timers.set(object(), clock.now_ms(), call))
        self.parking = Parking(self.timers, settings.get_int("tidelog.parked.requests.max"))
        self.fetch_sessions = FetchSessions(
            settings.get_int("max.incremental.fetch.session.cache.slots"), random
        )
        self.fetch_bytes_max = settings.get_int("fetch.max.bytes")
        self.disk = disk
        self.log_directories: LogDirectories
        self._open_store = open_store or (self._open_embedded if store is None else lambda: store)
        self.metadata: Metadata
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.progressed: list[Partition] = []
        #: topics with a log that the disk would not let us open
        self.unopened_topics: set[str] = set()
        #: the version of the image, at hand for every request
        self.image_version = -1
        #: the time at which the requests of this turn of the loop arrived
        self.turn_ms = clock.now_ms()
        self.flusher = Flusher(background, self._flushed, self._flush_failed)
        self.housekeeping: Housekeeping
        self.producer_ids: ProducerIds
        self.groups: GroupCoordinator
        self.transactions: TransactionCoordinator

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
        self.metadata = Metadata(
            self._open_store,
            self.static_settings,
            self.background,
            self.random,
            self.timers,
            self.peers,
            self.node_id,
        )
        image = self.metadata.load()
        self.log_directories = LogDirectories.open(
            self.disk, self.settings.log_dirs, cluster_id=image.cluster_id, node_id=self.node_id
        )
        self.producer_ids = ProducerIds(self.metadata, self.node_id)
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self._adopt_settings(image)
        self._set_strays_aside(image)
        for topic in image.topics.values():
            self._open_topic(topic)
        self.log_directories.take_back_recovery_points()
        self.metadata.listen(self._image_changed)
        self.image_version = image.version
        self.housekeeping = Housekeeping(self)
        self.housekeeping.start()

    def _open_embedded(self) -> CoordinationStore:
        first_directory = Path(self.settings.log_dirs[0])
        first_directory.mkdir(parents=True, exist_ok=True)
        return EmbeddedStore(first_directory / METADATA_FILE)

    def _set_strays_aside(self, image: ClusterImage) -> None:
        """Take logs out of the way that belong to no topic, or to a deleted one of the same name.

        A topic is deleted in the metadata first; a crash right after that leaves its folders behind.
        """
        for stored in self.log_directories.stored_partitions():
            name, index = stored.topic_partition
            topic = image.topics.get(name)
            noted_id = read_topic_id(self.disk, stored.path)
            if topic is not None and index < len(topic.partitions) and noted_id in (None, topic.topic_id):
                continue
            aside = self.log_directories.set_aside(stored, UUID(int=self.random.getrandbits(128), version=4))
            log.warning("%s belongs to no topic of this cluster and was set aside as %s", stored.path, aside)

    def register(self, then: Callable[[Refused | None], None]) -> None:
        """Tell the cluster that this broker is here and where to reach it; `then` when the cluster knows."""
        directories = self.log_directories.directories
        disk_id = directories[0].directory_id if directories else ""
        self.metadata.start(Registration(self.endpoints, self.settings.rack, disk_id), then)

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

    def find_partition(self, topic: str | UUID, index: int) -> tuple[Partition | None, ErrorCode]:
        """The partition by its topic's name or id, or the error that says why there is none."""
        if isinstance(topic, str):
            name: str | None = topic
        else:
            name = self.image.topic_names_by_id.get(topic)
            if name is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
        partition = self.partitions.get((name, index))  # type: ignore[arg-type]
        if partition is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return partition, ErrorCode.NONE

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
        """The high watermark of every partition led here."""
        return {TopicPartition(*key): partition.high_watermark for key, partition in self.partitions.items()}

    def note_progress(self, partition: Partition) -> None:
        """Have the partition's waiters woken at the end of this turn."""
        partition.progressing = True
        self.progressed.append(partition)

    def wake_progressed(self) -> None:
        """Wake the waiters of every partition that moved on."""
        progressed, self.progressed = self.progressed, []
        for partition in progressed:
            partition.progressing = False
        for partition in progressed:
            self.parking.wake(partition)

    def _flushed(self, partition: Partition) -> None:
        self.parking.wake(partition)

    def _flush_failed(self, partition: Partition, fault: OSError) -> None:
        from tidelog.broker.handlers.produce import FlushWaiter

        for waiter in [w for w in partition.waiters if isinstance(w, FlushWaiter)]:
            waiter.fail()

    # -- following the image

    def _image_changed(self, old: ClusterImage, new: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        self.image_version = new.version
        if old.broker_configs != new.broker_configs:
            self._adopt_settings(new)
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic:
                continue
            if before is not None and before.topic_id != topic.topic_id:
                self._delete_topic(before)
            if before is None or len(before.partitions) != len(topic.partitions):
                self._open_topic(topic)
            if before is not None and before.configs != topic.configs:
                self._reconfigure_topic(topic)
        for name, before in old.topics.items():
            if name not in new.topics:
                self._delete_topic(before)

    def _adopt_settings(self, image: ClusterImage) -> None:
        cluster = image.broker_configs.get(CLUSTER_DEFAULTS, {})
        own = image.broker_configs.get(str(self.node_id), {})
        self.settings = self.static_settings.with_dynamic(cluster, own)
        self.fetch_bytes_max = self.settings.get_int("fetch.max.bytes")
        for topic in image.topics.values():
            self._reconfigure_topic(topic)

    def _open_topic(self, topic: TopicImage) -> None:
        """Open the logs of a topic's partitions that this broker leads and that are not open yet."""
        config = self.settings.log_config(topic.configs)
        walk_always = self.settings.get_str("tidelog.validate.records") == "always"
        for index, state in enumerate(topic.partitions):
            key = (topic.name, index)
            if key in self.partitions or state.leader != self.node_id:
                continue
            try:
                partition_log = self.log_directories.open_log(
                    TopicPartition(topic.name, index),
                    config,
                    now_ms=self.clock.now_ms(),
                    topic_id=topic.topic_id,
                    producer_id_expiration_ms=self.settings.get_int("producer.id.expiration.ms"),
                )
            except OSError as fault:
                # Clients are told that there is no such partition here, and retry; so does housekeeping.
                log.error("the log of %s-%d could not be opened: %s", *key, fault)
                self.unopened_topics.add(topic.name)
                continue
            partition = Partition(
                topic.name,
                topic.topic_id,
                index,
                partition_log,
                state.leader_epoch,
                walk_always=walk_always,
                decompressed_bytes_max=self.settings.get_int("tidelog.decompressed.bytes.max"),
            )
            self.partitions[key] = partition
            if topic.name == GROUP_METADATA_TOPIC:
                self.groups.load(index)
            elif topic.name == TRANSACTION_STATE_TOPIC:
                self.transactions.load(index)

    def open_unopened(self) -> None:
        """Try again to open the logs that could not be opened."""
        names, self.unopened_topics = self.unopened_topics, set()
        for name in names:
            topic = self.image.topics.get(name)
            if topic is not None:
                self._open_topic(topic)

    def _reconfigure_topic(self, topic: TopicImage) -> None:
        config = self.settings.log_config(topic.configs)
        for index in range(len(topic.partitions)):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and partition.config != config:
                partition.reconfigure(config)

    def _delete_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            partition = self.partitions.pop((topic.name, index), None)
            if partition is None:
                continue
            if topic.name == GROUP_METADATA_TOPIC:
                self.groups.unload(index)
            elif topic.name == TRANSACTION_STATE_TOPIC:
                self.transactions.unload(index)
            for waiter in list(partition.waiters):
                self.parking.finish(waiter, expired=True)
            self.housekeeping.delete_log(partition)
        self.groups.topic_deleted(topic.name)

    def __repr__(self) -> str:
        return f"<Broker {self.node_id} partitions={len(self.partitions)} parked={self.parking.count}>"
