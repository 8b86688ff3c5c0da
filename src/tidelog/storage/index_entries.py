"""The entries of index files as values, for those who look at files that they do not own.

`offset_index` and `time_index` draw the formats and are what a broker works with. This reads what is there,
also of Apache Kafka and also when it is damaged: odd bytes at the end and entries that go backwards are told,
never raised. Kafka allocates index files at their greatest size, so zeros behind the entries are none.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size


@dataclass(frozen=True, slots=True)
class OffsetIndexEntry:
    """The batch that ends with `offset` begins at `file_position` of the .log file."""

    offset: int
    file_position: int


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """No record up to `offset` is younger than `timestamp_ms`."""

    timestamp_ms: int
    offset: int


EntryType = TypeVar("EntryType")


@dataclass(frozen=True, slots=True)
class IndexContent(Generic[EntryType]):
    """What an index file says; `disorder` is the number of the first entry that goes backwards."""

    entries: tuple[EntryType, ...]
    odd_bytes: int
    disorder: int | None


def read_offset_entries(data: bytes, base_offset: int) -> IndexContent[OffsetIndexEntry]:
    """The entries of a .index file, with absolute offsets."""
    return _read(data, _OFFSET_ENTRY, lambda row: OffsetIndexEntry(base_offset + row[0], row[1]))


def read_time_entries(data: bytes, base_offset: int) -> IndexContent[TimeIndexEntry]:
    """The entries of a .timeindex file, with absolute offsets."""
    return _read(data, _TIME_ENTRY, lambda row: TimeIndexEntry(row[0], base_offset + row[1]))


def _read(
    data: bytes, form: struct.Struct, entry: Callable[[tuple[int, ...]], EntryType]
) -> IndexContent[EntryType]:
    odd_bytes = len(data) % form.size
    rows: list[tuple[int, ...]] = list(form.iter_unpack(data[: len(data) - odd_bytes]))
    while rows and not any(rows[-1]):
        rows.pop()
    disorder = next(
        (number for number in range(1, len(rows)) if not _follows(rows[number - 1], rows[number])), None
    )
    return IndexContent(tuple(map(entry, rows)), odd_bytes, disorder)


def _follows(row: tuple[int, ...], after: tuple[int, ...]) -> bool:
    return row[0] < after[0] and row[1] < after[1]
