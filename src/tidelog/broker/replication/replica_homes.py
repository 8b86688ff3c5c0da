"""Whether the logs of the replicas here are where the cluster believes them, and have what they had.

A replica whose log directory is gone is offline (KIP-858): its log is not begun anew as long as the ISR
counts on it. When the others do without it, it begins in another directory, as a follower that has everything
to fetch.

A log may be there and lack what it had: it ends below the high watermark that was noted for it, or its folder
is gone from a directory that is there. The cluster is told with the registration (`Replicas.doubts`). Until
it knows, nothing is begun anew, the note stays, and the replica does not lead. A folder that was certainly
there, since the checkpoints speak of it, is a replica that is lost.

Nothing is opened here, and no role given: this answers `replication`, and tells `placements`.
"""

import logging

from tidelog.broker.maintenance.checkpoints import Checkpoints
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import OfflineReplica, Replicas
from tidelog.broker.replication.placements import Placements
from tidelog.model.identifiers import (
    MIGRATING_DIRECTORY,
    NO_EPOCH,
    RESERVED_DIRECTORIES,
    UNASSIGNED_DIRECTORY,
    TopicPartition,
)
from tidelog.model.image import PartitionImage
from tidelog.storage.log_directories import LogDirectories

log = logging.getLogger(__name__)


