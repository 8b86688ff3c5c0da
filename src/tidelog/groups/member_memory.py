"""How much is kept of the members of groups: ids that were handed out, and what members say of themselves.

A member may say as much as fits a request, and is kept until its session ends: half an hour, where it asks
for that. Kafka counts members (`group.max.size`); here their bytes are counted too. All groups of a broker
together keep `GroupSettings.members_bytes_max`, one group at most half of that, so that nobody who may join
one group keeps the others from having members. Whoever would make it more is told GROUP_MAX_SIZE_REACHED.

Each group knows what it keeps. The sum over the groups is made only when it matters: `admits` adds up what it
has let in since then, which is too much by all that has gone meanwhile, and looks again when that is above
the bound.
"""

from collections.abc import Callable, Iterable
from sys import getsizeof

#: what a member, or a group, takes besides what it says
MEMBER_BYTES = 1_000
GROUP_BYTES = 2_000
#: the groups are not gone through more often than this
COUNTED_EVERY_MS = 1_000


def text_bytes(*texts: str | bytes | None) -> int:
    """What some strings take in memory."""
    return sum(getsizeof(text) for text in texts if text)


def protocols_bytes(protocols: Iterable[tuple[str, bytes]]) -> int:
    """What a classic member's protocols take in memory."""
    return sum(100 + getsizeof(name) + getsizeof(metadata) for name, metadata in protocols)


class MemberMemory:
    """What the members of several machines may make a broker keep."""

    __slots__ = ("_count", "_counted_ms", "_used_bytes")

    def __init__(self, count: Callable[[], int]) -> None:
        """`count` goes through all groups and says what they keep."""
        self._count = count
        self._used_bytes = 0
        self._counted_ms: int | None = None

    def __repr__(self) -> str:
        return f"<MemberMemory used_bytes={self._used_bytes}>"

    def admits(self, more_bytes: int, group_bytes: int, bytes_max: int, now_ms: int) -> bool:
        """May a group that keeps `group_bytes` keep so many more?"""
        if more_bytes <= 0:
            return True
        if group_bytes + more_bytes > bytes_max // 2:
            return False
        if self._used_bytes + more_bytes > bytes_max and self._is_due(now_ms):
            self._used_bytes = self._count()
            self._counted_ms = now_ms
        if self._used_bytes + more_bytes > bytes_max:
            return False
        self._used_bytes += more_bytes
        return True

    def _is_due(self, now_ms: int) -> bool:
        counted_ms = self._counted_ms
        return counted_ms is None or not counted_ms <= now_ms < counted_ms + COUNTED_EVERY_MS
