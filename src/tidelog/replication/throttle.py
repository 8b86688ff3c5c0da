"""How many bytes a second replicas that catch up may move, so that a reassignment leaves room for clients.

A topic lists the replicas that are throttled, `<partition>:<broker>` or `*` for all of them; a broker has one
rate for what it sends to such replicas and one for what it fetches into them. Only replicas out of sync are
held back: those in sync would fall out.
"""

from collections.abc import Sequence

ALL_REPLICAS = "*"
UNLIMITED = 2**63 - 1


def is_throttled(entries: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas names this one."""
    return ALL_REPLICAS in entries or f"{partition}:{broker_id}" in entries


class Throttle:
    """A bucket that fills with `rate` bytes a second, up to one second's worth, and may be overdrawn once."""

    __slots__ = ("_bytes", "_filled_ms")

    def __init__(self) -> None:
        self._bytes = 0
        self._filled_ms: int | None = None

    def delay_ms(self, rate: int, now_ms: int) -> int:
        """How long to wait before the next bytes may move; 0 if they may now."""
        if rate >= UNLIMITED:
            return 0
        if self._filled_ms is None:
            self._bytes = rate
        else:
            elapsed_ms = max(0, now_ms - self._filled_ms)
            self._bytes = min(rate, self._bytes + rate * elapsed_ms // 1000)
        self._filled_ms = now_ms
        if self._bytes > 0:
            return 0
        return 1000 if rate <= 0 else max(1, -(-(1 - self._bytes) * 1000 // rate))

    def spend(self, size_bytes: int) -> None:
        """These bytes have moved."""
        self._bytes -= size_bytes

    def __repr__(self) -> str:
        return f"<Throttle {self._bytes} bytes left>"
