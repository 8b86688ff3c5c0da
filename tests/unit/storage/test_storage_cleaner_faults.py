"""Around a round of compaction: other threads, failing disks, power cuts, producers, transactions."""

import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.unit.storage.compacted_logs import CONFIG, PARTITION, Row, Table, filled, simulated
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record
from tidelog.storage.cleaner import (
    CleanerCheckpoint,
    CleaningResult,
    CleaningStopped,
)
from tidelog.storage.disk import OsDisk
from tidelog.storage.producer_state import Duplicate
from tidelog.storage.retention import remove_deleted_files


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
