"""Forwards the records of one delay partition that is led here, each when it is due.

    start ──▶ fence ──▶ read the progress ──▶ take the log over, slice by slice
                ▲                                  │ whatever is due
                │ trouble                          ▼
                └──────── produce the copies, ◀── read them
                          commit the progress
                                   │ both are done
                          end the transaction ──▶ again

One transaction is under way at a time; records are taken over meanwhile. Whatever goes wrong with one, the
way on is the same: fence, read the progress, and compare it with what was to be committed. A target that
cannot take records is not tried in vain: its reason is told, and it is looked at again. See ADR 25 for why
each record is forwarded once.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from tidelog.broker.coordinators.delay_client import Committed, DelayClient, Producer, Trouble
from tidelog.broker.coordinators.delay_reading import RecordReader, Taken, TakenBatch, committed_records
from tidelog.broker.coordinators.waiting_index import WaitingIndex
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.timers import Timers
from tidelog.client.key_hash import murmur2
from tidelog.delays.delay_partition import DelayPartition, Entry
from tidelog.delays.progress import Progress, read_progress
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import DELAY_GROUP_PREFIX, TopicPartition
from tidelog.model.image import TopicImage
from tidelog.model.ports import Clock
from tidelog.records.builder import build_batch
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record

log = logging.getLogger(__name__)

#: records taken over, and read for a transaction, before others get their turn
TAKEN_PER_TURN = 500
READ_PER_TURN = 100
#: how long a record may be in the log before it is taken over: many come together
TAKE_AFTER_MS = 5
WATCH_MS = 60_000
#: many where much is due: a transaction takes its time however little is in it
RECORDS_PER_TRANSACTION = 5_000
TRANSACTION_BYTES_MAX = 4 << 20
BATCH_BYTES_MAX = 1 << 20
#: what a batch and a record take beside their fields, at most
BATCH_OVERHEAD_BYTES = 100
RECORD_OVERHEAD_BYTES = 50
BUSY_MS = 5
BUSY_TIMES_MAX = 1_000
RETRY_MS_MIN = 50
RETRY_MS_MAX = 2_000
#: leaders and coordinators move; what takes longer is told
TOLD_AFTER_MS = 5_000
#: records that are due are counted up to here
COUNTED_MAX = 100_000

#: what passes by itself
_PASSING = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    )
)


class FiguresOfDelays(Protocol):
    """What is known of a delay topic."""

    waiting: int
    due: int
    late_ms: int
    forwarded: int
    cancelled: int


class DescribedDelays(NamedTuple):
    """A delay partition as it is shown."""

    topic: str
    partition: int
    target: str
    waiting: int
    due: int
    next_due_ms: int | None
    late_ms: int
    forwarded: int
    cancelled: int
    reason: str
    records: list[dict[str, int]]


class ForwardingFault(OSError):
    """Why records wait although they are due, for people."""


class Copies(NamedTuple):
    """What is read of a transaction that is made."""

    entries: list[Entry]
    target: str
    batch_bytes_max: int
    records: dict[TopicPartition, list[Record]]
    sizes: dict[TopicPartition, int]


class Surroundings(NamedTuple):
    """What a forwarder needs of its broker."""

    client: DelayClient
    metadata: Metadata
    settings: LiveSettings
    clock: Clock
    timers: Timers
    purgatory: Purgatory
    jobs: BackgroundJobs
    #: where the index of a partition lies; None keeps it in memory
    index_directory: Callable[[Partition], str | None]


class _NewRecords(DelayedOperation):
    """Waits until there are committed records behind an offset."""

    __slots__ = ("_offset", "_partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset

    def ready(self, progressed: Watched) -> bool:
        return self._partition.last_stable_offset > self._offset

    def complete(self, *, expired: bool) -> None:
        return None


class DelayForwarder:
    """The forwarder of one partition, from when it is led here until it is no more."""

    def __init__(self, partition: Partition, surroundings: Surroundings) -> None:
        self.partition = partition
        self._around = surroundings
        self._client = surroundings.client
        self._timers = surroundings.timers
        self._transactional_id = f"{DELAY_GROUP_PREFIX}{partition.topic_id.hex}-{partition.index}"
        self._group_id = f"{DELAY_GROUP_PREFIX}{partition.topic}"
        self._job = f"delayed records of {partition}"
        #: what comes back from before it is nobody's
        self._life = 0
        self._stopped = False
        self._producer: Producer | None = None
        self._index: WaitingIndex | None = None
        #: what waits, once that is known
        self.line: DelayPartition | None = None
        self._reader = RecordReader(partition)
        self._records: Iterator[Taken | TakenBatch] | None = None
        self._watch: _NewRecords | None = None
        self._ready = False
        self._sending = False
        self._making: Copies | None = None
        self._tries = 0
        self._trouble_since_ms: int | None = None
        #: why nothing is forwarded, or empty
        self.reason = ""
        self.forwarded_count = 0
        self.cancelled_count = 0

    def __repr__(self) -> str:
        return f"<DelayForwarder {self.partition} {self.reason or 'well'} {self.line!r}>"

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin as soon as there is a record."""
        log_ = self.partition.log
        if log_.log_end_offset == log_.log_start_offset == 0:
            self._watch_from(0, self.start)
        else:
            self._fence()

    def stop(self) -> None:
        """The partition is led elsewhere, or delays nothing any more."""
        self._stopped = True
        self._life += 1
        for what in ("take", "step", "fence", "produce", "commit"):
            self._timers.cancel(self._key(what))
        self._unwatch()
        self._around.jobs.cancel(self._job)
        self._forget()

    def _key(self, what: str) -> tuple[str, str, int]:
        return (f"delays {what}", self.partition.topic, self.partition.index)

    def _forget(self) -> None:
        self.line = None
        self._records = None
        if self._index is not None:
            self._index.close()
            self._index = None

    def _guarded(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        """A call that counts only in this life, and whose faults are troubles."""
        life = self._life

        def guarded(answer: Any) -> None:
            if life == self._life:
                try:
                    call(answer)
                except (OSError, CorruptRecord) as fault:
                    self._failed(fault)

        return guarded

    def _later(self, what: str, delay_ms: int, call: Callable[[], None]) -> None:
        guarded = self._guarded(lambda _: call())
        self._timers.set_after(self._key(what), delay_ms, lambda: guarded(None))

    def _failed(self, fault: Exception) -> None:
        """The log or the index cannot be read: begin anew."""
        self._forget()
        self._in_trouble(Trouble(ErrorCode.UNKNOWN_SERVER_ERROR, str(fault)))

    # ------------------------------------------------------------ fence, and read the progress

    def _fence(self) -> None:
        self._life += 1
        self._ready = self._sending = False
        self._making = None
        self._client.init_producer(self._transactional_id, self._guarded(self._fenced))

    def _fenced(self, answer: Producer | Trouble) -> None:
        if isinstance(answer, Trouble):
            if answer.error is ErrorCode.CONCURRENT_TRANSACTIONS:
                # What was left open is being finished.
                self._later("fence", BUSY_MS, self._fence)
            else:
                self._in_trouble(answer)
            return
        self._producer = answer
        self._client.committed(self._group_id, self.partition.place, self._guarded(self._read))

    def _read(self, answer: Committed | Trouble) -> None:
        if isinstance(answer, Trouble):
            self._in_trouble(answer)
            return
        partition = self.partition
        progress = self._progress_of(answer)
        end_offset = partition.log.log_end_offset
        if not partition.knows_its_watermark or partition.last_stable_offset < min(
            progress.taken, end_offset
        ):
            # A new leader learns late what is committed; what was taken over before is.
            self._later("fence", RETRY_MS_MIN, lambda: self._read(answer))
            return
        line = self.line
        if line is not None and progress == line.planned:
            self._line_committed(line)
        elif line is not None and progress == line.progress:
            line.given_up()
        else:
            self._begin_line(progress.within(partition.log.log_start_offset, end_offset))
        self._ready = True
        self._keep()
        self._take_some()
        self._step()

    def _progress_of(self, committed: Committed) -> Progress:
        start_offset = self.partition.log.log_start_offset
        if committed.offset < 0:
            return Progress(start_offset, start_offset)
        try:
            progress = read_progress(committed.offset, committed.metadata, self.partition.topic_id)
        except ValueError:
            # Somebody has set it: from there on everything is forwarded, perhaps again.
            return Progress(committed.offset, committed.offset)
        return progress or Progress(start_offset, start_offset)

    def _begin_line(self, progress: Progress) -> None:
        self._forget()
        self._index = WaitingIndex(self._around.index_directory(self.partition))
        self.line = DelayPartition(self._index, progress)

    def _keep(self) -> None:
        """Let retention take what is done, and no more."""
        assert self.line is not None
        self.partition.kept_from = self.line.progress.low

    # ------------------------------------------------------------ taking over

    def _take_some(self) -> None:
        line, partition = self.line, self.partition
        if line is None or self._making is not None:
            return
        if self._records is None:
            end_offset = partition.last_stable_offset
            if line.next_offset >= end_offset:
                self._watch_from(line.next_offset, self._soon)
                return
            self._records = committed_records(partition, line.next_offset, end_offset, self._delay_of_all)
        taken = 0
        next_offset = line.next_offset
        for each in self._records:
            if isinstance(each, TakenBatch):
                line.take_batch(each.base_offset, each.due_ms, each.places)
                taken += len(each.due_ms) // 4
            elif each.record is not None:
                line.take(each.record, each.place, partition.config.tidelog_delay_ms)
            taken += 1
            next_offset = each.next_offset
            if taken >= TAKEN_PER_TURN:
                break
        else:
            self._records = None
        line.took(next_offset)
        self._later("take", 0 if taken else RETRY_MS_MIN, self._take_some)
        self._step()

    def _delay_of_all(self, offset: int, end_offset: int) -> int | None:
        line, delay_ms = self.line, self.partition.config.tidelog_delay_ms
        return None if line is None else line.delay_of_all(offset, end_offset, delay_ms)

    def _soon(self) -> None:
        self._later("take", TAKE_AFTER_MS, self._take_some)

    def _watch_from(self, offset: int, then: Callable[[], None]) -> None:
        self._unwatch()
        if self.partition.last_stable_offset > offset:
            self._later("take", 0, then)
            return
        watch = self._watch = _NewRecords(self.partition, offset)
        guarded = self._guarded(lambda _: then())
        watch.deliver_to(guarded)
        self._around.purgatory.park(watch, (self.partition,), self._around.clock.now_ms() + WATCH_MS)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.abandon()
            self._watch = None

    # ------------------------------------------------------------ one transaction

    def _step(self) -> None:
        """Begin a transaction if something is due, else wait until something is."""
        line = self.line
        if line is None or not self._ready or self._sending or not line.knows_what_waits:
            return
        next_due_ms = line.next_due_ms()
        if next_due_ms is None:
            self._well()
            return
        now_ms = self._around.clock.now_ms()
        if next_due_ms > now_ms:
            self._well()
            self._later("step", min(next_due_ms - now_ms, WATCH_MS), self._step)
            return
        target = self.partition.config.tidelog_delay_target
        topic, fault = self._target(target)
        if topic is None or fault:
            self._tell(fault)
            self._later("step", RETRY_MS_MAX // 2, self._step)
            return
        entries = line.begin(now_ms, RECORDS_PER_TRANSACTION)
        if entries:
            limit = self._around.settings.current.log_config(topic.configs).max_message_bytes
            batch_bytes_max = min(limit, BATCH_BYTES_MAX) - BATCH_OVERHEAD_BYTES
            self._sending = True
            self._making = Copies(entries, target, batch_bytes_max, {}, {})
            self._read_some(0)
        else:
            self._later("step", RETRY_MS_MIN, self._step)

    def _target(self, name: str) -> tuple[TopicImage | None, str]:
        """The topic that gets the records; or why it does not."""
        topic = self._around.metadata.image.topics.get(name)
        if topic is None:
            return None, f"the target {name} does not exist"
        if topic.configs.get("tidelog.delay.target"):
            return None, f"the target {name} is a delay topic itself"
        return topic, ""

    def _read_some(self, start: int) -> None:
        """Read the copies, a few at a time, until all are read or a batch is full."""
        line, making = self.line, self._making
        assert line is not None and making is not None
        stop = min(start + READ_PER_TURN, len(making.entries))
        for number in range(start, stop):
            entry = making.entries[number]
            record = self._reader.read(entry)
            if line.is_cancelled(entry, record.key):
                self.cancelled_count += 1
            elif not self._add(making, record):
                self._send(number)
                return
        if stop == len(making.entries):
            self._send(stop)
        else:
            self._later("step", 0, lambda: self._read_some(stop))

    def _add(self, making: Copies, record: Record) -> bool:
        """Put a copy into its batch; False if that is full."""
        place = self._place(making.target, record.key)
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += len(name.encode("utf-8", "surrogateescape")) + len(value or b"") + 10
        total = making.sizes.get(place, 0) + size
        if making.sizes and (
            (place in making.sizes and total > making.batch_bytes_max)
            or sum(making.sizes.values()) + size > TRANSACTION_BYTES_MAX
        ):
            return False
        making.sizes[place] = total
        making.records.setdefault(place, []).append(record)
        return True

    def _place(self, target: str, key: bytes | None) -> TopicPartition:
        topics = self._around.metadata.image.topics
        count = len(topics[target].partitions)
        if count != len(topics[self.partition.topic].partitions) and key is not None:
            return TopicPartition(target, (murmur2(bytes(key)) & 0x7FFFFFFF) % count)
        return TopicPartition(target, self.partition.index % count)

    def _send(self, count: int) -> None:
        line, making, producer = self.line, self._making, self._producer
        assert line is not None and making is not None and producer is not None
        progress = line.cut(count)
        self._making = None
        copies_count = sum(map(len, making.records.values()))
        batches = {
            place: build_batch(
                records,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            for place, records in making.records.items()
        }
        self._tries = 0
        self._write(producer, batches, progress, copies_count)
        self._take_some()

    def _write(
        self, producer: Producer, batches: dict[TopicPartition, bytes], progress: Progress, copies_count: int
    ) -> None:
        """Write the copies and commit the progress, at the same time: the end comes after both."""
        left = 1 + bool(batches)
        offset = Committed(progress.low, progress.metadata(self.partition.topic_id))

        def answered(trouble: Trouble | None, what: str, again: Callable[[], None]) -> None:
            nonlocal left
            if trouble is not None:
                if not self._busy(trouble, what, again):
                    self._in_trouble(trouble)
                return
            left -= 1
            if not left:
                self._end(producer, copies_count)

        def produce() -> None:
            then = self._guarded(lambda trouble: answered(trouble, "produce", produce))
            self._client.produce(producer.transactional_id, batches, then)

        def commit() -> None:
            then = self._guarded(lambda trouble: answered(trouble, "commit", commit))
            self._client.commit(producer, self._group_id, self.partition.place, offset, then)

        if batches:
            produce()
        commit()

    def _busy(self, trouble: Trouble, what: str, again: Callable[[], None]) -> bool:
        """The coordinator still ends the transaction before: ask again, for a while."""
        self._tries += 1
        if trouble.error is not ErrorCode.CONCURRENT_TRANSACTIONS or self._tries > BUSY_TIMES_MAX:
            return False
        self._later(what, BUSY_MS, again)
        return True

    def _end(self, producer: Producer, copies_count: int) -> None:
        def ended(answer: Producer | Trouble) -> None:
            if isinstance(answer, Trouble):
                self._in_trouble(answer)
                return
            assert self.line is not None
            self._producer = answer
            self._sending = False
            self._line_committed(self.line)
            self.forwarded_count += copies_count
            self._keep()
            self._well()
            self._step()

        self._client.end(producer, self._guarded(ended))

    def _line_committed(self, line: DelayPartition) -> None:
        line.committed()

    # ------------------------------------------------------------ looking

    def look(self, figures: "FiguresOfDelays") -> None:
        """Add what is known of this partition."""
        figures.forwarded += self.forwarded_count
        figures.cancelled += self.cancelled_count
        if self.line is not None and self._index is not None:
            now_ms = self._around.clock.now_ms()
            figures.waiting += self.line.count
            figures.due += self.line.late_count + self._index.due_count(now_ms, COUNTED_MAX)
            next_due_ms = self.line.next_due_ms()
            if next_due_ms is not None:
                figures.late_ms = max(figures.late_ms, now_ms - next_due_ms)

    def describe(self, records_count: int) -> "DescribedDelays":
        """What is told of it, with its next records."""
        waiting = due = late_ms = 0
        next_due_ms: int | None = None
        records: list[dict[str, int]] = []
        if self.line is not None and self._index is not None:
            now_ms = self._around.clock.now_ms()
            waiting = self.line.count
            due = self.line.late_count + self._index.due_count(now_ms, COUNTED_MAX)
            next_due_ms = self.line.next_due_ms()
            late_ms = 0 if next_due_ms is None else max(0, now_ms - next_due_ms)
            entries = self._index.first_late(records_count)
            entries += self._index.first_waiting(records_count - len(entries))
            records = [{"offset": each.offset, "due_ms": each.due_ms} for each in entries]
        return DescribedDelays(
            self.partition.topic,
            self.partition.index,
            self.partition.config.tidelog_delay_target,
            waiting,
            due,
            next_due_ms,
            late_ms,
            self.forwarded_count,
            self.cancelled_count,
            self.reason,
            records,
        )

    # ------------------------------------------------------------ trouble

    def _in_trouble(self, trouble: Trouble) -> None:
        """Something did not go well, and may have happened or not: fence again after a while."""
        self._life += 1
        self._ready = self._sending = False
        self._making = None
        now_ms = self._timers.monotonic_ms()
        if self._trouble_since_ms is None:
            self._trouble_since_ms = now_ms
        lasted_ms = now_ms - self._trouble_since_ms
        passing = trouble.error in _PASSING
        if not passing or (lasted_ms >= TOLD_AFTER_MS and not self.reason):
            self._tell(trouble.reason)
        else:
            log.info("%s: %s", self._job, trouble.reason)
        self._later("fence", max(RETRY_MS_MIN, min(lasted_ms, RETRY_MS_MAX)), self._fence)

    def _tell(self, reason: str) -> None:
        self.reason = reason
        self._around.jobs.failed(self._job, ForwardingFault(reason), self.partition)

    def _well(self) -> None:
        self._trouble_since_ms = None
        if self.reason:
            self.reason = ""
            self._around.jobs.ran(self._job)
