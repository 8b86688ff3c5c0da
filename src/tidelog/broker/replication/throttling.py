"""Holds back what moves to or from replicas that catch up, where their topic lists them as throttled."""

from collections.abc import Callable, Sequence

from tidelog.model.ports import Clock
from tidelog.replication.throttle import Throttle, is_throttled


class ReplicationThrottle:
    """One direction of one broker: what it sends to such replicas, or what it fetches into them."""

    __slots__ = ("_bucket", "_clock", "_node_id", "_rate")

    def __init__(self, node_id: int, rate: Callable[[], int], clock: Clock) -> None:
        """`rate` tells the bytes per second as they are now."""
        self._node_id = node_id
        self._rate = rate
        self._clock = clock
        self._bucket = Throttle()

    def holds(self, entries: Sequence[str], index: int) -> bool:
        """Whether a topic's list of throttled replicas names this broker for a partition."""
        return is_throttled(entries, index, self._node_id)

    def delay_ms(self) -> int:
        """How long to wait before the next bytes may move; 0 if they may now."""
        return self._bucket.delay_ms(self._rate(), self._clock.now_ms())

    def spend(self, size_bytes: int) -> None:
        """These bytes have moved."""
        self._bucket.spend(size_bytes)

    def __repr__(self) -> str:
        return f"<ReplicationThrottle of {self._node_id} {self._bucket!r}>"
