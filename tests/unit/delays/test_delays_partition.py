"""The order and the completeness of what a delay partition forwards, under every course of events.

`World` has a log, a forwarder that is lost and begun anew from what it committed, transactions that fail, and
a topic whose delay changes. Whatever happens, each record is forwarded once, none early, cancelled ones not.
"""

from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.coordinators import waiting_index
from tidelog.broker.coordinators.waiting_index import WaitingIndex
from tidelog.delays.delay_partition import BUCKET_OFFSETS, DelayPartition
from tidelog.delays.progress import DELAYS_MAX, Delay, Progress, kept_delays, read_progress
from tidelog.records.delivery_headers import lenient_due_of
from tidelog.records.record import Record

TOPIC_ID = UUID(int=7)
#: all candidates go
ALL = -1


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """Few records are enough to be moved in the index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_index, "FRESH_MAX", 4)
        patch.setattr(waiting_index, "MOVED_AT_ONCE", 2)
        yield


class World:
    """A delay partition and everything that happens to it."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.delay_ms = 50
        self.log: list[Record] = []
        self.stored: tuple[int, str] | None = None
        self.forwarded: list[int] = []
        self.begin_life()

    def begin_life(self) -> None:
        progress: Progress | None = Progress()
        if self.stored is not None:
            progress = read_progress(*self.stored, TOPIC_ID)
        assert progress is not None
        self.partition = DelayPartition(WaitingIndex(None), progress.within(0, len(self.log)))
        self.partition.next_offset = progress.low

    def append(self, due_in_ms: int | None, key: int) -> None:
        headers: tuple[tuple[str, bytes], ...] = ()
        if due_in_ms is not None:
            headers = (("tidelog-delay-ms", str(due_in_ms).encode()),)
        self.log.append(Record(len(self.log), self.now_ms, b"%d" % key, b"v", headers))

    def cancel(self, key: int) -> None:
        self.log.append(Record(len(self.log), self.now_ms, b"%d" % key, None))

    def take(self, count: int) -> None:
        records = self.log[self.partition.next_offset :][:count]
        if records and not any(each.value is None for each in records):
            first, end = records[0].offset, records[-1].offset + 1
            delay_ms = self.partition.delay_of_all(first, end, self.delay_ms)
            if delay_ms is not None:
                due_ms = [lenient_due_of(each, delay_ms) or 0 for each in records]
                self.partition.take_batch(first, due_ms, [each.offset * 10 for each in records])
                self.partition.took(end)
                return
        for record in records:
            self.partition.take(record, record.offset * 10, self.delay_ms)
            self.partition.took(record.offset + 1)

    def forward(self, count_max: int, cut: int, *, commits: bool, meanwhile: int = 0) -> bool:
        """One transaction, during which more may be taken over; say whether there was anything to do."""
        partition = self.partition
        if not partition.knows_what_waits:
            self.take(len(self.log))
        entries = partition.begin(self.now_ms, count_max)
        if not entries:
            return False
        count = 1 + cut % len(entries)
        gone: list[int] = []
        for entry in entries[:count]:
            assert entry.due_ms <= self.now_ms, "early"
            assert entry.place == entry.offset * 10
            if not partition.is_cancelled(entry, self.log[entry.offset].key):
                gone.append(entry.offset)
        progress = partition.cut(count)
        self.take(meanwhile)
        if commits:
            self.check_order(entries[:count], progress)
            self.stored = (progress.low, progress.metadata(TOPIC_ID))
            self.forwarded += gone
            partition.committed()
        else:
            partition.given_up()
        return True

    def check_order(self, entries: list, progress: Progress) -> None:  # type: ignore[type-arg]
        before = (self.partition.progress.due_ms, self.partition.progress.offset)
        late = [each for each in entries if (each.due_ms, each.offset) <= before]
        waiting = entries[len(late) :]
        assert entries[: len(late)] == late == sorted(late, key=lambda each: each.offset)
        assert waiting == sorted(waiting)
        assert all(progress.is_done(each.due_ms, each.offset) for each in entries)

    def finish(self) -> None:
        """Everything is due at last, and nothing fails any more."""
        self.now_ms += 10_000_000
        self.take(len(self.log))
        while self.forward(3, ALL, commits=True):
            pass
        assert self.partition.count == 0
        assert self.partition.next_due_ms() is None

    def check(self) -> None:
        assert len(self.forwarded) == len(set(self.forwarded)), "twice"
        for record in self.log:
            later = [each for each in self.log[record.offset + 1 :] if each.key == record.key]
            cancelled = any(each.value is None for each in later)
            if record.value is None:
                assert record.offset not in self.forwarded, "a cancel is not forwarded"
            elif not cancelled:
                assert record.offset in self.forwarded, f"{record} is lost"


