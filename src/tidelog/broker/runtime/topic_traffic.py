"""Bytes and messages in and out, by topic, from what the partitions count anyway.

A partition counts the bytes it appends and its end offset moves; nothing more is counted on the busy path
than what it sends. Here the differences are added up: before a replica changes its role or goes, and when
somebody asks. What a leader appended came from producers (or the broker itself), what a follower appended
came from its leader.

Messages out are the offsets that answers to consumers passed over; gaps that compaction left count with
them.
"""

from typing import NamedTuple, Protocol

from tidelog.storage.partition_log import PartitionLog


class CountedReplica(Protocol):
    """A replica that counts what goes through it."""

    @property
    def topic(self) -> str: ...
    @property
    def leads(self) -> bool: ...
    @property
    def log(self) -> PartitionLog: ...
    @property
    def appended_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def sent_messages(self) -> int: ...


class _Seen(NamedTuple):
    """What a replica had counted when it was last looked at."""

    appended_bytes: int
    log_end_offset: int
    sent_bytes: int
    sent_messages: int
    active_base_offset: int


class TopicCounts:
    """The totals of one topic on this broker."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out", "rolls")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.messages_in = 0
        self.bytes_out = 0
        self.messages_out = 0
        self.rolls = 0


class TopicTraffic:
    """The totals of all topics with replicas here."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self._seen: dict[CountedReplica, _Seen] = {}

    def opened(self, partition: CountedReplica) -> None:
        """A replica is here; what its log holds already was counted by an earlier life."""
        self._seen[partition] = _look(partition)
        self.topics.setdefault(partition.topic, TopicCounts())

    def settle(self, partition: CountedReplica) -> int:
        """Add up what happened since the last look, in the role the replica has; how often it rolled."""
        before, now = self._seen.get(partition), _look(partition)
        self._seen[partition] = now
        if before is None or before == now:
            return 0
        counts = self.topics.setdefault(partition.topic, TopicCounts())
        appended_bytes = now.appended_bytes - before.appended_bytes
        if partition.leads:
            counts.bytes_in += appended_bytes
            counts.messages_in += max(0, now.log_end_offset - before.log_end_offset)
        else:
            self.replication_bytes_in += appended_bytes
        counts.bytes_out += now.sent_bytes - before.sent_bytes
        counts.messages_out += now.sent_messages - before.sent_messages
        if now.active_base_offset <= before.active_base_offset:
            return 0
        rolled = sum(each.base_offset > before.active_base_offset for each in partition.log.segments)
        counts.rolls += rolled
        return rolled

    def removed(self, partition: CountedReplica) -> None:
        """The replica is given up."""
        self.settle(partition)
        del self._seen[partition]

    def forget_topic(self, topic: str) -> None:
        """The topic is deleted; one that comes back begins anew."""
        self.topics.pop(topic, None)

    def __repr__(self) -> str:
        return f"<TopicTraffic topics={len(self.topics)} replicas={len(self._seen)}>"


def _look(partition: CountedReplica) -> _Seen:
    log = partition.log
    return _Seen(
        partition.appended_bytes,
        log.log_end_offset,
        partition.sent_bytes,
        partition.sent_messages,
        log.active.base_offset,
    )
