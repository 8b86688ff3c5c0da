"""The replicas on this broker: those that lead their partition, that follow, and that are offline.

What puts replicas here and gives them their roles is in `replication`; everybody else looks them up.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import LOST_DIRECTORY, NO_EPOCH, TopicPartition


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


class Replicas:
    """All replicas of one broker, by topic and index."""

    __slots__ = ("_metadata", "_node_id", "doubts", "followed", "led", "offline")

    def __init__(self, node_id: int, metadata: Metadata) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self.led: dict[tuple[str, int], Partition] = {}
        self.followed: dict[tuple[str, int], Partition] = {}
        #: replicas that cannot be opened because their log directory is not here
        self.offline: dict[TopicPartition, OfflineReplica] = {}
        #: replicas that may lack records they had, until the cluster knows; the leader epoch at that time
        self.doubts: dict[TopicPartition, int] = {}

    def __iter__(self) -> Iterator[Partition]:
        """All that are open, in either role."""
        return chain(self.led.values(), self.followed.values())

    def leader(self, topic: str, index: int) -> Partition | None:
        """The partition if this broker leads it."""
        return self.led.get((topic, index))

    def replica(self, topic: str, index: int) -> Partition | None:
        """The replica of a partition on this broker, in either role."""
        key = (topic, index)
        return self.led.get(key) or self.followed.get(key)

    def find(self, topic: str | UUID, index: int) -> tuple[Partition | None, ErrorCode]:
        """The led partition by its topic's name or id, or the error that says why there is none."""
        if isinstance(topic, str):
            name: str | None = topic
        else:
            name = self._metadata.image.topic_names_by_id.get(topic)
            if name is None:
                return None, ErrorCode.UNKNOWN_TOPIC_ID
        partition = self.led.get((name, index))  # type: ignore[arg-type]
        if partition is None:
            return None, self.absence(name, index)  # type: ignore[arg-type]
        return partition, ErrorCode.NONE

    def absence(self, topic: str, index: int) -> ErrorCode:
        """Why a partition is not led here: another broker should lead it, or it does not exist."""
        if (topic, index) in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        state = self._metadata.image.partition(topic, index)
        elsewhere = state is not None and state.leader != self._node_id
        if elsewhere or (topic, index) in self.followed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def find_in_epoch(
        self, topic: str | UUID, index: int, leader_epoch: int
    ) -> tuple[Partition | None, ErrorCode]:
        """The led partition, if it is led in the epoch that a client believes in; or the error.

        Who knows another epoch says so before it says that it does not lead, as in Kafka.
        """
        partition, error = self.find(topic, index)
        replica = partition
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            name = topic if isinstance(topic, str) else self._metadata.image.topic_names_by_id[topic]
            replica = self.followed.get((name, index))
        if replica is not None and (fault := check_leader_epoch(replica, leader_epoch)):
            return None, fault
        return partition, error

    def replicated(self) -> Iterator[Partition]:
        """Those that are open and whose partition may have other replicas."""
        yield from (partition for partition in self.led.values() if partition.replicas is not None)
        yield from self.followed.values()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermark of every replica here."""
        return {each.place: each.high_watermark for each in self}

    def __repr__(self) -> str:
        return f"<Replicas led={len(self.led)} followed={len(self.followed)} offline={len(self.offline)}>"


def check_leader_epoch(partition: Partition, epoch: int) -> ErrorCode:
    """Compare the leader epoch a client believes in with ours (KIP-320); -1 asks for no check."""
    if epoch < 0 or epoch == partition.leader_epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
