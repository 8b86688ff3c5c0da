"""Expired records leave the log, on topics with `tidelog.ttl.enable` that are not compacted.

A round reads closed segments, counts what has expired, and writes those anew of which more than
`min.cleanable.dirty.ratio` has. It is a round of the cleaner in all else (`cleaner`): where and how it runs,
how segments are swapped in, what a crash leaves, what is never touched (the active segment, anything at or
behind the last stable offset, segments with records younger than `min.compaction.lag.ms`). So offsets have
gaps as on a compacted topic. Each replica does it for itself, by its own clock.

Only records with a time to live that is over go; markers, aborted records and their index stay. A batch that
keeps none disappears, unless it is the last one of a segment or of an active producer: its header stays.
Small segments that are left are joined with the next ones that are written anew.

Reading is what costs, so it is not done in vain: a round tells for each segment before when so much of it
cannot have expired, which is at least seven eighths of the time until then (`Look`). That is known in memory
only; after a start each segment is read once.

Not for delay topics: what waits there must be found where it was.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import BatchHeader
from tidelog.records.delivery_headers import lenient_expiry_of
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import (
    CleaningPlan,
    CleaningResult,
    CleaningRound,
    Look,
    cleanable_count,
    emptied_batch,
    rebuilt_batch,
)
from tidelog.storage.disk import Bytes, Disk
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.segment import Segment

#: how much is read in one round, at least one segment
ROUND_BYTES_MAX = 1 << 30
#: a segment is small if it has at most this part of `segment.bytes`
SMALL_PART = 10
JOINED_MAX = 100
LOOK_AGAIN_MS_MIN = 10_000
_MANTISSA_BITS = 4

#: by base offset and size: not before
Looks = Mapping[tuple[int, int], int]


def expires(config: LogConfig) -> bool:
    """Whether rounds of this kind are for a topic."""
    return config.tidelog_ttl_enable and not config.compacted and not config.tidelog_delay_target


@dataclass(frozen=True, slots=True)
class ExpiryPlan(CleaningPlan):
    """A round that removes what has expired; `due` are the base offsets of the segments to be read."""

    due: frozenset[int]

    def run(
        self,
        disk: Disk,
        open_files: OpenFiles,
        *,
        dedupe_buffer_bytes: int = 0,
        load_factor: float = 0.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> CleaningResult:
        """As that of `CleaningPlan`, with the same exceptions; no keys are mapped."""
        return _ExpiryRound(self, disk, open_files, should_stop).look_and_replace(self.due)


def plan_expiry(
    log: PartitionLog, *, looks: Looks, last_stable_offset: int, now_ms: int
) -> ExpiryPlan | None:
    """Decide which segments to look at, the first ones that it is time for; changes nothing."""
    config = log.config
    closed = log.segments[:-1]
    start_offset, active_offset = log.log_start_offset, log.active.base_offset
    count = cleanable_count(closed, config, start_offset, last_stable_offset, active_offset, now_ms)

    def is_due(segment: Segment) -> bool:
        return looks.get((segment.base_offset, segment.size_bytes), 0) <= now_ms

    first = next((number for number in range(count) if is_due(closed[number])), None)
    if first is None:
        return None
    end, size_bytes = first, 0
    while end < count and is_due(closed[end]) and (end == first or size_bytes < ROUND_BYTES_MAX):
        size_bytes += closed[end].size_bytes
        end += 1
    due = frozenset(segment.base_offset for segment in closed[first:end])
    small_bytes = config.segment_bytes // SMALL_PART
    while first and end - first < JOINED_MAX and closed[first - 1].size_bytes <= small_bytes:
        first -= 1
    return ExpiryPlan(
        topic_partition=log.topic_partition,
        directory=log.directory,
        config=config,
        segments=tuple(closed[first:end]),
        first_dirty_offset=closed[first].base_offset,
        first_uncleanable_offset=log.segments[end].base_offset,
        # As urgent as a log that is half dirty.
        clean_bytes=size_bytes,
        dirty_bytes=size_bytes,
        overdue=False,
        aborted_transactions=(),
        last_records=log.producers.last_records(),
        leader_epochs=log.leader_epochs,
        now_ms=now_ms,
        due=due,
    )


class _Count:
    """What a segment has: records, expired ones, and when the others will have expired."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._later: Counter[int] = Counter()
        self.records = self.expired = 0

    def add(self, expiry_ms: int | None) -> None:
        self.records += 1
        if expiry_ms is None:
            return
        left_ms = expiry_ms - self._now_ms
        if left_ms <= 0:
            self.expired += 1
        else:
            # Few different numbers, none above the true one, and none below seven eighths of it.
            shift = max(0, left_ms.bit_length() - _MANTISSA_BITS)
            self._later[left_ms >> shift << shift] += 1

    def not_before_ms(self, ratio: float) -> int:
        """When more than a part of the records may have expired."""
        expired = self.expired
        for left_ms, count in sorted(self._later.items()):
            expired += count
            if expired > self.records * ratio:
                return min(INT64_MAX, self._now_ms + max(left_ms, LOOK_AGAIN_MS_MIN))
        return INT64_MAX