STEPS = st.one_of(
    st.tuples(st.just("append"), st.one_of(st.none(), st.integers(0, 120)), st.integers(0, 3)),
    st.tuples(st.just("append"), st.one_of(st.none(), st.integers(0, 120)), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("take"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("wait"), st.integers(-5, 60), st.just(0)),
    st.tuples(st.just("commit"), st.integers(1, 4), st.integers(0, 7)),
    st.tuples(st.just("commit"), st.integers(1, 4), st.integers(0, 7)),
    st.tuples(st.just("fail"), st.integers(1, 4), st.integers(0, 7)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
    st.tuples(st.just("delay"), st.integers(0, 120), st.just(0)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_each_record_is_forwarded_once_and_none_early(steps: list[tuple[str, int | None, int]]) -> None:
    world = World()
    for what, first, second in steps:
        if what == "append":
            world.append(first, second)
            continue
        assert first is not None
        if what == "cancel":
            world.cancel(first)
        elif what == "take":
            world.take(first)
        elif what == "wait":
            world.now_ms += first
        elif what in ("commit", "fail"):
            world.forward(first, second, commits=what == "commit", meanwhile=second % 3)
        elif what == "restart":
            world.begin_life()
        else:
            world.delay_ms = first
    world.finish()
    world.check()


def world_with(*due_in_ms: int) -> World:
    world = World()
    for key, each in enumerate(due_in_ms):
        world.append(each, key)
    world.take(len(world.log))
    return world


def test_what_waits_goes_by_due_time_then_offset() -> None:
    world = world_with(30, 10, 20, 10)
    world.now_ms += 20
    assert world.forward(10, ALL, commits=True) is True
    assert world.forwarded == [1, 3, 2]
    assert world.partition.next_due_ms() == 1_030


def test_what_comes_late_goes_first_and_does_not_move_the_order() -> None:
    world = world_with(30, 10)
    world.now_ms += 10
    world.forward(10, ALL, commits=True)
    for _ in range(5):
        world.append(0, 9)
        world.log[-1] = world.log[-1]._replace(timestamp_ms=900)
    world.take(10)
    assert world.partition.late_count == 5
    world.now_ms += 100
    world.forward(3, ALL, commits=True)
    progress = world.partition.progress
    assert (progress.taken, progress.due_ms, progress.offset) == (5, 1_010, 1)
    world.begin_life()
    world.take(10)
    world.forward(10, ALL, commits=True)
    assert world.forwarded == [1, 2, 3, 4, 5, 6, 0]


def test_a_shorter_delay_of_the_topic_does_not_lose_what_waits() -> None:
    world = World()
    world.delay_ms = 100
    world.append(None, 0)
    world.append(10, 1)
    world.take(2)
    world.now_ms += 20
    world.forward(5, ALL, commits=True)
    assert world.forwarded == [1]
    # By the new delay the first record would stand before what was forwarded.
    world.delay_ms = 5
    world.begin_life()
    world.finish()
    assert world.forwarded == [1, 0]


def test_a_cancel_holds_for_what_is_before_it_with_its_key() -> None:
    world = world_with(10, 10, 10)
    world.cancel(1)
    world.append(10, 1)
    world.finish()
    assert world.forwarded == [0, 2, 4]


def test_the_low_offset_passes_what_is_done() -> None:
    world = World()
    for number in range(3 * BUCKET_OFFSETS):
        world.append(0 if number < 2 * BUCKET_OFFSETS + 5 else 1_000, number)
    world.take(len(world.log))
    while world.forward(1_000, ALL, commits=True):
        pass
    assert world.partition.progress.low == 2 * BUCKET_OFFSETS
    world.finish()
    assert world.partition.progress.low == len(world.log)


def test_many_changes_of_the_delay_are_bounded() -> None:
    world = World()
    for number in range(3 * DELAYS_MAX):
        world.delay_ms = 100 + number
        world.append(None, number)
        world.take(1)
    world.now_ms += 100
    world.forward(1, ALL, commits=True)
    assert len(world.partition.progress.delays) <= DELAYS_MAX
    world.begin_life()
    world.finish()
    world.check()


def test_what_is_committed_is_read_again() -> None:
    progress = Progress(5, 9, 1_000, 7, (Delay(0, 10), Delay(6, 20)))
    stored = progress.metadata(TOPIC_ID)
    assert read_progress(5, stored, TOPIC_ID) == progress
    assert read_progress(5, stored, UUID(int=8)) is None
    for bad in ("", "1;2", stored.replace("1;", "2;", 1), stored + ";"):
        with pytest.raises(ValueError, match=r"."):
            read_progress(5, bad, TOPIC_ID)


def test_only_the_delays_that_count_are_kept() -> None:
    delays = (Delay(0, 1), Delay(10, 2), Delay(20, 3))
    assert kept_delays(delays, 0, 30) == delays
    assert kept_delays(delays, 10, 30) == delays[1:]
    assert kept_delays(delays, 15, 20) == delays[1:2]
    assert kept_delays((), 0, 0) == ()


def test_a_log_that_was_cut_uncleanly_is_begun_at_its_end() -> None:
    assert Progress(50, 90, 5, 60).within(0, 40) == Progress(40, 40, 5, 60)
    assert Progress(5, 90, 5, 60).within(20, 100) == Progress(20, 90, 5, 60)
