"""Compaction, compared with a model that simply looks at every record."""

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import BatchHeader, crc_matches, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import (
    CleanerCheckpoint,
    CleaningPlan,
    CleaningResult,
    CleaningStopped,
    OffsetMap,
    plan_cleaning,
    read_batches,
)
from tidelog.storage.disk import Disk, OsDisk
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.producer_state import Duplicate
from tidelog.storage.retention import remove_deleted_files
from tidelog.storage.simulated_disk import PowerCut, SimulatedDisk

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

    def append(self, *rows: Row, codec: Codec = Codec.NONE, **fields: int | bool) -> int:
        """Append one batch of (key, value); return its base offset."""
        base_offset = self.log.log_end_offset
        records = [Record(0, self.now_ms, key, value) for key, value in rows]
        self.append_batch(
            build_batch(records, base_offset=base_offset, leader_epoch=0, codec=codec, **fields)
        )  # type: ignore[arg-type]
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


def simulated(seed: int = 0, **config: object) -> Table:
    return Table(SimulatedDisk(seed), config=replace(CONFIG, **config))  # type: ignore[arg-type]


# -- against the model


@dataclass
class Model:
    """What a log of batches must hold after each round: every record is looked at, nothing is clever."""

    batches: list[list[tuple[int, bytes, bytes | None]]] = field(default_factory=list)
    horizons: dict[int, int] = field(default_factory=dict)

    def clean(self, end_offset: int, now_ms: int, delete_retention_ms: int) -> None:
        last = {key: offset for batch in self.batches for offset, key, _ in batch if offset < end_offset}
        for number, batch in enumerate(self.batches):
            horizon_ms = self.horizons.get(number)
            batch[:] = [
                (offset, key, value)
                for offset, key, value in batch
                if offset >= end_offset
                or (last[key] == offset and (value is not None or horizon_ms is None or now_ms < horizon_ms))
            ]
            if horizon_ms is None and any(
                value is None and offset < end_offset for offset, _, value in batch
            ):
                self.horizons[number] = now_ms + delete_retention_ms

    def rows(self) -> list[tuple[int, bytes, bytes | None]]:
        return [row for batch in self.batches for row in batch]


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6),
        st.sampled_from(list(Codec)),
    ),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("clean"), st.integers(0, 1500), st.none()),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_history_of_appends_rolls_and_rounds_matches_the_model(
    steps: list[tuple[str, object, object]],
) -> None:
    table, model = simulated(segment_bytes=600), Model()
    for action, argument, codec in steps:
        if action == "append":
            base_offset = table.log.log_end_offset
            rows = argument
            assert isinstance(rows, list) and isinstance(codec, Codec)
            table.append(*rows, codec=codec)
            model.batches.append([(base_offset + n, key, value) for n, (key, value) in enumerate(rows)])
        elif action == "roll":
            table.roll()
        elif action == "reopen":
            end_offset = table.log.log_end_offset
            table.log.close()
            table.open()
            assert table.log.log_end_offset == end_offset
        else:
            assert isinstance(argument, int)
            table.now_ms += argument
            result = table.clean()
            if result is not None:
                model.clean(result.first_dirty_offset, table.now_ms, CONFIG.delete_retention_ms)
                assert result.first_dirty_offset == result.plan.first_uncleanable_offset
        assert table.rows() == model.rows()
        assert all(crc_matches(batch, 0, len(batch)) for _, batch in table.batches())
    assert table.files() == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), VALUES), min_size=1, max_size=4), min_size=1, max_size=40
    ),
    st.integers(6, 20),
)
def test_a_map_smaller_than_the_key_set_takes_more_rounds_and_loses_nothing(
    batches: list[list[tuple[int, bytes | None]]], slots: int
) -> None:
    table = simulated(segment_bytes=500, delete_retention_ms=10**9)
    for batch in batches:
        table.append(*((b"key-%d" % key, value) for key, value in batch))
    table.roll()
    before, rows = table.table(), table.rows()
    for _ in range(1000):
        dirty_before = table.first_dirty_offset or 0
        if table.clean(dedupe_buffer_bytes=slots * OffsetMap.ENTRY_BYTES) is None:
            break
        assert table.first_dirty_offset is not None
        assert table.first_dirty_offset > dirty_before, "every round makes progress"
        assert table.table() == before
        assert set(table.rows()) <= set(rows)
    assert table.first_dirty_offset == table.log.active.base_offset
    last = {key: offset for offset, key, _ in rows}
    assert table.rows() == [row for row in rows if last[row[1]] == row[0]]


