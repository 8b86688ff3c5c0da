"""A compacted log under test, for the tests of the cleaner."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.simulated_disk import SimulatedDisk
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import BatchHeader, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import (
    CleaningPlan,
    CleaningResult,
    plan_cleaning,
    read_batches,
)
from tidelog.storage.disk import Disk
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.retention import remove_deleted_files

PARTITION = TopicPartition("table", 0)
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1 << 20,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)
Row = tuple[bytes | None, bytes | None]


@dataclass
class Table:
    """A compacted log under test."""

    disk: Disk
    directory: str = "/data/table-0"
    config: LogConfig = CONFIG
    now_ms: int = 10_000
    first_dirty_offset: int | None = None
    log: PartitionLog = field(init=False)
    open_files: OpenFiles = field(init=False)

    def __post_init__(self) -> None:
        # The data directory is there before the broker is.
        data_directory = self.directory.rpartition("/")[0]
        self.disk.make_directory(data_directory)
        self.disk.sync_directory(data_directory.rpartition("/")[0])
        self.open()

    def open(self, *, clean_shutdown: bool = True, recovery_point: int = 0) -> None:
        self.open_files = OpenFiles(self.disk)
        self.log = PartitionLog.open(
            self.disk,
            self.directory,
            PARTITION,
            self.config,
            now_ms=self.now_ms,
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            open_files=self.open_files,
        )

    def append(self, *rows: Row, codec: Codec = Codec.NONE, **fields: Any) -> int:
        """Append one batch of (key, value); return its base offset."""
        base_offset = self.log.log_end_offset
        records = [Record(0, self.now_ms, key, value) for key, value in rows]
        self.append_batch(
            build_batch(records, base_offset=base_offset, leader_epoch=0, codec=codec, **fields)
        )
        return base_offset

    def append_batch(self, batch: bytes | bytearray) -> None:
        header = read_header(batch)
        self.log.append(batch, header, header.base_offset, 0, self.now_ms)

    def end_transaction(self, producer_id: int, *, commit: bool) -> int:
        base_offset = self.log.log_end_offset
        self.append_batch(build_control_batch(commit, producer_id, 0, 0, self.now_ms, base_offset, 0))
        return base_offset

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def plan(self, last_stable_offset: int | None = None) -> CleaningPlan | None:
        if last_stable_offset is None:
            last_stable_offset = self.log.last_stable_offset(self.log.log_end_offset)
        return plan_cleaning(
            self.log,
            checkpointed_offset=self.first_dirty_offset,
            last_stable_offset=last_stable_offset,
            now_ms=self.now_ms,
        )

    def clean(self, dedupe_buffer_bytes: int = 1 << 20) -> CleaningResult | None:
        plan = self.plan()
        if plan is None:
            return None
        result = plan.run(self.disk, self.open_files, dedupe_buffer_bytes=dedupe_buffer_bytes)
        self.apply(result)
        return result

    def apply(self, result: CleaningResult) -> None:
        paths = result.apply(self.log, self.disk)
        assert paths is not None
        remove_deleted_files(self.disk, paths)
        self.first_dirty_offset = result.first_dirty_offset

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        return [
            (header, bytes(batch))
            for segment in self.log.segments
            for header, batch in read_batches(segment.file, segment.size_bytes)
        ]

    def records(self) -> list[Record]:
        return [record for header, batch in self.batches() for record in iterate_records(batch, header)]

    def rows(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in self.records()]

    def table(self) -> dict[bytes | None, bytes]:
        """What a reader from the start ends up with."""
        state: dict[bytes | None, bytes] = {}
        for _, key, value in self.rows():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def files(self) -> list[str]:
        return [
            name
            for name in self.disk.list(self.directory)
            if name.endswith((".cleaned", ".swap", ".deleted"))
        ]


def simulated(seed: int = 0, **config: Any) -> Table:
    return Table(SimulatedDisk(seed), config=replace(CONFIG, **config))


# -- against the model


def filled(**config: Any) -> Table:
    """Three closed segments of one key each, one second apart, and an active one."""
    table = simulated(**config)
    for n in range(4):
        table.append((b"a", b"%d" % n))
        if n < 3:
            table.roll()
        table.now_ms += 1000
    return table
