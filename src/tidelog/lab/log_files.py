"""The files of a partition, as a lesson looks at them: segments, and the batches in them, read from disk.

This reads what brokers wrote, running or not. A batch that is being written shows up when it is whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog.records.batch import BatchHeader, iterate_headers

LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a segment file and where it is."""

    path: Path
    position: int
    header: BatchHeader


def segments(folder: Path) -> list[Path]:
    """The segment files of a partition's folder, oldest first."""
    return sorted(path for path in folder.glob("*" + LOG_SUFFIX) if path.stem.isdigit())


def batches(folder: Path) -> Iterator[StoredBatch]:
    """Every whole batch of a partition, oldest first."""
    for path in segments(folder):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # retention was faster
        yield from _batches_of(path, data)


def _batches_of(path: Path, data: bytes) -> Iterator[StoredBatch]:
    for position, header in iterate_headers(data):
        yield StoredBatch(path, position, header)


def log_end_offset(folder: Path) -> int:
    """The offset after the last record on disk; 0 for a partition without any."""
    found = segments(folder)
    if not found:
        return 0
    end = int(found[-1].stem)
    try:
        data = found[-1].read_bytes()
    except FileNotFoundError:
        return end  # the partition was deleted meanwhile
    for batch in _batches_of(found[-1], data):
        end = batch.header.next_offset
    return end
