"""What only the operating system does to a file: write half of it, or keep it open when removed."""

import contextlib
import errno
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.storage.storage_logs import NOW_MS, append, open_log, read_all
from tidelog.storage.disk import VIEWS_MAX, WRITE_BYTES, OsDisk, groups_of


@pytest.fixture
def file_size_limit() -> Iterator[None]:
    """Put the limit back afterwards; the kernel writes up to it and refuses the rest, like a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def limit_file_size(size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.usefixtures("file_size_limit")
def test_half_a_write_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = OsDisk().open(str(path), create=True)
    file.append(b"a" * 1000)
    limit_file_size(1500)
    with pytest.raises(OSError, match="too large") as raised:
        file.append(b"b" * 1000)
    assert raised.value.errno == errno.EFBIG
    assert file.size_bytes == path.stat().st_size == 1000
    limit_file_size(10_000)
    file.append(b"c" * 10)
    assert path.read_bytes() == b"a" * 1000 + b"c" * 10


@pytest.mark.usefixtures("file_size_limit")
def test_a_log_goes_on_after_half_a_write(tmp_path: Path) -> None:
    directory = str(tmp_path / "p")
    log = open_log(OsDisk(), directory)
    batches = [append(log, [NOW_MS], value_bytes=300) for _ in range(3)]
    limit_file_size(log.size_bytes + 100)
    with pytest.raises(OSError, match="too large"):
        append(log, [NOW_MS], value_bytes=300)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    batches.append(append(log, [NOW_MS], value_bytes=50))
    everything = b"".join(batch.data for batch in batches)
    assert read_all(log) == everything
    log.close(clean=False)
    log = open_log(OsDisk(), directory, clean=False)
    assert read_all(log) == everything and log.truncated_bytes == 0


@pytest.mark.usefixtures("file_size_limit")
def test_a_replacement_that_fails_leaves_the_old_content_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    OsDisk().replace_atomically(str(path), b"old")
    limit_file_size(1000)
    with pytest.raises(OSError, match="too large"):
        OsDisk().replace_atomically(str(path), b"new" * 1000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_closed_with_its_last_reference_not_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    disk = OsDisk()
    file = disk.open(str(path), create=True)
    file.append(b"still here")
    descriptor = file.fileno()
    disk.remove(str(path))
    assert file.read(6, 10) == b"here"
    opened = os.fstat(descriptor)
    del file
    gc.collect()
    # Another thread of this process may already have been given the number for a file of its own.
    with contextlib.suppress(OSError):
        assert not os.path.samestat(os.fstat(descriptor), opened)


def test_a_growing_log_reserves_room_and_gives_back_what_it_does_not_use(tmp_path: Path) -> None:
    directory = tmp_path / "p"
    log = open_log(OsDisk(), str(directory), segment_bytes=4 << 20)
    while log.size_bytes < 3 << 20:
        append(log, [NOW_MS], value_bytes=100_000)
    (first,) = directory.glob("*.log")
    if first.stat().st_blocks * 512 < first.stat().st_size + (256 << 10):
        pytest.skip("this file system cannot reserve room")
    while len(list(directory.glob("*.log"))) == 1:
        append(log, [NOW_MS], value_bytes=100_000)
    assert first.stat().st_blocks * 512 < first.stat().st_size + (64 << 10)
    while log.size_bytes < 10 << 20:
        append(log, [NOW_MS], value_bytes=100_000)
    log.close()
    for path in directory.glob("*.log"):
        assert path.stat().st_blocks * 512 < path.stat().st_size + (64 << 10)


def test_more_pieces_than_the_system_takes_at_once(tmp_path: Path) -> None:
    """A follower that was away gets thousands of small batches in one answer."""
    file = OsDisk().open(str(tmp_path / "log"), create=True)
    pieces = [b"%04d" % number for number in range(VIEWS_MAX * 2 + 1)]
    file.append_many(pieces)
    file.append_many(pieces[:VIEWS_MAX])
    expected = b"".join(pieces + pieces[:VIEWS_MAX])
    assert file.size_bytes == len(expected)
    assert file.read(0, len(expected)) == expected
    file.close()


@given(
    st.lists(st.sampled_from([0, 1, 1000, WRITE_BYTES // 2, WRITE_BYTES, 3 * WRITE_BYTES + 1]), max_size=8)
)
def test_large_appends_are_written_in_pieces_and_in_order(lengths: list[int]) -> None:
    views = [bytes([number]) * length for number, length in enumerate(lengths)]
    groups = list(groups_of(views))
    assert b"".join(piece for group in groups for piece in group) == b"".join(views)
    assert all(sum(map(len, group)) <= WRITE_BYTES for group in groups)
    if all(length <= WRITE_BYTES for length in lengths):
        assert len(groups) <= 2 * sum(lengths) // WRITE_BYTES + 1


@pytest.mark.usefixtures("file_size_limit")
@pytest.mark.parametrize("together", [False, True])
def test_a_large_append_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, together: bool) -> None:
    file = OsDisk().open(str(tmp_path / "log"), create=True)
    file.append(b"before")
    limit_file_size(3 * WRITE_BYTES + 1000)
    large = bytes(range(256)) * (WRITE_BYTES // 64)
    with pytest.raises(OSError, match="too large"):
        file.append_many([b"head", large]) if together else file.append(large)
    assert file.size_bytes == 6
    assert (tmp_path / "log").read_bytes() == b"before"
    file.append(b" and after")
    assert file.read(0, 100) == b"before and after"
    file.close()