def test_a_batch_with_more_keys_than_the_map_holds_is_left_alone() -> None:
    table = simulated()
    table.append(*((b"%d" % n, b"x") for n in range(10)))
    table.roll()
    plan = table.plan()
    assert plan is not None
    result = plan.run(table.disk, table.open_files, dedupe_buffer_bytes=5 * OffsetMap.ENTRY_BYTES)
    assert (result.replacements, result.first_dirty_offset) == ((), 0)
    assert len(table.rows()) == 10
    with pytest.raises(ValueError, match="too small for one key"):
        plan.run(table.disk, table.open_files, dedupe_buffer_bytes=10)


def test_the_offset_map_is_a_map() -> None:
    random = Random(1)
    offset_map, model = OffsetMap(1000 * OffsetMap.ENTRY_BYTES, 0.9, 10**6), {}
    for offset in range(5000):
        key = b"%d" % random.randrange(850)
        assert offset_map.put(key, offset)
        model[key] = offset
    assert all(offset_map.get(b"%d" % n) == model.get(b"%d" % n, -1) for n in range(1000))
    assert offset_map.entries_count == len(model)
    extra = [offset_map.put(b"extra-%d" % n, n) for n in range(200)]
    assert extra == [True] * (900 - len(model)) + [False] * (200 - 900 + len(model))
    assert offset_map.put(b"0", 9999)
    assert offset_map.get(b"0") == 9999


# -- what a round leaves


def test_batches_that_keep_all_records_are_copied_byte_for_byte() -> None:
    table = simulated()
    table.append((b"a", b"1"), (b"b", b"1"), codec=Codec.ZSTD)
    table.append((b"c", b"1"), (b"d", b"1"), codec=Codec.GZIP)
    table.append((b"a", b"2"), (b"e", b"1"), codec=Codec.LZ4)
    before = table.batches()
    table.roll()
    result = table.clean()
    after = table.batches()
    assert after[1:] == before[1:]
    assert after[0] != before[0]
    assert [len(list(iterate_records(batch, header))) for header, batch in after] == [1, 2, 2]
    assert result is not None
    statistics = result.statistics
    assert (statistics.records_read, statistics.records_kept, statistics.records_removed) == (6, 5, 1)
    assert statistics.bytes_read == sum(len(batch) for _, batch in before)
    assert statistics.bytes_written == sum(len(batch) for _, batch in after)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_rebuilt_batch_keeps_its_span_its_producer_and_its_codec(codec: Codec) -> None:
    table = simulated()
    table.append(
        (b"a", b"old"),
        (b"b", b"kept"),
        (b"c", b"old"),
        codec=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=5,
    )
    table.append((b"a", b"new"), (b"c", b"new"))
    (old, _), *_ = table.batches()
    table.roll()
    table.clean()
    (new, batch), *_ = table.batches()
    assert new.records_count == 1
    assert [record.offset for record in iterate_records(batch, new)] == [1]
    unchanged = (
        "base_offset",
        "last_offset_delta",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "codec",
    )
    assert all(getattr(new, name) == getattr(old, name) for name in unchanged)
    assert new.partition_leader_epoch == old.partition_leader_epoch
    assert crc_matches(batch, 0, len(batch))


def test_headers_timestamps_and_append_time_survive() -> None:
    table = simulated()
    records = [
        Record(0, 111, b"a", b"x", (("h", b"1"), ("h", None))),
        Record(1, 333, b"b", b"y", (("trace", b"id"),)),
    ]
    table.append_batch(build_batch(records, base_offset=0, leader_epoch=0))
    table.append_batch(build_batch(records, base_offset=2, leader_epoch=0, log_append_time_ms=777))
    table.append((b"a", b"z"))
    table.roll()
    table.clean()
    assert table.records() == [
        Record(3, 777, b"b", b"y", (("trace", b"id"),)),
        Record(4, table.now_ms, b"a", b"z"),
    ]
    assert table.batches()[0][0].log_append_time


def test_records_without_a_key_go() -> None:
    table = simulated()
    table.append((None, b"lost"), (b"a", b"1"))
    table.roll()
    result = table.clean()
    assert table.rows() == [(1, b"a", b"1")]
    assert result is not None
    assert result.statistics.keyless_records == 1


