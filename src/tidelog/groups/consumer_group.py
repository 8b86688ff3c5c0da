"""One consumer group (KIP-848): nothing but what its records say, so that replaying them is all it takes.

    epoch             grows whenever members, subscriptions or the topics they name change
    assignment_epoch  the epoch the target assignment was computed for
    targets           who should read what in that epoch
    current           who may read what now, and in which epoch each member is

`ConsumerGroup.apply` takes one record in. A step decides on a `copy` it may freely apply its own records to,
and hands the records out; the group itself changes when they are in the log.
"""

from collections.abc import Container, Iterable, Iterator
from copy import copy
from enum import Enum
from itertools import chain

from tidelog.groups.consumer_schemas import (
    NOTHING,
    ConsumerKey,
    ConsumerRecordType,
    ConsumerValue,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    Partition,
    Partitions,
    ResolvedRegex,
    TopicMetadata,
)
from tidelog.groups.member_memory import GROUP_BYTES, MEMBER_BYTES, protocols_bytes, text_bytes
from tidelog.model.errors import ErrorCode

CONSUMER_GROUP_TYPE = "consumer"
#: of a group that has not changed yet (KAFKA-20268)
FIRST_EPOCH = 1
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""A static member that will come back: its partitions are kept for it until its session ends."""


class ConsumerGroupState(Enum):
    """Kafka's names, as shown by ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"

    def __str__(self) -> str:
        return self.value


#: the assignor that is taken when as many members ask for another
TIE_WINNER = "uniform"


def metadata_bytes(member_id: str, member: MemberMetadata | None) -> int:
    """What a member takes in memory."""
    if member is None:
        return 0
    names = text_bytes(*member.subscribed_topic_names)
    said = text_bytes(member_id, member.instance_id, member.rack_id, member.client_id)
    classic = 0 if member.classic is None else protocols_bytes(member.classic.protocols)
    return MEMBER_BYTES + said + names + text_bytes(member.subscribed_topic_regex) + classic


