"""What survives the coordinator: the groups and offsets that the records of one partition say there are.

`apply` is the only way in, live and on loading, so a replay of the log gives the same state.
"""

from tidelog.groups.consumer_group import ConsumerGroup
from tidelog.groups.consumer_schemas import (
    CONSUMER_KEY_VERSIONS,
    ConsumerRecordType,
    read_consumer_key,
    read_consumer_value,
)
from tidelog.groups.offsets import Offsets
from tidelog.groups.schemas import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from tidelog.groups.share_group import ShareGroup
from tidelog.groups.share_schemas import (
    SHARE_KEY_VERSIONS,
    ShareRecordType,
    read_share_key,
    read_share_value,
)
from tidelog.model.identifiers import NO_PRODUCER_ID


class DurableGroups:
    """Classic groups' metadata, consumer and share groups by group id, and the offsets."""

    __slots__ = ("consumer_groups", "groups", "offsets", "share_groups")

    def __init__(self) -> None:
        self.groups: dict[str, GroupMetadataValue] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.share_groups: dict[str, ShareGroup] = {}
        self.offsets = Offsets()

    def knows(self, group_id: str) -> bool:
        """Whether there are records of a classic group: its metadata, or offsets."""
        return group_id in self.groups or self.offsets.has_any(group_id)

    def apply(
        self, key: bytes, value: bytes | None, record_offset: int, producer_id: int = NO_PRODUCER_ID
    ) -> str | None:
        """Take one record in; return the id of the group it is about, or None if it is not for us to read."""
        decoded = read_key(key)
        if decoded is None:
            return self._apply_consumer(key, value)
        if isinstance(decoded, OffsetCommitKey):
            committed: OffsetCommitValue | None = None if value is None else read_offset_commit_value(value)
            self.offsets.apply(decoded, committed, record_offset, producer_id)
        elif value is None:
            self.groups.pop(decoded.group_id, None)
        else:
            self.groups[decoded.group_id] = read_group_metadata_value(value)
        return decoded.group_id

    def _apply_consumer(self, key: bytes, value: bytes | None) -> str | None:
        version = int.from_bytes(key[:2])
        if version in SHARE_KEY_VERSIONS:
            return self._apply_share(key, value)
        if version not in CONSUMER_KEY_VERSIONS:
            return None
        decoded = read_consumer_key(key)
        group = self.consumer_groups.get(decoded.group_id)
        if value is None:
            if group is not None and decoded.record_type is ConsumerRecordType.GROUP_METADATA:
                del self.consumer_groups[decoded.group_id]
            elif group is not None:
                group.apply(decoded, None)
            return decoded.group_id
        content = read_consumer_value(decoded.record_type, value)
        if group is None:
            group = self.consumer_groups[decoded.group_id] = ConsumerGroup(decoded.group_id)
        group.apply(decoded, content)
        return decoded.group_id

    def _apply_share(self, key: bytes, value: bytes | None) -> str:
        decoded = read_share_key(key)
        group = self.share_groups.get(decoded.group_id)
        if value is None:
            if group is not None and decoded.record_type is ShareRecordType.GROUP_METADATA:
                del self.share_groups[decoded.group_id]
            elif group is not None:
                group.apply(decoded, None)
            return decoded.group_id
        content = read_share_value(decoded.record_type, value)
        if group is None:
            group = self.share_groups[decoded.group_id] = ShareGroup(decoded.group_id)
        group.apply(decoded, content)
        return decoded.group_id

    def comparable(self) -> tuple[object, ...]:
        """The whole state as plain values: equal states compare equal."""
        consumer_groups = {group_id: group.comparable() for group_id, group in self.consumer_groups.items()}
        share_groups = {group_id: group.comparable() for group_id, group in self.share_groups.items()}
        offsets = self.offsets
        return self.groups, consumer_groups, offsets.as_dict(), offsets.pending_as_dict(), share_groups