def test_a_tombstone_goes_only_after_its_horizon_which_the_first_round_sets() -> None:
    table = simulated(delete_retention_ms=1000)
    table.append((b"a", b"1"), (b"b", b"1"))
    table.append((b"a", None))
    table.roll()
    table.now_ms += 5000  # the age of the record does not count
    table.clean()
    assert table.rows() == [(1, b"b", b"1"), (2, b"a", None)]
    horizon_ms = table.now_ms + 1000
    assert table.batches()[1][0].delete_horizon_ms == horizon_ms
    assert table.records()[1].timestamp_ms == 10_000
    for now_ms, expected in ((horizon_ms - 1, [1, 2]), (horizon_ms, [1])):
        table.now_ms = now_ms
        table.append((b"filler", b"%d" % now_ms))
        table.roll()
        table.clean()
        assert [offset for offset, key, _ in table.rows() if key != b"filler"] == expected


def test_the_end_of_a_round_does_not_move_even_if_its_last_batch_is_emptied() -> None:
    table = simulated(delete_retention_ms=0)
    table.append((b"a", b"1"))
    table.append((b"a", None))
    table.roll()
    table.clean()
    assert table.rows() == [(1, b"a", None)]
    table.first_dirty_offset = 0
    table.clean()
    assert table.rows() == []
    (header, batch) = table.batches()[0]
    assert (header.base_offset, header.last_offset, header.records_count, len(batch)) == (1, 1, 0, 61)
    table.log.close()
    table.open()
    assert table.log.log_end_offset == 2


def test_small_segments_are_merged_up_to_the_segment_size() -> None:
    table = simulated(segment_bytes=1000)
    for n in range(20):
        table.append((b"%d" % n, b"x" * 30))
        table.roll()
    assert len(table.log.segments) == 21
    table.clean()
    assert len(table.log.segments) < 7
    assert all(segment.size_bytes <= 1000 for segment in table.log.segments)
    assert [offset for offset, _, _ in table.rows()] == list(range(20))
    for offset in range(20):
        found = table.log.read(offset, 1, table.log.log_end_offset)
        assert found is not None
        assert read_header(found.file.read(found.position, 61)).base_offset == offset


# -- when, and how far


def filled(**config: object) -> Table:
    """Three closed segments of one key each, one second apart, and an active one."""
    table = simulated(**config)
    for n in range(4):
        table.append((b"a", b"%d" % n))
        if n < 3:
            table.roll()
        table.now_ms += 1000
    return table


def test_the_active_segment_is_never_cleaned() -> None:
    table = filled()
    plan = table.plan()
    assert plan is not None
    assert plan.first_uncleanable_offset == table.log.active.base_offset == 3
    table.clean()
    assert [offset for offset, _, _ in table.rows()] == [2, 3]
    assert table.plan() is None


def test_a_log_that_is_not_compacted_is_not_cleaned() -> None:
    assert filled(cleanup_policy=frozenset({"delete"})).plan() is None
    assert filled(cleanup_policy=frozenset({"compact", "delete"})).plan() is not None


def test_nothing_at_or_behind_the_last_stable_offset_is_cleaned() -> None:
    table = filled()
    for last_stable_offset, expected in ((0, None), (1, 1), (2, 2), (3, 3), (4, 3)):
        plan = table.plan(last_stable_offset)
        assert (plan.first_uncleanable_offset if plan else None) == expected


def test_young_segments_wait_for_min_compaction_lag() -> None:
    # The records are 4, 3 and 2 seconds old.
    for lag_ms, expected in ((0, 3), (2000, 3), (2001, 2), (3001, 1), (4001, None)):
        plan = filled(min_compaction_lag_ms=lag_ms).plan()
        assert (plan.first_uncleanable_offset if plan else None) == expected, lag_ms


def test_a_round_waits_for_the_dirty_ratio() -> None:
    table = filled(min_cleanable_dirty_ratio=0.5)
    plan = table.plan()
    assert plan is not None
    assert plan.dirty_ratio == 1.0
    table.append(*((b"%d" % n, b"x" * 50) for n in range(20)))
    table.roll()
    table.clean()
    assert table.plan() is None
    table.append((b"a", b"x"))
    table.roll()
    assert table.plan() is None, "a few dirty bytes behind many clean ones"
    table.log.reconfigure(replace(table.config, min_cleanable_dirty_ratio=0.01))
    plan = table.plan()
    assert plan is not None
    assert 0.01 < plan.dirty_ratio < 0.5
    assert "bytes are dirty" in plan.explain()[0]


