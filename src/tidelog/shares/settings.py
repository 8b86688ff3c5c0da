"""What a share group obeys, read once so that the machines know no settings table. Defaults are Kafka's."""

import re
from dataclasses import dataclass
from typing import NamedTuple

EARLIEST = "earliest"
LATEST = "latest"
_BY_DURATION = re.compile(
    r"by_duration:P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ShareCoordinatorSettings:
    """Of `__share_group_state`."""

    updates_per_snapshot: int = 500
    cold_snapshot_interval_ms: int = 5 * 60 * 1_000


@dataclass(frozen=True, slots=True)
class SharePartitionSettings:
    """Of one share group; what was set for the group, within the bounds of the broker."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2_000
    renew_acknowledge_enable: bool = True
    read_committed: bool = False
    auto_offset_reset: str = LATEST
    retry_backoff_ms: int = 0
    """How long a record rests after its first failed delivery; twice as long after each further one."""
    retry_backoff_max_ms: int = 0
    dead_letter_topic: str | None = None
    append_retry_ms: int = 500
    """When to try again what the share coordinator or the dead letter topic did not take."""


class InitialOffset(NamedTuple):
    """Where a share partition that has never been read begins: `timestamp_ms` is that of a ListOffsets
    request, where -1 is the end of the log and -2 its start.
    """

    timestamp_ms: int


END_OF_LOG = InitialOffset(-1)
START_OF_LOG = InitialOffset(-2)


def initial_offset(auto_offset_reset: str, now_ms: int) -> InitialOffset:
    """What `share.auto.offset.reset` means now."""
    if auto_offset_reset == EARLIEST:
        return START_OF_LOG
    if auto_offset_reset == LATEST:
        return END_OF_LOG
    found = _BY_DURATION.fullmatch(auto_offset_reset)
    assert found is not None, "the setting was checked when it was made"
    hours = 24 * int(found["days"] or 0) + int(found["hours"] or 0)
    minutes = 60 * hours + int(found["minutes"] or 0)
    seconds = 60 * minutes + float(found["seconds"] or 0)
    return InitialOffset(max(0, now_ms - int(1_000 * seconds)))
