"""One classic group as its coordinator sees it: its members, who waits for what, and the agreed protocol.

This is the living part; it changes by drafts (see classic_draft). What survives the coordinator is
`GroupMetadataValue` (schemas), written when a generation's assignment is stored or the group becomes empty;
`ClassicGroup.from_metadata` is the way back. A member that waits for an answer holds the token of its parked
request. Dictionaries keep the order of arrival, so every walk is repeatable.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace

from tidelog.groups.member_memory import GROUP_BYTES, MEMBER_BYTES, protocols_bytes, text_bytes
from tidelog.groups.schemas import GroupMetadataValue, MemberMetadata, subscribed_topics
from tidelog.groups.states import CAN_REBALANCE, TRANSITIONS, GroupState
from tidelog.model.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"
CLASSIC_GROUP_TYPE = "classic"

Protocols = tuple[tuple[str, bytes], ...]
"""The assignment protocols of a member in order of preference, each with the member's metadata for it."""


def pending_bytes(member_id: str) -> int:
    """What an id that was handed out takes in memory."""
    return MEMBER_BYTES + text_bytes(member_id)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a classic group, and the parked requests it waits on."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: int | None = None
    awaiting_sync: int | None = None
    is_new: bool = False
    must_sync: bool = False
    """It is in the present generation, and has not asked for its assignment."""

    @property
    def held_bytes(self) -> int:
        """What it takes in memory; an assignment, which is stored, does not count."""
        said = text_bytes(self.member_id, self.group_instance_id, self.client_id)
        return MEMBER_BYTES + said + protocols_bytes(self.protocols)

    @property
    def heartbeat_satisfied(self) -> bool:
        """A member that waits for us cannot heartbeat; only a new one may fail meanwhile (it may have
        gone).
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise AssertionError(f"member {self.member_id} does not speak {protocol_name}")

    def vote(self, candidates: frozenset[str]) -> str:
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise AssertionError(f"member {self.member_id} speaks none of the candidates")

    def __repr__(self) -> str:
        return f"<Member {self.member_id}>"


class ClassicGroup:
    """A group of the JoinGroup/SyncGroup protocol in one of the states of `GroupState`."""

    __slots__ = (
        "awaiting_join_count",
        "generation",
        "group_id",
        "held_bytes",
        "initial_delay_remaining_ms",
        "leader_id",
        "members",
        "must_sync_count",
        "new_member_added",
        "pending_join_members",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "storing",
        "subscribed",
        "supported_protocols",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.held_bytes = GROUP_BYTES + text_bytes(group_id)
        """What its members, and the ids that were handed out, take in memory."""
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_join_members: dict[str, int] = {}
        """Ids handed out with MEMBER_ID_REQUIRED that have not joined yet, with their session timeouts."""
        self.must_sync_count = 0
        self.awaiting_join_count = 0
        self.supported_protocols: dict[str, int] = {}
        self.subscribed: frozenset[str] | None = None
        self.storing: Mapping[str, bytes] | None = None
        """The assignment of this generation that is on its way into the log, or is there."""
        self.new_member_added = False
        self.initial_delay_remaining_ms: int | None = None
        """What is left to extend the initial rebalance by, while that is what the join timer waits for."""

    def __repr__(self) -> str:
        size = len(self.members)
        return f"<Group {self.group_id} {self.state.name} generation={self.generation} members={size}>"

    # ------------------------------------------------------------ to and from the log

    @classmethod
    def from_metadata(cls, group_id: str, value: GroupMetadataValue) -> "ClassicGroup":
        group = cls(group_id, value.current_state_timestamp_ms)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        for stored in value.members:
            protocols = ((value.protocol or "", stored.subscription),)
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.rebalance_timeout_ms,
                stored.session_timeout_ms,
                protocols,
                stored.assignment,
            )
            group.add(member, value.protocol_type)
        group.leader_id = value.leader
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        group.subscribed = group.compute_subscribed()
        return group

    def to_metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        members = tuple(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name),
                assignments[member.member_id],
            )
            for member in self.members.values()
        )
        return GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_timestamp_ms,
            members,
        )

    def copy(self) -> "ClassicGroup":
        """Another group of the same members, to be changed."""
        twin = copy(self)
        for name in ("members", "static_members", "pending_join_members", "supported_protocols"):
            setattr(twin, name, dict(getattr(self, name)))
        return twin

    # ------------------------------------------------------------ state

    def is_in(self, *states: GroupState) -> bool:
        return self.state in states

    def transition_to(self, target: GroupState, now_ms: int) -> None:
        assert (self.state, target) in TRANSITIONS, f"{self!r} cannot become {target}"
        self.previous_state = self.state
        self.state = target
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in CAN_REBALANCE

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def all_members_joined(self) -> bool:
        return len(self.members) == self.awaiting_join_count and not self.pending_join_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_subscribed_to(self, topic: str) -> bool:
        """Unknown subscriptions of consumers count as subscribed to everything, so that nothing expires
        early.
        """
        if self.subscribed is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.storing = None
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed = self.compute_subscribed()
        target = GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY
        self.transition_to(target, now_ms)

    def compute_subscribed(self) -> frozenset[str] | None:
        """The topics all members subscribe to; None where the coordinator cannot know."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            parsed = subscribed_topics(member.metadata(self.protocol_name))
            if parsed is None:
                return None
            topics |= parsed
        return topics

    # ------------------------------------------------------------ members

    def expect(self, member_id: str, session_timeout_ms: int) -> None:
        """An id was handed out: its member may join."""
        self.pending_join_members[member_id] = session_timeout_ms
        self.held_bytes += pending_bytes(member_id)

    def _expect_no_more(self, member_id: str) -> None:
        if self.pending_join_members.pop(member_id, None) is not None:
            self.held_bytes -= pending_bytes(member_id)

    def add(self, member: Member, protocol_type: str) -> None:
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self._expect_no_more(member.member_id)

    def put(self, member: Member) -> None:
        """A member is another than before: waits for something else, say."""
        before = self.members[member.member_id]
        if member.protocols is before.protocols:
            # The common case: all that counts of it otherwise is as before.
            self.awaiting_join_count += member.awaiting_join is not None
            self.awaiting_join_count -= before.awaiting_join is not None
            self.must_sync_count += member.must_sync - before.must_sync
        else:
            self._count(before, -1)
            self._count(member, 1)
        self.members[member.member_id] = member

    def _count(self, member: Member, change: int) -> None:
        self.awaiting_join_count += change * (member.awaiting_join is not None)
        self.must_sync_count += change * member.must_sync
        self.held_bytes += change * member.held_bytes
        for name, _ in member.protocols:
            count = self.supported_protocols.get(name, 0) + change
            if count:
                self.supported_protocols[name] = count
            else:
                self.supported_protocols.pop(name, None)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self._expect_no_more(member_id)

    def replace_static(self, group_instance_id: str, old_member_id: str, new_member_id: str) -> Member:
        """Give a static member that came back its new id; whoever still uses the old one is fenced."""
        old = self.members.pop(old_member_id)
        replacement = replace(
            old,
            member_id=new_member_id,
            awaiting_join=None,
            awaiting_sync=None,
            is_new=False,
            must_sync=False,
        )
        self._count(old, -1)
        self._count(replacement, 1)
        self.members[new_member_id] = replacement
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        self.static_members[group_instance_id] = new_member_id
        return replacement

    def not_yet_rejoined(self) -> list[Member]:
        return [member for member in self.members.values() if member.awaiting_join is None]

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else take the first member that has; False if none has."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def member_fault(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE if the member is one of ours, else UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # ------------------------------------------------------------ protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supported_protocols.get(name, 0) == count for name in names
        )

    def select_protocol(self) -> str:
        """The protocol most members prefer among those all of them speak; the first voted for wins a tie."""
        count = len(self.members)
        candidates = frozenset(name for name, users in self.supported_protocols.items() if users == count)
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)
