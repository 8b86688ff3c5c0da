"""Index files as those see them who did not write them: zeros behind the entries, odd bytes, disorder."""

import struct

from tidelog.storage.index_entries import (
    OffsetIndexEntry,
    TimeIndexEntry,
    read_offset_entries,
    read_time_entries,
)
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex


def test_what_the_broker_writes_is_read() -> None:
    offsets = OffsetIndex(100)
    times = TimeIndex(100)
    for number in (7, 9, 30):
        offsets.append(100 + number, number * 50)
        times.append(1_700_000_000_000 + number, 100 + number)
    found = read_offset_entries(offsets.encode(), 100)
    assert found.entries == tuple(OffsetIndexEntry(100 + number, number * 50) for number in (7, 9, 30))
    assert (found.odd_bytes, found.disorder) == (0, None)
    seen = read_time_entries(times.encode(), 100)
    assert seen.entries[1] == TimeIndexEntry(1_700_000_000_009, 109) and seen.disorder is None


def test_zeros_behind_the_entries_are_none() -> None:
    found = read_time_entries(struct.pack(">qi", 77, 2) + bytes(24), 5)
    assert found.entries == (TimeIndexEntry(77, 7),) and found.odd_bytes == 0
    assert read_offset_entries(bytes(80), 5).entries == ()


def test_damage_is_told() -> None:
    for rows in ((9, 500, 3, 600), (3, 600, 9, 500), (3, 500, 3, 600)):
        found = read_offset_entries(struct.pack(">iiii", *rows) + b"odd", 5)
        assert (len(found.entries), found.odd_bytes, found.disorder) == (2, 3, 1), rows
