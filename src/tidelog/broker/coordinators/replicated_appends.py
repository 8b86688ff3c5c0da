"""Waiting for the replicas of what the broker itself appended: coordinators' records, transactions' markers.

They are promised as acks=all promises: in the logs of all replicas in sync, which are as many as
`min.insync.replicas` asks for.
"""

from collections.abc import Callable

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.turn import Turn
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock

Verdict = Callable[[ErrorCode], None]


class ReplicationWait(DelayedOperation):
    """Waits until everything before an offset is replicated, leadership goes, or a deadline passes."""

    __slots__ = ("_end_offset", "_partition", "_verdict")

    def __init__(self, partition: Partition, end_offset: int, verdict: Verdict) -> None:
        super().__init__()
        self._partition = partition
        self._end_offset = end_offset
        self._verdict = verdict

    def ready(self, progressed: Watched) -> bool:
        return self._partition.replicated(self._end_offset) is not None

    def complete(self, *, expired: bool) -> None:
        outcome = self._partition.replicated(self._end_offset)
        self._verdict(ErrorCode.REQUEST_TIMED_OUT if outcome is None else outcome)


class ReplicatedAppends:
    """What the broker itself appends: whoever waits for it is woken, and its replicas are waited for."""

    __slots__ = ("_clock", "_purgatory", "_turn")

    def __init__(self, turn: Turn, purgatory: Purgatory, clock: Clock) -> None:
        self._turn = turn
        self._purgatory = purgatory
        self._clock = clock

    def appended(self, partition: Partition) -> None:
        """Something was appended: who waits for it is woken at the end of the turn."""
        self._turn.note_progress(partition)

    def wait(
        self, partition: Partition, end_offset: int, timeout_ms: int, verdict: Verdict
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
        self._purgatory.park(wait, (), self._clock.now_ms() + timeout_ms)
        partition.await_commit(end_offset, wait)
        return wait
