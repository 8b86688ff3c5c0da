"""Waiting for the replicas of what the broker itself appended: coordinators' records, transactions' markers.

They are promised as acks=all promises: in the logs of all replicas in sync, which are as many as
`min.insync.replicas` asks for.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.parking import Waiter
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.parking import Watched
    from tidelog.broker.partition import Partition

Verdict = Callable[[ErrorCode], None]


class ReplicationWait(Waiter):
    """Waits until everything before an offset is replicated, leadership goes, or a deadline passes."""

    __slots__ = ("_end_offset", "_partition", "_verdict")

    def __init__(self, partition: "Partition", end_offset: int, verdict: Verdict) -> None:
        super().__init__()
        self._partition = partition
        self._end_offset = end_offset
        self._verdict = verdict

    def ready(self, progressed: "Watched") -> bool:
        return self._partition.replicated(self._end_offset) is not None

    def complete(self, *, expired: bool) -> None:
        outcome = self._partition.replicated(self._end_offset)
        self._verdict(ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome)


def when_replicated(
    broker: "Broker", partition: "Partition", end_offset: int, timeout_ms: int, verdict: Verdict
) -> ReplicationWait | None:
    """Call `verdict` with NONE when everything before an offset is replicated, or with what came instead.

    Where there is nothing to wait for the call is made at once and None returned; else the wait, which
    `abandon` ends without a verdict.
    """
    outcome = partition.replicated(end_offset)
    if outcome is not None:
        verdict(outcome)
        return None
    wait = ReplicationWait(partition, end_offset, verdict)
    broker.parking.park(wait, (partition,), broker.clock.now_ms() + timeout_ms)
    return wait