def test_max_compaction_lag_overrides_the_dirty_ratio() -> None:
    table = filled(min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=60_000)
    table.clean()
    table.append((b"b", b"x"))
    table.roll()
    assert table.plan() is None
    table.now_ms = 13_000 + 60_000  # the first dirty record is of 13,000
    assert table.plan() is None
    table.now_ms += 1
    plan = table.plan()
    assert plan is not None
    assert plan.overdue


@pytest.mark.parametrize("checkpoint", [0, 1000])
def test_a_checkpoint_outside_of_the_log_starts_again(checkpoint: int) -> None:
    table = filled()
    table.log.advance_log_start(2)
    table.first_dirty_offset = checkpoint
    plan = table.plan()
    assert plan is not None
    assert plan.first_dirty_offset == 2


# -- with everything else going on


def test_appends_and_reads_go_on_in_other_threads(tmp_path: Path) -> None:
    table = Table(OsDisk(), str(tmp_path / "table-0"), config=replace(CONFIG, segment_bytes=20_000))
    random = Random(5)
    model: dict[bytes | None, bytes] = {}

    def append(count: int) -> None:
        for _ in range(count):
            key, value = b"key-%d" % random.randrange(300), b"%d" % random.randrange(10**9)
            table.append((key, value), (key + b"!", value))
            model[key] = model[key + b"!"] = value

    append(2000)
    for _ in range(4):
        plan = table.plan()
        assert plan is not None
        results: list[CleaningResult] = []
        worker = threading.Thread(target=lambda: results.append(plan.run(table.disk, table.open_files)))  # noqa: B023
        worker.start()
        for _ in range(50):
            append(10)
            assert table.log.read(random.randrange(table.log.log_end_offset), 1 << 20, 10**9) is not None
        worker.join()
        append(100)
        table.apply(results[0])
        assert table.table() == model
    offsets = [offset for offset, _, _ in table.rows()]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < table.log.log_end_offset / 2
    table.log.close()
    table.open()
    assert table.table() == model
    assert table.files() == []


def test_a_result_is_dropped_when_retention_took_the_segments_meanwhile() -> None:
    table = filled(cleanup_policy=frozenset({"compact", "delete"}))
    plan = table.plan()
    assert plan is not None
    result = plan.run(table.disk, table.open_files)
    remove_deleted_files(table.disk, table.log.advance_log_start(2).run())
    rows = table.rows()
    assert result.apply(table.log, table.disk) is None
    assert table.rows() == rows
    assert table.files() == []


def test_a_round_that_is_called_off_leaves_nothing() -> None:
    table = filled()
    rows, files = table.rows(), table.disk.list(table.directory)
    plan = table.plan()
    assert plan is not None
    calls = iter([False, False, False, False, True])
    with pytest.raises(CleaningStopped):
        plan.run(table.disk, table.open_files, should_stop=lambda: next(calls))
    assert table.rows() == rows
    assert table.disk.list(table.directory) == files


def test_a_disk_that_fails_or_is_full_leaves_the_log_as_it_was() -> None:
    failures = 0
    for count in range(1, 60):
        table = filled()
        table.log.leader_epochs.flush()
        rows, files = table.rows(), table.disk.list(table.directory)
        plan = table.plan()
        assert plan is not None
        assert isinstance(table.disk, SimulatedDisk)
        table.disk.fail_operation(count)
        try:
            plan.run(table.disk, table.open_files)
        except OSError:
            failures += 1
            assert table.disk.list(table.directory) == files
        assert table.rows() == rows
    assert 10 < failures < 59
    table = filled()
    assert isinstance(table.disk, SimulatedDisk)
    plan = table.plan()
    assert plan is not None
    table.disk.capacity_bytes = table.disk.used_bytes + 10
    with pytest.raises(OSError, match="space"):
        plan.run(table.disk, table.open_files)
    table.disk.capacity_bytes = None
    table.clean()
    assert [offset for offset, _, _ in table.rows()] == [2, 3]


