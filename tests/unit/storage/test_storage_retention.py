"""Retention and DeleteRecords: which segments go, what that does to the log and to its folder."""

import contextlib
from random import Random
from typing import Any

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.unit.storage.storage_logs import (
    NOW_MS,
    append,
    fill,
    folder,
    new_disk,
    open_log,
    overwrite,
    read_all,
)
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.retention import RetentionReason, remove_deleted_files
from tidelog.storage.segment import SWAP, TRANSACTION_INDEX

DIRECTORY = "/data/orders-0"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(seed=7)


def log_of_segments(disk: SimulatedDisk, timestamps_ms: list[int], **config: Any) -> PartitionLog:
    """A log with one segment of 100 bytes for each timestamp, the last one active."""
    log = open_log(disk, DIRECTORY, segment_bytes=100, **config)
    for timestamp_ms in timestamps_ms:
        append(log, [timestamp_ms], value_bytes=29)
    assert [segment.size_bytes for segment in log.segments] == [100] * len(timestamps_ms)
    return log


def planned(log: PartitionLog, now_ms: int, high_watermark: int | None = None) -> list[int]:
    watermark = log.log_end_offset if high_watermark is None else high_watermark
    return [segment.base_offset for segment in log.retention_plan(now_ms, watermark).segments]


def test_age_counts_from_the_largest_timestamp_and_stops_at_the_first_that_stays(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 3000, 2000, 1500, 5000], retention_ms=1000)
    assert planned(log, 2000) == []
    assert planned(log, 2001) == [0]
    assert planned(log, 4000) == [0]
    assert planned(log, 4001) == [0, 1, 2, 3]


def test_when_all_has_expired_the_active_segment_goes_too(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 2000], retention_ms=1000)
    plan = log.retention_plan(9000, 2)
    assert [segment.base_offset for segment in plan.segments] == [0, 1]
    log.delete_segments(plan, 9000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (2, 2, 0)
    assert not log.retention_plan(99_000, 2)
    append(log, [9000])
    assert log.log_end_offset == 3


def test_nothing_at_or_above_the_high_watermark_goes(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 1000, 1000], retention_ms=10)
    assert planned(log, 9000, high_watermark=0) == []
    assert planned(log, 9000, high_watermark=1) == [0]
    assert planned(log, 9000, high_watermark=2) == [0, 1]


def test_size_keeps_at_least_what_is_asked_for(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000] * 5, retention_ms=-1, retention_bytes=250)
    assert planned(log, 9000) == [0, 1]
    plan = log.retention_plan(9000, 5)
    assert set(plan.reasons) == {RetentionReason.SIZE}
    assert plan.explain()[0] == "00000000000000000000: 100 bytes, retention.bytes exceeded"
    log.delete_segments(plan, 9000)
    assert log.size_bytes == 300
    assert not log.retention_plan(9000, 5)


def test_unlimited_retention_and_compaction_keep_everything(disk: SimulatedDisk) -> None:
    assert planned(log_of_segments(disk, [1] * 3, retention_ms=-1), 10**15) == []
    compacted = log_of_segments(
        SimulatedDisk(seed=8),
        [1] * 3,
        retention_ms=1,
        retention_bytes=1,
        cleanup_policy=frozenset({"compact"}),
    )
    assert planned(compacted, 10**15) == []
    compacted.log_start_offset = 1
    assert planned(compacted, 10**15) == [0]


def test_without_timestamps_the_last_append_counts(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=100, retention_ms=1000)
    append(log, [-1], value_bytes=29, now_ms=5000)
    append(log, [-1], value_bytes=29, now_ms=8000)
    assert planned(log, 6000) == []
    assert planned(log, 6001) == [0]


def test_deleted_segments_are_renamed_first_and_removed_later(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 1000, 9000], retention_ms=1000)
    log.write_indexes()
    dropped = log.delete_segments(log.retention_plan(5000, 3), 5000)
    assert (dropped.first_offset, log.first_stored_offset) == (0, 0)
    paths = dropped.run()
    assert not dropped and log.first_stored_offset == 2
    assert log.log_start_offset == 2
    assert log.leader_epochs.entries == ((0, 2),)
    names = folder(disk, DIRECTORY)
    assert sorted(path.removeprefix(f"{DIRECTORY}/") for path in paths) == sorted(
        name for name in names if name.endswith(".deleted")
    )
    assert f"{0:020d}.log.deleted" in names and f"{1:020d}.index.deleted" in names
    assert not [name for name in names if name.startswith(f"{0:020d}") and not name.endswith(".deleted")]
    remove_deleted_files(disk, paths)
    remove_deleted_files(disk, paths)
    assert not [name for name in folder(disk, DIRECTORY) if name.endswith(".deleted")]


