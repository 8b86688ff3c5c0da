"""What can be asked of the group machine; all it may not know itself (ids, time) comes in here or beside.

`token` names the request whose answer the machine gives with `Reply(token, …)`. Members and tokens are the
caller's: `new_member_suffix` is the random part of a member id, so that the machine itself is free of
chance.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.groups.consumer_schemas import Partition, Partitions
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.protocol.primitives import STRING_BYTES_MAX, fit_string

NO_MEMBER_ID = ""
NO_GENERATION = -1
NO_RETENTION = -1
NO_TIMESTAMP = -1
UNCHANGED_MS = -1
"""A timeout that a ConsumerGroupHeartbeat does not repeat."""


@dataclass(frozen=True, slots=True)
class JoinGroup:
    token: int
    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    new_member_suffix: str
    requires_known_member_id: bool = True
    """KIP-394 (v4+): a dynamic member first gets an id and joins again with it."""
    supports_skipping_assignment: bool = True
    """KIP-814 (v9+): a static leader that returns is told the members but not to assign again."""
    reason: str | None = None

    @property
    def new_member_id(self) -> str:
        """The id for a member that has none: what it calls itself, and chance. Both must fit one string."""
        name = self.client_id if self.group_instance_id is None else self.group_instance_id
        room_bytes = STRING_BYTES_MAX - 1 - len(self.new_member_suffix)
        return f"{fit_string(name, room_bytes)}-{self.new_member_suffix}"


@dataclass(frozen=True, slots=True)
class SyncGroup:
    token: int
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    token: int
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    token: int
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat: what is None has not changed since the last one."""

    token: int
    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    new_member_id: str = ""
    """For a member that comes without an id, which only version 0 allows."""
    may_describe: Callable[[str], bool] | None = None
    """Which topics the member may know of, where that is limited: an expression matches no others. Equal to
    that of another heartbeat if both come from the same principal and host."""

    @property
    def is_full(self) -> bool:
        """Does the member repeat everything, because it joins or missed an answer?"""
        subscribes = self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        return self.member_epoch == 0 or (
            subscribes and self.owned is not None and self.rebalance_timeout_ms != UNCHANGED_MS
        )


#: of share groups: as long as a UUID is in text
SHARE_MEMBER_ID_CHARACTERS_MAX = 36


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """ShareGroupHeartbeat: what is None has not changed since the last one."""

    token: int
    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlterShareOffsets:
    """AlterShareGroupOffsets: topics by name, each with partitions and the offsets they are to begin at."""

    token: int
    group_id: str
    topics: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class DeleteShareOffsets:
    token: int
    group_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShareStateAnswered:
    """What share coordinators said to an `InitializeShareState` or `DeleteShareState`, for each partition.
    Whoever did not answer in time counts as REQUEST_TIMED_OUT.
    """

    number: int
    group_id: str
    results: tuple[tuple[Partition, ErrorCode], ...]


@dataclass(frozen=True, slots=True)
class InitializeShareState:
    """A message of the machine: have share coordinators begin with these partitions. Offsets of -1 leave it
    to `share.auto.offset.reset`. Answered by `ShareStateAnswered`.
    """

    number: int
    group_id: str
    state_epoch: int
    start_offsets: tuple[tuple[Partition, int], ...]


@dataclass(frozen=True, slots=True)
class DeleteShareState:
    """A message of the machine: have share coordinators forget these partitions of the group. Answered by
    `ShareStateAnswered`.
    """

    number: int
    group_id: str
    partitions: tuple[Partition, ...]


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    commit_timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    token: int
    group_id: str
    member_id: str
    group_instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = NO_RETENTION
    api_version: int = 9
    producer_id: int = NO_PRODUCER_ID
    """TxnOffsetCommit: the offsets belong to this producer's transaction and count when it commits."""
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_transactional(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """`topics` None asks for every partition with a committed offset."""

    token: int
    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    token: int
    group_id: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    token: int
    group_id: str


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """The expiry tick: forget offsets past their retention, and groups that have nothing left."""


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """The topic was deleted; its committed offsets go too."""

    topic: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: Hashable


Command = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | ConsumerHeartbeat
    | ShareHeartbeat
    | AlterShareOffsets
    | DeleteShareOffsets
    | ShareStateAnswered
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | DeleteGroup
    | ExpireOffsets
    | ForgetTopic
    | TimerFired
)
