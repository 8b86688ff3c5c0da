"""What the records in flight of a share partition are, counted for people."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.shares.runs import Run
from tidelog.shares.states import RecordState


class InFlight(NamedTuple):
    """Records between the start offset and the first offset that was never fetched."""

    #: members have them
    acquired: int
    #: members may have them, now or after their rest
    available: int
    #: of those, kept back after a failed delivery
    resting: int
    #: their dead letters are being written
    archiving: int
    archived: int
    acknowledged: int
    #: of what is not done with: how many records were delivered how often
    deliveries: dict[int, int]
    #: how many records each member has
    members: dict[str, int]
    #: when the next lock ends
    lock_ends_ms: int | None


def in_flight(runs: Iterable[Run]) -> InFlight:
    """Count runs; the cost is theirs, not that of their records."""
    states = dict.fromkeys(RecordState, 0)
    deliveries: Counter[int] = Counter()
    members: Counter[str] = Counter()
    resting = 0
    lock_ends_ms: int | None = None
    for run in runs:
        states[run.state] += len(run)
        if run.state is RecordState.AVAILABLE:
            deliveries[run.delivery_count] += len(run)
            if not run.is_ready:
                resting += len(run)
        elif run.state is RecordState.ACQUIRED:
            deliveries[run.delivery_count] += len(run)
            members[run.member_id] += len(run)
            lock_ends_ms = run.deadline_ms if lock_ends_ms is None else min(lock_ends_ms, run.deadline_ms)
    return InFlight(
        states[RecordState.ACQUIRED],
        states[RecordState.AVAILABLE],
        resting,
        states[RecordState.ARCHIVING],
        states[RecordState.ARCHIVED],
        states[RecordState.ACKNOWLEDGED],
        dict(sorted(deliveries.items())),
        dict(members),
        lock_ends_ms,
    )
