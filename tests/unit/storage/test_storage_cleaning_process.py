"""Compaction in a child process, on a real disk."""

import os
import resource
from pathlib import Path

import pytest

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import patch_offset_and_epoch, read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records
from tidelog.storage.cleaner import CleaningStopped, plan_cleaning, read_batches
from tidelog.storage.cleaning_process import CleanerUnavailable, CleaningProcess
from tidelog.storage.disk import OsDisk
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=4096, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)


def filled_log(directory: Path, records: int) -> tuple[OsDisk, OpenFiles, PartitionLog, dict[bytes, bytes]]:
    disk = OsDisk()
    open_files = OpenFiles(disk)
    log = PartitionLog.open(
        disk,
        str(directory / "t-0"),
        TopicPartition("t", 0),
        CONFIG,
        now_ms=NOW_MS,
        clean_shutdown=False,
        open_files=open_files,
    )
    table: dict[bytes, bytes] = {}
    for number in range(records):
        key, value = b"key %d" % (number % 10), b"value %d" % number
        table[key] = value
        batch = memoryview(bytearray(build_batch([Record(0, NOW_MS, key, value)])))
        patch_offset_and_epoch(batch, 0, number, 0)
        log.append(batch, read_header(batch), number, 0, NOW_MS)
    return disk, open_files, log, table


def segment_files(log: PartitionLog) -> list[str]:
    return sorted(path.name for path in Path(log.directory).iterdir() if path.name[0].isdigit())


def contents(log: PartitionLog) -> list[Record]:
    return [
        record
        for segment in log.segments
        for header, batch in read_batches(segment.file, segment.size_bytes)
        for record in iterate_records(batch, header)
    ]


def test_a_round_in_a_child_compacts_the_log(tmp_path: Path) -> None:
    disk, open_files, log, table = filled_log(tmp_path, 400)
    before = {record.offset: record for record in contents(log)}
    plan = plan_cleaning(log, checkpointed_offset=None, last_stable_offset=400, now_ms=NOW_MS)
    assert plan is not None
    process = CleaningProcess(disk, open_files)
    try:
        result = process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
        child = process._child
        assert child is not None and child.poll() is None, "the child stays for the next round"
    finally:
        process.close()
    assert child.poll() is not None, "and goes when told to"
    assert result.apply(log, disk)
    after = contents(log)
    assert {record.key: record.value for record in after} == table
    assert len(after) < 100
    assert all(before[record.offset] == record for record in after), "offsets never change"
    assert not [name for name in segment_files(log) if name.endswith((".cleaned", ".swap"))]


def test_descriptors_beyond_those_that_select_knows_do_no_harm(tmp_path: Path) -> None:
    """A broker with a thousand partitions has more than 1,024 files open."""
    disk, open_files, log, _ = filled_log(tmp_path, 400)
    plan = plan_cleaning(log, checkpointed_offset=None, last_stable_offset=400, now_ms=NOW_MS)
    assert plan is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    process = CleaningProcess(disk, open_files)
    try:
        assert held[-1] > 1_024
        result = process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
    finally:
        process.close()
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.statistics.records_kept < result.statistics.records_read


def test_a_process_that_cannot_be_started_blames_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, open_files, log, _ = filled_log(tmp_path, 400)
    plan = plan_cleaning(log, checkpointed_offset=None, last_stable_offset=400, now_ms=NOW_MS)
    assert plan is not None
    process = CleaningProcess(disk, open_files)
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with pytest.raises(CleanerUnavailable, match="could not be started"):
        process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
    monkeypatch.undo()
    try:
        process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
    finally:
        process.close()


def test_a_round_that_is_called_off_leaves_nothing(tmp_path: Path) -> None:
    disk, open_files, log, _ = filled_log(tmp_path, 400)
    plan = plan_cleaning(log, checkpointed_offset=None, last_stable_offset=400, now_ms=NOW_MS)
    assert plan is not None
    process = CleaningProcess(disk, open_files)
    before = segment_files(log)
    with pytest.raises(CleaningStopped):
        process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: True)
    assert segment_files(log) == before
    assert process._child is None


def test_damage_is_reported_by_the_child(tmp_path: Path) -> None:
    disk, open_files, log, _ = filled_log(tmp_path, 400)
    plan = plan_cleaning(log, checkpointed_offset=None, last_stable_offset=400, now_ms=NOW_MS)
    assert plan is not None
    with Path(log.segments[0].path(".log")).open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")
    process = CleaningProcess(disk, open_files)
    try:
        with pytest.raises(OSError, match="no whole batch"):
            process.run(plan, dedupe_buffer_bytes=1 << 20, should_stop=lambda: False)
    finally:
        process.close()
