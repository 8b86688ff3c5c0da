"""What happens to log directories at start: they are opened, and rid of logs that belong to no replica here.

A directory that belongs to another broker, and data whose cluster is not here, are refused before anything is
written.
"""

import logging
from random import Random

from tidelog.broker.replication.placements import replica_counts
from tidelog.coordination import opening
from tidelog.model.identifiers import RESERVED_DIRECTORIES, TopicPartition, random_uuid
from tidelog.model.image import ClusterImage
from tidelog.model.settings import BrokerSettings
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories, StoredPartition
from tidelog.storage.log_directory import LogDirectoryUnusable, stored_cluster_id
from tidelog.storage.partition_metadata import read_topic_id

log = logging.getLogger(__name__)


def refuse_lost_metadata(disk: Disk, settings: BrokerSettings) -> None:
    """Begin no new cluster beside data of one: its metadata is in a directory that is away, or lost."""
    if settings.get("zookeeper.connect"):
        return
    path = opening.embedded_path(settings)
    cluster_id = None if path.exists() else stored_cluster_id(disk, settings.log_dirs)
    if cluster_id is not None:
        raise LogDirectoryUnusable(
            f"{path}, the metadata of cluster {cluster_id}, is not there, but data of that cluster is in "
            f"{', '.join(settings.log_dirs)}: mount the directory that is missing, or restore the file"
        )


def open_directories(
    disk: Disk, settings: BrokerSettings, image: ClusterImage, node_id: int
) -> LogDirectories:
    """Lock and check the log directories; those that cannot be used are offline."""
    directories = LogDirectories.open(
        disk,
        settings.log_dirs,
        cluster_id=image.cluster_id,
        node_id=node_id,
        replica_counts=replica_counts(image, node_id),
        lost=settings.get_list("tidelog.lost.directories"),
    )
    for offline in directories.offline:
        log.error("log.dirs: %s is offline: %s", offline.path, offline.reason)
    return directories


def set_strays_aside(
    log_directories: LogDirectories, disk: Disk, image: ClusterImage, node_id: int, random: Random
) -> None:
    """Take logs out of the way that belong to no topic, or to a deleted one of the same name.

    A topic is deleted in the metadata first; a crash right after that leaves its folders behind. Where a
    power cut took the note of the topic's id, a replica that is not in sync begins anew: its log might be
    that of a deleted topic of the name, and whatever counts is with the others. One in sync keeps it: a
    new topic has no members in sync that were away when it was made.
    """

    def believed(place: TopicPartition) -> str | None:
        state = image.partition(*place)
        if state is None or node_id not in state.replicas:
            return None
        directory_id = state.directory_of(node_id)
        known = directory_id not in RESERVED_DIRECTORIES or state.counts_on(node_id)
        return directory_id if known else None

    strays: list[StoredPartition] = []
    for stored in log_directories.stored_partitions(believed):
        name, index = stored.topic_partition
        topic = image.topics.get(name)
        noted_id = read_topic_id(disk, stored.path)
        state = image.partition(name, index)
        if topic is not None and state is not None and node_id in state.replicas:
            nameless = noted_id is None and not stored.directory.clean_shutdown
            counts = node_id in (*state.isr, *state.elr, *state.last_known_elr)
            if noted_id in (None, topic.topic_id) and not (nameless and not counts):
                continue
        strays.append(stored)
    log_directories.forget_logs([stored.topic_partition for stored in strays])
    for stored in strays:
        aside = log_directories.set_aside(stored, random_uuid(random))
        log.warning("%s is no replica of this broker and was set aside as %s", stored.path, aside)
