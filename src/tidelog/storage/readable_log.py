"""What can be read of a partition's log: ranges of its segments, and places found by offset, time and epoch.

`PartitionLog` adds what changes a log. Reading returns ranges of a segment's file, always whole batches: the
batch that holds the wanted offset and those behind it. Kafka cuts at the byte limit and leaves half a batch
for the client to drop; here the index makes the exact boundary cheap, and it is also where the same reader
will go on.
"""

from bisect import bisect_right
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, read_header
from tidelog.storage.disk import File
from tidelog.storage.leader_epochs import LeaderEpochs
from tidelog.storage.producer_state import ProducerState
from tidelog.storage.segment import Segment, TimestampedOffset
from tidelog.storage.transaction_index import AbortedTransaction

# How many readers' next positions are remembered; more readers than that scan a little at each read.
PLACES_MAX = 32


class LogSlice(NamedTuple):
    """Whole batches in a file: `size_bytes` from `position`. The reader goes on with `next_offset`."""

    file: File
    position: int
    size_bytes: int
    next_offset: int


class ReadableLog:
    """Segments in order, with the bounds that readers see; who opens it sets `segments` and `active`."""

    __slots__ = (
        "_base_offsets",
        "_places",
        "active",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "segments",
    )

    segments: list[Segment]
    active: Segment
    _base_offsets: list[int]

    def __init__(self, producers: ProducerState, leader_epochs: LeaderEpochs) -> None:
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = 0
        self.log_end_offset = 0
        # Offset → (segment, position) of the first batch at or after it: where readers are expected to go on.
        self._places: dict[int, tuple[Segment, int]] = {}

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool = True
    ) -> LogSlice | None:
        """The batches from the one that holds `offset` on, all of them below `upper_offset`.

        At most `max_bytes`, except that with `at_least_one` the first batch comes whole whatever its size.
        Empty when there is nothing to read yet. None when `offset` lies outside of the log.
        """
        log_end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > log_end_offset:
            return None
        if upper_offset > log_end_offset:
            upper_offset = log_end_offset
        place = self._place(offset) if offset < upper_offset else None
        if place is None:
            active = self.active
            if offset == log_end_offset:
                self._remember(offset, active, active.size_bytes)
            return LogSlice(active.file, active.size_bytes, 0, offset)
        segment, position = place
        end, next_offset = self._end_below(segment, upper_offset)
        size = end - position
        if size > max_bytes:
            size, next_offset = self._whole_batches(segment, position, max_bytes, at_least_one)
            if not size:
                return LogSlice(segment.file, position, 0, offset)
        elif size <= 0:
            # The wanted batch reaches over the upper offset.
            return LogSlice(segment.file, position, 0, offset)
        self._remember(next_offset, segment, position + size)
        return LogSlice(segment.file, position, size, next_offset)

    def _place(self, offset: int) -> tuple[Segment, int] | None:
        """The segment and position of the batch that holds `offset`, else of the first batch behind it."""
        place = self._places.get(offset)
        if place is not None and place[1] < place[0].size_bytes:
            return place
        segments = self.segments
        for index in range(max(0, bisect_right(self._base_offsets, offset) - 1), len(segments)):
            segment = segments[index]
            if not segment.size_bytes:
                continue
            if offset <= segment.base_offset:
                return segment, 0
            found = segment.find(offset)
            if found is not None:
                return segment, found.position
        return None

    def _end_below(self, segment: Segment, upper_offset: int) -> tuple[int, int]:
        """Where reading a segment must end so that everything lies below `upper_offset`; the offset there."""
        if segment is self.active:
            if upper_offset == self.log_end_offset:
                return segment.size_bytes, upper_offset
        else:
            following = self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]
            if upper_offset >= following:
                return segment.size_bytes, following
        place = self._place(upper_offset)
        if place is None or place[0] is not segment:
            return segment.size_bytes, upper_offset
        self._remember(upper_offset, segment, place[1])
        return place[1], upper_offset

    @staticmethod
    def _whole_batches(
        segment: Segment, position: int, max_bytes: int, at_least_one: bool
    ) -> tuple[int, int]:
        """The size of the batches from `position` that fit `max_bytes`, and the offset behind them."""
        end, next_offset = segment.last_boundary(position, position + max_bytes)
        if end > position or not at_least_one:
            return end - position, next_offset
        header = read_header(segment.file.read(position, HEADER_SIZE))
        return header.size_bytes, header.next_offset

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        places = self._places
        if offset not in places and len(places) >= PLACES_MAX:
            del places[next(iter(places))]
        places[offset] = (segment, position)

    def offset_by_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record whose timestamp is `timestamp_ms` or greater."""
        for segment in self.segments:
            if segment.max_timestamp_ms >= timestamp_ms and segment.size_bytes:
                found = segment.find_by_timestamp(timestamp_ms, self.log_start_offset)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> TimestampedOffset | None:
        """The record with the largest timestamp, the first of several; None in a log without timestamps."""
        latest = max(self.segments, key=lambda segment: segment.max_timestamp_ms)
        if latest.max_timestamp_ms < 0:
            return None
        return latest.find_by_timestamp(latest.max_timestamp_ms, self.log_start_offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch` that wrote here and the offset where it ended, else (-1, -1)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is decided and replicated; not before the log's start."""
        producers = self.producers
        producers.advance_high_watermark(high_watermark)
        first_unstable_offset = producers.first_unstable_offset
        if first_unstable_offset is None or first_unstable_offset > high_watermark:
            return high_watermark
        return max(first_unstable_offset, self.log_start_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records from `start_offset` up to `end_offset`."""
        aborted: list[AbortedTransaction] = []
        first = max(0, bisect_right(self._base_offsets, start_offset) - 1)
        for segment in self.segments[first:]:
            if segment.transaction_index.collect(start_offset, end_offset, aborted):
                break
        return aborted

    def boundary_at(self, offset: int) -> int:
        """The offset, or the start of the batch that holds it: where the log ends if it is cut there."""
        if not self.log_start_offset < offset < self.log_end_offset:
            return offset
        place = self._place(offset)
        if place is None:
            return offset
        header = read_header(place[0].file.read(place[1], HEADER_SIZE))
        return min(offset, header.base_offset)