class ConsumerGroup:
    """The durable state of one group, and indexes over it: static members, owners and since when they own."""

    __slots__ = (
        "assignment_epoch",
        "current",
        "epoch",
        "group_id",
        "held_bytes",
        "members",
        "owned_since",
        "owners",
        "regexes",
        "static_members",
        "targets",
        "topics",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.held_bytes = GROUP_BYTES + text_bytes(group_id)
        """What its members take in memory."""
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = 0
        self.topics: dict[str, TopicMetadata] = {}
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static_members: dict[str, str] = {}
        self.owners: dict[Partition, str] = {}
        self.owned_since: dict[Partition, int] = {}
        """The epoch in which the owner of a partition got it (KIP-1251)."""

    def __repr__(self) -> str:
        size = len(self.members)
        return f"<ConsumerGroup {self.group_id} {self.state.name} epoch={self.epoch} members={size}>"

    def copy(self) -> "ConsumerGroup":
        """A twin to decide on; values inside are immutable, so a shallow copy of the mappings will do."""
        twin = copy(self)
        for name in (
            "topics",
            "members",
            "targets",
            "current",
            "regexes",
            "static_members",
            "owners",
            "owned_since",
        ):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    def comparable(self) -> tuple[object, ...]:
        return (
            self.epoch,
            self.assignment_epoch,
            self.topics,
            self.members,
            {member_id: target for member_id, target in self.targets.items() if target},
            {member_id: current for member_id, current in self.current.items() if member_id in self.members},
            self.regexes,
        )

    # ------------------------------------------------------------ state from records

    def apply(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        match key.record_type:
            case ConsumerRecordType.GROUP_METADATA:
                self.epoch = value if isinstance(value, int) else FIRST_EPOCH
            case ConsumerRecordType.TARGET_ASSIGNMENT_METADATA:
                self.assignment_epoch = value if isinstance(value, int) else 0
            case ConsumerRecordType.PARTITION_METADATA:
                self.topics = value if isinstance(value, dict) else {}
            case ConsumerRecordType.MEMBER_METADATA:
                self._apply_member(key.subject, value if isinstance(value, MemberMetadata) else None)
            case ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER:
                if isinstance(value, frozenset):
                    self.targets[key.subject] = value
                else:
                    self.targets.pop(key.subject, None)
            case ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT:
                self._apply_current(key.subject, value if isinstance(value, CurrentAssignment) else None)
            case ConsumerRecordType.REGULAR_EXPRESSION:
                if isinstance(value, ResolvedRegex):
                    self.regexes[key.subject] = value
                else:
                    self.regexes.pop(key.subject, None)

    def _apply_member(self, member_id: str, member: MemberMetadata | None) -> None:
        old = self.members.pop(member_id, None) if member is None else self.members.get(member_id)
        self.held_bytes += metadata_bytes(member_id, member) - metadata_bytes(member_id, old)
        instance_id = old.instance_id if old is not None else None
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if member is None:
            self._apply_current(member_id, None)
            return
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id

    def _apply_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        old = self.current.pop(member_id, None) if current is None else self.current.get(member_id)
        held: dict[Partition, int] = {}
        if old is not None:
            for partition in old.assigned | old.pending_revocation:
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
                    held[partition] = self.owned_since.pop(partition)
        if current is not None:
            self.current[member_id] = current
            for partition in current.assigned | current.pending_revocation:
                self.owners[partition] = member_id
                self.owned_since[partition] = held.get(partition, current.epoch)

    # ------------------------------------------------------------ looking

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_reconciled(member_id) for member_id in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def current_of(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, _JOINING)

    def target_of(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def is_reconciled(self, member_id: str) -> bool:
        current = self.current_of(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def topics_of(self, member: MemberMetadata) -> Iterator[str]:
        """The names a member subscribes to, those of its expression included."""
        resolved = self.regexes.get(member.subscribed_topic_regex) if member.subscribed_topic_regex else None
        return chain(member.subscribed_topic_names, () if resolved is None else resolved.topics)

    def subscribed(self, topics: Container[str]) -> Iterable[str]:
        """Those of the topics that a member subscribes to.

        Members may name a million topics that are not there: they are passed over without a step of Python.
        """
        is_there = topics.__contains__
        return dict.fromkeys(
            chain.from_iterable(filter(is_there, self.topics_of(member)) for member in self.members.values())
        )

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def preferred_assignor(self, default: str) -> str:
        """The assignor most members ask for; Kafka's own default wins a tie."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name != TIE_WINNER, name), default=default)

    @property
    def classic_count(self) -> int:
        """How many members speak the classic protocol."""
        return sum(member.classic is not None for member in self.members.values())

    def supports_classic(self, names: Iterable[str]) -> bool:
        """Is there a protocol among `names` that every classic member speaks?"""
        spoken = [
            {name for name, _ in member.classic.protocols}
            for member in self.members.values()
            if member.classic is not None
        ]
        return any(all(name in protocols for protocols in spoken) for name in names)

    def epoch_fault(self, member_id: str, epoch: int) -> ErrorCode:
        """Is a member in the epoch it names?"""
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.current_of(member_id).epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def commit_fault(self, member_id: str, epoch: int, partitions: Iterable[tuple[str, int]]) -> ErrorCode:
        """May a member commit offsets of these partitions in the epoch it names?

        It may not know yet that its epoch has grown. What it has owned since the epoch it names, nobody
        else can have committed meanwhile (KIP-1251).
        """
        error = self.epoch_fault(member_id, epoch)
        is_behind = 0 <= epoch < self.current_of(member_id).epoch
        if error is ErrorCode.UNKNOWN_MEMBER_ID or not is_behind:
            return error
        for topic, index in partitions:
            metadata = self.topics.get(topic)
            partition = None if metadata is None else (metadata.topic_id, index)
            if partition is None or self.owners.get(partition) != member_id:
                return error
            if self.owned_since[partition] > epoch:
                return error
        return ErrorCode.NONE

    def is_waiting_for_others(self, member_id: str) -> bool:
        """Does somebody else still hold a partition of the member's target?"""
        missing = self.target_of(member_id) - self.current_of(member_id).assigned
        return any(self.owners.get(partition, member_id) != member_id for partition in missing)


_JOINING = CurrentAssignment()
