"""Offset checkpoint files: Kafka's text format, strict reading."""

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.checkpoints import CheckpointMalformed, read_offsets, write_offsets

OFFSETS = {
    TopicPartition("orders", 1): 1472,
    TopicPartition("orders", 0): 1500,
    TopicPartition("a.b_c-d", 7): 0,
}


def write(disk: SimulatedDisk, data: bytes) -> None:
    file = disk.open("/checkpoint", create=True)
    file.append(data)
    file.close()


def test_the_file_is_kafkas() -> None:
    disk = SimulatedDisk()
    write_offsets(disk, "/checkpoint", OFFSETS)
    file = disk.open("/checkpoint", create=False)
    assert file.read(0, 1000) == b"0\n3\na.b_c-d 7 0\norders 0 1500\norders 1 1472\n"
    assert read_offsets(disk, "/checkpoint") == OFFSETS


def test_a_missing_or_empty_file_has_no_rows() -> None:
    disk = SimulatedDisk()
    assert read_offsets(disk, "/checkpoint") == {}
    write(disk, b"")
    assert read_offsets(disk, "/checkpoint") == {}
    write_offsets(disk, "/checkpoint", {})
    assert read_offsets(disk, "/checkpoint") == {}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"0\n1\norders 0 150", "cut off"),
        (b"0\n", "count of rows is missing"),
        (b"1\n0\n", "version 1 is not known"),
        (b"zero\n0\n", "'zero' is not a number"),
        (b"0\n2\norders 0 1\n", "2 rows announced, 1 found"),
        (b"0\n1\norders 0 1\norders 1 1\n", "1 rows announced, 2 found"),
        (b"0\n1\norders 0\n", "is not '<topic> <partition> <offset>'"),
        (b"0\n1\norders 0 1_0\n", "'1_0' is not a number"),
        (b"0\n1\norders 0 99999999999999999999\n", "is not a number"),
        (b"0\n1\norders  0 1\n", "is not '<topic> <partition> <offset>'"),
        (b"0\n1\n../x 0 1\n", "has characters other than"),
        (b"0\n2\norders 0 1\norders 0 2\n", "orders-0 has two rows"),
        (b"0\n1\n\xff\xfe 0 1\n", "not text"),
        (bytes(40), "cut off"),
    ],
)
def test_a_malformed_file_is_refused_with_the_reason(data: bytes, fault: str) -> None:
    disk = SimulatedDisk()
    write(disk, data)
    with pytest.raises(CheckpointMalformed, match=fault) as caught:
        read_offsets(disk, "/checkpoint")
    assert "/checkpoint" in str(caught.value)


def test_a_file_cut_at_any_byte_is_refused_not_misread() -> None:
    whole = b"0\n2\norders 0 1500\norders 1 1472\n"
    for size in range(1, len(whole)):
        disk = SimulatedDisk()
        write(disk, whole[:size])
        with pytest.raises(CheckpointMalformed):
            read_offsets(disk, "/checkpoint")


def test_a_power_cut_while_writing_leaves_the_old_rows_or_the_new() -> None:
    new = {TopicPartition("orders", 0): 9999}
    seen = []
    for seed in range(100):
        disk = SimulatedDisk(seed)
        write_offsets(disk, "/checkpoint", OFFSETS)
        disk.cut_power_at(1 + seed % 8)
        try:
            write_offsets(disk, "/checkpoint", new)
        except PowerCut:
            seen.append(read_offsets(disk.crash(), "/checkpoint"))
    assert OFFSETS in seen
    assert all(rows in (OFFSETS, new) for rows in seen)
