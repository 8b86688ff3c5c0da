"""What a follower asks of one leader, and how it reads the answer.

`FollowerSession` keeps an incremental fetch session with a leader (KIP-227) for all partitions followed
there: a request names only the partitions whose offset, epoch or log start changed since the one before, so
an idle follower of a thousand partitions sends a few bytes. Whenever the two sides may have different ideas
of the session it starts anew with a full request.

`truncation_offset` is where a log that differs from the leader's has to be cut (KIP-101, KIP-279, KIP-595).
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_EPOCH, NO_OFFSET

PartitionKey = tuple[UUID, int]

NO_SESSION = 0
OPENING_EPOCH = 0
INT32_MAX = 2**31 - 1


class ReplicaPosition(NamedTuple):
    """Where a replica stands: what its leader is told of one partition."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class SessionRequest(NamedTuple):
    """The session's part of the next Fetch request; `generation` tells sessions apart."""

    session_id: int
    session_epoch: int
    wanted: list[tuple[PartitionKey, ReplicaPosition]]
    forgotten: list[PartitionKey]
    generation: int


class FollowerSession:
    """The partitions fetched from one leader."""

    __slots__ = (
        "_changed",
        "_forgotten",
        "_generation",
        "_opening",
        "_positions",
        "epoch",
        "session_id",
    )

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = OPENING_EPOCH
        self._generation = 0
        self._opening = False
        self._positions: dict[PartitionKey, ReplicaPosition] = {}
        #: what the leader has to be told with the next request
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, None] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._positions

    def position(self, key: PartitionKey) -> ReplicaPosition | None:
        return self._positions.get(key)

    def follow(self, key: PartitionKey, position: ReplicaPosition) -> None:
        """Go on with a partition at this position."""
        if self._positions.get(key) != position:
            self._positions[key] = position
            self._changed[key] = None

    def follow_anew(self, key: PartitionKey, position: ReplicaPosition) -> None:
        """Fetch a partition from this position on, as if it had not been fetched before.

        An answer that is still to come for it is not going to be used, but the leader believes that what it
        says is known here. So it has to forget the partition first.
        """
        if key in self._positions:
            self._forgotten[key] = None
        self._positions[key] = position
        self._changed[key] = None

    def leave(self, key: PartitionKey) -> None:
        """Fetch a partition no more, or not for a while."""
        if self._positions.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    @property
    def has_news(self) -> bool:
        """Whether the leader has to be told something."""
        if self.epoch == OPENING_EPOCH:
            return bool(self._positions)
        return bool(self._changed or self._forgotten)

    @property
    def can_pipeline(self) -> bool:
        """Whether a request may follow one that is not answered yet: the session is open."""
        return not self._opening

    def next_request(self) -> SessionRequest:
        """What to ask now; the answer goes to `answered`, or the request to `lost` if there is none."""
        epoch = self.epoch
        if epoch == OPENING_EPOCH:
            self._opening = True
            wanted = list(self._positions.items())
            forgotten: list[PartitionKey] = []
        else:
            self.epoch = 1 if epoch == INT32_MAX else epoch + 1
            wanted = [(key, self._positions[key]) for key in self._changed]
            forgotten = list(self._forgotten)
        self._changed.clear()
        self._forgotten.clear()
        return SessionRequest(self.session_id, epoch, wanted, forgotten, self._generation)

    def answered(self, request: SessionRequest, error: int, session_id: int) -> bool:
        """Take note of an answer; False when it tells only that the session is no more."""
        if request.generation != self._generation:
            return not error
        if error:
            self._start_anew(forget_id=error != ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return False
        if session_id == NO_SESSION:
            # The leader has no room for sessions, or this one is empty: the next request is a full one.
            self._start_anew(forget_id=True)
        elif request.session_epoch == OPENING_EPOCH:
            self._opening = False
            self.session_id = session_id
            self.epoch = 1
        return True

    def lost(self, request: SessionRequest) -> None:
        """A request got no answer: whether the leader saw it is not known."""
        if request.generation == self._generation:
            self._start_anew(forget_id=False)

    def _start_anew(self, *, forget_id: bool) -> None:
        """Open a new session with the next request, closing the one named if there is one."""
        self._generation += 1
        self._opening = False
        self.epoch = OPENING_EPOCH
        if forget_id:
            self.session_id = NO_SESSION

    def __repr__(self) -> str:
        return f"<FollowerSession {self.session_id} epoch={self.epoch} partitions={len(self._positions)}>"


EpochEnd = Callable[[int], tuple[int, int]]


def truncation_offset(
    diverging: tuple[int, int], *, epoch_end_offset: EpochEnd, log_end_offset: int, high_watermark: int
) -> int:
    """Where to cut a log after the leader answered that it diverges.

    `diverging` is the leader's largest epoch up to the last one of this log, and where it ended there;
    `epoch_end_offset` asks the same of this log. If this log has never seen that epoch, the cut is only a
    step: the next fetch asks with an older epoch.
    """
    leader_epoch, leader_end_offset = diverging
    if leader_end_offset == NO_OFFSET:
        return high_watermark
    if leader_epoch == NO_EPOCH:
        return min(leader_end_offset, log_end_offset)
    own_epoch, own_end_offset = epoch_end_offset(leader_epoch)
    if own_end_offset == NO_OFFSET:
        return min(leader_end_offset, log_end_offset)
    if own_epoch != leader_epoch:
        return min(own_end_offset, log_end_offset)
    return min(own_end_offset, leader_end_offset, log_end_offset)
