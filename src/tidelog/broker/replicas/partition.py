"""One replica of a partition on this broker: its role, offsets, the high watermark, and who waits for it.

The leader checks a produced batch, asks the producer state whether it is a retry, gives it the next offset
and appends it. The only replica of a partition has its high watermark at the end of the log; with followers
it is where `LeaderReplicas` says, and never goes back. A follower appends batches as the leader has them; its
watermark follows the leader's, no further than its own log, and goes back only when the log is cut.

What an acknowledgement promises: the batch is in the log of this process (it survives a kill of the
process), with acks=all also in the logs of the in-sync followers. It is on the disk as well when the topic's
`flush.messages` or `flush.ms` asked for that: the append that crosses `flush.messages` is not acknowledged
before the fsync that covers it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from tidelog.broker.runtime.purgatory import DelayedOperation
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import (
    NO_EPOCH,
    NO_LEADER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
)
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    assign_offsets,
    crc_matches,
    patch_offset_and_epoch,
    read_header,
)
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.record import Record
from tidelog.records.validation import CheckedBatch, ProduceRules, check_built, check_produced, ends_of_plain
from tidelog.replication.follower import ReplicaPosition
from tidelog.replication.leader import LeaderReplicas
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.producer_state import Duplicate

READ_BYTES = 1 << 20
DECOMPRESSED_BYTES_MAX = 128 << 20


def _unheard(fault: OSError, partition: "Partition") -> None:
    """Nobody wants to know of faults."""


class Appended(NamedTuple):
    """A batch that is in the log. `flush_to` is the offset to flush before it is acknowledged, or -1."""

    base_offset: int
    log_append_time_ms: int
    flush_to: int


class Partition:
    """A replica of a partition, leading it or following; `lead` and `follow` give it its role."""

    __slots__ = (
        "appended_bytes",
        "commits",
        "config",
        "decompressed_bytes_max",
        "flush_fault",
        "flushes",
        "high_watermark",
        "index",
        "kept_from",
        "leader_epoch",
        "leader_id",
        "leads",
        "log",
        "monotonic_ms",
        "on_fault",
        "place",
        "plain",
        "progressing",
        "replicas",
        "rules",
        "segment_bytes",
        "sent_bytes",
        "sent_messages",
        "topic",
        "topic_id",
        "unclean_leader_epoch",
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
        high_watermark: int = 0,
        walk_always: bool = False,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
        monotonic_ms: Callable[[], int] = lambda: 0,
        on_fault: "Callable[[OSError, Partition], None]" = _unheard,
    ) -> None:
        """`on_fault` hears of it when the log cannot be read or written."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.place = TopicPartition(topic, index)
        self.log = log
        self.leader_epoch = leader_epoch
        self.leader_id = NO_LEADER
        #: the last leader epoch that began without everything that was committed
        self.unclean_leader_epoch = NO_EPOCH
        self.leads = False
        #: what the leader knows of its followers; None for a follower, and where there are no others
        self.replicas: LeaderReplicas | None = None
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.walk_always = walk_always
        self.decompressed_bytes_max = decompressed_bytes_max
        self.monotonic_ms = monotonic_ms
        self.waiters: dict[DelayedOperation, None] = {}
        #: who waits for the high watermark to pass an offset, in the order of the offsets
        self.commits: deque[tuple[int, DelayedOperation]] | tuple[()] = ()
        #: whether it stands on the broker's list of partitions whose waiters are to be woken
        self.progressing = False
        #: bytes appended since the broker started; waiters measure how much arrived by it
        self.appended_bytes = 0
        #: what consumers were sent since then
        self.sent_bytes = 0
        self.sent_messages = 0
        self.unflushed_messages = 0
        self.unflushed_since_ms = INT64_MAX
        self.on_fault = on_fault
        #: of a delay topic: up to where its records are forwarded, so that retention may take them
        self.kept_from = 0
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

    # -- the role

    def lead(self, node_id: int, leader_epoch: int, replicas: LeaderReplicas | None) -> bool:
        """Lead the partition, or go on with other replicas; say whether the high watermark moved."""
        if leader_epoch > self.leader_epoch or not self.leads:
            self.log.begin_epoch(leader_epoch)
        self.leads = True
        self.leader_id = node_id
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        return self.advance_high_watermark()

    def follow(self, leader_id: int, leader_epoch: int) -> None:
        """Follow a leader; NO_LEADER while there is none."""
        self.leads = False
        self.kept_from = 0
        self.replicas = None
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch

    def advance_high_watermark(self) -> bool:
        """As leader: move the high watermark as far as the replicas allow; say whether it moved."""
        end_offset = self.log.log_end_offset
        if self.replicas is not None:
            end_offset = self.replicas.watermark(
                self.high_watermark, end_offset, self.config.min_insync_replicas, self.monotonic_ms
            )
        if end_offset <= self.high_watermark:
            return False
        self.high_watermark = end_offset
        return True

    def not_enough_replicas(self) -> Refused | None:
        """Why a write that must be replicated cannot be taken now; None if it can."""
        replicas = self.replicas
        if replicas is None or not replicas.under_min_isr(self.config.min_insync_replicas):
            return None
        needed = replicas.effective_min_isr(self.config.min_insync_replicas)
        return Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{self} has {len(replicas.isr)} replicas in sync, min.insync.replicas asks for {needed}",
        )

    @property
    def retained_to(self) -> int:
        """Where retention ends: nothing goes that is not committed, or that waits to be forwarded.

        Of a delay topic only the leader knows what waits; the logs of its followers start where its log does.
        """
        if not self.config.tidelog_delay_target:
            return self.high_watermark
        return min(self.kept_from, self.high_watermark) if self.leads else self.log.log_start_offset

    def low_watermark(self, alive: Callable[[int], bool]) -> int:
        """The earliest offset that this replica, or a living follower of it, still has."""
        if self.replicas is None:
            return self.log.log_start_offset
        return self.replicas.low_watermark(self.log.log_start_offset, alive)

    def replicated(self, end_offset: int) -> ErrorCode | None:
        """Whether everything before an offset is as safe as acks=all promises: an error, NONE, or not yet."""
        if not self.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < end_offset:
            return None
        replicas = self.replicas
        if replicas is not None:
            needed = replicas.effective_min_isr(self.config.min_insync_replicas)
            if len(replicas.maximal_isr) < needed:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def await_commit(self, end_offset: int, waiter: DelayedOperation) -> None:
        """Let somebody who is parked wait for the high watermark to pass an offset.

        It may be an earlier one than others wait for: that of a retry, or of who waits on after a deadline.
        Such a one takes the place of a waiter whose wait is over, so that the list does not grow with time.
        """
        commits = self.commits
        if isinstance(commits, tuple):
            # Most partitions never need one, and an empty one takes more memory than all of this object.
            self.commits = commits = deque()
        place = len(commits)
        if place and commits[-1][0] > end_offset:
            place = bisect_right(commits, end_offset, key=itemgetter(0))
        same = place
        while same and commits[same - 1][0] == end_offset:
            same -= 1
            if commits[same][1].purgatory is None:
                commits[same] = (end_offset, waiter)
                return
        commits.insert(place, (end_offset, waiter))

    def take_committed(self) -> DelayedOperation | None:
        """The next of those who waited for the watermark and need wait no more, or None."""
        commits = self.commits
        if not commits or (commits[0][0] > self.high_watermark and self.leads):
            return None
        return commits.popleft()[1]

    # -- following

    @property
    def position(self) -> ReplicaPosition:
        """Where this replica stands, as it tells its leader."""
        log = self.log
        return ReplicaPosition(
            self.leader_epoch, log.log_end_offset, log.leader_epochs.latest, log.log_start_offset
        )

    @property
    def may_lose_committed(self) -> bool:
        """As follower: whether committed records may have to go, because the leader, or one before it, was
        elected uncleanly since this log was last written."""
        return self.unclean_leader_epoch > self.log.leader_epochs.latest

    def append_fetched(self, records: memoryview, now_ms: int) -> Refused | None:
        """As follower: append batches as the leader has them; None when all of them are in the log.

        Batches that are in the log already are passed over; half a batch at the end is left out.
        """
        views: list[memoryview] = []
        headers: list[BatchHeader] = []
        next_offset = self.log.log_end_offset
        position, end = 0, len(records)
        while end - position >= HEADER_SIZE:
            header = read_header(records, position)
            size_bytes = header.size_bytes
            if size_bytes < HEADER_SIZE or header.magic != MAGIC or header.last_offset_delta < 0:
                return Refused(ErrorCode.CORRUPT_MESSAGE, f"the leader of {self} sent what is no batch")
            if position + size_bytes > end:
                break
            if header.last_offset >= next_offset:
                if header.base_offset < next_offset:
                    return Refused(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"{self} ends at {next_offset}, inside the leader's batch at {header.base_offset}",
                    )
                if not crc_matches(records, position, size_bytes, header.crc):
                    return Refused(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"the batch at {header.base_offset} of {self} was damaged on its way",
                    )
                views.append(records[position : position + size_bytes])
                headers.append(header)
                next_offset = header.next_offset
            position += size_bytes
        if self.flush_fault is not None:
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"a sync of {self} failed: {self.flush_fault}")
        if not headers:
            return None
        start_offset = self.log.log_end_offset
        try:
            self.log.append_replicated(views, headers, now_ms)
        except OSError as fault:
            return self._not_written(fault)
        self.appended_bytes += sum(map(len, views))
        if self.flushes:
            self._flush_due(next_offset - start_offset, now_ms)
        return None

    def _not_written(self, fault: OSError) -> Refused:
        self.on_fault(fault, self)
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self} could not be written: {fault}")

    def learn_high_watermark(self, high_watermark: int) -> bool:
        """As follower: the leader's watermark is there; say whether ours moved."""
        high_watermark = min(high_watermark, self.log.log_end_offset)
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        return True

    # -- reading and appending

    @property
    def knows_its_watermark(self) -> bool:
        """False for a new leader until it has seen that everything from before its time is committed."""
        return self.replicas is None or self.high_watermark >= self.replicas.epoch_start_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided."""
        return self.log.last_stable_offset(self.high_watermark)

    def readable_end(self, read_committed: bool) -> int:
        """The offset a consumer may read up to."""
        return self.last_stable_offset if read_committed else self.high_watermark

    def append_produced(
        self,
        records: memoryview | None,
        now_ms: int,
        *,
        from_client: bool = True,
        quick: bool = False,
        checked: CheckedBatch | Refused | None = None,
    ) -> Appended | Refused:
        """Append a batch that a producer sent; it is patched where it lies.

        `checked` is what was found of it before. Else it is checked here; with `quick` TakesLong is raised,
        before anything is changed, where that would take long.
        """
        if records is None:
            return Refused(ErrorCode.INVALID_RECORD, "the partition has no records")
        if checked is None:
            checked = check_produced(records, self.rules, now_ms, from_client=from_client, quick=quick)
        if type(checked) is Refused:
            return checked
        header, view, log_append_time_ms = checked  # type: ignore[misc]
        log = self.log
        if header.producer_id >= 0:
            verdict = log.producers.check(header, from_client=from_client)
            if type(verdict) is Duplicate:
                flush_to = self._flush_of(verdict.last_offset)
                return Appended(verdict.base_offset, verdict.timestamp_ms, flush_to)
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
            return self._not_written(fault)
        end_offset = log.log_end_offset
        replicas = self.replicas
        if replicas is None:
            self.high_watermark = end_offset
        else:
            replicas.appending(base_offset)
            self.advance_high_watermark()
        self.appended_bytes += size_bytes
        flush_to = self._flush_due(end_offset - base_offset, now_ms) if self.flushes else -1
        return Appended(base_offset, log_append_time_ms, flush_to)

    def refuse_in_order(
        self,
        records: memoryview | None,
        now_ms: int,
        refusal: Refused,
        checked: CheckedBatch | Refused | None = None,
    ) -> Refused:
        """What is said of a batch that must not be appended: what is wrong with its contents comes first."""
        if records is None:
            return refusal
        if checked is None:
            checked = check_produced(records, self.rules, now_ms)
        return checked if isinstance(checked, Refused) else refusal

    def append_run(self, views: Sequence[memoryview], now_ms: int) -> list[int] | Refused | None:
        """Append several batches of producers without ids with one write; return their base offsets.

        None: they must be appended one by one, and nothing was changed. A refusal is for all of them.
        """
        if not self.plain or self.flush_fault is not None:
            return None
        found = ends_of_plain(views, self.rules, now_ms)
        if found is None:
            return None
        log = self.log
        offset = log.log_end_offset
        offsets: list[int] = []
        ends: list[tuple[int, int]] = []
        max_timestamp_ms = -1
        for last_offset_delta, timestamp_ms in found:
            offsets.append(offset)
            last_offset = offset + last_offset_delta
            offset = last_offset + 1
            ends.append((last_offset, timestamp_ms))
            if timestamp_ms > max_timestamp_ms:
                max_timestamp_ms = timestamp_ms
        size_bytes = sum(map(len, views))
        if not log.takes_in_one_write(size_bytes, offset - 1, max_timestamp_ms, now_ms):
            return None
        leader_epoch = self.leader_epoch
        assign_offsets(views, offsets, leader_epoch)
        try:
            log.append_many(views, ends, leader_epoch, now_ms)
        except OSError as fault:
            return self._not_written(fault)
        self._appended(offsets[0])
        self.appended_bytes += size_bytes
        return offsets

    def _appended(self, base_offset: int) -> None:
        """The log has grown from `base_offset`."""
        if self.replicas is None:
            self.high_watermark = self.log.log_end_offset
        else:
            self.replicas.appending(base_offset)
            self.advance_high_watermark()

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
        refused = self.not_enough_replicas()
        if refused is not None:
            return refused
        transactional = producer_id != NO_PRODUCER_ID
        batch = bytearray(
            build_batch(
                [Record(index, now_ms, key, value, ()) for index, (key, value) in enumerate(records)],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=transactional,
            )
        )
        checked = check_built(batch, self.rules)
        outcome = self.append_produced(
            memoryview(batch), now_ms, from_client=not transactional, checked=checked
        )
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
        if producer_id == NO_PRODUCER_ID or producer_epoch == NO_PRODUCER_EPOCH:
            return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "a marker needs a producer id and an epoch")
        refused = self.not_enough_replicas()
        if refused is not None:
            return refused
        base_offset = self.log.log_end_offset
        batch = build_control_batch(
            committed,
            producer_id,
            producer_epoch,
            coordinator_epoch,
            now_ms,
            base_offset,
            self.leader_epoch,
            log_append_time=self.rules.log_append_time,
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
            return self._not_written(fault)
        self._appended(base_offset)
        self.appended_bytes += len(batch)
        if self.flushes:
            self._flush_due(1, now_ms)
        return None

    def read_batches(self, from_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch from an offset to what is now the end of the log, for loading state.

        Not just to the high watermark, which a new leader learns late: a leader never takes back what is in
        its log.
        """
        offset = max(from_offset, self.log.log_start_offset)
        end_offset = self.log.log_end_offset
        while offset < end_offset:
            piece = self.log.read(offset, READ_BYTES, end_offset)
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
        role = "leads" if self.leads else f"follows {self.leader_id}"
        return (
            f"<Partition {self} {role} epoch={self.leader_epoch} end={end_offset} hw={self.high_watermark}>"
        )
