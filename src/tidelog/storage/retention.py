"""Which segments of a log have outlived their settings. A plan is a value: it can be shown before it is
carried out.

Segments go oldest first, whole, and only while everything in them lies below the high watermark. Reasons,
in Kafka's order: they lie wholly before the log start offset (always); the log is larger than
`retention.bytes` even without them; their largest timestamp is older than `retention.ms` (both only with
`cleanup.policy=delete`). The active segment may be among them when it has expired with all the others: the
log then rolls before it deletes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidelog.model.log_config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.segment import Segment


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


def remove_deleted_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove the `.deleted` files that a log handed out, once `file.delete.delay.ms` have passed."""
    for path in paths:
        if disk.exists(path):
            disk.remove(path)
