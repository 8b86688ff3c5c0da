"""The index of aborted transactions of a segment."""

import struct

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tidelog.storage.transaction_index import AbortedTransaction, TransactionIndex

PATH = "/00000000000000000000.txnindex"
ROWS = (
    AbortedTransaction(1, 0, 10, 2),
    AbortedTransaction(2, 2, 17, 6),
    AbortedTransaction(3, 6, 23, 24),
    AbortedTransaction(1, 30, 40, 41),
)


def index_of(*rows: AbortedTransaction, disk: SimulatedDisk | None = None) -> TransactionIndex:
    index = TransactionIndex(disk or SimulatedDisk(), PATH, 0)
    for row in rows:
        index.append(row)
    return index


def collect(index: TransactionIndex, fetch_offset: int, upper_offset: int) -> tuple[list[int], bool]:
    aborted: list[AbortedTransaction] = []
    complete = index.collect(fetch_offset, upper_offset, aborted)
    return [row.last_offset for row in aborted], complete


def test_there_is_no_file_until_a_transaction_aborts() -> None:
    disk = SimulatedDisk()
    index = index_of(disk=disk)
    assert collect(index, 0, 100) == ([], False)
    index.truncate_to(0)
    index.sync()
    index.reset()
    index.rename_to("/other.txnindex")
    index.remove()
    assert disk.list("/") == []


def test_the_file_is_kafkas_and_read_back() -> None:
    disk = SimulatedDisk()
    index_of(*ROWS, disk=disk)
    data = disk.open(PATH, create=False).read(0, 1000)
    assert data == b"".join(struct.pack(">hqqqq", 0, *row) for row in ROWS)
    assert len(data) == 34 * len(ROWS)
    again = TransactionIndex(disk, PATH, 0)
    assert again.entries == ROWS
    assert not again.was_malformed


@pytest.mark.parametrize(
    ("fetch_offset", "upper_offset", "expected"),
    [
        (0, 100, ([10, 17, 23, 40], False)),  # a later segment may hold more
        (0, 20, ([10, 17, 23], True)),  # all before 24 was decided by the third
        (0, 24, ([10, 17, 23], True)),
        (0, 25, ([10, 17, 23], True)),  # the fourth says so; it begins later itself
        (11, 40, ([17, 23, 40], True)),
        (18, 24, ([23], True)),
        (24, 30, ([], True)),
        (24, 31, ([40], True)),
        (41, 42, ([], False)),
        (0, 1, ([10], True)),
    ],
)
def test_collecting_those_that_overlap_a_range(
    fetch_offset: int, upper_offset: int, expected: tuple[list[int], bool]
) -> None:
    assert collect(index_of(*ROWS), fetch_offset, upper_offset) == expected


@pytest.mark.parametrize(("offset", "left"), [(100, 4), (41, 4), (40, 3), (24, 3), (23, 2), (10, 0), (0, 0)])
def test_truncation(offset: int, left: int) -> None:
    disk = SimulatedDisk()
    index = index_of(*ROWS, disk=disk)
    index.truncate_to(offset)
    assert index.entries == ROWS[:left]
    assert TransactionIndex(disk, PATH, 0).entries == ROWS[:left]
    if left < len(ROWS):
        index.append(ROWS[left])
        assert TransactionIndex(disk, PATH, 0).entries == ROWS[: left + 1]


def test_a_torn_file_is_cut_to_its_whole_entries() -> None:
    whole = b"".join(struct.pack(">hqqqq", 0, *row) for row in ROWS)
    for size in range(len(whole)):
        disk = SimulatedDisk()
        disk.open(PATH, create=True).append(whole[:size])
        index = TransactionIndex(disk, PATH, 0)
        assert index.entries == ROWS[: size // 34]
        assert index.was_malformed == (size % 34 != 0)
        index.append(ROWS[size // 34])
        assert TransactionIndex(disk, PATH, 0).entries == ROWS[: size // 34 + 1]


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">hqqqq", 1, 1, 50, 60, 61),  # an unknown version
        struct.pack(">hqqqq", 0, 1, 5, 23, 61),  # not behind the entry before
        struct.pack(">hqqqq", 0, 1, 60, 50, 61),  # ends before it begins
        bytes(34),  # a page of zeros that a power cut left
    ],
)
def test_an_impossible_entry_ends_the_index(bad: bytes) -> None:
    disk = SimulatedDisk()
    index_of(*ROWS[:3], disk=disk)
    disk.open(PATH, create=True).append(bad)
    index = TransactionIndex(disk, PATH, 0)
    assert index.was_malformed
    assert index.entries == ROWS[:3]


def test_an_entry_before_the_segment_is_impossible() -> None:
    disk = SimulatedDisk()
    index_of(ROWS[0], disk=disk)
    assert TransactionIndex(disk, PATH, 11).was_malformed
    assert TransactionIndex(disk, PATH, 0).entries == ()


def test_rename_and_remove() -> None:
    disk = SimulatedDisk()
    index = index_of(*ROWS, disk=disk)
    index.rename_to(PATH + ".deleted")
    assert disk.list("/") == [PATH[1:] + ".deleted"]
    index.remove()
    assert disk.list("/") == []
