"""Appending to a log, rolling it, reading it at every offset, cutting it, flushing it."""

import errno
import itertools
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tests.unit.storage.storage_logs import (
    NOW_MS,
    TOPIC_PARTITION,
    append,
    content,
    fill,
    folder,
    new_disk,
    offsets_and_timestamps,
    open_log,
    read_all,
)
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.disk import OsDisk
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.recovery import Recovery

DIRECTORY = "/data/orders-0"


@pytest.fixture
def disk() -> SimulatedDisk:
    return new_disk(3)


# Reading


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_every_offset_leads_to_its_batch(disk: SimulatedDisk, gaps: bool, reopened: bool) -> None:
    settings: dict[str, Any] = {"segment_bytes": 3000, "index_interval_bytes": 200}
    log = open_log(disk, DIRECTORY, **settings)
    batches = fill(log, Random(4), 150, gaps=gaps)
    if reopened:
        log.close()
        log = open_log(disk, DIRECTORY, **settings)
    assert len(log.segments) > 4
    random = Random(5)
    offsets = list(range(log.log_end_offset))
    random.shuffle(offsets)
    for offset in offsets:
        expected = next(batch for batch in batches if batch.next_offset > offset)
        log_slice = log.read(offset, 1, log.log_end_offset)
        assert content(log_slice) == expected.data, offset
        assert log_slice is not None and log_slice.next_offset >= expected.next_offset


def test_a_sequential_reader_gets_everything_once_whatever_its_limit(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=3000, index_interval_bytes=200)
    batches = fill(log, Random(6), 150, gaps=True)
    everything = b"".join(batch.data for batch in batches)
    for max_bytes in (1, 99, 500, 1234, 1 << 20):
        assert read_all(log, max_bytes) == everything


def test_the_limit_is_kept_at_whole_batches(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, index_interval_bytes=200)
    batches = fill(log, Random(7), 60)
    for first in range(0, 60, 7):
        for max_bytes in range(0, 1500, 37):
            expected, size = b"", 0
            for batch in batches[first:]:
                size += len(batch.data)
                if size > max_bytes:
                    break
                expected += batch.data
            offset = batches[first].base_offset
            end = log.log_end_offset
            assert content(log.read(offset, max_bytes, end, at_least_one=False)) == expected
            assert content(log.read(offset, max_bytes, end)) == (expected or batches[first].data)


def test_nothing_at_or_above_the_upper_offset_is_returned(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=1500, index_interval_bytes=200)
    batches = fill(log, Random(8), 60)
    for upper_offset in range(log.log_end_offset + 3):
        expected = b"".join(batch.data for batch in batches if batch.next_offset <= upper_offset)
        found, offset = b"", 0
        while log_slice := log.read(offset, 400, upper_offset):
            if not log_slice.size_bytes:
                break
            found += content(log_slice)
            offset = log_slice.next_offset
        assert found == expected, upper_offset


