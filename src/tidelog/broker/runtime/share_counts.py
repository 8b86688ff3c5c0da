"""What a broker counts of share groups as the leader of partitions: deliveries, acknowledgements, locks that
ended, dead letters. Nothing is counted for those who have no share groups.
"""

from collections import Counter
from collections.abc import Callable

GROUPS_MAX = 10_000


class ShareGroupCounts:
    """The totals of one share group on this broker, in records."""

    __slots__ = ("acknowledgements", "dead_letters", "dead_letters_given_up", "deliveries", "lock_expiries")

    def __init__(self) -> None:
        #: by the number of the delivery: 1 is the first
        self.deliveries: Counter[int] = Counter()
        #: by type
        self.acknowledgements: Counter[int] = Counter()
        self.lock_expiries = 0
        self.dead_letters = 0
        self.dead_letters_given_up = 0


class ShareCounts:
    """The totals of all share groups that fetched here."""

    def __init__(self) -> None:
        self.groups: dict[str, ShareGroupCounts] = {}

    def __repr__(self) -> str:
        return f"<ShareCounts groups={len(self.groups)}>"

    def of(self, group_id: str, is_here: Callable[[str], bool]) -> ShareGroupCounts:
        """The totals of a group. Those of groups that are not here any more make room for others."""
        found = self.groups.get(group_id)
        if found is None:
            if len(self.groups) >= GROUPS_MAX:
                self.groups = {name: counts for name, counts in self.groups.items() if is_here(name)}
            found = self.groups[group_id] = ShareGroupCounts()
        return found
