"""One share group (KIP-932): nothing but what its records say, so that replaying them is all it takes.

    epoch             grows whenever members, subscriptions or the topics they name change
    assignment_epoch  the epoch the target assignment was computed for
    targets           who should fetch from which partitions in that epoch; many may share one
    current           what each member was told, and in which epoch it is
    states            the partitions of which there is state at share coordinators; only these are assigned

A member moves to its target at once: nobody has to give anything up first. `ShareGroup.apply` takes one
record in. A step decides on a `copy`, and the group itself changes when the records are in the log."""

from copy import copy
from hashlib import blake2b
from typing import TypeVar
from uuid import UUID

from tidelog.groups.consumer_group import FIRST_EPOCH
from tidelog.groups.consumer_schemas import NOTHING, Partitions
from tidelog.groups.member_memory import GROUP_BYTES, MEMBER_BYTES, text_bytes
from tidelog.groups.share_assignor import ShareSubscriber, assign_simple
from tidelog.groups.share_schemas import (
    ShareAssignment,
    ShareGroupMetadata,
    ShareKey,
    ShareMemberMetadata,
    ShareRecordType,
    ShareValue,
    StatePartitions,
    share_key,
    share_value,
)
from tidelog.model.effects import RecordPair
from tidelog.model.image import ClusterImage

SHARE_GROUP_TYPE = "share"
ASSIGNOR_NAME = "simple"
_JOINING = ShareAssignment()
_NOTHING_YET = ShareGroupMetadata(FIRST_EPOCH)
_EPOCH_MAX = 2**31 - 2
_Kept = TypeVar("_Kept")


def share_member_bytes(member_id: str, member: ShareMemberMetadata | None) -> int:
    """What a member takes in memory."""
    if member is None:
        return 0
    said = text_bytes(member_id, member.rack_id, member.client_id)
    return MEMBER_BYTES + said + text_bytes(*member.subscribed_topic_names)


