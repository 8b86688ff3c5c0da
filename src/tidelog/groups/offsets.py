"""Committed offsets of every group of one coordinator partition, and those a transaction still holds back.

Only `apply` and `end_transaction` change it, in the order of the log; loading is the same calls. A
transaction's offsets wait under its producer id until its marker; where a plain commit came later in the
log, it wins.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.groups.schemas import OffsetCommitKey, OffsetCommitValue
from tidelog.model.identifiers import NO_PRODUCER_ID


class CommittedOffset(NamedTuple):
    value: OffsetCommitValue
    record_offset: int
    """Where in `__consumer_offsets` it was written: decides between plain and transactional commits."""


_ByTopic = dict[str, dict[int, CommittedOffset]]


class Offsets:
    """Offsets by group, topic and partition."""

    __slots__ = ("_by_group", "_open_transactions", "_pending")

    def __init__(self) -> None:
        self._by_group: dict[str, _ByTopic] = {}
        self._pending: dict[int, dict[str, _ByTopic]] = {}
        self._open_transactions: dict[str, dict[int, None]] = {}

    # ------------------------------------------------------------ reading

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        by_partition = self._by_group.get(group_id, {}).get(topic)
        committed = by_partition.get(partition) if by_partition is not None else None
        return committed.value if committed is not None else None

    def of_group(self, group_id: str) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        for topic, by_partition in self._by_group.get(group_id, {}).items():
            for partition, committed in by_partition.items():
                yield topic, partition, committed.value

    def known_groups(self) -> list[str]:
        return [*self._by_group, *self._open_transactions]

    def has_any(self, group_id: str) -> bool:
        return group_id in self._by_group or group_id in self._open_transactions

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open_transactions

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Does an open transaction hold an offset of this partition back (KIP-447)?"""
        return any(
            partition in self._pending[producer_id].get(group_id, {}).get(topic, ())
            for producer_id in self._open_transactions.get(group_id, ())
        )

    def pending_of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        for producer_id in self._open_transactions.get(group_id, ()):
            for topic, by_partition in self._pending[producer_id].get(group_id, {}).items():
                for partition in by_partition:
                    yield topic, partition

    def as_dict(self) -> dict[tuple[str, str, int], OffsetCommitValue]:
        """Everything committed, for comparison."""
        return {
            (group_id, topic, partition): value
            for group_id in self._by_group
            for topic, partition, value in self.of_group(group_id)
        }

    def pending_as_dict(self) -> dict[tuple[int, str, str, int], OffsetCommitValue]:
        return {
            (producer_id, group_id, topic, partition): committed.value
            for producer_id, by_group in self._pending.items()
            for group_id, by_topic in by_group.items()
            for topic, by_partition in by_topic.items()
            for partition, committed in by_partition.items()
        }

    # ------------------------------------------------------------ applying records

    def apply(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, record_offset: int, producer_id: int
    ) -> None:
        if value is None:
            _remove(self._by_group, key)
            for open_producer_id in tuple(self._open_transactions.get(key.group_id, ())):
                _remove(self._pending[open_producer_id], key)
                if key.group_id not in self._pending[open_producer_id]:
                    self._close_transaction(key.group_id, open_producer_id)
            return
        committed = CommittedOffset(value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            _put(self._by_group, key, committed)
            return
        _put(self._pending.setdefault(producer_id, {}), key, committed)
        self._open_transactions.setdefault(key.group_id, {})[producer_id] = None

    def end_transaction(self, producer_id: int, committed: bool) -> list[str]:
        """Apply a transaction's marker; return the groups it had offsets for."""
        pending = self._pending.pop(producer_id, None)
        if pending is None:
            return []
        for group_id in pending:
            self._close_transaction(group_id, producer_id)
        if committed:
            for group_id, by_topic in pending.items():
                for topic, by_partition in by_topic.items():
                    for partition, offset in by_partition.items():
                        self._settle(OffsetCommitKey(group_id, topic, partition), offset)
        return list(pending)

    def _close_transaction(self, group_id: str, producer_id: int) -> None:
        open_transactions = self._open_transactions[group_id]
        del open_transactions[producer_id]
        if not open_transactions:
            del self._open_transactions[group_id]

    def _settle(self, key: OffsetCommitKey, offset: CommittedOffset) -> None:
        existing = self._by_group.get(key.group_id, {}).get(key.topic, {}).get(key.partition)
        if existing is None or offset.record_offset > existing.record_offset:
            _put(self._by_group, key, offset)


def _put(by_group: dict[str, _ByTopic], key: OffsetCommitKey, offset: CommittedOffset) -> None:
    by_topic = by_group.get(key.group_id)
    if by_topic is None:
        by_topic = by_group[key.group_id] = {}
    by_partition = by_topic.get(key.topic)
    if by_partition is None:
        by_partition = by_topic[key.topic] = {}
    by_partition[key.partition] = offset


def _remove(by_group: dict[str, _ByTopic], key: OffsetCommitKey) -> None:
    by_topic = by_group.get(key.group_id, {})
    by_partition = by_topic.get(key.topic)
    if by_partition is None or by_partition.pop(key.partition, None) is None:
        return
    if not by_partition:
        del by_topic[key.topic]
    if not by_topic:
        del by_group[key.group_id]
