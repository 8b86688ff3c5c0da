"""The records in flight of a share partition, as runs of offsets that share one fate.

    start                                                                 end
      | 0-9 ACQUIRED by a | 10-11 ARCHIVED | 12-40 AVAILABLE | 41-90 ACQUIRED by b |  not fetched yet …

Runs lie side by side from `start` to `end`, without gaps and overlaps. A run is cut where a step concerns a
part of it (`isolate`), and neighbours that have become alike are joined again (`join`), so their number
follows what members do, not how many records there are. Every operation costs the runs it touches; what may
be acquired, what rests and which lock ends next are indexed."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tidelog.shares.states import TERMINAL, RecordState

NOBODY = ""
#: heaps with more entries than this, and than that many for each run, are cleared of what is out of date
_STALE_MIN = 64
_STALE_PER_RUN = 4


class Run:
    """Offsets from `first` to `last` (inclusive) that share one fate."""

    __slots__ = (
        "deadline_ms",
        "delivery_count",
        "first",
        "is_ready",
        "last",
        "member_id",
        "reason",
        "rests_until_ms",
        "size_before",
        "state",
        "target",
    )

    def __init__(self, first: int, last: int, state: RecordState, delivery_count: int = 0) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NOBODY
        self.deadline_ms = 0
        """When the lock ends, of an acquired run."""
        self.target: RecordState | None = None
        """The state it has as soon as the share coordinator has stored it."""
        self.reason = ""
        """Why it is archived, for its dead letter."""
        self.rests_until_ms = 0
        self.is_ready = False
        """May it be acquired? Kept by `Runs`."""
        self.size_before = 0
        """How many records were delivered together when that had failed often; 0 while it has not."""

    def __repr__(self) -> str:
        to = "" if self.target is None else f"→{self.target.name}"
        owner = f" by {self.member_id}" if self.member_id else ""
        return f"<Run {self.first}-{self.last} {self.state.name}{to} count={self.delivery_count}{owner}>"

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL and self.target is None

    def is_like(self, other: "Run") -> bool:
        """Would it make no difference to have both as one?"""
        return (
            self.state is other.state
            and self.state is not RecordState.ACQUIRED
            and self.delivery_count == other.delivery_count
            and self.target is None
            and other.target is None
            and self.reason == other.reason
            and self.is_ready == other.is_ready
            and (self.is_ready or self.rests_until_ms == other.rests_until_ms)
            and self.size_before == other.size_before
        )

    def cut(self, offset: int) -> "Run":
        """Give up what begins at `offset`, and return that."""
        rest = Run(offset, self.last, self.state, self.delivery_count)
        rest.member_id, rest.deadline_ms, rest.target = self.member_id, self.deadline_ms, self.target
        rest.reason, rest.rests_until_ms = self.reason, self.rests_until_ms
        rest.size_before = self.size_before
        self.last = offset - 1
        return rest


class Runs:
    """All runs of a share partition in order, and what is next of them."""

    __slots__ = ("_by_first", "_firsts", "_locks", "_ready", "_resting", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        """The first offset that was never fetched."""
        self._firsts: list[int] = []
        self._by_first: dict[int, Run] = {}
        self._ready: list[int] = []
        """Where the runs begin that may be acquired, sorted."""
        self._resting: list[tuple[int, int]] = []
        self._locks: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return f"<Runs {self.start}-{self.end} in {len(self._firsts)}>"

    def __iter__(self) -> Iterator[Run]:
        return (self._by_first[first] for first in self._firsts)

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def window(self) -> int:
        """How many offsets are in flight."""
        return self.end - self.start

    # ------------------------------------------------------------ looking

    def at(self, offset: int) -> Run:
        """The run with an offset between start and end."""
        return self._by_first[self._firsts[bisect_right(self._firsts, offset) - 1]]

    def covering(self, first: int, last: int) -> list[Run]:
        """The runs that have offsets between `first` and `last`."""
        if first > last:
            return []
        begin = max(0, bisect_right(self._firsts, first) - 1)
        found = []
        for index in range(begin, len(self._firsts)):
            run = self._by_first[self._firsts[index]]
            if run.first > last:
                break
            if run.last >= first:
                found.append(run)
        return found

    def next_ready(self, offset: int) -> Run | None:
        """The first run that may be acquired and begins at `offset` or later."""
        index = bisect_left(self._ready, offset)
        return self._by_first[self._ready[index]] if index < len(self._ready) else None

    @property
    def next_fetch_offset(self) -> int:
        return self._ready[0] if self._ready else self.end

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    # ------------------------------------------------------------ cutting and joining

    def append(self, last: int, state: RecordState, delivery_count: int = 0) -> Run:
        """A run from the end up to `last`; the caller says what else there is of it."""
        run = Run(self.end, last, state, delivery_count)
        self._firsts.append(run.first)
        self._by_first[run.first] = run
        self.end = last + 1
        return run

    def _cut(self, offset: int) -> None:
        """Have a run begin at `offset`."""
        if not self.start < offset < self.end:
            return
        run = self.at(offset)
        if run.first == offset:
            return
        rest = run.cut(offset)
        self._by_first[offset] = rest
        insort(self._firsts, offset)
        if run.is_ready:
            rest.is_ready = True
            insort(self._ready, offset)
        elif run.state is RecordState.AVAILABLE:
            heappush(self._resting, (rest.rests_until_ms, offset))
        elif run.state is RecordState.ACQUIRED:
            heappush(self._locks, (rest.deadline_ms, offset))

    def isolate(self, first: int, last: int) -> list[Run]:
        """The runs that are exactly the offsets between `first` and `last`, cut where necessary."""
        first, last = max(first, self.start), min(last, self.end - 1)
        if first > last:
            return []
        self._cut(first)
        self._cut(last + 1)
        return self.covering(first, last)

    def join(self, first: int, last: int) -> None:
        """Make one of neighbours that have become alike, between `first` and `last` and just beside."""
        if not self._firsts:
            return
        index = max(0, bisect_right(self._firsts, first - 1) - 1)
        while index + 1 < len(self._firsts):
            left, right = self._by_first[self._firsts[index]], self._by_first[self._firsts[index + 1]]
            if right.first > last + 1:
                return
            if not left.is_like(right):
                index += 1
                continue
            if right.is_ready:
                self._forget_ready(right)
            left.last = right.last
            del self._firsts[index + 1], self._by_first[right.first]

    def drop_before(self, offset: int) -> list[Run]:
        """Have `offset` as the start; returns what was given up."""
        if offset >= self.end:
            dropped = list(self)
            self._firsts.clear()
            self._by_first.clear()
            self._ready.clear()
            self._resting.clear()
            self._locks.clear()
            self.start = self.end = max(self.end, offset)
            return dropped
        self._cut(offset)
        count = bisect_left(self._firsts, offset)
        dropped = [self._by_first.pop(first) for first in self._firsts[:count]]
        del self._firsts[:count], self._ready[: bisect_left(self._ready, offset)]
        self.start = max(self.start, offset)
        return dropped

    # ------------------------------------------------------------ changing what a run is

    def offer(self, run: Run, ready_ms: int, now_ms: int) -> None:
        """A run is available, or will be at `ready_ms`."""
        run.state, run.target, run.member_id, run.rests_until_ms = (
            RecordState.AVAILABLE, None, NOBODY, ready_ms,
        )  # fmt: skip
        if ready_ms <= now_ms:
            run.is_ready = True
            insort(self._ready, run.first)
        else:
            heappush(self._resting, (ready_ms, run.first))
            self._clear_stale()

    def withdraw(self, run: Run) -> None:
        """An available run will be something else."""
        if run.is_ready:
            self._forget_ready(run)

    def lock(self, run: Run, member_id: str, deadline_ms: int) -> None:
        """A run is acquired, or acquired for longer."""
        self.withdraw(run)
        run.state, run.member_id, run.deadline_ms = RecordState.ACQUIRED, member_id, deadline_ms
        heappush(self._locks, (deadline_ms, run.first))
        self._clear_stale()

    def close(self, run: Run, state: RecordState, reason: str = "") -> None:
        """Nobody gets a run any more."""
        self.withdraw(run)
        run.state, run.target, run.member_id = state, None, NOBODY
        run.rests_until_ms = run.size_before = 0
        run.reason = reason if state is RecordState.ARCHIVING else ""

    def _forget_ready(self, run: Run) -> None:
        run.is_ready = False
        del self._ready[bisect_left(self._ready, run.first)]

    # ------------------------------------------------------------ time

    def next_deadline_ms(self) -> int | None:
        """When a lock ends or a rest is over, whichever comes first."""
        self._drop_stale()
        heads = [heap[0][0] for heap in (self._locks, self._resting) if heap]
        return min(heads, default=None)

    def rested(self, now_ms: int) -> bool:
        """Offer what has rested long enough; was there any?"""
        any_ready = False
        while self._resting and self._resting[0][0] <= now_ms:
            ready_ms, first = heappop(self._resting)
            run = self._by_first.get(first)
            if run is not None and self._rests(run, ready_ms):
                run.is_ready = any_ready = True
                insort(self._ready, first)
        return any_ready

    def expired(self, now_ms: int) -> list[Run]:
        """The runs whose locks have ended, without those whose next state is just being stored."""
        found: list[Run] = []
        while self._locks and self._locks[0][0] <= now_ms:
            deadline_ms, first = heappop(self._locks)
            run = self._by_first.get(first)
            if run is None or not self._is_locked(run, deadline_ms) or run.target is not None:
                continue
            # Locked twice for the same time: a renewal in the same millisecond.
            if not found or found[-1] is not run:
                found.append(run)
        return found

    @staticmethod
    def _rests(run: Run, ready_ms: int) -> bool:
        return run.state is RecordState.AVAILABLE and not run.is_ready and run.rests_until_ms == ready_ms

    @staticmethod
    def _is_locked(run: Run, deadline_ms: int) -> bool:
        return run.state is RecordState.ACQUIRED and run.deadline_ms == deadline_ms

    def _is_current(self, heap: list[tuple[int, int]], entry: tuple[int, int]) -> bool:
        run = self._by_first.get(entry[1])
        if run is None:
            return False
        return self._rests(run, entry[0]) if heap is self._resting else self._is_locked(run, entry[0])

    def _drop_stale(self) -> None:
        for heap in (self._locks, self._resting):
            while heap and not self._is_current(heap, heap[0]):
                heappop(heap)

    def _clear_stale(self) -> None:
        """Locks that were given back early must not pile up until they would have ended."""
        for heap in (self._locks, self._resting):
            if len(heap) > max(_STALE_MIN, _STALE_PER_RUN * len(self._firsts)):
                heap[:] = {entry for entry in heap if self._is_current(heap, entry)}
                heapify(heap)
