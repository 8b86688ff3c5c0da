"""A partition log through power cuts: what was promised is there, nothing else is.

Each seed is one story: a log on a simulated disk is appended to (plain, idempotent and transactional
batches), rolled, flushed, cut by retention, compacted, closed and reopened, killed, and a few times the power
goes, now and then in the middle of an operation or of recovery. What the broker leaves to worker threads
(syncing a flush plan, taking dropped segments from the disk, the sync between the steps of a swap) happens
here between the other steps. After every restart the log is compared with the list of everything that was
ever appended:

- the log ends at or behind the last flush (after the death of the process alone: behind everything);
- it is a prefix of what was appended: every batch up to its end is there byte for byte, or in a version that
  compaction made; only batches that compaction or retention may remove are missing; every segment starts
  where the one before it ends; a compacted log still makes the same table;
- offset index, time index, transaction index, leader epochs and producer state are what the batches say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.simulation import power_cut_mutants
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import BatchHeader, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.record import Record, iterate_records
from tidelog.storage import checkpoints
from tidelog.storage.cleaner import CleaningResult, plan_cleaning, read_batches
from tidelog.storage.flush_plan import FlushPlan
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.producer_state import Duplicate
from tidelog.storage.retention import remove_deleted_files

PARTITION = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
DATA = "/data"
DIRECTORY = f"{DATA}/t-0"
RECOVERY_POINTS = f"{DATA}/{checkpoints.RECOVERY_POINT_CHECKPOINT}"
LOG_STARTS = f"{DATA}/{checkpoints.LOG_START_OFFSET_CHECKPOINT}"

SEEDS_COUNT = 1000
SEEDS_PER_TEST = 50


@dataclass
class Appended:
    """A batch as it was appended, and every form that compaction gave it."""

    header: BatchHeader
    batch: bytes
    versions: set[bytes] = field(default_factory=set)
    removable: bool = False

    @property
    def records(self) -> list[Record]:
        return list(iterate_records(self.batch, self.header))


@dataclass
class Producer:
    """A client: what it would send next."""

    producer_id: int
    transactional: bool
    epoch: int = 0
    sequence: int = 0
    in_transaction: bool = False


class Story:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.compacted = random.random() < 0.5
        policy = {"compact"} if self.compacted else {"delete"}
        if self.compacted and random.random() < 0.3:
            policy.add("delete")
        self.config = LogConfig(
            cleanup_policy=frozenset(policy),
            segment_bytes=random.choice((1500, 4000, 12000)),
            index_interval_bytes=random.choice((1, 150, 600)),
            retention_bytes=random.choice((-1, 8000)),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=random.choice((0, 500, 10**9)),
        )
        self.disk = SimulatedDisk(seed)
        self.disk.make_directory(DATA)
        self.disk.sync_directory("/")
        self.now_ms = 1_000_000
        self.leader_epoch = 0
        self.history: list[Appended] = []
        self.promised_end = 0  # everything before it must survive a power cut
        self.retained_from = 0  # everything from here on must be there
        self.cleaned_until = 0  # the end of what compaction works on
        self.appended_end = 0
        # A log that rolls and forgets a lot, and one with many short lives, meet what others hardly do.
        self.forgetful = random.random() < 0.3
        self.short_lived = random.random() < 0.3
        self.producers = [Producer(n, transactional=n == 2 and not self.compacted) for n in range(3)]
        self.open(clean_shutdown=False)

    # What a broker does

    def open(self, *, clean_shutdown: bool) -> None:
        # Under way in worker threads:
        self.flush_plan: FlushPlan | None = None
        self.removal: Iterator[list[str]] | None = None
        self.removable_paths: list[str] = []
        self.swap: tuple[CleaningResult, list[str]] | None = None
        self.swap_synced = False
        checkpointed = checkpoints.read_offsets(self.disk, RECOVERY_POINTS).get(PARTITION, 0)
        self.open_files = OpenFiles(self.disk)
        self.log = PartitionLog.open(
            self.disk,
            DIRECTORY,
            PARTITION,
            self.config,
            now_ms=self.now_ms,
            clean_shutdown=clean_shutdown,
            recovery_point=checkpointed,
            log_start_offset=checkpoints.read_offsets(self.disk, LOG_STARTS).get(PARTITION, 0),
            topic_id=TOPIC_ID,
            open_files=self.open_files,
        )
        if self.log.recovery_checkpoint < checkpointed:
            self.checkpoint()

    def run(self) -> None:
        for _ in range(self.random.randint(4, 8) if self.short_lived else self.random.randint(1, 3)):
            if self.random.random() < 0.5:
                self.disk.cut_power_at(self.random.randint(1, 150))
            try:
                for _ in range(
                    self.random.randint(3, 12) if self.short_lived else self.random.randint(5, 50)
                ):
                    self.step()
            except PowerCut:
                self.note_replacements()
            self.disk = self.disk.crash()
            self.recover()
            self.check(self.promised_end)

    def recover(self) -> None:
        """Open the log after a power cut, now and then with another one meanwhile or right after it."""
        while self.random.random() < 0.2:
            self.disk.cut_power_at(self.random.randint(1, 30))
            try:
                self.open(clean_shutdown=False)
            except PowerCut:
                pass
            else:
                end_offset = self.log.log_end_offset
                self.disk = self.disk.crash()
                self.open(clean_shutdown=False)
                assert self.log.log_end_offset == end_offset, "what recovery found it finds again"
            self.disk = self.disk.crash()
        self.open(clean_shutdown=False)

    def step(self) -> None:
        self.now_ms += self.random.choice((0, 1, 50))
        actions = (
            (self.append, 70),
            (self.flush, 8),
            (self.roll, 20 if self.forgetful or self.short_lived else 4),
            (self.delete, 10 if self.forgetful else 3),
            (self.remove_dropped, 10 if self.forgetful else 6),
            (self.clean, 10 if self.forgetful else 5),
            (self.tick, 2),
            (self.checkpoint, 3),
            (self.restart, 2),
        )
        self.random.choices([act for act, _ in actions], weights=[weight for _, weight in actions])[0]()

    def append(self) -> None:
        random, base_offset = self.random, self.log.log_end_offset
        if random.random() < (0.2 if self.short_lived else 0.03):
            self.leader_epoch += random.randint(1, 2)
        producer = random.choice((None, *self.producers))
        if (
            producer is not None
            and producer.transactional
            and producer.in_transaction
            and random.random() < 0.4
        ):
            self.end_transaction(producer)
            return
        records = [
            Record(
                0,
                self.now_ms + random.randint(-20, 20),
                b"key-%d" % random.randrange(6),
                random.choice((None, random.randbytes(random.choice((0, 10, 80, 80, 2500))))),
            )
            for _ in range(random.randint(1, 4))
        ]
        fields: dict[str, int] = {}
        if producer is not None:
            if random.random() < 0.02 and not producer.in_transaction:
                producer.epoch, producer.sequence = producer.epoch + 1, 0
            fields = {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "transactional": producer.transactional,
            }
        batch = build_batch(records, base_offset=base_offset, leader_epoch=self.leader_epoch, **fields)  # type: ignore[arg-type]
        header = read_header(batch)
        if producer is not None:
            assert self.log.producers.check(header) is None
        self.write(bytes(batch))
        if producer is not None:
            producer.sequence += len(records)
            producer.in_transaction = producer.transactional
            assert self.log.producers.check(header) == Duplicate(
                base_offset, header.last_offset, header.max_timestamp_ms
            )

    def end_transaction(self, producer: Producer) -> None:
        commit = self.random.random() < 0.5
        marker = build_control_batch(
            commit,
            producer.producer_id,
            producer.epoch,
            1,
            self.now_ms,
            self.log.log_end_offset,
            self.leader_epoch,
        )
        self.write(bytes(marker))
        producer.in_transaction = False

    def write(self, batch: bytes) -> None:
        header = read_header(batch)
        # Noted first: a power cut during the append may leave the batch on the disk.
        self.history.append(Appended(header, batch, {batch}))
        self.appended_end = header.next_offset
        self.log.append(batch, header, header.base_offset, self.leader_epoch, self.now_ms)

    def flush(self) -> None:
        if self.flush_plan is not None:
            self.flush_plan.run()
            self.log.flushed(self.flush_plan)
            self.promised_end = max(self.promised_end, self.flush_plan.end_offset)
            self.flush_plan = None
        elif self.random.random() < 0.5:
            self.log.flush()
            self.promised_end = self.log.log_end_offset
        else:
            self.flush_plan = self.log.flush_plan(closed_only=self.random.random() < 0.3)

    def tick(self) -> None:
        self.log.write_indexes()

    def checkpoint(self) -> None:
        log = self.log
        checkpoints.write_offsets(self.disk, RECOVERY_POINTS, {PARTITION: log.recovery_checkpoint})
        noted = log.log_start_offset > log.first_stored_offset
        checkpoints.write_offsets(self.disk, LOG_STARTS, {PARTITION: log.log_start_offset} if noted else {})

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def delete(self) -> None:
        if self.random.random() < 0.5:
            plan = self.log.retention_plan(self.now_ms, self.log.log_end_offset)
            if not plan:
                return
            gone = (
                self.log.segments[len(plan.segments)].base_offset
                if len(plan.segments) < len(self.log.segments)
                else self.log.log_end_offset
            )
            self.retained_from = max(self.retained_from, gone)
            self.log.delete_segments(plan, self.now_ms)
        else:
            offset = self.random.randint(self.log.log_start_offset, self.log.log_end_offset)
            offset = min(offset, self.log.log_start_offset + self.random.choice((10, 40)))
            if self.forgetful and self.random.random() < 0.2:
                offset = self.log.log_end_offset
            self.retained_from = max(self.retained_from, offset)
            self.log.advance_log_start(offset)

    def remove_dropped(self) -> None:
        """Take the next of the dropped segments from the disk, or all of them."""
        if self.log.dropped and self.random.random() < 0.2:
            self.disk.cut_power_at(self.random.randint(1, 15))
        if self.removal is None:
            self.removal = self.log.dropped.steps()
        all_of_them = self.random.random() < 0.3
        while self.removal is not None:
            paths = next(self.removal, None)
            if paths is None:
                self.removal = None
                if self.random.random() < 0.7:
                    remove_deleted_files(self.disk, self.removable_paths)
                self.removable_paths = []
            else:
                self.removable_paths += paths
            if not all_of_them:
                return

    def clean(self) -> None:
        if self.swap is not None:
            if self.random.random() < 0.5:
                self.disk.cut_power_at(self.random.randint(1, 10))
            self.go_on_with_swap(*self.swap)
            return
        plan = plan_cleaning(
            self.log,
            checkpointed_offset=None,
            last_stable_offset=self.log.last_stable_offset(self.log.log_end_offset),
            now_ms=self.now_ms,
        )
        if plan is None:
            return
        self.cleaned_until = plan.first_uncleanable_offset
        slots = self.random.choice((7, 1000))
        result = plan.run(self.disk, self.open_files, dedupe_buffer_bytes=slots * 24)
        self.note_replacements()
        paths = result.begin(self.log, self.disk)
        assert paths is not None
        self.swap, self.swap_synced = (result, paths), False

    def go_on_with_swap(self, result: CleaningResult, paths: list[str]) -> None:
        if not self.swap_synced:
            result.sync(self.disk)
            self.swap_synced = True
            return
        self.swap = None
        self.log.finish_replacement()
        if self.random.random() < 0.7:
            remove_deleted_files(self.disk, paths)

    def note_replacements(self) -> None:
        """Take note of what compaction has written and might put in the place of the original batches."""
        by_offset = {appended.header.base_offset: appended for appended in self.history}
        for name in self.disk.list(DIRECTORY):
            if not name.endswith(".log.swap"):
                continue
            file = self.disk.open(f"{DIRECTORY}/{name}", create=False)
            kept = {}
            for header, batch in read_batches(file, file.size_bytes):
                kept[header.base_offset] = bytes(batch)
            for base_offset, appended in by_offset.items():
                if base_offset in kept:
                    appended.versions.add(kept[base_offset])
                elif int(name[:20]) <= base_offset < self.cleaned_until:
                    appended.removable = True

    def restart(self) -> None:
        end_offset = self.log.log_end_offset
        kind = self.random.choice(("clean", "clean then power cut", "kill"))
        if kind == "kill":
            self.disk = self.disk.kill()
            self.open(clean_shutdown=False)
        else:
            while self.removal is not None:
                self.remove_dropped()
            self.log.close()
            self.checkpoint()
            self.promised_end = end_offset
            self.disk = self.disk.kill() if kind == "clean" else self.disk.crash()
            self.open(clean_shutdown=True)
        self.check(end_offset)

    # What must be true

    def check(self, promised_end: int) -> None:
        log = self.log
        assert promised_end <= log.log_end_offset
        self.retained_from = min(self.retained_from, log.log_end_offset)
        found = self.check_batches()
        self.check_indexes()
        self.check_reads(found)
        self.history = [each for each in self.history if each.header.last_offset < log.log_end_offset]
        self.check_epochs()
        self.check_producers(found)
        if self.compacted and not self.retained_from:
            originals = [record for appended in self.history for record in appended.records]
            records = [record for header, batch in found for record in iterate_records(batch, header)]
            assert table(records) == table(originals)
        if not self.compacted:
            self.check_aborted()
        self.resume_producers()
        self.leader_epoch = max(self.leader_epoch, log.leader_epochs.latest)

    def check_batches(self) -> list[tuple[BatchHeader, bytes]]:
        """Every batch that is there was appended; every batch up to the end is, if it must be; no holes."""
        log = self.log
        found = [
            (header, bytes(batch))
            for segment in log.segments
            for header, batch in read_batches(segment.file, segment.size_bytes)
        ]
        by_offset = {appended.header.base_offset: appended for appended in self.history}
        next_offset = 0
        for header, batch in found:
            assert header.base_offset >= next_offset
            assert batch in by_offset[header.base_offset].versions
            next_offset = header.next_offset
        assert next_offset <= log.log_end_offset
        there = {header.base_offset for header, _ in found}
        for appended in self.history:
            header = appended.header
            if log.log_start_offset <= header.last_offset < log.log_end_offset and not appended.removable:
                assert header.base_offset in there, f"the batch at {header.base_offset} is gone"
        for before, segment in pairwise(log.segments):
            assert before.next_offset() == segment.base_offset, "segments adjoin"
        assert log.segments[-1].next_offset() == log.log_end_offset
        assert log.log_start_offset <= max(self.retained_from, log.segments[0].base_offset)
        assert log.log_end_offset <= max(self.appended_end, self.retained_from)
        names = self.disk.list(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        return found

    def check_indexes(self) -> None:
        for segment in self.log.segments:
            by_position = {place.position: place.header for place in segment.batches()}
            offsets, times = segment.offset_index, segment.time_index
            assert list(offsets.positions) == sorted(set(offsets.positions))
            for relative_offset, position in zip(offsets.relative_offsets, offsets.positions, strict=True):
                assert by_position[position].last_offset == segment.base_offset + relative_offset
            largest_ms = -1
            largest = {}
            for header in by_position.values():
                largest_ms = max(largest_ms, header.max_timestamp_ms)
                largest[header.last_offset] = largest_ms
            for timestamp_ms, relative_offset in zip(
                times.timestamps_ms, times.relative_offsets, strict=True
            ):
                assert largest[segment.base_offset + relative_offset] == timestamp_ms
            assert segment.max_timestamp_ms == largest_ms

    def check_reads(self, found: list[tuple[BatchHeader, bytes]]) -> None:
        log = self.log
        for header, batch in found:
            for offset in {header.base_offset, header.last_offset}:
                if offset >= log.log_start_offset:
                    part = log.read(offset, 1, log.log_end_offset)
                    assert part is not None
                    assert part.file.read(part.position, part.size_bytes) == batch
                    assert part.next_offset == header.next_offset
        records = [
            record
            for header, batch in found
            for record in iterate_records(batch, header)
            if record.offset >= log.log_start_offset
        ]
        for record in self.random.sample(records, min(5, len(records))):
            first = next(each for each in records if each.timestamp_ms >= record.timestamp_ms)
            by_time = log.offset_by_timestamp(record.timestamp_ms)
            assert by_time is not None
            assert (by_time.timestamp_ms, by_time.offset) == (first.timestamp_ms, first.offset)

    def check_epochs(self) -> None:
        log = self.log
        for appended in self.history:
            offset = appended.header.last_offset
            if offset >= max(log.log_start_offset, self.retained_from):
                assert log.leader_epochs.epoch_at(offset) == appended.header.partition_leader_epoch

    def check_producers(self, found: list[tuple[BatchHeader, bytes]]) -> None:
        there = {header.base_offset for header, _ in found}
        known = {row.producer_id: row for row in self.log.producers.describe()}
        last: dict[int, BatchHeader] = {}
        open_from: dict[int, int] = {}
        for header in (appended.header for appended in self.history if appended.header.producer_id >= 0):
            if header.control:
                open_from.pop(header.producer_id, None)
                continue
            last[header.producer_id] = header
            if header.transactional:
                open_from.setdefault(header.producer_id, header.base_offset)
        assert known.keys() <= last.keys()
        for producer_id, header in last.items():
            row = known.get(producer_id)
            # Compaction keeps the last batch that it knows of; if a power cut takes that one, an earlier one
            # may be gone already, and with it the state of the producer.
            if header.base_offset not in there or header.base_offset < self.retained_from:
                assert row is None or row.producer_epoch <= header.producer_epoch
                continue
            assert row is not None
            assert (row.producer_epoch, row.last_sequence) == (header.producer_epoch, header.last_sequence)
            retry = self.log.producers.check(header)
            assert isinstance(retry, Duplicate)
            assert retry[:2] == (header.base_offset, header.last_offset)
            if open_from.get(producer_id, self.retained_from) >= self.retained_from:
                assert row.current_transaction_start_offset == open_from.get(producer_id, -1)

    def check_aborted(self) -> None:
        expected: list[Any] = []
        open_from: dict[Any, Any] = {}
        for appended in self.history:
            header = appended.header
            if header.control:
                first_offset = open_from.pop(header.producer_id, -1)
                (record,) = appended.records
                if record.key == b"\0\0\0\0":
                    expected.append((first_offset, header.base_offset))
            elif header.transactional:
                open_from.setdefault(header.producer_id, header.base_offset)
        start_offset = self.log.log_start_offset
        aborted = {
            (row.first_offset, row.last_offset)
            for row in self.log.aborted_transactions(start_offset, self.log.log_end_offset)
        }
        # Of a transaction that began before the log does, the marker alone is certain.
        assert {row for row in expected if row[0] >= start_offset} <= aborted
        assert {marker for _, marker in aborted} <= {marker for _, marker in expected}

    def resume_producers(self) -> None:
        """The clients go on from what the log has, as they do after learning what was acknowledged."""
        known = {row.producer_id: row for row in self.log.producers.describe()}
        for producer in self.producers:
            row = known.get(producer.producer_id)
            if row is None:
                producer.sequence, producer.in_transaction = 0, False
                continue
            producer.epoch, producer.sequence = row.producer_epoch, row.last_sequence + 1
            producer.in_transaction = row.current_transaction_start_offset >= 0


def table(records: list[Record]) -> dict[bytes | None, bytes]:
    """What a reader from the start ends up with."""
    state: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


@pytest.mark.parametrize("first_seed", range(0, SEEDS_COUNT, SEEDS_PER_TEST))
def test_a_log_keeps_its_promises_through_power_cuts(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            Story(seed).run()
        except Exception as error:
            error.add_note(f"the story of seed {seed}")
            raise


@pytest.mark.parametrize("mutant", power_cut_mutants.MUTANTS)
def test_a_wrong_log_is_noticed(mutant: str) -> None:
    with power_cut_mutants.alive(mutant):
        for seed in range(SEEDS_COUNT):
            try:
                Story(seed).run()
            except (AssertionError, KeyError, OSError) as broken:
                print(f"{mutant}: seed {seed}: {type(broken).__name__} {str(broken)[:100]}")
                return
    pytest.fail(f"survived {SEEDS_COUNT} seeds")


# The smallest stories that show what was wrong once.


def open_log(disk: SimulatedDisk, *, clean_shutdown: bool = False, recovery_point: int = 0) -> PartitionLog:
    disk.make_directory(DATA)
    disk.sync_directory("/")
    return PartitionLog.open(
        disk,
        DIRECTORY,
        PARTITION,
        LogConfig(index_interval_bytes=1),
        now_ms=0,
        clean_shutdown=clean_shutdown,
        recovery_point=recovery_point,
        topic_id=TOPIC_ID,
    )


def append(log: PartitionLog, value: bytes, *, leader_epoch: int = 0) -> bytes:
    base_offset = log.log_end_offset
    record = Record(0, 1000 + base_offset, b"key", value)
    batch = build_batch([record], base_offset=base_offset, leader_epoch=leader_epoch)
    log.append(batch, read_header(batch), base_offset, leader_epoch, 0)
    return bytes(batch)


def stored(log: PartitionLog) -> list[bytes]:
    return [
        bytes(batch)
        for segment in log.segments
        for _, batch in read_batches(segment.file, segment.size_bytes)
    ]


def test_what_survives_is_a_prefix() -> None:
    for seed in range(100):
        disk = SimulatedDisk(seed)
        log = open_log(disk)
        batches = []
        for n in range(4):
            batches.append(append(log, b"%d" % n * 50))
            log.roll(0)
        log = open_log(disk.crash())
        found = stored(log)
        assert found == batches[: len(found)]
        assert log.log_end_offset == len(found)


def test_what_recovery_removed_does_not_come_back() -> None:
    for seed in range(300):
        disk = SimulatedDisk(seed)
        log = open_log(disk)
        for n in range(6):
            append(log, b"first life %d" % n)
            log.roll(0)
        disk = disk.crash()
        log = open_log(disk)
        history = stored(log)
        for n in range(4):
            history.append(append(log, b"next life %d" % n))
            log.roll(0)
        assert set(stored(open_log(disk.crash()))) <= set(history)


def test_epochs_of_a_lost_tail_do_not_hide_those_written_in_its_place() -> None:
    for seed in range(50):
        disk = SimulatedDisk(seed)
        log = open_log(disk)
        for epoch in (0, 0, 0, 2):
            append(log, b"x" * 2000, leader_epoch=epoch)
        log.leader_epochs.flush()
        disk = disk.crash()
        log = open_log(disk)
        base_offset = log.log_end_offset
        append(log, b"", leader_epoch=2)
        log = open_log(disk.kill())
        assert log.leader_epochs.epoch_at(base_offset) == 2


def test_a_clean_stop_makes_the_indexes_of_closed_segments_durable() -> None:
    for seed in range(100):
        disk = SimulatedDisk(seed)
        log = open_log(disk)
        for n in range(6):
            append(log, b"%d" % n)
        log.flush()
        log.roll(0)
        append(log, b"next")
        log.close()
        log = open_log(disk.crash(), clean_shutdown=True, recovery_point=7)
        assert log.segments[0].max_timestamp_ms == 1005
        assert len(log.segments[0].offset_index) == 5
