"""Buffers for large frames grow where they lie, and are moved where they cannot."""

import mmap

import pytest

from tidelog.server.receive_buffers import MAPPED_BYTES_MIN, grown, new_buffer

SIZE = MAPPED_BYTES_MIN


def test_small_buffers_come_from_the_heap_and_become_mappings() -> None:
    small = new_buffer(1_000)
    small[:] = b"a" * 1_000
    assert isinstance(small.obj, bytearray)
    large = grown(small, 0, 1_000, SIZE)
    assert isinstance(large.obj, mmap.mmap) and len(large) == SIZE
    assert bytes(large[:1_001]) == b"a" * 1_000 + b"\0"


def test_a_mapping_grows_without_being_copied() -> None:
    buffer = new_buffer(SIZE)
    buffer[:3], buffer[-3:] = b"abc", b"xyz"
    mapping = buffer.obj
    larger = grown(buffer, 0, SIZE, 4 * SIZE)
    assert larger.obj is mapping and len(larger) == 4 * SIZE
    assert (bytes(larger[:3]), bytes(larger[SIZE - 3 : SIZE + 1])) == (b"abc", b"xyz\0")
    larger[-1:] = b"!"
    assert larger[4 * SIZE - 1] == ord("!"), "all of it can be written to"
    with pytest.raises(ValueError, match="released"):
        bytes(buffer)


def test_a_mapping_that_somebody_looks_into_is_copied() -> None:
    buffer = new_buffer(SIZE)
    buffer[:3] = b"abc"
    looked_at = buffer[:3]
    larger = grown(buffer, 0, SIZE, 2 * SIZE)
    assert len(larger) == 2 * SIZE and bytes(larger[:3]) == b"abc"
    larger[:3] = b"new"
    assert bytes(looked_at) == b"abc"


def test_what_lies_behind_served_requests_is_moved_to_the_front() -> None:
    buffer = new_buffer(SIZE)
    buffer[10:13] = b"abc"
    larger = grown(buffer, 10, 13, 2 * SIZE)
    assert (len(larger), bytes(larger[:4])) == (2 * SIZE, b"abc\0")