class ReplicaHomes:
    """Where the replicas of one broker are at home."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        log_directories: LogDirectories,
        placements: Placements,
        checkpoints: Checkpoints,
    ) -> None:
        self._metadata = metadata
        self._node_id = metadata.node_id
        self._replicas = replicas
        self._log_directories = log_directories
        self._placements = placements
        self._checkpoints = checkpoints

    def __repr__(self) -> str:
        return f"<ReplicaHomes offline={len(self._replicas.offline)} doubts={len(self._replicas.doubts)}>"

    def take_back_high_watermarks(self) -> None:
        """Write the watermarks down if a log has lost what one of them covered, before anything is appended.

        Other records may take that place, and the next start would take them for committed. The note that
        raises a doubt stays until the cluster knows of it. A full disk must not keep the broker from
        starting: the next checkpoint tries again.
        """
        directories = self._log_directories
        directories.kept = {
            *self._replicas.doubts,
            *(place for place, each in self._replicas.offline.items() if each.lost),
        }
        places = ((each.place, each) for each in self._replicas.replicated())
        if all(
            place in self._replicas.doubts or directories.high_watermark(place) <= each.high_watermark
            for place, each in places
        ):
            return
        try:
            self._checkpoints.write_high_watermarks_now()
        except OSError as error:
            log.warning("the high watermarks could not be written: %s", error)

    def tell_of_offline(self) -> None:
        """Say in the log which replicas are offline."""
        for place, replica in self._replicas.offline.items():
            log.error("%s is offline: its log directory %s is not here", place, replica.directory_id)

    def left(self, place: TopicPartition) -> None:
        """There is no such replica here any more."""
        self._replicas.offline.pop(place, None)
        self._replicas.doubts.pop(place, None)

    def failed(self, place: TopicPartition, directory_id: str, announced: str | None) -> None:
        """The log directory of a replica has failed. `announced` is the directory to which it was about to
        move, as the cluster was told: the log never came there."""
        state = self._metadata.image.partition(*place)
        here = state is not None and self._node_id in state.replicas
        believed = state.directory_of(self._node_id) if state is not None and here else directory_id
        lost = announced is not None or believed != directory_id
        leader_epoch = NO_EPOCH if state is None else state.leader_epoch
        self._replicas.offline[place] = OfflineReplica(
            directory_id, lost, announced, leader_epoch, directory_id
        )
        self._replicas.doubts.pop(place, None)

    def may_open(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether the log of a replica is here, or may begin here: not as long as the ISR or the ELR counts
        on one in a directory that is gone, nor while one of this broker's directories is offline."""
        believed = state.directory_of(self._node_id)
        home = self._log_directories.home_of(place, believed)
        known = self._replicas.offline.get(place)
        announced, failed = (None, None) if known is None else (known.announced, known.failed_directory)
        # The cluster learned of a move that the failure of a directory came before, or, late, of an older
        # place of a log that has failed with its directory: nothing is there. If this broker was elected
        # uncleanly since, the cluster knows that, and the log begins anew.
        given_up = (
            known is not None
            and state.leader == self._node_id
            and state.unclean_leader_epoch > known.leader_epoch
        )
        has_failed = failed not in (None, believed) and state.counts_on(self._node_id)
        never_moved = home.directory is None and (believed == announced or has_failed) and not given_up
        offline = home.offline or never_moved or (home.directory is None and self._may_be_missing(believed))
        if home.directory is None and not offline:
            if self._is_lost(place, state):
                self._replicas.offline[place] = OfflineReplica(
                    believed, True, announced, state.leader_epoch, failed
                )
                return False
            if self._begins_in_doubt(place, state):
                return False
        may_begin_anew = not self._metadata.fenced and not home.lost and not state.counts_on(self._node_id)
        if not offline or (may_begin_anew and not self._log_directories.offline):
            self._replicas.offline.pop(place, None)
            return True
        lost = home.lost or never_moved or (known is not None and known.lost and believed != known.placement)
        found = OfflineReplica(believed, lost, announced, state.leader_epoch, failed)
        self._replicas.offline[place] = found
        if never_moved:
            self._placements.expect(place, found.placement, lambda: None)
        return False

    def _is_lost(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether a log that the partition counts on is gone, and was certainly there."""
        if not self._metadata.fenced:
            # The cluster knows soon, or has decided otherwise since.
            known = self._replicas.offline.get(place)
            return known is not None and known.lost and state.unclean_leader_epoch <= known.leader_epoch
        if not state.counts_on(self._node_id):
            return False
        believed = state.directory_of(self._node_id)
        own = self._metadata.image.brokers.get(self._node_id)
        if own is not None and MIGRATING_DIRECTORY in own.directories and believed in RESERVED_DIRECTORIES:
            # An older version told neither of all directories nor of the replicas in them.
            return True
        return self._log_directories.is_noted(place, believed)

    def _begins_in_doubt(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether a log may have been there that is to begin now, as far as the cluster knows.

        After an unclean shutdown all logs are in doubt, and the cluster hears of that.
        """
        doubtful = self._metadata.fenced and self._log_directories.kept_their_ends
        if doubtful and len(state.replicas) > 1 and state.counts_on(self._node_id):
            if place not in self._replicas.doubts:
                log.error("%s is counted on, and has no folder: it is in doubt", place)
            self._replicas.doubts[place] = state.leader_epoch
        return self.in_doubt(place, state)

    def in_doubt(self, place: TopicPartition, state: PartitionImage) -> bool:
        """Whether the cluster still counts on a log that may lack records it had."""
        leader_epoch = self._replicas.doubts.get(place)
        if leader_epoch is None:
            return False
        node_id = self._node_id
        counted = node_id in state.isr or node_id in state.elr
        if not self._metadata.fenced and (not counted or state.unclean_leader_epoch > leader_epoch):
            del self._replicas.doubts[place]
            return False
        return True

    def look_for_loss(self, place: TopicPartition, partition: Partition, state: PartitionImage) -> None:
        """A log that ends below its noted high watermark has lost committed records."""
        node_id = self._node_id
        high_watermark = self._log_directories.high_watermark(place)
        end_offset = partition.log.log_end_offset
        counted = node_id in state.isr or node_id in state.elr
        if high_watermark > end_offset and counted and len(state.replicas) > 1:
            log.error(
                "%s has lost committed records: it ends at %d, its high watermark was %d; it is in doubt",
                partition,
                end_offset,
                high_watermark,
            )
            self._replicas.doubts[place] = state.leader_epoch

    def _may_be_missing(self, believed: str) -> bool:
        """Before the registration: whether a replica of no known directory may be in one that is gone."""
        if not self._metadata.fenced or believed not in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return False
        own = self._metadata.image.brokers.get(self._node_id)
        known = () if own is None else own.directories
        directories = self._log_directories
        return any(
            each not in RESERVED_DIRECTORIES and directories.directory_by_id(each) is None for each in known
        )
