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
from itertools import pairwise
from pathlib import Path

from tidelog.console.faults import FORBIDDEN, NOT_FOUND, ConsoleFault
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex

SEGMENTS_SHOWN_MAX = 1_000
ENTRIES_SHOWN_MAX = 400
INDEX_BYTES_MAX = 16 << 20
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
class TimeEntry:
    """The greatest timestamp up to `offset`."""

    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class IndexView:
    """The entries of a segment's indexes, the first ENTRIES_SHOWN_MAX of each; counts are of all."""

    offsets: tuple[OffsetEntry, ...]
    offsets_count: int
    times: tuple[TimeEntry, ...]
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
                    others[".index"] // 8 if ".index" in others else None,
                    others[".timeindex"] // 12 if ".timeindex" in others else None,
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
        offsets = OffsetIndex.decode(base_offset, _content(folder / f"{base_offset:020d}.index", 8, problems))
        times = TimeIndex.decode(
            base_offset, _content(folder / f"{base_offset:020d}.timeindex", 12, problems)
        )
        assert offsets is not None and times is not None, "whole entries were read"
        # Kafka allocates index files at their greatest size: behind an active segment's entries are zeros.
        positions = list(offsets.positions)
        while positions and positions[-1] == 0:
            positions.pop()
        timestamps = list(times.timestamps_ms)
        while timestamps and timestamps[-1] == 0:
            timestamps.pop()
        if not (_ascends(positions) and _ascends(timestamps)):
            problems.append("entries are out of order: the index is damaged and is rebuilt at the next start")
        before = (0, *positions)
        return IndexView(
            tuple(
                OffsetEntry(base_offset + offsets.relative_offsets[slot], position, position - before[slot])
                for slot, position in enumerate(positions[:ENTRIES_SHOWN_MAX])
            ),
            len(positions),
            tuple(
                TimeEntry(timestamp_ms, base_offset + times.relative_offsets[slot])
                for slot, timestamp_ms in enumerate(timestamps[:ENTRIES_SHOWN_MAX])
            ),
            len(timestamps),
            tuple(problems),
        )


def _ascends(numbers: list[int]) -> bool:
    return all(first < second for first, second in pairwise(numbers))


def _content(path: Path, entry_bytes: int, problems: list[str]) -> bytes:
    """The whole entries of an index file; what is odd about it becomes a problem in words."""
    try:
        with path.open("rb") as file:
            data = file.read(INDEX_BYTES_MAX)
    except FileNotFoundError:
        problems.append(f"{path.name} is not there yet")
        return b""
    except OSError as failure:
        problems.append(f"{path.name} cannot be read: {failure.strerror}")
        return b""
    odd = len(data) % entry_bytes
    if odd:
        problems.append(f"{path.name} ends with {odd} bytes that are no whole entry")
    return data[: len(data) - odd]