def test_a_damaged_batch_is_not_given_a_new_checksum() -> None:
    table = simulated()
    table.append((b"a", b"old"), (b"b", b"value"))
    table.append((b"a", b"new"))
    table.roll()
    segment = table.log.segments[0]
    content = bytearray(segment.file.read(0, segment.size_bytes))
    content[content.index(b"value")] ^= 1
    file = table.disk.open(segment.path(".log"), create=False)
    file.truncate(0)
    file.append(content)
    plan = table.plan()
    assert plan is not None
    with pytest.raises(CorruptRecord, match="checksum"):
        plan.run(table.disk, table.open_files)
    assert table.files() == []


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_operation_leaves_a_log_with_the_same_table(seed: int) -> None:
    cuts = 0
    for count in range(1, 200):
        random = Random(seed)
        table = simulated(seed * 1000 + count, segment_bytes=300)
        for _ in range(25):
            table.append((b"%d" % random.randrange(6), random.choice((None, b"x" * random.randrange(40)))))
            if random.random() < 0.1:
                table.roll()
        table.roll()
        table.log.flush()
        before, recovery_point = table.table(), table.log.recovery_point
        assert isinstance(table.disk, SimulatedDisk)
        table.disk.cut_power_at(count)
        try:
            table.clean()
            finished = True
        except PowerCut:
            finished = False
            cuts += 1
        table.disk = table.disk.crash()
        table.open(clean_shutdown=False, recovery_point=recovery_point)
        assert table.log.log_end_offset == 25
        assert table.table() == before
        assert table.files() == []
        table.first_dirty_offset = None
        table.clean()
        assert table.table() == before
        if finished:
            break
    assert cuts > 20


def test_a_power_cut_in_a_round_does_not_undo_the_round_before() -> None:
    for seed in range(150):
        table = simulated(seed, segment_bytes=200)
        for n in range(8):
            table.append((b"%d" % (n % 3), b"%d" % n * 30))
        table.roll()
        table.log.flush()
        table.clean()
        before, recovery_point = table.table(), table.log.recovery_point
        table.first_dirty_offset = None
        assert isinstance(table.disk, SimulatedDisk)
        table.disk.cut_power_at(1 + seed % 30)
        with pytest.raises(PowerCut):
            table.clean()
        table.disk = table.disk.crash()
        table.open(clean_shutdown=False, recovery_point=recovery_point)
        assert table.table() == before


# -- producers and transactions


def test_the_last_batch_of_an_active_producer_keeps_its_header() -> None:
    table = simulated()
    table.append((b"a", b"1"), (b"b", b"1"), producer_id=7, producer_epoch=2, base_sequence=0)
    table.append((b"a", b"2"), (b"b", b"2"), producer_id=7, producer_epoch=2, base_sequence=2)
    table.append((b"a", b"3"), (b"b", b"3"))
    table.roll()
    table.clean()
    headers = [header for header, _ in table.batches()]
    assert [(header.base_offset, header.last_offset, header.records_count) for header in headers] == [
        (2, 3, 0),
        (4, 5, 2),
    ]
    assert (headers[0].producer_id, headers[0].producer_epoch, headers[0].base_sequence) == (7, 2, 2)
    for name in table.disk.list(table.directory):
        if name.endswith(".snapshot"):
            table.disk.remove(f"{table.directory}/{name}")
    table.open(clean_shutdown=False)
    again = read_header(
        build_batch([Record(0, 0, b"a", b"2")] * 2, producer_id=7, producer_epoch=2, base_sequence=2)
    )
    assert table.log.producers.check(again) == Duplicate(2, 3, headers[0].max_timestamp_ms)
    assert table.log.producers.check(again._replace(base_sequence=4)) is None


