"""What is asked of a share coordinator: one share partition in each command, as Kafka's requests are split.

`token` names the answer; epochs of -1 say that the caller does not know any.
"""

from dataclasses import dataclass
from uuid import UUID

from tidelog.shares.schemas import UNINITIALIZED_COUNT, UNINITIALIZED_OFFSET, ShareKey
from tidelog.shares.state_batches import StateBatch

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class InitializeState:
    """Begin anew at an offset; without one, where `share.auto.offset.reset` says at the first read."""

    token: int
    key: ShareKey
    state_epoch: int
    start_offset: int = UNINITIALIZED_OFFSET


@dataclass(frozen=True, slots=True)
class ReadState:
    """The leader of a partition takes over in its epoch: older leaders are fenced from here."""

    token: int
    key: ShareKey
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class WriteState:
    token: int
    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int = UNINITIALIZED_COUNT


@dataclass(frozen=True, slots=True)
class DeleteState:
    token: int
    key: ShareKey


@dataclass(frozen=True, slots=True)
class ReadSummary:
    token: int
    key: ShareKey


@dataclass(frozen=True, slots=True)
class SnapshotCold:
    """The tick: write anew what was not written for long, so that the log before it can go."""


@dataclass(frozen=True, slots=True)
class ForgetTopics:
    """The topics were deleted; what was stored of them goes too."""

    topic_ids: frozenset[UUID]


CoordinatorCommand = (
    InitializeState | ReadState | WriteState | DeleteState | ReadSummary | SnapshotCold | ForgetTopics
)
