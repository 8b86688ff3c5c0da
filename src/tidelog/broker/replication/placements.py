"""Tells the controller in which log directory each replica of this broker is (KIP-858).

The image says where the cluster believes a replica to be; this module compares, and sends what differs until
the image agrees. While a replica moves to another directory the word is given before the copy takes the log's
place (`expect`), so that the directory the cluster knows of never lacks the newest records for long; it holds
until the log is there (`arrived`). The rest of that story is in `log_moves`.

What was found before the registration (`at_start`) goes with it: nobody is elected on old beliefs. So does
the doubt about a log that lacks records it had; one that comes up later is told in the same way.

What is told here others find out (`replica_homes`, `log_moves`, `replication`); nothing is asked of them.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.controller_reports import ControllerReports, Message
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import AssignReplicas, ReplicaPlacement, Result
from tidelog.model.errors import Refused
from tidelog.model.identifiers import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    RESERVED_DIRECTORIES,
    UNASSIGNED_DIRECTORY,
    TopicPartition,
)
from tidelog.model.image import ClusterImage, PartitionImage
from tidelog.storage.log_directories import LogDirectories

log = logging.getLogger(__name__)

RETRY_MS = 500
#: in a registration only when a directory is missing: then the worst is believed of replicas like these
_UNKNOWN = frozenset({UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY})


def replica_counts(image: ClusterImage, node_id: int) -> dict[str, int]:
    """The directories in which the cluster believes replicas of a broker, and how many.

    Where an older version did not tell, the directories that the broker had count: the first one, and
    MIGRATING for any others it may have had.
    """
    counts: Counter[str] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            if node_id in partition.replicas:
                counts[partition.directory_of(node_id)] += 1
    unknown = sum(counts.pop(reserved, 0) for reserved in RESERVED_DIRECTORIES)
    own = image.brokers.get(node_id)
    if unknown and own is not None:
        known = (each for each in own.directories if each not in (UNASSIGNED_DIRECTORY, LOST_DIRECTORY))
        counts.update(dict.fromkeys(known, unknown))
    return dict(counts)


class _Expected(NamedTuple):
    """What the cluster shall believe of a replica."""

    directory: str
    #: called when it does
    then: Callable[[], None]
    #: whether the replica is somewhere else, and comes there when the cluster knows
    arrives: bool


class Placements:
    """What one broker tells of its replicas."""

    def __init__(
        self, metadata: Metadata, replicas: Replicas, log_directories: LogDirectories, timers: Timers
    ) -> None:
        self._metadata = metadata
        self._node_id = metadata.node_id
        self._replicas = replicas
        self._log_directories = log_directories
        self._reports = ControllerReports(metadata, timers, "placements", RETRY_MS, self._message)
        #: replicas on their way: the directory that shall be known before they arrive, and who waits for that
        self._expected: dict[TopicPartition, _Expected] = {}
        #: replicas that are not there yet, and the directory in which the cluster knows them already
        self._arriving: dict[TopicPartition, str] = {}
        #: replicas whose doubts were told, and the partition epoch of that time
        self._doubts_told: dict[TopicPartition, int] = {}
        self._active = False

    def __repr__(self) -> str:
        return f"<Placements due={len(self._reports.due)} expected={len(self._expected)}>"

    def at_start(self, image: ClusterImage) -> tuple[ReplicaPlacement, ...]:
        """Where replicas are that the cluster believes elsewhere, for the registration."""
        node_id = self._node_id
        own = image.brokers.get(node_id)
        online = {each.directory_id for each in self._log_directories.directories}
        missing = own is not None and not online.issuperset(own.directories)
        found: list[ReplicaPlacement] = []
        for partition in self._replicas:
            state = image.partition(partition.topic, partition.index)
            if state is None or node_id not in state.replicas:
                continue
            place = partition.place
            directory = self._directory(place)
            believed = state.directory_of(node_id)
            doubtful = place in self._replicas.doubts
            if doubtful or (directory != believed and (missing or believed not in _UNKNOWN)):
                found.append(ReplicaPlacement(partition.topic_id, partition.index, directory, doubtful))
        for place in self._replicas.doubts:
            topic, state = image.topics.get(place.topic), image.partition(*place)
            if topic is None or state is None or place in self._log_directories.logs:
                continue
            if node_id in state.replicas:
                believed = state.directory_of(node_id)
                found.append(ReplicaPlacement(topic.topic_id, place.partition, believed, doubtful=True))
        for place, offline in self._replicas.offline.items():
            topic = image.topics.get(place.topic)
            if offline.lost and topic is not None:
                found.append(ReplicaPlacement(topic.topic_id, place.partition, offline.placement))
        return tuple(found)

    def start(self) -> None:
        """The broker is registered: say what is not known yet."""
        self._active = True
        for partition in self._replicas:
            self.consider(partition.place)

    def tell_losses(self) -> None:
        """The broker is registered: tell of losses that the registration came too early for."""
        for place, offline in self._replicas.offline.items():
            state = self._metadata.image.partition(*place)
            if offline.lost and state is not None and place not in self._expected:
                self.expect(place, offline.placement, lambda: None)
        for place in self._replicas.doubts:
            self.consider(place)

    def stop(self) -> None:
        self._reports.stop()

    def consider(self, place: TopicPartition, state: PartitionImage | None = None) -> None:
        """A replica was opened or moved, or its record has changed: tell where it is, if need be."""
        if not self._active:
            return
        state = state or self._metadata.image.partition(*place)
        if state is None or self._node_id not in state.replicas:
            return
        wanted = self._wanted(place)
        doubted = self._is_doubt_due(place, state)
        if wanted is None and not doubted:
            return
        if doubted or state.directory_of(self._node_id) != wanted:
            self._reports.add(place)
        elif place in self._expected:
            self._tell(place)

    def expect(
        self, place: TopicPartition, directory: str, then: Callable[[], None], *, arrives: bool = False
    ) -> None:
        """Have the cluster believe a replica in this directory, then call back; later, never at once.

        With `arrives` it goes there then, and nothing else is told until it has (`arrived`), or will not.
        """
        self._arriving.pop(place, None)
        self._expected[place] = _Expected(directory, then, arrives)
        self._reports.add(place)

    def arrived(self, place: TopicPartition) -> None:
        """The replica is in the directory that the cluster knows of."""
        self._arriving.pop(place, None)
        self.consider(place)

    def forget(self, place: TopicPartition) -> None:
        """The replica stays where it is, or is gone: nobody waits any more."""
        self._expected.pop(place, None)
        self.arrived(place)

    def _directory(self, place: TopicPartition) -> str:
        return self._log_directories.directory_of(place).directory_id

    def _wanted(self, place: TopicPartition) -> str | None:
        expected = self._expected.get(place)
        if expected is not None:
            return expected.directory
        if place in self._arriving:
            return self._arriving[place]
        return self._directory(place) if place in self._log_directories.logs else None

    def _is_doubt_due(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether the cluster counts on a log that is in doubt, and has not been told of it in this state.

        One that is in doubt since a sync of it failed is as good as any if no other is in sync.
        """
        node_id = self._node_id
        if self._doubts_told.get(place) == state.partition_epoch:
            return False
        if place in self._replicas.doubts:
            return node_id in state.isr or node_id in state.elr
        partition = self._replicas.replica(*place)
        failed = partition is not None and partition.flush_fault is not None
        return failed and node_id in state.isr and len(state.isr) > 1

    def _tell(self, place: TopicPartition) -> None:
        expected = self._expected.pop(place)
        if expected.arrives:
            self._arriving[place] = expected.directory
        expected.then()

    def _message(self, places: Sequence[TopicPartition], epoch: int) -> Message | None:
        node_id, image = self._node_id, self._metadata.image
        asked: list[TopicPartition] = []
        placements: list[ReplicaPlacement] = []
        for place in places:
            topic = image.topics.get(place.topic)
            state = image.partition(*place)
            directory = self._wanted(place)
            if topic is None or state is None or node_id not in state.replicas:
                self._doubts_told.pop(place, None)
                continue
            if self._is_doubt_due(place, state):
                self._doubts_told[place] = state.partition_epoch
                believed = state.directory_of(node_id)
                asked.append(place)
                placements.append(ReplicaPlacement(topic.topic_id, place.partition, believed, doubtful=True))
                continue
            if directory is None:
                continue
            if state.directory_of(node_id) == directory:
                if place in self._expected:
                    self._tell(place)
                continue
            asked.append(place)
            placements.append(ReplicaPlacement(topic.topic_id, place.partition, directory))
        if not placements:
            return None
        return Message(AssignReplicas(node_id, epoch, tuple(placements)), partial(self._heard, asked))

    def _heard(self, asked: Sequence[TopicPartition], results: Sequence[Result]) -> bool:
        refused = False
        for place, result in zip(asked, results, strict=True):
            if isinstance(result, Refused):
                log.info("the directory of %s was not noted: %s", place, result.message)
                self._doubts_told.pop(place, None)
                refused = True
            # Looked at again in any case: it may be elsewhere by now. Who waits is called when it is known.
            self._reports.add(place)
        return refused