def test_the_header_goes_when_the_producer_has_expired() -> None:
    table = simulated()
    table.append((b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=0)
    table.append((b"a", b"3"))
    table.roll()
    table.log.producers.expire(table.now_ms + 10**9)
    table.clean()
    assert [header.base_offset for header, _ in table.batches()] == [1]


def transactional(table: Table, producer_id: int, *rows: Row, sequence: int = 0) -> int:
    return table.append(
        *rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
    )


def test_aborted_records_go_and_do_not_replace_committed_ones() -> None:
    table = simulated()
    table.append((b"a", b"committed before"), (b"b", b"1"))
    transactional(table, 7, (b"a", b"aborted"), (b"c", b"aborted"))
    transactional(table, 8, (b"b", b"committed"))
    table.end_transaction(7, commit=False)
    table.end_transaction(8, commit=True)
    table.append((b"z", b"end"))
    table.roll()
    table.clean()
    data = [row for row in table.rows() if row[0] not in (5, 6)]
    assert data == [(0, b"a", b"committed before"), (4, b"b", b"committed"), (7, b"z", b"end")]
    # The reader still needs the marker and the index: it may hold records read before.
    assert [entry.first_offset for entry in table.log.aborted_transactions(0, 100)] == [2]


def test_markers_go_in_a_later_round_after_their_own_horizon() -> None:
    table = simulated(delete_retention_ms=1000)
    transactional(table, 7, (b"a", b"aborted"))
    table.end_transaction(7, commit=False)
    transactional(table, 8, (b"a", b"1"))
    table.end_transaction(8, commit=True)
    table.append((b"a", b"2"))
    table.roll()
    table.log.producers.expire(table.now_ms + 10**9)

    def markers() -> list[tuple[int, int | None]]:
        return [
            (header.base_offset, header.delete_horizon_ms) for header, _ in table.batches() if header.control
        ]

    def next_round(elapsed_ms: int) -> None:
        table.now_ms += elapsed_ms
        table.append((b"filler", b"%d" % table.now_ms))
        table.roll()
        table.clean()

    table.clean()
    assert markers() == [(1, None), (3, None)], "records of the transactions were met in this round"
    assert table.log.aborted_transactions(0, 100) != []
    next_round(1)
    horizon_ms = table.now_ms + 1000
    assert markers() == [(1, horizon_ms), (3, horizon_ms)]
    assert table.log.aborted_transactions(0, 100) == [], "nothing is left that a reader must skip"
    next_round(999)
    assert markers() == [(1, horizon_ms), (3, horizon_ms)]
    next_round(1)
    assert markers() == []


def test_an_open_transaction_holds_the_cleaner_back() -> None:
    table = simulated()
    table.append((b"a", b"1"))
    table.roll()
    transactional(table, 7, (b"a", b"2"))
    table.roll()
    table.append((b"a", b"3"))
    table.roll()
    plan = table.plan()
    assert plan is not None
    assert plan.first_uncleanable_offset == 1
    table.end_transaction(7, commit=False)
    plan = table.plan()
    assert plan is not None
    assert plan.first_uncleanable_offset == 3


def test_transactions_across_groups_of_segments() -> None:
    table = simulated(segment_bytes=250)
    table.append((b"a", b"keep"))
    transactional(table, 7, (b"a", b"aborted 1"))
    table.roll()
    transactional(table, 7, (b"a", b"aborted 2"), sequence=1)
    table.roll()
    table.append((b"x", b"y" * 200))
    table.end_transaction(7, commit=False)
    table.roll()
    table.append((b"end", b"end"))
    table.roll()
    result = table.clean()
    assert result is not None
    assert len(result.replacements) > 1
    assert table.table()[b"a"] == b"keep"
    table.log.close()
    table.open()
    assert [entry.last_offset for entry in table.log.aborted_transactions(0, 100)] == [4]


# -- the checkpoint


def test_the_checkpoint_remembers_first_dirty_offsets() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/data")
    checkpoint = CleanerCheckpoint(disk, "/data")
    assert checkpoint.get(PARTITION) is None
    other = TopicPartition("other", 3)
    checkpoint.set(PARTITION, 17)
    checkpoint.set(other, 5)
    checkpoint.write()
    assert (
        disk.open("/data/cleaner-offset-checkpoint", create=False).read(0, 99)
        == b"0\n2\nother 3 5\ntable 0 17\n"
    )
    again = CleanerCheckpoint(disk, "/data")
    assert again.get(PARTITION) == 17
    again.truncate(PARTITION, 20)
    assert again.get(PARTITION) == 17
    again.truncate(PARTITION, 9)
    assert again.get(PARTITION) == 9
    again.remove(other)
    assert again.get(other) is None


def test_a_malformed_checkpoint_counts_as_empty() -> None:
    disk = SimulatedDisk()
    disk.open("/cleaner-offset-checkpoint", create=True).append(b"junk")
    assert CleanerCheckpoint(disk, "/").get(PARTITION) is None
