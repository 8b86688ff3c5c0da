"""Which segments of a log have outlived their settings. A plan is a value: it can be shown before it is
carried out.

Segments go oldest first, whole, and only while everything in them lies below the high watermark. Reasons,
in Kafka's order: they lie wholly before the log start offset (always); the log is larger than
`retention.bytes` even without them; their largest timestamp is older than `retention.ms` (both only with
`cleanup.policy=delete`). The active segment may be among them when it has expired with all the others: the
log then rolls before it deletes.

Segments leave the log at once, but the disk in order (`DroppedSegments`): after a power cut an older one
must not be there without the newer ones behind it, because recovery takes what lies behind a hole for the
remains of a crash.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tidelog.model.log_config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.producer_state import remove_snapshots_before
from tidelog.storage.segment import DELETED, LOG, SEGMENT_KINDS, Segment, segment_file_name


class RetentionReason(Enum):
    """Why a segment goes."""

    LOG_START = "before the log start offset"
    SIZE = "retention.bytes exceeded"
    AGE = "retention.ms exceeded"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Segments to delete, oldest first, each with its reason."""

    segments: tuple[Segment, ...]
    reasons: tuple[RetentionReason, ...]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def __bool__(self) -> bool:
        return bool(self.segments)

    def explain(self) -> list[str]:
        """One line per segment, for people."""
        return [
            f"{segment.base_offset:020d}: {segment.size_bytes} bytes, {reason.value}"
            for segment, reason in zip(self.segments, self.reasons, strict=True)
        ]


NOTHING = RetentionPlan((), ())


def plan_retention(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> RetentionPlan:
    """Decide which segments go; changes nothing."""
    chosen: list[Segment] = []
    reasons: list[RetentionReason] = []
    excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    by_size = config.deletes and config.retention_bytes >= 0
    by_age = config.deletes and config.retention_ms >= 0
    for index, segment in enumerate(segments):
        active = index + 1 == len(segments)
        end_offset = log_end_offset if active else segments[index + 1].base_offset
        if end_offset > high_watermark or (active and not segment.size_bytes):
            break
        if not active and end_offset <= log_start_offset:
            reason = RetentionReason.LOG_START
        elif by_size and excess_bytes >= segment.size_bytes:
            reason = RetentionReason.SIZE
        elif by_age and now_ms - segment.largest_timestamp_ms > config.retention_ms:
            reason = RetentionReason.AGE
        else:
            break
        excess_bytes -= segment.size_bytes
        chosen.append(segment)
        reasons.append(reason)
    return RetentionPlan(tuple(chosen), tuple(reasons)) if chosen else NOTHING


class DroppedSegments:
    """The segments that left one log and are still on the disk under their names, oldest first.

    The log adds to it on the event loop, `run` renames the files to `.deleted` in a worker thread. Until then
    a power cut may bring the segments back, so a flush also syncs them (`paths`): were the end of one lost,
    the flushed segments behind it would lie behind a hole.
    """

    __slots__ = ("_base_offsets", "_directory", "_disk", "_kept_from", "_running")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        # Replaced, never changed in place: two threads look at it.
        self._base_offsets: tuple[int, ...] = ()
        self._kept_from = 0
        self._running = threading.Lock()

    def add(self, segments: Sequence[Segment], kept_from: int) -> None:
        """Take over the oldest segments of the log, which now begins at `kept_from`."""
        self._kept_from = kept_from
        self._base_offsets += tuple(segment.base_offset for segment in segments)

    @property
    def first_offset(self) -> int | None:
        """Where the oldest of them starts; None if there is none."""
        return next(iter(self._base_offsets), None)

    def paths(self) -> tuple[str, ...]:
        """The files that a power cut might bring back."""
        return tuple(
            self._path(base_offset, kind) for base_offset in self._base_offsets for kind in SEGMENT_KINDS
        )

    def run(self) -> list[str]:
        """Rename the files, durably and in order; return those to remove after `file.delete.delay.ms`.

        For a worker thread. After an `OSError` the rest waits for the next run.
        """
        removable: list[str] = []
        for paths in self.steps():
            removable += paths
        return removable

    def steps(self) -> Iterator[list[str]]:
        """`run`, one segment at a time."""
        with self._running:
            if not self._base_offsets:
                return
            # The names of the segments that stay come first: the log must not be left without any.
            self._disk.sync_directory(self._directory)
            while self._base_offsets:
                base_offset = self._base_offsets[0]
                yield self._rename(base_offset)
                self._base_offsets = self._base_offsets[1:]
            remove_snapshots_before(self._disk, self._directory, self._kept_from)

    def _rename(self, base_offset: int) -> list[str]:
        # The log first, durably: recovery removes indexes without a log, but could not make the transaction
        # index of a flushed log again.
        renamed: list[str] = []
        for kind in SEGMENT_KINDS:
            path = self._path(base_offset, kind)
            if self._disk.exists(path):
                self._disk.rename(path, path + DELETED)
                renamed.append(path + DELETED)
            if kind == LOG:
                self._disk.sync_directory(self._directory)
        return renamed

    def _path(self, base_offset: int, kind: str) -> str:
        return f"{self._directory}/{segment_file_name(base_offset, kind)}"

    def __bool__(self) -> bool:
        return bool(self._base_offsets)

    def __repr__(self) -> str:
        return f"<DroppedSegments {self._directory} {list(self._base_offsets)}>"


def remove_deleted_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove the `.deleted` files that a log handed out, once `file.delete.delay.ms` have passed.

    A segment that was compacted twice in that time stands on two lists, and two threads may be at its files.
    """
    for path in paths:
        if disk.exists(path):
            with contextlib.suppress(FileNotFoundError):
                disk.remove(path)
