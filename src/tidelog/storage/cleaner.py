"""Compaction: keep at least the last record of every key, drop what later records replaced.

Three steps, so that appends and reads go on meanwhile:

1. `plan_cleaning` (event loop) decides whether a log is worth cleaning and which closed segments may be.
2. `CleaningPlan.run` (worker thread) reads those segments, writes their replacements as `.cleaned` files,
   syncs them and renames them to `.swap`. It touches nothing that the log uses.
3. `CleaningResult.begin` (event loop) swaps the replacements in, or drops them if the log has changed so that
   they no longer fit (retention or truncation took their segments); `sync` (worker thread) makes that
   durable; `PartitionLog.finish_replacement` (event loop) gives the replacements their final names.

The log has a clean part, cleaned before, and behind it a dirty part. A round maps every key of the dirty part
to its last offset (`OffsetMap`, bounded memory: a map that is full ends the round early) and then copies all
closed segments up to there, the clean ones too, leaving out

- a record with a later one of the same key, and a record without a key;
- a record whose time to live is over, on a topic that has `tidelog.ttl.enable` (others: `expiry`);
- a tombstone (a key without value) once its delete horizon has passed: the first round that meets it sets
  the horizon, `delete.retention.ms` from then, in the batch (KIP-534), so that slow readers still see it;
- records of aborted transactions, and markers once all records of their transaction are gone and their own
  delete horizon has passed.

Offsets, the order of records, the base offset, last offset, producer id, epoch and sequence of a batch never
change. A batch that keeps all its records is copied byte for byte. A batch that keeps none disappears, unless
it is the last one of an active producer (its sequence and epoch must survive) or the last of a segment (so
that the next segment starts where this one ends, and a hole can be told from compaction): of such a batch the
header stays, with no records. A marker then stays whole: without its record it would not tell its epoch.
Never touched: the active segment, anything at or behind the last stable offset, and segments with records
younger than `min.compaction.lag.ms`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    crc_matches,
    read_header,
)
from tidelog.records.builder import CONTROL_ABORT, CONTROL_COMMIT, assemble, build_batch, control_type
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.delivery_headers import lenient_expiry_of
from tidelog.records.record import Record, iterate_records
from tidelog.storage.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    CheckpointMalformed,
    read_offsets,
    write_offsets,
)
from tidelog.storage.disk import Bytes, Disk, File
from tidelog.storage.leader_epochs import LeaderEpochs
from tidelog.storage.offset_index import RELATIVE_OFFSET_MAX
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog, mark_for_swap
from tidelog.storage.producer_state import LastRecord
from tidelog.storage.segment import CLEANED, OFFSET_INDEX, TIME_INDEX, Segment, SegmentCorrupt
from tidelog.storage.transaction_index import AbortedTransaction, TransactionIndex

DEDUPE_BUFFER_BYTES = 128 << 20
DEDUPE_BUFFER_LOAD_FACTOR = 0.9
READ_BYTES = 1 << 20
# After so much work the cleaner gives up the interpreter lock, for which the event loop would otherwise wait
# out Python's switch interval of 5 ms. Much less, and a busy event loop would leave the cleaner no time.
SLICE_SECONDS = 0.002

_FREE = bytes(8)

logger = logging.getLogger(__name__)


class CleaningStopped(Exception):
    """The round was called off; it left nothing behind."""


@dataclass(slots=True)
class CleaningStatistics:
    """What a round read, kept and removed."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keyless_records: int = 0