def test_outside_of_the_log_is_none_and_the_end_is_empty(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    assert content(log.read(0, 100, 0)) == b""
    append(log, [NOW_MS, NOW_MS])
    append(log, [NOW_MS])
    assert log.read(-1, 100, 3) is None
    assert log.read(4, 100, 3) is None
    assert content(log.read(3, 100, 3)) == b""
    log.advance_log_start(2)
    assert log.read(1, 100, 3) is None
    assert offsets_and_timestamps(content(log.read(2, 1, 3))) == [(2, NOW_MS)]


def test_a_tailing_reader_sees_each_append_also_across_a_roll(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=400)
    offset = 0
    for _ in range(30):
        assert content(log.read(offset, 1000, log.log_end_offset)) == b""
        batch = append(log, [NOW_MS])
        log_slice = log.read(offset, 1000, log.log_end_offset)
        assert content(log_slice) == batch.data
        assert log_slice is not None
        offset = log_slice.next_offset
    assert len(log.segments) > 3


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = open_log(OsDisk(), str(tmp_path / "p"), segment_bytes=400)
    batches = fill(log, Random(9), 40)
    log_slice = log.read(0, 1, log.log_end_offset)
    for path in log.advance_log_start(log.log_end_offset).run():
        Path(path).unlink()
    assert content(log_slice) == batches[0].data


def test_closed_segments_share_a_bounded_number_of_open_files(tmp_path: Path) -> None:
    disk = OsDisk()
    open_files = OpenFiles(disk, limit=3)
    log = PartitionLog.open(
        disk,
        str(tmp_path / "p"),
        TOPIC_PARTITION,
        LogConfig(segment_bytes=300),
        now_ms=NOW_MS,
        clean_shutdown=True,
        open_files=open_files,
    )
    batches = fill(log, Random(10), 60)
    assert len(log.segments) > 10
    assert read_all(log) == b"".join(batch.data for batch in batches)
    assert len(open_files) == 3


# Rolling


def test_rolls_when_the_next_batch_would_not_fit(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=1000)
    batches = fill(log, Random(11), 50)
    sizes = [segment.size_bytes for segment in log.segments]
    assert max(sizes) <= 1000
    first_of_next = {batch.base_offset: len(batch.data) for batch in batches}
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        assert segment.size_bytes + first_of_next[following.base_offset] > 1000
    assert log.size_bytes == sum(sizes) == sum(len(batch.data) for batch in batches)


def test_rolls_by_the_age_of_the_first_timestamp(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_ms=1000)
    append(log, [5_000])
    append(log, [6_000])
    assert len(log.segments) == 1
    append(log, [6_001])
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    # An older record does not roll; time counts from the new segment's first batch.
    append(log, [100])
    append(log, [7_001])
    assert len(log.segments) == 2


def test_rolls_by_the_clock_without_timestamps(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_ms=1000, now_ms=10_000)
    append(log, [-1], now_ms=10_000)
    append(log, [-1], now_ms=11_000)
    assert len(log.segments) == 1
    append(log, [-1], now_ms=11_001)
    assert len(log.segments) == 2


def test_age_is_remembered_over_a_restart_and_new_settings_apply(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_ms=1000)
    append(log, [5_000])
    log.close()
    log = open_log(disk, DIRECTORY, segment_ms=1000)
    log.reconfigure(LogConfig(segment_ms=2000))
    append(log, [7_000])
    assert len(log.segments) == 1
    append(log, [7_001])
    assert len(log.segments) == 2


def test_jitter_makes_segments_roll_early_but_never_late(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_ms=1000, segment_jitter_ms=500)
    for step in range(200):
        append(log, [100_000 + step * 10])
    starts = [segment.first_timestamp_ms for segment in log.segments]
    ages = [
        following - start
        for start, following in itertools.pairwise(starts)
        if start is not None and following is not None
    ]
    assert all(500 <= age <= 1010 for age in ages)
    assert len(set(ages)) > 1


def test_rolls_when_an_index_is_full(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_index_bytes=8 * 4, index_interval_bytes=1)
    for step in range(20):
        append(log, [NOW_MS + step])
    assert len(log.segments) > 3
    log.close()
    sizes = {name: len(data) for name, data in folder(disk, DIRECTORY).items()}
    assert max(size for name, size in sizes.items() if name.endswith("index")) <= 8 * 4


def test_rolls_when_the_offset_cannot_be_relative_to_the_base(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS])
    append(log, [NOW_MS], base_offset=2**31 - 1)
    assert len(log.segments) == 1
    append(log, [NOW_MS], base_offset=2**31)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    assert offsets_and_timestamps(content(log.read(5, 1, 2**31 + 1))) == [(2**31 - 1, NOW_MS)]


def test_a_batch_larger_than_a_segment_has_one_of_its_own(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=200)
    append(log, [NOW_MS], value_bytes=500)
    append(log, [NOW_MS], value_bytes=5)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


