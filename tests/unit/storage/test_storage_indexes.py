"""The offset index and the time index: lookups against brute force, and the bytes on disk against struct."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex

BASE_OFFSET = 5_000_000_000

steps = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100_000)), max_size=60)


def running(pairs: list[tuple[int, int]], first: int, second: int) -> list[tuple[int, int]]:
    entries = []
    for left, right in pairs:
        first, second = first + left, second + right
        entries.append((first, second))
    return entries


@given(steps, st.integers(-10, 70_000))
def test_an_offset_leads_to_the_last_entry_not_after_it(pairs: list[tuple[int, int]], relative: int) -> None:
    entries = running(pairs, BASE_OFFSET, 0)
    index = OffsetIndex(BASE_OFFSET)
    for offset, position in entries:
        index.append(offset, position)
    wanted = BASE_OFFSET + relative
    expected = max((position for offset, position in entries if offset <= wanted), default=0)
    assert index.position_for(wanted) == expected


@given(steps, st.integers(0, 7_000_000))
def test_a_position_leads_to_the_last_boundary_not_after_it(pairs: list[tuple[int, int]], limit: int) -> None:
    entries = running(pairs, BASE_OFFSET, 0)
    index = OffsetIndex(BASE_OFFSET)
    for offset, position in entries:
        index.append(offset, position)
    assert index.boundary_before(limit) == max((p for _, p in entries if p <= limit), default=0)


@given(steps, st.integers(0, 60))
def test_offset_entries_are_int32_pairs_on_disk(pairs: list[tuple[int, int]], first: int) -> None:
    entries = running(pairs, BASE_OFFSET, 0)
    index = OffsetIndex(BASE_OFFSET)
    for offset, position in entries:
        index.append(offset, position)
    data = index.encode()
    assert data == b"".join(
        struct.pack(">ii", offset - BASE_OFFSET, position) for offset, position in entries
    )
    first = min(first, len(entries))
    assert index.encode(first) == data[8 * first :]
    loaded = OffsetIndex.decode(BASE_OFFSET, data)
    assert loaded is not None and loaded.ascends()
    assert (loaded.relative_offsets, loaded.positions) == (index.relative_offsets, index.positions)


@given(steps, st.integers(-5, 70_000))
def test_truncating_forgets_entries_from_the_offset_on(pairs: list[tuple[int, int]], relative: int) -> None:
    offsets, times = OffsetIndex(BASE_OFFSET), TimeIndex(BASE_OFFSET)
    entries = running(pairs, BASE_OFFSET, 0)
    for offset, other in entries:
        offsets.append(offset, other)
        times.append(other, offset)
    cut = BASE_OFFSET + relative
    offsets.truncate_to(cut)
    times.truncate_to(cut)
    kept = [entry for entry in entries if entry[0] < cut]
    assert list(offsets.positions) == [position for _, position in kept]
    assert list(times.timestamps_ms) == [timestamp for _, timestamp in kept]


@given(steps, st.integers(0, 7_000_000))
def test_a_timestamp_leads_to_the_last_entry_not_newer(
    pairs: list[tuple[int, int]], timestamp_ms: int
) -> None:
    entries = running(pairs, BASE_OFFSET, 0)
    index = TimeIndex(BASE_OFFSET)
    for offset, entry_timestamp_ms in entries:
        index.append(entry_timestamp_ms, offset)
    expected = max((offset for offset, entry in entries if entry <= timestamp_ms), default=BASE_OFFSET)
    assert index.offset_for(timestamp_ms) == expected


@given(steps)
def test_time_entries_are_int64_and_int32_on_disk(pairs: list[tuple[int, int]]) -> None:
    entries = running(pairs, BASE_OFFSET, 1_700_000_000_000)
    index = TimeIndex(BASE_OFFSET)
    for offset, timestamp_ms in entries:
        index.append(timestamp_ms, offset)
    data = index.encode()
    assert data == b"".join(struct.pack(">qi", time, offset - BASE_OFFSET) for offset, time in entries)
    loaded = TimeIndex.decode(BASE_OFFSET, data)
    assert loaded is not None and loaded.ascends()
    assert (loaded.timestamps_ms, loaded.relative_offsets) == (index.timestamps_ms, index.relative_offsets)


def test_a_timestamp_that_has_not_grown_adds_nothing() -> None:
    index = TimeIndex(0)
    index.append(100, 5)
    index.append(100, 9)
    index.append(99, 12)
    assert len(index) == 1


def test_bytes_that_are_no_entries_are_refused() -> None:
    assert OffsetIndex.decode(0, b"\0" * 9) is None
    assert TimeIndex.decode(0, b"\0" * 13) is None


def test_entries_out_of_order_are_noticed() -> None:
    offsets = OffsetIndex.decode(0, struct.pack(">iiii", 5, 100, 4, 200))
    times = TimeIndex.decode(0, struct.pack(">qiqi", 5, 1, 4, 2))
    assert offsets is not None and not offsets.ascends()
    assert times is not None and not times.ascends()