class OffsetMap:
    """The last offset of each key, in a fixed number of bytes.

    Keys are represented by 16 bytes of BLAKE2b, as in Kafka by MD5: two keys that share them would lose a
    record, and that does not happen. Open addressing with linear probing in one bytearray; an entry is the
    digest and the offset plus one, so that zeros mean free.
    """

    ENTRY_BYTES = 24

    __slots__ = ("_entries_max", "_slots_count", "_table", "entries_count", "latest_offset")

    def __init__(self, buffer_bytes: int, load_factor: float, keys_max: int) -> None:
        slots_count = min(buffer_bytes // self.ENTRY_BYTES, int(keys_max / load_factor) + 2)
        self._entries_max = min(int(slots_count * load_factor), slots_count - 1)
        if self._entries_max < 1:
            raise ValueError(f"log.cleaner.dedupe.buffer.size {buffer_bytes} is too small for one key")
        self._slots_count = slots_count
        # Memory that is never touched is never taken from the system.
        self._table = bytearray(slots_count * self.ENTRY_BYTES)
        self.entries_count = 0
        # Everything up to here is in the map.
        self.latest_offset = -1

    def put(self, key: bytes, offset: int) -> bool:
        """Note the offset of a key; False if the key is new and there is no room."""
        digest = blake2b(key, digest_size=16).digest()
        position, found = self._find(digest)
        if not found:
            if self.entries_count >= self._entries_max:
                return False
            self.entries_count += 1
            self._table[position : position + 16] = digest
        self._table[position + 16 : position + 24] = (offset + 1).to_bytes(8, "big")
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key, or -1."""
        position, found = self._find(blake2b(key, digest_size=16).digest())
        return int.from_bytes(self._table[position + 16 : position + 24], "big") - 1 if found else -1

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """The position of the entry with this digest, or of the free one where it belongs."""
        table = self._table
        end = len(table)
        position = int.from_bytes(digest[:8], "big") % self._slots_count * 24
        while True:
            if table[position : position + 16] == digest:
                return position, True
            if table[position + 16 : position + 24] == _FREE:
                return position, False
            position += 24
            if position == end:
                position = 0


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """One round of cleaning, decided but not begun. All offsets are those of the log when it was planned."""

    topic_partition: TopicPartition
    directory: str
    config: LogConfig
    # The closed segments before `first_uncleanable_offset`, clean ones first.
    segments: tuple[Segment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    # Whether max.compaction.lag.ms forced the round, whatever the dirty ratio.
    overdue: bool
    aborted_transactions: tuple[AbortedTransaction, ...]
    last_records: dict[int, LastRecord]
    leader_epochs: LeaderEpochs
    now_ms: int

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def explain(self) -> list[str]:
        """What would be done, for people."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        overdue = ", compaction is overdue" if self.overdue else ""
        return [
            f"{self.topic_partition}: {self.dirty_bytes} of {total_bytes} bytes are dirty"
            f" ({self.dirty_ratio:.0%}){overdue}",
            f"offsets {self.first_dirty_offset} to {self.first_uncleanable_offset} would be deduplicated"
            f" against {len(self.segments)} segments",
        ]

    def run(
        self,
        disk: Disk,
        open_files: OpenFiles,
        *,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
        load_factor: float = DEDUPE_BUFFER_LOAD_FACTOR,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> "CleaningResult":
        """Write the replacement segments; for a worker thread.

        Raises `CleaningStopped` when `should_stop` says so, `CorruptRecord` or `SegmentCorrupt` when the log
        is damaged, `OSError` when the disk fails. In all cases nothing is left behind but `.cleaned` files
        that could not be removed, which recovery removes.
        """
        return CleaningRound(self, disk, open_files, should_stop).run(dedupe_buffer_bytes, load_factor)


class Look(NamedTuple):
    """A segment need not be looked at for expired records before a time."""

    base_offset: int
    size_bytes: int
    not_before_ms: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """Segments of the log and the one cleaned segment that takes their place."""

    old: tuple[Segment, ...]
    new: Segment


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """A finished round: what to swap in, and where the dirty part of the log begins after that."""

    plan: CleaningPlan
    replacements: tuple[Replacement, ...]
    first_dirty_offset: int
    statistics: CleaningStatistics
    #: when to look at segments again for records that will have expired (`expiry`), by base offset and size
    looks: tuple["Look", ...] = ()

    def apply(self, log: PartitionLog, disk: Disk) -> list[str] | None:
        """`begin`, `sync` and the end, all at once; for those who may wait for the disk."""
        paths = self.begin(log, disk)
        if paths is not None:
            self.sync(disk)
            log.finish_replacement()
        return paths

    def sync(self, disk: Disk) -> None:
        """Make durable that the old segments are out of the way; for a worker thread, after `begin`."""
        disk.sync_directory(self.plan.directory)

    def begin(self, log: PartitionLog, disk: Disk) -> list[str] | None:
        """Swap the replacements in; return the files to remove after `file.delete.delay.ms`.

        None if the log no longer has the segments that were cleaned: then the replacements are dropped, and
        the cleaner's checkpoint must not move.
        """
        cleaned = [segment for replacement in self.replacements for segment in replacement.old]
        first = log.segments.index(cleaned[0]) if cleaned and cleaned[0] in log.segments else 0
        if log.segments[first : first + len(cleaned)] != cleaned or log.active in cleaned:
            discard_replacements(
                disk, self.plan.directory, [replacement.new for replacement in self.replacements]
            )
            return None
        return log.begin_replacement(
            [(replacement.old, replacement.new) for replacement in self.replacements]
        )


class CleanerCheckpoint:
    """The file `cleaner-offset-checkpoint` of a data directory: where each log's dirty part begins.

    Written after a round was applied. Losing it costs a round over the whole log, nothing else, so a
    malformed file counts as empty.
    """

    __slots__ = ("_disk", "_offsets", "_path")

    def __init__(self, disk: Disk, data_directory: str) -> None:
        self._disk = disk
        self._path = f"{data_directory}/{CLEANER_OFFSET_CHECKPOINT}"
        try:
            self._offsets = read_offsets(disk, self._path)
        except CheckpointMalformed as error:
            logger.warning("compaction starts from the beginning of every log: %s", error)
            self._offsets = {}

    def get(self, topic_partition: TopicPartition) -> int | None:
        return self._offsets.get(topic_partition)

    def set(self, topic_partition: TopicPartition, first_dirty_offset: int) -> None:
        """Note where the dirty part of a log begins; in memory until `write`."""
        self._offsets[topic_partition] = first_dirty_offset

    def truncate(self, topic_partition: TopicPartition, log_end_offset: int) -> None:
        """The log was cut: what is appended behind the cut is dirty."""
        if self._offsets.get(topic_partition, 0) > log_end_offset:
            self._offsets[topic_partition] = log_end_offset

    def remove(self, topic_partition: TopicPartition) -> None:
        self._offsets.pop(topic_partition, None)

    def write(self) -> None:
        """Replace the file, durably; for a worker thread."""
        write_offsets(self._disk, self._path, dict(self._offsets))


# -- planning


def plan_cleaning(
    log: PartitionLog, *, checkpointed_offset: int | None, last_stable_offset: int, now_ms: int
) -> CleaningPlan | None:
    """Decide whether to clean a log, and how far; changes nothing.

    `checkpointed_offset` is where the dirty part began after the last round, None if there was none.
    `last_stable_offset` bounds the round; it is never above the high watermark.
    """
    config = log.config
    if not config.compacted:
        return None
    first_dirty_offset = checkpointed_offset if checkpointed_offset is not None else log.log_start_offset
    if not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
        # Retention passed it, or the log was cut: Kafka too starts again from the beginning.
        first_dirty_offset = log.log_start_offset
    closed = log.segments[:-1]
    count = cleanable_count(
        closed, config, first_dirty_offset, last_stable_offset, log.active.base_offset, now_ms
    )
    cleanable = closed[:count]
    first_uncleanable_offset = log.segments[count].base_offset
    clean_bytes = sum(segment.size_bytes for segment in cleanable if segment.base_offset < first_dirty_offset)
    dirty = _segments_from(cleanable, first_dirty_offset)
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if first_uncleanable_offset <= first_dirty_offset or not dirty_bytes:
        return None
    overdue = _is_overdue(dirty, config, now_ms)
    if not overdue and dirty_bytes / (clean_bytes + dirty_bytes) <= config.min_cleanable_dirty_ratio:
        return None
    return CleaningPlan(
        topic_partition=log.topic_partition,
        directory=log.directory,
        config=config,
        segments=tuple(cleanable),
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=first_uncleanable_offset,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        overdue=overdue,
        aborted_transactions=tuple(
            log.aborted_transactions(cleanable[0].base_offset, first_uncleanable_offset)
        ),
        last_records=log.producers.last_records(),
        leader_epochs=log.leader_epochs,
        now_ms=now_ms,
    )


def cleanable_count(
    closed: Sequence[Segment],
    config: LogConfig,
    first_dirty_offset: int,
    last_stable_offset: int,
    active_base_offset: int,
    now_ms: int,
) -> int:
    """How many closed segments, from the first, lie before the last stable offset and are old enough."""
    young_ms = now_ms - config.min_compaction_lag_ms
    for index, segment in enumerate(closed):
        end_offset = closed[index + 1].base_offset if index + 1 < len(closed) else active_base_offset
        if end_offset > last_stable_offset:
            return index
        if (
            config.min_compaction_lag_ms > 0
            and end_offset > first_dirty_offset
            and segment.largest_timestamp_ms > young_ms
        ):
            return index
    return len(closed)


def _segments_from(segments: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """The segments from the one that holds `offset` on."""
    first = 0
    for index, segment in enumerate(segments):
        if segment.base_offset <= offset:
            first = index
    return segments[first:]


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """Whether a dirty record is older than max.compaction.lag.ms allows."""
    if config.max_compaction_lag_ms >= INT64_MAX:
        return False
    for segment in dirty:
        first = next(segment.batches(), None)
        if first is not None and 0 < first.header.max_timestamp_ms < now_ms - config.max_compaction_lag_ms:
            return True
    return False


# -- one round, in a worker thread


@dataclass(slots=True)
class _Transactions:
    """Which transactions are open at the place that the cleaner has reached, and how they will end."""

    # By first offset; those before `consumed` have begun.
    aborted: Sequence[AbortedTransaction]
    consumed: int = 0
    # Producer id → its transaction that will abort, and whether a batch of it was met.
    ongoing_aborted: dict[int, tuple[AbortedTransaction, bool]] = field(default_factory=dict)
    # Producer ids with a batch of a transaction that will commit.
    ongoing_committed: set[int] = field(default_factory=set)
    # Where entries go that must stay because batches of the transaction are still there.
    cleaned_index: TransactionIndex | None = None

    def on_data(self, header: BatchHeader) -> bool:
        """Take note of a data batch; return whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.transactional:
            return False
        ongoing = self.ongoing_aborted.get(header.producer_id)
        if ongoing is None:
            self.ongoing_committed.add(header.producer_id)
            return False
        self.ongoing_aborted[header.producer_id] = (ongoing[0], True)
        return True

    def on_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Take note of a control batch; return whether nothing of its transaction is left before it."""
        self._begin_up_to(header.last_offset)
        record = next(iterate_records(batch, header), None)
        if record is None:
            return True  # emptied by an earlier round
        kind = control_type(record)
        if kind == CONTROL_ABORT:
            ended, batch_met = self.ongoing_aborted.pop(header.producer_id, (None, False))
            if ended is None or not batch_met:
                return True
            if self.cleaned_index is not None:
                self.cleaned_index.append(ended)
            return False
        if kind == CONTROL_COMMIT:
            if header.producer_id not in self.ongoing_committed:
                return True
            self.ongoing_committed.remove(header.producer_id)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self.consumed < len(self.aborted) and self.aborted[self.consumed].first_offset <= offset:
            transaction = self.aborted[self.consumed]
            self.ongoing_aborted.setdefault(transaction.producer_id, (transaction, False))
            self.consumed += 1


class CleaningRound:
    """The work of one plan."""

    def __init__(
        self, plan: CleaningPlan, disk: Disk, open_files: OpenFiles, should_stop: Callable[[], bool]
    ) -> None:
        self._plan = plan
        self._disk = disk
        self._open_files = open_files
        self._should_stop = should_stop
        self._statistics = CleaningStatistics()
        self._aborted = sorted(plan.aborted_transactions, key=lambda transaction: transaction.first_offset)

    def run(self, dedupe_buffer_bytes: int, load_factor: float) -> CleaningResult:
        plan, statistics = self._plan, self._statistics
        keys_max = plan.first_uncleanable_offset - plan.first_dirty_offset
        offset_map = OffsetMap(dedupe_buffer_bytes, load_factor, keys_max)
        self._fill(offset_map)
        first_dirty_offset = offset_map.latest_offset + 1
        if first_dirty_offset <= plan.first_dirty_offset:
            logger.warning(
                "%s: the batch at offset %d has more keys than log.cleaner.dedupe.buffer.size can hold",
                plan.topic_partition,
                plan.first_dirty_offset,
            )
            return CleaningResult(plan, (), plan.first_dirty_offset, statistics)
        segments = [segment for segment in plan.segments if segment.base_offset < first_dirty_offset]
        transactions = _Transactions(self._aborted)

        def stays(header: BatchHeader, batch: memoryview, end_offset: int) -> Bytes | None:
            return self._filter(header, batch, end_offset, offset_map, transactions)

        def begin(new: Segment, group: Sequence[Segment]) -> None:
            transactions.cleaned_index = new.transaction_index

        replacements = self.replace(segments, begin, stays)
        return CleaningResult(plan, replacements, first_dirty_offset, statistics)

    def replace(
        self,
        segments: Sequence[Segment],
        begin: Callable[[Segment, Sequence[Segment]], None],
        stays: "Callable[[BatchHeader, memoryview, int], Bytes | None]",
    ) -> tuple[Replacement, ...]:
        """Write what takes the place of segments that follow each other, up to the name `.swap`.

        `begin` is told of each new segment and those it is made of. `stays` says what stays of a batch in a
        segment that ends at an offset.
        """
        plan = self._plan
        replacements: list[Replacement] = []
        # The last step of the round before, from `.swap` to the final names, must be durable before a
        # `.cleaned` file appears: recovery would take those `.swap` files for a part of this round.
        self._disk.sync_directory(plan.directory)
        try:
            for group in self._groups(segments):
                new = Segment.create(
                    self._disk,
                    self._open_files,
                    plan.directory,
                    group[0].base_offset,
                    plan.config,
                    group[-1].created_ms,
                    suffix=CLEANED,
                )
                replacements.append(Replacement(tuple(group), new))
                begin(new, group)
                self._clean_into(new, group, stays)
            # Recovery could not learn from the batches any more where an epoch began.
            plan.leader_epochs.flush()
            mark_for_swap(self._disk, plan.directory, [replacement.new for replacement in replacements])
        except (CleaningStopped, CorruptRecord, OSError):
            discard_replacements(self._disk, plan.directory, [each.new for each in replacements])
            raise
        return tuple(replacements)

    def batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment, giving the event loop and `should_stop` a chance before each."""
        slice_end = time.monotonic() + SLICE_SECONDS
        for header, batch in read_batches(segment.file, segment.size_bytes):
            if self._should_stop():
                raise CleaningStopped(f"{self._plan.topic_partition}: compaction was called off")
            if time.monotonic() > slice_end:
                time.sleep(0)
                slice_end = time.monotonic() + SLICE_SECONDS
            yield header, batch

    # The map

    def _fill(self, offset_map: OffsetMap) -> None:
        plan = self._plan
        dirty = _segments_from(plan.segments, plan.first_dirty_offset)
        transactions = _Transactions(self._aborted)
        for index, segment in enumerate(dirty):
            for header, batch in self.batches(segment):
                if header.control:
                    transactions.on_marker(header, batch)
                elif not transactions.on_data(header) and not self._map_batch(offset_map, header, batch):
                    return
                if header.last_offset >= plan.first_dirty_offset:
                    offset_map.latest_offset = header.last_offset
            # There may be a gap of offsets before the next segment.
            following = (
                dirty[index + 1].base_offset if index + 1 < len(dirty) else plan.first_uncleanable_offset
            )
            offset_map.latest_offset = max(offset_map.latest_offset, following - 1)

    def _map_batch(self, offset_map: OffsetMap, header: BatchHeader, batch: memoryview) -> bool:
        """Put the keys of a data batch into the map; False if it is full."""
        first_dirty_offset = self._plan.first_dirty_offset
        if header.last_offset < first_dirty_offset:
            return True
        for record in iterate_records(batch, header):
            if record.offset < first_dirty_offset or record.key is None:
                continue
            if not offset_map.put(record.key, record.offset):
                return False
        return True

    # The copy

    def _groups(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Runs of segments that fit into one, so that segments do not get ever smaller."""
        config = self._plan.config
        group: list[Segment] = []
        log_bytes = index_bytes = 0
        for number, segment in enumerate(segments):
            end_offset = (
                segments[number + 1].base_offset
                if number + 1 < len(segments)
                else self._plan.first_uncleanable_offset
            )
            segment_index_bytes = max(
                self._file_bytes(segment.path(kind)) for kind in (OFFSET_INDEX, TIME_INDEX)
            )
            if group and (
                log_bytes + segment.size_bytes > config.segment_bytes
                or index_bytes + segment_index_bytes > config.segment_index_bytes
                or end_offset - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX
            ):
                yield group
                group, log_bytes, index_bytes = [], 0, 0
            group.append(segment)
            log_bytes += segment.size_bytes
            index_bytes += segment_index_bytes
        if group:
            yield group

    def _file_bytes(self, path: str) -> int:
        return self._disk.size_bytes(path) if self._disk.exists(path) else 0

    def _clean_into(
        self,
        new: Segment,
        group: Sequence[Segment],
        stays: "Callable[[BatchHeader, memoryview, int], Bytes | None]",
    ) -> None:
        """Copy what stays of a group of segments into `new`, and make it durable."""
        statistics = self._statistics
        number = self._plan.segments.index(group[-1]) + 1
        following = self._plan.segments[number : number + 1]
        end_offset = following[0].base_offset if following else self._plan.first_uncleanable_offset
        for segment in group:
            for header, batch in self.batches(segment):
                statistics.bytes_read += header.size_bytes
                statistics.records_read += header.records_count
                kept = stays(header, batch, end_offset)
                if kept is not None:
                    kept_header = read_header(kept)
                    new.append(
                        kept, header.last_offset, kept_header.max_timestamp_ms, segment.last_appended_ms
                    )
                    statistics.records_kept += kept_header.records_count
                    statistics.bytes_written += len(kept)
        new.last_appended_ms = group[-1].last_appended_ms
        new.write_indexes(final=True)
        new.seal()
        for path in new.files():
            file = self._disk.open(path, create=False)
            try:
                file.sync()
            finally:
                file.close()

    def _filter(
        self,
        header: BatchHeader,
        batch: memoryview,
        end_offset: int,
        offset_map: OffsetMap,
        transactions: _Transactions,
    ) -> Bytes | None:
        """What stays of a batch in a segment that ends at `end_offset`: itself, a smaller one, or None."""
        plan = self._plan
        horizon_ms = header.delete_horizon_ms
        if header.control:
            orphaned = transactions.on_marker(header, batch)
            discard = orphaned and horizon_ms is not None and horizon_ms <= plan.now_ms
        else:
            orphaned = False
            discard = transactions.on_data(header)
        header_stays = header.next_offset == end_offset or self.is_last_of_producer(header)
        if discard and not (header.control and header_stays):
            return emptied_batch(header) if header_stays else None
        if header.control:
            kept = list(iterate_records(batch, header))
        elif header.base_offset > offset_map.latest_offset:
            return batch
        else:
            kept = [
                record
                for record in iterate_records(batch, header)
                if self._record_stays(record, horizon_ms, offset_map)
            ]
        if not kept:
            return emptied_batch(header) if header_stays else None
        needs_horizon = horizon_ms is None and (orphaned or any(record.value is None for record in kept))
        if len(kept) == header.records_count and not needs_horizon:
            return batch
        if needs_horizon:
            horizon_ms = plan.now_ms + plan.config.delete_retention_ms
        return rebuilt_batch(header, batch, kept, horizon_ms)

    def _record_stays(self, record: Record, horizon_ms: int | None, offset_map: OffsetMap) -> bool:
        if record.offset > offset_map.latest_offset:
            return True
        if record.key is None:
            self._statistics.keyless_records += 1
            return False
        if record.offset < offset_map.get(record.key):
            return False
        config = self._plan.config
        if config.tidelog_ttl_enable:
            expiry_ms = lenient_expiry_of(record, config.tidelog_ttl_ms)
            if expiry_ms is not None and expiry_ms <= self._plan.now_ms:
                return False
        return record.value is not None or horizon_ms is None or self._plan.now_ms < horizon_ms

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the batch holds what must be remembered of a producer that is still active."""
        if header.producer_id < 0:
            return False
        last = self._plan.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        # It has only ended transactions in its epoch: the marker carries the epoch that fences older ones.
        return header.control and header.producer_epoch == last.producer_epoch


def read_batches(file: File, size_bytes: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Read the batches of a log file in large blocks; raise `SegmentCorrupt` where there is no whole one."""
    block = memoryview(b"")
    block_start = position = 0
    while position < size_bytes:
        at = position - block_start
        needed = HEADER_SIZE
        if at + needed <= len(block):
            header = read_header(block, at)
            needed = header.batch_length + LOG_OVERHEAD
            if needed < HEADER_SIZE or position + needed > size_bytes:
                raise SegmentCorrupt(f"{file.path}: no whole batch at position {position}")
            if at + needed <= len(block):
                yield header, block[at : at + needed]
                position += needed
                continue
        if position + needed > size_bytes:
            raise SegmentCorrupt(f"{file.path}: no batch header at position {position}")
        block = memoryview(file.read(position, min(max(READ_BYTES, needed), size_bytes - position)))
        block_start = position
        if len(block) < needed:
            raise SegmentCorrupt(f"{file.path}: shorter than its {size_bytes} bytes")


def rebuilt_batch(
    header: BatchHeader, batch: memoryview, kept: list[Record], horizon_ms: int | None
) -> Bytes:
    """A batch with the records of `kept` that otherwise is the one given."""
    if not crc_matches(batch, 0, header.size_bytes, header.crc):
        # A new checksum must not make damaged records look sound.
        raise CorruptRecord(f"the batch at offset {header.base_offset} does not have its checksum")
    return build_batch(
        kept,
        base_offset=header.base_offset,
        codec=header.codec,
        log_append_time_ms=header.max_timestamp_ms if header.log_append_time else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.transactional,
        control=header.control,
        leader_epoch=header.partition_leader_epoch,
        keep_offsets=True,
        last_offset_delta=header.last_offset_delta,
        delete_horizon_ms=horizon_ms,
    )


def emptied_batch(header: BatchHeader) -> Bytes:
    """The header of a batch alone; its offsets, producer, epoch and sequences stay."""
    empty = header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
        base_timestamp_ms=header.max_timestamp_ms,
        records_count=0,
    )
    return assemble(empty, b"", Codec.NONE)


def discard_replacements(disk: Disk, directory: str, segments: Sequence[Segment]) -> None:
    """Remove replacement segments that are not wanted, in a way that no crash brings them back."""
    # Recovery completes a `.swap`, so that name goes first, durably, and only then the files.
    if any(segment.suffix != CLEANED for segment in segments):
        for segment in segments:
            segment.rename(CLEANED)
        disk.sync_directory(directory)
    for segment in segments:
        segment.remove()