@pytest.mark.parametrize("log_start_offset", [0, 7])
@pytest.mark.parametrize("recovery_point", [0, 5, 9])
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_in_a_new_folder_begins_as_if_it_had_been_searched(
    clean: bool, recovery_point: int, log_start_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for searched in (False, True):
        if searched:
            monkeypatch.setattr(Recovery, "begin", Recovery.run)
        disk = new_disk(3)
        points = {"recovery_point": recovery_point, "log_start_offset": log_start_offset}
        log = open_log(disk, DIRECTORY, clean=clean, **points)
        state: list[object] = [log.log_start_offset, log.log_end_offset, log.recovery_point]
        state += [log.recovery_checkpoint, log.truncated_bytes, log.leader_epochs.entries, log.topic_id]
        for slot in ("first_timestamp_ms", "max_timestamp_ms", "bytes_since_index_entry", "size_bytes"):
            state.append(getattr(log.active, slot))
        state.append(disk.list(DIRECTORY))
        append(log, [NOW_MS, NOW_MS + 1])
        append(log, [NOW_MS + 2], leader_epoch=4)
        plan = log.flush_plan()
        assert plan is not None
        plan.run()
        state += [disk.list(DIRECTORY), log.leader_epochs.entries, log.recovery_point, log.log_end_offset]
        again = open_log(disk.kill(), DIRECTORY, clean=False, log_start_offset=log_start_offset)
        state += [again.log_start_offset, again.log_end_offset, again.leader_epochs.entries]
        found.append(state)
    assert found[0] == found[1]


def test_rolling_an_empty_segment_keeps_it(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    assert log.roll(NOW_MS) is log.active
    append(log, [NOW_MS])
    log.roll(NOW_MS)
    log.roll(NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


# Trouble


def test_an_append_that_fails_changes_nothing_and_can_be_repeated(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=600, index_interval_bytes=100)
    random = Random(12)
    batches: list[Any] = []
    for number in range(60):
        base_offset = log.log_end_offset
        data = build_batch(
            [Record(0, NOW_MS + number, None, b"v" * random.randint(0, 99))],
            base_offset=base_offset,
            producer_id=9,
            producer_epoch=0,
            base_sequence=number,
            leader_epoch=0,
        )
        header = read_header(data)
        for operation in range(1, 12):
            # Every step of the append fails once: of the plain write, and of each file that rolling touches.
            before = (log.log_end_offset, log.size_bytes, log.producers.describe())
            disk.fail_operation(operation, errno.ENOSPC)
            try:
                log.append(memoryview(data), header, base_offset, 0, NOW_MS)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                assert (log.log_end_offset, log.size_bytes, log.producers.describe()) == before
                assert read_all(log) == b"".join(batches)
            else:
                break
        batches.append(data)
        assert log.log_end_offset == number + 1
    log.close(clean=False)
    log = open_log(disk.kill(), DIRECTORY, clean=False)
    assert read_all(log) == b"".join(batches)
    assert log.truncated_bytes == 0


def test_a_full_disk_refuses_appends_serves_reads_and_recovers(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=2000, index_interval_bytes=300)
    batches = fill(log, Random(13), 20)
    disk.capacity_bytes = disk.used_bytes + 150
    with pytest.raises(OSError, match=r".") as raised:
        for _ in range(5):
            batches.append(append(log, [NOW_MS]))
    assert raised.value.errno == errno.ENOSPC
    assert read_all(log) == b"".join(batch.data for batch in batches)
    disk.capacity_bytes = 1 << 30
    batches += fill(log, Random(14), 20)
    assert read_all(log) == b"".join(batch.data for batch in batches)


def test_offsets_never_go_back(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS] * 3)
    with pytest.raises(AssertionError):
        append(log, [NOW_MS], base_offset=2)


# Epochs, producers, identity


def test_leader_epochs_are_those_of_the_batches(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    for epoch in (0, 0, 3, 3, 4):
        append(log, [NOW_MS], leader_epoch=epoch)
    assert log.leader_epochs.entries == ((0, 0), (3, 2), (4, 4))
    assert log.epoch_end_offset(0) == (0, 2)
    assert log.epoch_end_offset(2) == (0, 2)
    assert log.epoch_end_offset(4) == (4, 5)
    assert log.epoch_end_offset(9) == (-1, -1)


def test_the_topic_id_is_kept_in_kafkas_file(disk: SimulatedDisk) -> None:
    topic_id = UUID("2f2f2f2f-2f2f-2f2f-2f2f-2f2f2f2f2f2f")
    log = open_log(disk, DIRECTORY)
    assert log.topic_id is None
    log.set_topic_id(topic_id)
    assert folder(disk, DIRECTORY)["partition.metadata"] == b"version: 0\ntopic_id: Ly8vLy8vLy8vLy8vLy8vLw\n"
    assert open_log(disk, DIRECTORY).topic_id == topic_id


# Cutting


@pytest.mark.parametrize("cut", [0, 1, 57, 133, 200, 260])
def test_truncating_leaves_the_batches_before_the_offset(disk: SimulatedDisk, cut: int) -> None:
    settings: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 200}
    log = open_log(disk, DIRECTORY, **settings)
    batches = fill(log, Random(15), 100)
    log.flush()
    log.truncate_to(cut)
    kept = [batch for batch in batches if batch.next_offset <= cut]
    assert log.log_end_offset == cut
    assert log.recovery_point <= cut
    assert read_all(log) == b"".join(batch.data for batch in kept)
    begun = [batch.leader_epoch for batch in batches if batch.base_offset < cut]
    assert log.leader_epochs.latest == max(begun, default=-1)
    largest = max((time for batch in kept for time in batch.timestamps_ms), default=None)
    found = log.max_timestamp()
    assert (found.timestamp_ms if found else None) == largest
    # The log goes on from there, and what comes is what a restart finds.
    kept += fill(log, Random(16), 30)
    log.close()
    log = open_log(disk, DIRECTORY, **settings)
    assert read_all(log) == b"".join(batch.data for batch in kept)


def test_truncating_restores_the_producers_of_that_time(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=300)
    states = {}
    for sequence in range(20):
        states[log.log_end_offset] = [producer[:3] for producer in log.producers.describe()]
        append(log, [NOW_MS], producer_id=7, producer_epoch=1, base_sequence=sequence)
    for cut in (17, 11, 5, 0):
        log.truncate_to(cut)
        assert [producer[:3] for producer in log.producers.describe()] == states[cut]


def test_starting_anew_elsewhere(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=500)
    fill(log, Random(17), 40)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1000, 1000, 0)
    assert log.leader_epochs.entries == () and log.producers.describe() == []
    batch = append(log, [NOW_MS])
    assert batch.base_offset == 1000
    log.close()
    log = open_log(disk, DIRECTORY)
    assert (log.log_start_offset, log.log_end_offset) == (1000, 1001)
    # Only what is left of the new log is on disk.
    assert {name[:20] for name in folder(disk, DIRECTORY) if name.endswith(".log")} == {f"{1000:020d}"}


# Flushing


def test_a_flush_plan_makes_durable_what_was_there_when_it_was_made(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=800)
    batches = fill(log, Random(18), 40)
    plan = log.flush_plan()
    assert plan is not None and plan.end_offset == log.log_end_offset
    later = fill(log, Random(19), 5)
    plan.run()
    log.flushed(plan)
    assert log.recovery_point == plan.end_offset == later[0].base_offset
    assert log.unflushed_messages == log.log_end_offset - plan.end_offset
    log = open_log(disk.crash(), DIRECTORY, clean=False, recovery_point=plan.end_offset)
    assert read_all(log).startswith(b"".join(batch.data for batch in batches))


def test_a_flush_of_closed_segments_leaves_the_active_one_for_later(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=800)
    batches = fill(log, Random(24), 40)
    closed = b"".join(batch.data for batch in batches if batch.base_offset < log.active.base_offset)
    plan = log.flush_plan(closed_only=True)
    assert plan is not None and log.active.file not in plan.files
    plan.run()
    log.flushed(plan)
    assert log.recovery_point == log.active.base_offset
    assert log.flush_plan(closed_only=True) is None
    recovery_point = log.recovery_point
    log = open_log(disk.crash(), DIRECTORY, clean=False, recovery_point=recovery_point, segment_bytes=800)
    assert read_all(log).startswith(closed)


def test_a_plan_from_before_a_truncation_promises_nothing(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    fill(log, Random(20), 10)
    plan = log.flush_plan()
    assert plan is not None
    plan.run()
    log.truncate_to(3)
    fill(log, Random(21), 10)
    log.flushed(plan)
    assert log.recovery_point == 0


def index_sizes(disk: SimulatedDisk, base_offset: int = 0) -> list[int]:
    stem = f"{DIRECTORY}/{base_offset:020d}"
    paths = [f"{stem}.index", f"{stem}.timeindex"]
    return [disk.size_bytes(path) for path in paths if disk.exists(path)]


def test_a_new_log_has_its_index_files_when_its_names_are_durable(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, index_interval_bytes=100)
    append(log, [NOW_MS])
    # Not before: there may be thousands of new logs, and this is done on the loop.
    log.write_indexes()
    assert index_sizes(disk) == []
    plan = log.flush_plan(closed_only=True)
    assert plan is not None
    plan.run()
    log.flushed(plan)
    assert index_sizes(disk) == [0, 0]
    # The names are among those that are durable.
    disk = disk.crash()
    assert index_sizes(disk) == [0, 0]
    log = open_log(disk, DIRECTORY, clean=False, index_interval_bytes=100)
    append(log, [NOW_MS])
    log.close()
    assert index_sizes(disk) == [0, 12]


def test_a_later_segment_has_its_index_files_when_indexes_are_written(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS])
    log.flush()
    active = log.roll(NOW_MS)
    log.write_indexes()
    assert index_sizes(disk, active.base_offset) == [], "there is no record yet"
    append(log, [NOW_MS])
    log.write_indexes()
    assert index_sizes(disk, active.base_offset) == [0, 0]
    before = folder(disk, DIRECTORY)
    disk.fail_operation(1)
    log.write_indexes()
    assert folder(disk, DIRECTORY) == before, "once they are there, nothing is done again"


def test_no_index_files_are_no_fault(disk: SimulatedDisk) -> None:
    """A disk that has no room for them makes no log fail that needs none."""
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS])
    plan = log.flush_plan()
    assert plan is not None
    disk.fail_operation(1)
    plan.run()
    log.flushed(plan)
    assert index_sizes(disk) == [] and log.recovery_point == log.log_end_offset
    log.close()
    assert index_sizes(disk) == [0, 12]


def test_nothing_to_flush_is_no_plan(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS])
    log.flush()
    assert log.flush_plan() is None
    append(log, [NOW_MS])
    plan = log.flush_plan()
    assert plan is not None and len(plan.files) == 1 and plan.directories == ()


def test_closing_an_unchanged_log_writes_nothing(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    fill(log, Random(22), 10)
    log.close()
    before = folder(disk, DIRECTORY)
    log = open_log(disk, DIRECTORY)
    disk.fail_operation(1)
    log.close()
    assert folder(disk, DIRECTORY) == before


def test_indexes_of_closed_segments_are_dropped_when_unused_and_come_back(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, segment_bytes=2000, index_interval_bytes=100)
    batches = fill(log, Random(23), 100)
    log.write_indexes()
    log.write_indexes()
    first = log.segments[0]
    assert first._offset_index is None
    assert content(log.read(batches[9].base_offset, 1, log.log_end_offset)) == batches[9].data
    assert first._offset_index is not None