class ShareGroup:
    """The durable state of one group."""

    __slots__ = (
        "assignment_epoch",
        "current",
        "group_id",
        "held_bytes",
        "members",
        "metadata",
        "states",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.held_bytes = GROUP_BYTES + text_bytes(group_id)
        """What its members take in memory."""
        self.metadata = _NOTHING_YET
        self.assignment_epoch = FIRST_EPOCH
        self.members: dict[str, ShareMemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.current: dict[str, ShareAssignment] = {}
        self.states = StatePartitions()

    def __repr__(self) -> str:
        size = len(self.members)
        return f"<ShareGroup {self.group_id} {self.state} epoch={self.epoch} members={size}>"

    def copy(self) -> "ShareGroup":
        """A twin to decide on; values inside are immutable."""
        twin = copy(self)
        twin.members, twin.targets, twin.current = dict(self.members), dict(self.targets), dict(self.current)
        return twin

    def comparable(self) -> tuple[object, ...]:
        return self.metadata, self.assignment_epoch, self.members, self.targets, self.current, self.states

    # ------------------------------------------------------------ state from records

    def apply(self, key: ShareKey, value: ShareValue | None) -> None:
        match key.record_type:
            case ShareRecordType.GROUP_METADATA:
                self.metadata = value if isinstance(value, ShareGroupMetadata) else _NOTHING_YET
            case ShareRecordType.TARGET_ASSIGNMENT_METADATA:
                self.assignment_epoch = value if isinstance(value, int) else FIRST_EPOCH
            case ShareRecordType.STATE_PARTITION_METADATA:
                self.states = value if isinstance(value, StatePartitions) else StatePartitions()
            case ShareRecordType.MEMBER_METADATA:
                member = value if isinstance(value, ShareMemberMetadata) else None
                old = self.members.get(key.member_id)
                self.held_bytes += share_member_bytes(key.member_id, member)
                self.held_bytes -= share_member_bytes(key.member_id, old)
                _keep(self.members, key.member_id, member)
            case ShareRecordType.TARGET_ASSIGNMENT_MEMBER:
                _keep(self.targets, key.member_id, value if isinstance(value, frozenset) else None)
            case ShareRecordType.CURRENT_MEMBER_ASSIGNMENT:
                _keep(self.current, key.member_id, value if isinstance(value, ShareAssignment) else None)

    # ------------------------------------------------------------ looking

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def current_of(self, member_id: str) -> ShareAssignment:
        return self.current.get(member_id, _JOINING)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def subscribed(self) -> list[str]:
        """The names of all topics that members read, in order."""
        return sorted({name for member in self.members.values() for name in member.subscribed_topic_names})

    def metadata_hash(self, image: ClusterImage) -> int:
        """Of the topics that members read; it changes when one appears, grows, goes or is created anew."""
        digest = blake2b(digest_size=8)
        for name in self.subscribed():
            topic = image.topics.get(name)
            if topic is not None:
                digest.update(f"{name}/{topic.topic_id}/{len(topic.partitions)};".encode())
        return int.from_bytes(digest.digest(), "big", signed=True)

    def lacks_assignment(self, image: ClusterImage) -> bool:
        """Are there partitions that members want, that have state, and that nobody has?"""
        if not self.members:
            return False
        assigned = frozenset().union(*self.targets.values())
        return not self.wanted(image) <= assigned

    def wanted(self, image: ClusterImage) -> Partitions:
        """The partitions that have state and that somebody reads."""
        ids = {image.topics[name].topic_id for name in self.subscribed() if name in image.topics}
        return frozenset(partition for partition in self.states.assignable if partition[0] in ids)


def _keep(kept: dict[str, _Kept], name: str, value: _Kept | None) -> None:
    if value is None:
        kept.pop(name, None)
    else:
        kept[name] = value


class ShareDraft:
    """A step of a share group on paper: a copy of it, and the records that make the group become that."""

    __slots__ = ("group", "records")

    def __init__(self, group: ShareGroup) -> None:
        self.group = group.copy()
        self.records: list[RecordPair] = []

    def put(self, record_type: ShareRecordType, member_id: str | None, value: ShareValue | None) -> None:
        """A record; without a value a tombstone."""
        group_id = self.group.group_id
        encoded = None if value is None else share_value(value)
        self.records.append((share_key(record_type, group_id, member_id), encoded))
        self.group.apply(ShareKey(record_type, group_id, member_id or ""), value)

    def bump_epoch(self, image: ClusterImage) -> None:
        metadata = ShareGroupMetadata(self.group.epoch + 1, self.group.metadata_hash(image))
        self.put(ShareRecordType.GROUP_METADATA, None, metadata)

    def overtake(self, image: ClusterImage) -> None:
        """Share coordinators keep state of a later epoch: of an earlier group of this name, whose deletion
        did not reach them. The epoch grows fast enough to be above theirs after a few tries.
        """
        epoch = min(2 * self.group.epoch + 1, _EPOCH_MAX)
        metadata = ShareGroupMetadata(epoch, self.group.metadata_hash(image))
        self.put(ShareRecordType.GROUP_METADATA, None, metadata)

    def put_member(self, member_id: str, member: ShareMemberMetadata) -> None:
        self.put(ShareRecordType.MEMBER_METADATA, member_id, member)

    def put_states(self, states: StatePartitions) -> None:
        self.put(ShareRecordType.STATE_PARTITION_METADATA, None, states)

    def remove_member(self, member_id: str) -> None:
        """Tombstones for all that is known of a member."""
        for record_type in (
            ShareRecordType.CURRENT_MEMBER_ASSIGNMENT,
            ShareRecordType.TARGET_ASSIGNMENT_MEMBER,
            ShareRecordType.MEMBER_METADATA,
        ):
            self.put(record_type, member_id, None)

    def bury(self) -> None:
        """Tombstones for the whole group."""
        for member_id in list(self.group.members):
            self.remove_member(member_id)
        for record_type in (
            ShareRecordType.TARGET_ASSIGNMENT_METADATA,
            ShareRecordType.STATE_PARTITION_METADATA,
            ShareRecordType.GROUP_METADATA,
        ):
            self.put(record_type, None, None)

    def compute_targets(self, image: ClusterImage) -> None:
        """A new target assignment for the group's epoch; only what changed is written."""
        group = self.group
        subscribers = {}
        for member_id, member in group.members.items():
            names = (name for name in member.subscribed_topic_names if name in image.topics)
            topics: frozenset[UUID] = frozenset(image.topics[name].topic_id for name in names)
            subscribers[member_id] = ShareSubscriber(topics, group.target_of(member_id))
        for member_id, target in assign_simple(subscribers, group.states.assignable).items():
            if member_id not in group.targets or group.targets[member_id] != target:
                self.put(ShareRecordType.TARGET_ASSIGNMENT_MEMBER, member_id, target)
        self.put(ShareRecordType.TARGET_ASSIGNMENT_METADATA, None, group.epoch)

    def follow_target(self, member_id: str) -> None:
        """The member is in the target's epoch, and may fetch all of it."""
        group, current = self.group, self.group.current_of(member_id)
        if current.epoch != group.assignment_epoch:
            following = ShareAssignment(group.assignment_epoch, current.epoch, group.target_of(member_id))
            self.put(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, member_id, following)
