"""What survives the coordinator: the groups and offsets that the records of one partition say there are.

`apply` is the only way in, live and on loading, so a replay of the log gives the same state.
"""

from tidelog.groups.offsets import Offsets
from tidelog.groups.schemas import (
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from tidelog.model.identifiers import NO_PRODUCER_ID


class DurableGroups:
    """Group metadata by group id, and the offsets."""

    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, GroupMetadataValue] = {}
        self.offsets = Offsets()

    def apply(
        self, key: bytes, value: bytes | None, record_offset: int, producer_id: int = NO_PRODUCER_ID
    ) -> str | None:
        """Take one record in; return the id of the group it is about, or None if it is not for us to read."""
        decoded = read_key(key)
        if decoded is None:
            return None
        if isinstance(decoded, OffsetCommitKey):
            committed: OffsetCommitValue | None = None if value is None else read_offset_commit_value(value)
            self.offsets.apply(decoded, committed, record_offset, producer_id)
        elif value is None:
            self.groups.pop(decoded.group_id, None)
        else:
            self.groups[decoded.group_id] = read_group_metadata_value(value)
        return decoded.group_id

    def comparable(self) -> tuple[object, object, object]:
        """The whole state as plain values: equal states compare equal."""
        return self.groups, self.offsets.as_dict(), self.offsets.pending_as_dict()