def test_a_file_that_another_thread_removes_meanwhile_is_gone_as_well(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is compacted twice within the delay stands on two lists with the same names."""
    paths = [f"{DIRECTORY}/00000000000000000000{kind}.deleted" for kind in (".index", ".log")]
    disk.make_directory(DIRECTORY)
    for path in paths:
        disk.open(path, create=True).close()
    exists = disk.exists

    def removed_behind(path: str) -> bool:
        was_there = exists(path)
        if path == paths[0] and was_there:
            disk.remove(path)
        return was_there

    monkeypatch.setattr(disk, "exists", removed_behind)
    remove_deleted_files(disk, paths)
    assert not any(map(exists, paths))


def test_a_plan_that_was_overtaken_deletes_nothing_else(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 1000, 9000], retention_ms=1000)
    plan = log.retention_plan(5000, 3)
    log.advance_log_start(1)
    log.dropped.run()
    assert not log.delete_segments(plan, 5000)
    assert log.log_start_offset == 1


def test_delete_records_hides_offsets_and_drops_whole_segments(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=1000)
    batches = fill(log, Random(41), 80)
    cut = log.segments[3].base_offset + 1
    paths = log.advance_log_start(cut).run()
    assert len([path for path in paths if path.endswith(".log.deleted")]) == 3
    assert log.log_start_offset == cut
    assert log.read(cut - 1, 100, log.log_end_offset) is None
    expected = b"".join(batch.data for batch in batches if batch.next_offset > cut)
    assert read_all(log) == expected
    assert not log.advance_log_start(cut - 5)
    # The start offset is known after a restart from the checkpoint, its segment from the folder.
    log.close()
    log = open_log(disk, DIRECTORY, log_start_offset=cut)
    assert log.log_start_offset == cut and read_all(log) == expected
    assert open_log(disk, DIRECTORY).log_start_offset == cut - 1


def test_delete_records_up_to_the_end_leaves_an_empty_log(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=1000)
    fill(log, Random(42), 80)
    end = log.log_end_offset
    log.advance_log_start(end)
    assert (log.log_start_offset, len(log.segments)) == (end, 1)
    log.flush()
    assert log.recovery_point == end
    append(log, [NOW_MS])
    log.close()
    log = open_log(disk, DIRECTORY, log_start_offset=end)
    assert (log.log_start_offset, log.log_end_offset) == (end, end + 1)


# Power cuts


@pytest.mark.parametrize("seed", range(60))
def test_segments_leave_the_disk_oldest_first(seed: int) -> None:
    disk = new_disk(seed)
    log = log_of_segments(disk, [1000] * 6 + [9000], retention_ms=1000)
    log.flush()
    dropped = log.delete_segments(log.retention_plan(9000, 7), 9000)
    disk.cut_power_at(1 + seed % 30)
    with contextlib.suppress(PowerCut):
        dropped.run()
    log = open_log(disk.crash(), DIRECTORY, clean=False, segment_bytes=100)
    assert log.log_end_offset == 7, "what was flushed is there"
    assert [segment.base_offset for segment in log.segments] == list(range(log.log_start_offset, 7))


@pytest.mark.parametrize("seed", range(60))
def test_a_flush_is_good_for_segments_behind_one_that_may_come_back(seed: int) -> None:
    disk = new_disk(seed)
    log = log_of_segments(disk, [1000, 1000, 9000], retention_ms=1000)
    log.delete_segments(log.retention_plan(5000, 3), 5000)
    append(log, [9000])
    log.flush()
    # Nobody has run the removal yet.
    log = open_log(disk.crash(), DIRECTORY, clean=False, segment_bytes=100)
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)


@pytest.mark.parametrize("seed", range(60))
def test_offsets_are_not_used_again_when_all_segments_were_deleted(seed: int) -> None:
    disk = new_disk(seed)
    log = log_of_segments(disk, [1000, 1000], retention_ms=1000)
    log.flush()
    dropped = log.delete_segments(log.retention_plan(9000, 2), 9000)
    disk.cut_power_at(1 + seed % 15)
    with contextlib.suppress(PowerCut):
        dropped.run()
    log = open_log(disk.crash(), DIRECTORY, clean=False, segment_bytes=100)
    assert log.log_end_offset == 2


def test_a_segment_without_its_final_name_is_dropped_by_a_later_check(disk: SimulatedDisk) -> None:
    log = log_of_segments(disk, [1000, 1000, 9000], retention_ms=1000)
    log.segments[0].rename(SWAP)
    assert not log.advance_log_start(2)
    assert (log.log_start_offset, log.segments[0].base_offset) == (2, 0)
    log.segments[0].rename("")
    plan = log.retention_plan(9000, 3)
    assert plan.reasons[0] is RetentionReason.LOG_START
    assert log.delete_segments(plan, 9000).paths()[0].endswith(f"{0:020d}.log")


@pytest.mark.parametrize("seed", range(40))
def test_a_segment_that_comes_back_has_its_transaction_index(seed: int) -> None:
    disk = new_disk(seed)
    log = log_of_segments(disk, [1000] * 3 + [9000], retention_ms=1000)
    for segment in log.segments[:3]:
        overwrite(disk, segment.path(TRANSACTION_INDEX), b"")
    disk.sync_directory(DIRECTORY)
    dropped = log.delete_segments(log.retention_plan(9000, 4), 9000)
    disk.cut_power_at(1 + seed % 20)
    with contextlib.suppress(PowerCut):
        dropped.run()
    disk = disk.crash()
    names = disk.list(DIRECTORY)
    for base_offset in range(3):
        if f"{base_offset:020d}.log" in names:
            assert f"{base_offset:020d}.txnindex" in names
