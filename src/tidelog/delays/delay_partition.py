"""One delay partition at its leader: what waits, what is next, and what is done with it.

Pure: the log is read, and the index kept, by others. Records are taken over in the order of the log (`take`,
`took`). A plan is what the next transaction forwards: `begin` offers candidates in their order, `cut` says
how many of them go and gives the progress to commit with them; then `committed`, or `given_up`. Nothing is
taken over between `begin` and `cut`.

The order is that of `progress`: first the late records, whose time had passed in the order when they came,
by offset; then the waiting ones by due time and offset. Late and waiting are told apart by the last record of
the plan under way, or of the last one: so a record that comes while a transaction is open is never taken for
one that is in it.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from tidelog.delays.progress import DELAYS_MAX, Delay, Progress, kept_delays
from tidelog.records.delivery_headers import lenient_due_of
from tidelog.records.record import Record

#: the low offset is known in steps of this size
BUCKET_OFFSETS = 1024
KEY_DIGEST_BYTES = 16


class Entry(NamedTuple):
    """A record that waits; `place` is where it begins in the unpacked records of its batch."""

    due_ms: int
    offset: int
    place: int


#: an `Entry`, or its fields: an object of each is not made where there are many
Row = tuple[int, int, int]


class WaitingIndex(Protocol):
    """Where the records that wait are kept in order."""

    def add(self, waiting: Sequence[Row], late: Sequence[Row]) -> None: ...

    def first_late(self, count: int) -> list[Entry]:
        """By offset."""

    def first_waiting(self, count: int) -> list[Entry]:
        """By due time and offset."""

    def remove(self, late_through: int, due_ms: int, offset: int) -> None:
        """Forget the late ones up to an offset, and the waiting ones up to a due time and offset."""

    def late_above(self, due_ms: int, offset: int) -> int:
        """Late ones above a due time and offset wait; return how many they are."""

    def cancel(self, digest: bytes, offset: int) -> None: ...

    def cancelled_up_to(self, digest: bytes) -> int:
        """The offset of the last cancel of a key, -1 without one."""

    def forget_cancels(self, low: int) -> None:
        """Cancels before an offset concern nobody any more."""


class _Plan(NamedTuple):
    late: list[Entry]
    waiting: list[Entry]
    end_offset: int


class _Cut(NamedTuple):
    entries: list[Entry]
    late_count: int
    progress: Progress


def key_digest(key: bytes) -> bytes:
    """What stands for a key among cancels."""
    return blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()


class DelayPartition:
    """What waits in one partition."""

    def __init__(self, index: WaitingIndex, progress: Progress) -> None:
        self._index = index
        #: what is committed
        self.progress = progress
        #: the first offset that was not looked at
        self.next_offset = progress.low
        self.waiting_count = 0
        self.late_count = 0
        self._delays = [each for each in progress.delays if each.from_offset < progress.taken]
        self._new_waiting: list[Row] = []
        self._new_late: list[Row] = []
        self._any_cancels = False
        #: how many records wait, by their offsets; ascending
        self._buckets: dict[int, int] = {}
        self._plan: _Plan | None = None
        self._cut: _Cut | None = None

    def __repr__(self) -> str:
        return f"<DelayPartition next={self.next_offset} waiting={self.count} {self.progress}>"

    @property
    def count(self) -> int:
        """How many records wait; those that were cancelled count until they would have been due."""
        return self.waiting_count + self.late_count

    @property
    def knows_what_waits(self) -> bool:
        """Whether everything that was taken over before is known again."""
        return self.next_offset >= self.progress.taken

    # ------------------------------------------------------------ taking over

    def take(self, record: Record, place: int, delay_ms: int) -> None:
        """Take the next record of the log over; `delay_ms` is the topic's delay now."""
        assert self._plan is None, "nothing is taken over while a plan is made"
        offset = record.offset
        due_ms = lenient_due_of(record, self._delay_of(offset, delay_ms))
        if due_ms is None:
            assert record.key is not None
            self._any_cancels = True
            self._index.cancel(key_digest(record.key), offset)
            return
        if self.progress.is_done(due_ms, offset):
            return
        entry = Entry(due_ms, offset, place)
        if (due_ms, offset) <= self._followed:
            self._new_late.append(entry)
        else:
            self._new_waiting.append(entry)
        self._count((offset,), 1)

    def delay_of_all(self, offset: int, end_offset: int, delay_ms: int) -> int | None:
        """The one delay that holds for the offsets from one up to another; None where there are several, or
        only some were taken over before.
        """
        if offset < self.progress.taken < end_offset:
            return None
        if any(offset < each.from_offset < end_offset for each in self._delays):
            return None
        return self._delay_of(offset, delay_ms)

    def take_batch(self, base_offset: int, due_ms: Sequence[int], places: Sequence[int]) -> None:
        """Take records over that follow each other; all say when they are due, and have one delay."""
        assert self._plan is None, "nothing is taken over while a plan is made"
        end_offset = base_offset + len(due_ms)
        rows = zip(due_ms, range(base_offset, end_offset), places, strict=True)
        if end_offset <= self.progress.taken:
            # They were taken over before: what was not followed yet waits. No transaction is under way.
            done = (self.progress.due_ms, self.progress.offset)
            waiting = [row for row in rows if row[:2] > done]
            self._new_waiting += waiting
            self._count([row[1] for row in waiting], 1)
            return
        assert base_offset >= self.progress.taken
        followed = self._followed
        if min(due_ms) > followed[0]:
            self._new_waiting += rows
        else:
            for row in rows:
                (self._new_late if row[:2] <= followed else self._new_waiting).append(row)
        self._count(range(base_offset, end_offset), 1)

    def took(self, next_offset: int) -> None:
        """Everything before an offset was looked at."""
        self.next_offset = max(self.next_offset, next_offset)
        if self._new_waiting or self._new_late:
            self._index.add(self._new_waiting, self._new_late)
            self.waiting_count += len(self._new_waiting)
            self.late_count += len(self._new_late)
            self._new_waiting, self._new_late = [], []

    @property
    def _followed(self) -> tuple[int, int]:
        progress = self.progress if self._cut is None else self._cut.progress
        return progress.due_ms, progress.offset

    def _delay_of(self, offset: int, delay_ms: int) -> int:
        delays = self._delays
        if offset >= self.progress.taken:
            if not delays or (delays[-1].delay_ms != delay_ms and len(delays) < DELAYS_MAX):
                delays.append(Delay(offset, delay_ms))
            return delays[-1].delay_ms
        for each in reversed(delays):
            if each.from_offset <= offset:
                return each.delay_ms
        return delay_ms

    # ------------------------------------------------------------ forwarding

    def next_due_ms(self) -> int | None:
        """When the next record is due; None if none waits."""
        first = self._index.first_late(1) if self.late_count else []
        first = first or self._index.first_waiting(1)
        return first[0].due_ms if first else None

    def begin(self, now_ms: int, count_max: int) -> list[Entry]:
        """The records that are due, in their order, at most so many."""
        assert self._plan is None and self._cut is None and not self._new_waiting and not self._new_late
        late = _due(self._index.first_late(count_max), now_ms) if self.late_count else []
        waiting: list[Entry] = []
        if len(late) == self.late_count and len(late) < count_max:
            waiting = _due(self._index.first_waiting(count_max - len(late)), now_ms)
        if not late and not waiting:
            return []
        self._plan = _Plan(late, waiting, self.next_offset)
        return late + waiting

    def is_cancelled(self, entry: Entry, key: bytes | None) -> bool:
        """Whether a record that is due was cancelled by a later one."""
        if key is None or not self._any_cancels:
            return False
        return self._index.cancelled_up_to(key_digest(key)) > entry.offset

    def cut(self, count: int) -> Progress:
        """The first so many candidates go, or are cancelled; what to commit with them."""
        assert self._plan is not None and 0 < count <= len(self._plan.late) + len(self._plan.waiting)
        plan, self._plan = self._plan, None
        before = self.progress
        late_count = min(count, len(plan.late))
        entries = (plan.late + plan.waiting)[:count]
        due_ms, offset = before.due_ms, before.offset
        end_offset = plan.end_offset
        if late_count < self.late_count:
            end_offset = entries[-1].offset + 1
        elif count > late_count:
            due_ms, offset = entries[-1].due_ms, entries[-1].offset
        self._count([entry.offset for entry in entries], -1)
        taken = max(before.taken, end_offset)
        low = max(before.low, self._low())
        delays = kept_delays(self._delays, low, taken)
        progress = Progress(low, taken, due_ms, offset, delays)
        self._cut = _Cut(entries, late_count, progress)
        return progress

    def committed(self) -> None:
        """The transaction is committed."""
        assert self._cut is not None
        (entries, late_count, progress), self._cut = self._cut, None
        late_through = entries[late_count - 1].offset if late_count else -1
        self._index.remove(late_through, progress.due_ms, progress.offset)
        self.late_count -= late_count
        self.waiting_count -= len(entries) - late_count
        self.progress = progress
        for bucket in {entry.offset // BUCKET_OFFSETS for entry in entries}:
            if not self._buckets[bucket]:
                del self._buckets[bucket]
        self._delays = list(kept_delays(self._delays, progress.low, self.next_offset))
        if self._any_cancels:
            self._index.forget_cancels(progress.low)

    def given_up(self) -> None:
        """The transaction was aborted, or none was begun: all of it waits on."""
        self._plan = None
        if self._cut is None:
            return
        self._count([entry.offset for entry in self._cut.entries], 1)
        self._cut = None
        moved = self._index.late_above(self.progress.due_ms, self.progress.offset)
        self.late_count -= moved
        self.waiting_count += moved

    def _count(self, offsets: Sequence[int], change: int) -> None:
        buckets = self._buckets
        for bucket, count in Counter([offset // BUCKET_OFFSETS for offset in offsets]).items():
            buckets[bucket] = buckets.get(bucket, 0) + change * count

    def _low(self) -> int:
        for bucket, count in self._buckets.items():
            if count:
                return min(self.next_offset, bucket * BUCKET_OFFSETS)
        return self.next_offset

    @property
    def planned(self) -> Progress | None:
        """What the transaction under way commits."""
        return None if self._cut is None else self._cut.progress


def _due(entries: list[Entry], now_ms: int) -> list[Entry]:
    """Those up to the first that is not due: the clock may have been set back."""
    for number, entry in enumerate(entries):
        if entry.due_ms > now_ms:
            return entries[:number]
    return entries
