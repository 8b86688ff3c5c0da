"""Segments on disk with their index entries, read from a folder that the console was given.

The Kafka protocol does not tell of segments, and no broker opens a door for them: whoever may read the data
folder may look, nobody else. The console is given the folder with `--data` (which `tidelog up` does with its
own). DescribeLogDirs says in which folder of a broker a replica lies, and only what lies inside the given
folder is ever opened. Files are read, never locked or written, beside the running broker; what vanishes
meanwhile (retention, a roll) is left out. Works on Apache Kafka's files too: they have the same format.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tidelog.console.faults import FORBIDDEN, NOT_FOUND, ConsoleFault
from tidelog.storage.index_entries import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TimeIndexEntry,
    read_offset_entries,
    read_time_entries,
)

SEGMENTS_SHOWN_MAX = 1_000
ENTRIES_SHOWN_MAX = 400
#: what is read of an index: whole entries, of either kind
INDEX_BYTES_MAX = 170_000 * OFFSET_ENTRY_BYTES * TIME_ENTRY_BYTES
_SEGMENT = re.compile(r"(\d{20})\.log")
_OTHER_FILES = (".index", ".timeindex", ".txnindex", ".snapshot")


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment: what its files are, by their suffix, and how many entries its indexes have."""

    base_offset: int
    last_offset: int | None
    size_bytes: int
    modified: float
    active: bool
    file_bytes: dict[str, int]
    offset_entries: int | None
    time_entries: int | None

    @property
    def records(self) -> int | None:
        return None if self.last_offset is None else self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """A batch that ends with `offset` begins at `position`; `step_bytes` after the entry before."""

    offset: int
    position: int
    step_bytes: int


@dataclass(frozen=True, slots=True)
class IndexView:
    """The entries of a segment's indexes, the first ENTRIES_SHOWN_MAX of each; counts are of all."""

    offsets: tuple[OffsetEntry, ...]
    offsets_count: int
    times: tuple[TimeIndexEntry, ...]
    times_count: int
    problems: tuple[str, ...]


class SegmentFiles:
    """The folders that may be read."""

    def __init__(self, allowed: tuple[Path, ...]) -> None:
        self._allowed = tuple(folder.resolve() for folder in allowed)

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def folder(self, log_dir: str, topic: str, partition: int) -> Path:
        """The folder of a replica; ConsoleFault where it is not ours to read or not on this machine."""
        folder = (Path(log_dir) / f"{topic}-{partition}").resolve()
        if not any(folder.is_relative_to(allowed) for allowed in self._allowed):
            raise ConsoleFault(
                f"{folder} is outside the folders that this console may read",
                "Start it with --data and the broker's data folder.",
                FORBIDDEN,
            )
        if not folder.is_dir():
            raise ConsoleFault(
                f"there is no folder {folder} on this machine",
                "The replica may be on another machine, or have been moved.",
                NOT_FOUND,
            )
        return folder

    def segments(self, folder: Path, end_offset: int | None) -> list[SegmentView]:
        """The last SEGMENTS_SHOWN_MAX segments of a replica, in order; `end_offset` ends the active one."""
        sizes: dict[str, os.stat_result] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        sizes[entry.name] = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
        except OSError as failure:
            raise ConsoleFault(f"{folder} cannot be read: {failure.strerror}", "", FORBIDDEN) from failure
        bases = sorted(int(found[1]) for name in sizes if (found := _SEGMENT.fullmatch(name)) is not None)
        shown = bases[-SEGMENTS_SHOWN_MAX:]
        views = []
        for number, base in enumerate(shown):
            active = number == len(shown) - 1
            following = end_offset if active else shown[number + 1]
            log_file = sizes[f"{base:020d}.log"]
            others = {
                kind: sizes[name].st_size for kind in _OTHER_FILES if (name := f"{base:020d}{kind}") in sizes
            }
            views.append(
                SegmentView(
                    base,
                    None if following is None else following - 1,
                    log_file.st_size,
                    log_file.st_mtime,
                    active,
                    others,
                    others[".index"] // OFFSET_ENTRY_BYTES if ".index" in others else None,
                    others[".timeindex"] // TIME_ENTRY_BYTES if ".timeindex" in others else None,
                )
            )
        return views

    def indexes(self, folder: Path, base_offset: int) -> IndexView:
        """The index entries of one segment."""
        if not (folder / f"{base_offset:020d}.log").is_file():
            raise ConsoleFault(
                f"there is no segment {base_offset}", "Retention may have deleted it.", NOT_FOUND
            )
        problems: list[str] = []
        stem = folder / f"{base_offset:020d}"
        offsets = read_offset_entries(_content(stem.with_suffix(".index"), problems), base_offset)
        _note_odd_bytes(stem.with_suffix(".index"), offsets.odd_bytes, problems)
        times = read_time_entries(_content(stem.with_suffix(".timeindex"), problems), base_offset)
        _note_odd_bytes(stem.with_suffix(".timeindex"), times.odd_bytes, problems)
        if offsets.disorder is not None or times.disorder is not None:
            problems.append("entries are out of order: the index is damaged and is rebuilt at the next start")
        shown = offsets.entries[:ENTRIES_SHOWN_MAX]
        before = (0, *(entry.file_position for entry in shown))
        return IndexView(
            tuple(
                OffsetEntry(entry.offset, entry.file_position, entry.file_position - before[slot])
                for slot, entry in enumerate(shown)
            ),
            len(offsets.entries),
            times.entries[:ENTRIES_SHOWN_MAX],
            len(times.entries),
            tuple(problems),
        )


def _note_odd_bytes(path: Path, odd_bytes: int, problems: list[str]) -> None:
    if odd_bytes:
        problems.append(f"{path.name} ends with {odd_bytes} bytes that are no whole entry")


def _content(path: Path, problems: list[str]) -> bytes:
    """An index file, as far as it is read; that it is not there becomes a problem in words."""
    try:
        with path.open("rb") as file:
            return file.read(INDEX_BYTES_MAX)
    except FileNotFoundError:
        problems.append(f"{path.name} is not there yet")
    except OSError as failure:
        problems.append(f"{path.name} cannot be read: {failure.strerror}")
    return b""
