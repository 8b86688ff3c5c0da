"""One replica of a partition on this broker: leadership, offsets, the high watermark, and who waits for it.

The leader checks a produced batch, asks the producer state whether it is a retry, gives it the next offset
and appends it. With one replica in sync the high watermark is the end of the log.

What an acknowledgement promises: the batch is in the log of this process (it survives a kill of the
process). It is on the disk as well when the topic's `flush.messages` or `flush.ms` asked for that: the
append that crosses `flush.messages` is not acknowledged before the fsync that covers it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.parking import Waiter
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import BatchHeader, patch_offset_and_epoch, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.record import Record, iterate_records
from tidelog.records.validation import ProduceRules, check_produced
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.producer_state import Duplicate

READ_BYTES = 1 << 20
DECOMPRESSED_BYTES_MAX = 128 << 20


class Appended(NamedTuple):
    """A batch that is in the log. `flush_to` is the offset to flush before it is acknowledged, or -1."""

    base_offset: int
    log_append_time_ms: int
    flush_to: int


class Partition:
    """A partition this broker leads."""

    __slots__ = (
        "appended_bytes",
        "config",
        "decompressed_bytes_max",
        "flush_fault",
        "flushes",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "plain",
        "progressing",
        "rules",
        "segment_bytes",
        "topic",
        "topic_id",
        "unflushed_messages",
        "unflushed_since_ms",
        "waiters",
        "walk_always",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        log: PartitionLog,
        leader_epoch: int,
        *,
        walk_always: bool = False,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader_epoch = leader_epoch
        self.high_watermark = log.log_end_offset
        self.walk_always = walk_always
        self.decompressed_bytes_max = decompressed_bytes_max
        self.waiters: dict[Waiter, None] = {}
        #: whether it stands on the broker's list of partitions whose waiters are to be woken
        self.progressing = False
        #: bytes appended since the broker started; waiters measure how much arrived by it
        self.appended_bytes = 0
        self.unflushed_messages = 0
        self.unflushed_since_ms = INT64_MAX
        #: why the disk could not be trusted any more, if a sync failed
        self.flush_fault: OSError | None = None
        self.reconfigure(log.config)

    def reconfigure(self, config: LogConfig) -> None:
        """Obey new settings from the next append on."""
        self.config = config
        self.segment_bytes = config.segment_bytes
        #: whether the settings ask for data to be on the disk after a number of messages or some time
        self.flushes = config.flush_messages != INT64_MAX or config.flush_ms != INT64_MAX
        self.rules = rules = ProduceRules.from_config(
            config,
            walk_always=self.walk_always,
            decompressed_bytes_max=self.decompressed_bytes_max,
        )
        #: whether checking a batch changes nothing in it, and nothing waits for the disk
        self.plain = not (self.flushes or rules.walks or rules.log_append_time or rules.codec is not None)
        self.log.reconfigure(config)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided."""
        return self.log.last_stable_offset(self.high_watermark)

    def readable_end(self, read_committed: bool) -> int:
        """The offset a consumer may read up to."""
        return self.last_stable_offset if read_committed else self.high_watermark

    def append_produced(
        self, records: memoryview | None, now_ms: int, *, from_client: bool = True
    ) -> Appended | Refused:
        """Append a batch that a producer sent; it is patched where it lies."""
        if records is None:
            return Refused(ErrorCode.INVALID_RECORD, "the partition has no records")
        checked = check_produced(records, self.rules, now_ms, from_client=from_client)
        if type(checked) is Refused:
            return checked
        header, view, log_append_time_ms = checked  # type: ignore[misc]
        log = self.log
        if header.producer_id >= 0:
            verdict = log.producers.check(header, from_client=from_client)
            if type(verdict) is Duplicate:
                stamp_ms = verdict.timestamp_ms if log_append_time_ms >= 0 else -1
                return Appended(verdict.base_offset, stamp_ms, self._flush_of(verdict.last_offset))
            if verdict is not None:
                return verdict  # type: ignore[return-value]
        if self.flush_fault is not None:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"a sync of {self} failed: {self.flush_fault}")
        size_bytes = len(view)
        if size_bytes > self.segment_bytes:
            return Refused(ErrorCode.RECORD_LIST_TOO_LARGE, "the batch is larger than segment.bytes")
        base_offset = log.log_end_offset
        leader_epoch = self.leader_epoch
        patch_offset_and_epoch(view, 0, base_offset, leader_epoch)
        try:
            log.append(view, header, base_offset, leader_epoch, now_ms)
        except OSError as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self} could not be written: {fault}")
        end_offset = log.log_end_offset
        self.high_watermark = end_offset
        self.appended_bytes += size_bytes
        flush_to = self._flush_due(end_offset - base_offset, now_ms) if self.flushes else -1
        return Appended(base_offset, log_append_time_ms, flush_to)

    def append_run(self, views: Sequence[memoryview], now_ms: int) -> list[int] | Refused | None:
        """Append several batches of producers without ids with one write; return their base offsets.

        None: they must be appended one by one, and nothing was changed. A refusal is for all of them.
        """
        if not self.plain or self.flush_fault is not None:
            return None
        log = self.log
        offset = log.log_end_offset
        offsets: list[int] = []
        ends: list[tuple[int, int]] = []
        size_bytes = 0
        max_timestamp_ms = -1
        for view in views:
            checked = check_produced(view, self.rules, now_ms)
            if type(checked) is Refused:
                return None
            header = checked.header  # type: ignore[union-attr]
            if header.producer_id >= 0:
                return None
            offsets.append(offset)
            offset += header.last_offset_delta + 1
            ends.append((offset - 1, header.max_timestamp_ms))
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
            size_bytes += len(view)
        if not log.takes_in_one_write(size_bytes, offset - 1, max_timestamp_ms, now_ms):
            return None
        leader_epoch = self.leader_epoch
        for view, base_offset in zip(views, offsets, strict=True):
            patch_offset_and_epoch(view, 0, base_offset, leader_epoch)
        try:
            log.append_many(views, ends, leader_epoch, now_ms)
        except OSError as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self} could not be written: {fault}")
        self.high_watermark = log.log_end_offset
        self.appended_bytes += size_bytes
        return offsets

    def _flush_due(self, messages: int, now_ms: int) -> int:
        """Count what is not on the disk yet; return the offset to flush to when the count is due."""
        if self.unflushed_messages == 0:
            self.unflushed_since_ms = now_ms
        self.unflushed_messages += messages
        return self.log.log_end_offset if self.unflushed_messages >= self.config.flush_messages else -1

    def _flush_of(self, last_offset: int) -> int:
        """What to flush before a retry is acknowledged: the first attempt may not be on the disk yet."""
        unsafe = self.config.flush_messages != INT64_MAX and self.log.recovery_point <= last_offset
        return last_offset + 1 if unsafe else -1

    def flush_started(self) -> None:
        """A flush of everything appended so far is under way."""
        self.unflushed_messages = 0
        self.unflushed_since_ms = INT64_MAX

    def append_internal(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        now_ms: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> int | Refused:
        """Append the broker's own records (groups, transactions) as one batch; return its base offset.

        With a producer id they belong to that producer's transaction.
        """
        transactional = producer_id != NO_PRODUCER_ID
        batch = build_batch(
            [Record(index, now_ms, key, value, ()) for index, (key, value) in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=transactional,
        )
        outcome = self.append_produced(memoryview(bytearray(batch)), now_ms, from_client=not transactional)
        return outcome if isinstance(outcome, Refused) else outcome.base_offset

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> Refused | None:
        """Append the marker that ends a producer's transaction here; None when it is in the log."""
        base_offset = self.log.log_end_offset
        batch = build_control_batch(
            committed, producer_id, producer_epoch, coordinator_epoch, now_ms, base_offset, self.leader_epoch
        )
        header = read_header(batch)
        refused = self.log.producers.check_marker(
            header, coordinator_epoch, transaction_version=transaction_version
        )
        if refused is not None:
            return refused
        try:
            self.log.append(memoryview(batch), header, base_offset, self.leader_epoch, now_ms)
        except OSError as fault:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self} could not be written: {fault}")
        self.high_watermark = self.log.log_end_offset
        self.appended_bytes += len(batch)
        if self.flushes:
            self._flush_due(1, now_ms)
        return None

    def read_records(self, from_offset: int) -> Iterator[Record]:
        """Every record from an offset to the high watermark, for loading state; no control batches."""
        for header, batch in self.read_batches(from_offset):
            if not header.control:
                yield from (r for r in iterate_records(batch, header) if r.offset >= from_offset)

    def read_batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch from an offset to the high watermark, for loading state."""
        offset = max(from_offset, self.log.log_start_offset)
        while offset < self.high_watermark:
            piece = self.log.read(offset, READ_BYTES, self.high_watermark)
            if piece is None or piece.size_bytes == 0:
                return
            data = memoryview(piece.file.read(piece.position, piece.size_bytes))
            position = 0
            while position < len(data):
                header = read_header(data, position)
                batch = data[position : position + header.size_bytes]
                if len(batch) < header.size_bytes:
                    break
                yield header, batch
                position += header.size_bytes
                next_offset = header.next_offset
            offset = next_offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def __repr__(self) -> str:
        end_offset = self.log.log_end_offset
        return f"<Partition {self} epoch={self.leader_epoch} end={end_offset} hw={self.high_watermark}>"
