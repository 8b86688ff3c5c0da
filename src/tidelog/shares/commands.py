"""What is told to a share partition, and what it asks of the world beyond the effects every machine has.

Commands are what `SharePartition.handle` takes. Messages are what it sends (`effects.Send`): the broker
carries them out and answers each, but Wake, with a command, within a bounded time. REQUEST_TIMED_OUT is an
answer too: what it was about may have happened, or may happen yet."""

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.shares.fetched import AbortedTransaction, FetchedBatch, OffsetRange
from tidelog.shares.settings import InitialOffset, SharePartitionSettings
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import AcquireMode

# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class Open:
    """Become ready: ask the share coordinator what there is."""


@dataclass(frozen=True, slots=True)
class StateRead:
    """The answer to ReadState, or why there is none."""

    state_epoch: int = 0
    start_offset: int = -1
    batches: tuple[StateBatch, ...] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class InitialOffsetFound:
    """The answer to FindInitialOffset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """A member fetches: it may have up to `max_records` of what was read from the log at `fetch_offset`.

    The answer is at once and has the fields of ShareFetch: `acquired_records`.
    """

    token: int
    member_id: str
    max_records: int
    fetch_offset: int
    batches: tuple[FetchedBatch, ...]
    batch_size: int = 500
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions in what was read; looked at by groups that read committed records."""
    expired: tuple[OffsetRange, ...] = ()
    """Offsets of records whose time to live is over: nobody gets them any more."""
    preferred: tuple[OffsetRange, ...] | None = None
    """Only what is in these, in this order: how records of a higher priority come first. All of it must have
    been read."""


@dataclass(frozen=True, slots=True)
class AcknowledgementBatch:
    """One type for all of it, or one for each offset."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """All or nothing: what is wrong with one batch refuses all. Answered when it is stored."""

    token: int
    member_id: str
    batches: tuple[AcknowledgementBatch, ...]


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """A member's session is over: what it has not acknowledged is available again. `rests` if that may be
    the fault of the records, so that the backoff of retries holds.
    """

    token: int
    member_id: str
    rests: bool = False


@dataclass(frozen=True, slots=True)
class StateWritten:
    """The answer to WriteState."""

    number: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeadLettersWritten:
    """The answer to WriteDeadLetters; one that is `retriable` is tried again, others are given up."""

    first_offset: int
    last_offset: int
    error: ErrorCode = ErrorCode.NONE
    retriable: bool = False


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """Records were deleted: retention, or DeleteRecords."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Reconfigure:
    settings: SharePartitionSettings


@dataclass(frozen=True, slots=True)
class Fence:
    """Leadership is gone, or the group: everyone who waits here is told `error`."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TimerFired:
    key: object


ShareCommand = (
    Open
    | StateRead
    | InitialOffsetFound
    | Acquire
    | Acknowledge
    | ReleaseMember
    | StateWritten
    | DeadLettersWritten
    | LogStartMoved
    | Reconfigure
    | Fence
    | TimerFired
)

# ---------------------------------------------------------------- messages


class ReadShareState(NamedTuple):
    """Ask the share coordinator, in the epoch of this leader."""

    leader_epoch: int


class FindInitialOffset(NamedTuple):
    """Look in the log where to begin."""

    wanted: InitialOffset


class WriteShareState(NamedTuple):
    """Tell the share coordinator. There is one on its way at a time, and none overtakes another."""

    number: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class WriteDeadLetters(NamedTuple):
    """Copy these records to the group's topic for dead letters (`dead_letters`)."""

    topic: str | None
    first_offset: int
    last_offset: int
    delivery_count: int
    reason: str


class Wake(NamedTuple):
    """There may be something for those who wait: try their fetches again."""


ShareMessage = ReadShareState | FindInitialOffset | WriteShareState | WriteDeadLetters | Wake