class _ExpiryRound(CleaningRound):
    """The work of one plan."""

    def look_and_replace(self, due: frozenset[int]) -> CleaningResult:
        plan, ratio = self._plan, self._plan.config.min_cleanable_dirty_ratio
        looks: list[Look] = []
        stretch: list[Segment] = []
        worth_it = False
        for segment in plan.segments:
            if segment.base_offset not in due:
                stretch.append(segment)  # a small one
                continue
            count = self._look(segment)
            if count.expired > count.records * ratio:
                stretch.append(segment)
                worth_it = True
            elif worth_it:
                break
            else:
                stretch = []
                not_before_ms = count.not_before_ms(ratio)
                looks.append(Look(segment.base_offset, segment.size_bytes, not_before_ms))
        if not worth_it:
            return CleaningResult(plan, (), plan.first_dirty_offset, self._statistics, tuple(looks))
        kept = [_Count(plan.now_ms)]

        def begin(new: Segment, group: Sequence[Segment]) -> None:
            kept.append(_Count(plan.now_ms))
            for old in group:
                for aborted in old.transaction_index.entries:
                    new.transaction_index.append(aborted)

        def stays(header: BatchHeader, batch: memoryview, end_offset: int) -> Bytes | None:
            return self._without_expired(header, batch, end_offset, kept[-1])

        replacements = self.replace(stretch, begin, stays)
        for replacement, count in zip(replacements, kept[1:], strict=True):
            new = replacement.new
            looks.append(Look(new.base_offset, new.size_bytes, count.not_before_ms(ratio)))
        return CleaningResult(plan, replacements, plan.first_dirty_offset, self._statistics, tuple(looks))

    def _look(self, segment: Segment) -> _Count:
        count = _Count(self._plan.now_ms)
        for header, batch in self.batches(segment):
            if not header.control:
                for _, expiry_ms in self._expiries(header, batch):
                    count.add(expiry_ms)
        return count

    def _expiries(self, header: BatchHeader, batch: memoryview) -> Iterator[tuple[Record, int | None]]:
        ttl_ms = self._plan.config.tidelog_ttl_ms
        for record in iterate_records(batch, header):
            yield record, lenient_expiry_of(record, ttl_ms)

    def _without_expired(
        self, header: BatchHeader, batch: memoryview, end_offset: int, count: _Count
    ) -> Bytes | None:
        """What stays of a batch in a segment that ends at `end_offset`."""
        if header.control or not header.records_count:
            return batch
        now_ms = self._plan.now_ms
        kept: list[Record] = []
        for record, expiry_ms in self._expiries(header, batch):
            if expiry_ms is None or expiry_ms > now_ms:
                kept.append(record)
                count.add(expiry_ms)
        if len(kept) == header.records_count:
            return batch
        if kept:
            return rebuilt_batch(header, batch, kept, header.delete_horizon_ms)
        if header.next_offset == end_offset or self.is_last_of_producer(header):
            return emptied_batch(header)
        return None
