"""What a crash, a power cut or a damaged file leaves, and the log that recovery makes of it."""

import struct
from random import Random
from typing import Any

import pytest

from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.unit.storage.storage_logs import (
    NOW_MS,
    Batch,
    append,
    file_bytes,
    fill,
    folder,
    new_disk,
    open_log,
    overwrite,
    read_all,
)
from tidelog.model.errors import Refused
from tidelog.records.batch import read_header
from tidelog.records.builder import assemble, build_control_batch
from tidelog.records.compression import Codec
from tidelog.storage.partition_log import PartitionLog, mark_for_swap
from tidelog.storage.producer_state import Duplicate
from tidelog.storage.segment import CLEANED, Segment, SegmentCorrupt

DIRECTORY = "/data/orders-0"
SMALL: dict[str, Any] = {"segment_bytes": 2000, "index_interval_bytes": 200}


@pytest.fixture
def disk() -> SimulatedDisk:
    return new_disk(11)


def log_path(base_offset: int, kind: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{kind}"


def check_indexes(disk: SimulatedDisk) -> None:
    """Every index entry leads to the batch it names, and the time index ends with the largest timestamp."""
    for name, data in folder(disk, DIRECTORY).items():
        if not name.endswith(".log") or not data:
            continue
        base_offset = int(name[:20])
        last_offsets, position, largest = {}, 0, -1
        while position < len(data):
            header = read_header(data, position)
            last_offsets[position] = header.last_offset
            largest = max(largest, header.max_timestamp_ms)
            position += header.size_bytes
        for relative, entry in struct.iter_unpack(">ii", file_bytes(disk, log_path(base_offset, ".index"))):
            assert last_offsets[entry] == base_offset + relative
        times = list(struct.iter_unpack(">qi", file_bytes(disk, log_path(base_offset, ".timeindex"))))
        assert times[-1][0] == largest


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(1), 60)
    base_offset = log.active.base_offset
    log.close(clean=False)
    whole = file_bytes(disk, log_path(base_offset))
    last = batches[-1].data
    assert whole.endswith(last)
    kept = b"".join(batch.data for batch in batches[:-1])
    for missing in range(1, len(last) + 1):
        overwrite(disk, log_path(base_offset), whole[:-missing])
        log = open_log(disk, DIRECTORY, clean=False, recovery_point=base_offset, **SMALL)
        assert log.truncated_bytes == len(last) - missing
        assert log.log_end_offset == batches[-1].base_offset
        assert read_all(log) == kept
        check_indexes(disk)
    again = append(log, list(batches[-1].timestamps_ms))
    assert again.base_offset == batches[-1].base_offset


def test_any_flipped_bit_of_the_last_batch_is_noticed_unless_it_is_outside_of_the_checksum(
    disk: SimulatedDisk,
) -> None:
    log = open_log(disk, DIRECTORY)
    batches = fill(log, Random(2), 5)
    log.close(clean=False)
    whole = file_bytes(disk, log_path(0))
    start = len(whole) - len(batches[-1].data)
    for position in range(start, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        overwrite(disk, log_path(0), bytes(damaged))
        log = open_log(disk, DIRECTORY, clean=False)
        epoch_field = start + 12 <= position < start + 16
        base_offset_field = position < start + 8
        if epoch_field or (base_offset_field and log.truncated_bytes == 0):
            # Neither field is covered by the checksum. An offset that went up looks like a gap.
            assert log.log_end_offset >= batches[-1].next_offset
        else:
            assert log.log_end_offset == batches[-1].base_offset
            assert log.truncated_bytes == len(batches[-1].data)


def test_zeros_at_the_end_are_cut(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    batches = fill(log, Random(3), 20)
    log.close(clean=False)
    overwrite(disk, log_path(0), file_bytes(disk, log_path(0)) + bytes(5000))
    log = open_log(disk, DIRECTORY, clean=False)
    assert log.truncated_bytes == 5000
    assert read_all(log) == b"".join(batch.data for batch in batches)


def test_a_torn_tail_after_a_clean_stop_is_cut_all_the_same(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    batches = fill(log, Random(4), 20)
    log.close()
    overwrite(disk, log_path(0), file_bytes(disk, log_path(0))[:-1])
    log = open_log(disk, DIRECTORY, clean=True)
    assert read_all(log) == b"".join(batch.data for batch in batches[:-1])


def test_segments_behind_a_damaged_one_are_removed(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(5), 100)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.close(clean=False)
    data = bytearray(file_bytes(disk, log_path(bases[1])))
    first = read_header(data).size_bytes
    data[first + 70] ^= 1
    overwrite(disk, log_path(bases[1]), bytes(data))
    log = open_log(disk, DIRECTORY, clean=False, **SMALL)
    expected = [batch for batch in batches if batch.base_offset <= bases[1]]
    assert read_all(log) == b"".join(batch.data for batch in expected)
    assert [segment.base_offset for segment in log.segments] == bases[:2]
    names = folder(disk, DIRECTORY)
    assert not [name for name in names if name[:20].isdecimal() and int(name[:20]) > log.log_end_offset]
    # What lies before the recovery point was flushed and is not read again.
    log = open_log(disk, DIRECTORY, clean=False, recovery_point=log.log_end_offset, **SMALL)
    assert read_all(log) == b"".join(batch.data for batch in expected)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "odd size", "zeros", "noise", "disorder"])
def test_damaged_indexes_are_rebuilt(disk: SimulatedDisk, clean: bool, kind: str, damage: str) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(6), 100)
    bases = [segment.base_offset for segment in log.segments]
    end = log.log_end_offset
    log.close()
    before = folder(disk, DIRECTORY)
    for base_offset in bases:
        path = log_path(base_offset, kind)
        data = file_bytes(disk, path)
        if damage == "missing":
            disk.remove(path)
        elif damage == "disorder":
            half = len(data) // (8 if kind == ".index" else 12) // 2 * (8 if kind == ".index" else 12)
            overwrite(disk, path, data[half:] + data[:half] + data[half:])
        else:
            damaged = {
                "empty": b"",
                "odd size": data[:-1],
                "zeros": bytes(len(data)),
                "noise": b"\xff" * len(data),
            }
            overwrite(disk, path, damaged[damage])
    log = open_log(disk, DIRECTORY, clean=clean, recovery_point=0 if not clean else end, **SMALL)
    assert log.log_end_offset == end
    for batch in batches:
        log_slice = log.read(batch.base_offset, 1, end)
        assert log_slice is not None
        assert log_slice.file.read(log_slice.position, log_slice.size_bytes) == batch.data
    found = log.offset_by_timestamp(batches[50].timestamps_ms[0])
    assert found is not None
    log.close()
    if damage not in ("empty", "disorder"):
        after = folder(disk, DIRECTORY)
        assert {name: after[name] for name in after if "index" in name} == {
            name: before[name] for name in before if "index" in name
        }


def test_an_index_that_is_wrong_in_its_middle_does_not_lead_readers_astray(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(16), 100)
    closed = [segment.base_offset for segment in log.segments[:-1]]
    log.close()
    whole = {base_offset: file_bytes(disk, log_path(base_offset, ".index")) for base_offset in closed}
    for field in (3, 7):
        for base_offset, data in whole.items():
            # One less, in the second entry: still ascending, but not where the batch is or ends.
            damaged = bytearray(data)
            damaged[8 + field] -= 1
            overwrite(disk, log_path(base_offset, ".index"), bytes(damaged))
        log = open_log(disk, DIRECTORY, **SMALL)
        # From the end to the start, so that no read goes on where another ended.
        for batch in reversed(batches):
            for offset in range(batch.base_offset, batch.next_offset):
                log_slice = log.read(offset, 1, log.log_end_offset)
                assert log_slice is not None
                assert log_slice.file.read(log_slice.position, log_slice.size_bytes) == batch.data
        assert {base: file_bytes(disk, log_path(base, ".index")) for base in closed} == whole


def test_recovery_is_idempotent(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(7), 100)
    base_offset = log.active.base_offset
    log.close(clean=False)
    overwrite(disk, log_path(base_offset), file_bytes(disk, log_path(base_offset))[:-3])
    first = open_log(disk, DIRECTORY, clean=False, **SMALL)
    once = folder(disk, DIRECTORY)
    second = open_log(disk, DIRECTORY, clean=False, **SMALL)
    assert folder(disk, DIRECTORY) == once
    assert second.truncated_bytes == 0 < first.truncated_bytes
    assert (second.log_end_offset, second.leader_epochs.entries) == (
        first.log_end_offset,
        first.leader_epochs.entries,
    )


def test_leftovers_go_and_strangers_stay(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(8), 40)
    log.close()
    stray = [log_path(7, ".log.deleted"), log_path(7, ".index.deleted"), log_path(9, ".log.cleaned")]
    orphans = [log_path(999, ".index"), log_path(999, ".timeindex"), log_path(999, ".txnindex")]
    strangers = [f"{DIRECTORY}/notes.txt", f"{DIRECTORY}/123.log"]
    for path in stray + orphans + strangers:
        overwrite(disk, path, b"something")
    log = open_log(disk, DIRECTORY, **SMALL)
    assert read_all(log) == b"".join(batch.data for batch in batches)
    assert not [path for path in stray + orphans if disk.exists(path)]
    assert all(disk.exists(path) for path in strangers)


def test_a_log_that_ends_before_its_start_begins_anew(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(9), 20)
    log.close()
    log = open_log(disk, DIRECTORY, log_start_offset=5000, **SMALL)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5000, 5000, 0)


def test_leader_epochs_come_back_from_the_batches(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(10), 60)
    entries = log.leader_epochs.entries
    assert len(entries) == 4
    log.close(clean=False)
    log = open_log(disk, DIRECTORY, clean=False, **SMALL)
    assert log.leader_epochs.entries == entries
    log.close()
    overwrite(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"rubbish")
    assert open_log(disk, DIRECTORY, **SMALL).leader_epochs.entries == entries


# Producers and transactions


def transactional_log(disk: SimulatedDisk) -> PartitionLog:
    """Producers that come and go, and transactions that commit, abort and stay open, over many segments."""
    log = open_log(disk, DIRECTORY, segment_bytes=600)
    random = Random(12)
    sequences = dict.fromkeys(range(1, 6), 0)
    for step in range(120):
        producer_id = random.randint(1, 5)
        transactional = producer_id > 2
        append(
            log,
            [NOW_MS + step],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequences[producer_id],
            transactional=transactional,
        )
        sequences[producer_id] += 1
        if transactional and random.random() < 0.3:
            data = build_control_batch(
                random.random() < 0.5,
                producer_id,
                0,
                1,
                NOW_MS + step,
                base_offset=log.log_end_offset,
                leader_epoch=0,
            )
            log.append(data, read_header(data), log.log_end_offset, 0, NOW_MS + step)
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    return (
        [(*row[:3], *row[4:]) for row in log.producers.describe()],
        log.producers.first_undecided_offset,
        log.aborted_transactions(0, log.log_end_offset),
        [log.aborted_transactions(offset, offset + 10) for offset in range(0, log.log_end_offset, 7)],
    )


@pytest.mark.parametrize("recovery_point", [0, 60, 10**6])
@pytest.mark.parametrize("snapshots", [True, False])
def test_producers_and_aborted_transactions_survive_a_crash(
    disk: SimulatedDisk, recovery_point: int, snapshots: bool
) -> None:
    log = transactional_log(disk)
    expected = state(log)
    assert expected[2] and log.producers.first_undecided_offset is not None
    log.close(clean=False)
    if not snapshots:
        for name in disk.list(DIRECTORY):
            if name.endswith(".snapshot"):
                disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, DIRECTORY, clean=False, recovery_point=recovery_point, segment_bytes=600)
    assert state(log) == expected
    log.close()
    assert state(open_log(disk, DIRECTORY, clean=True, segment_bytes=600)) == expected


@pytest.mark.parametrize("batches_after_the_roll", [0, 1, 3])
def test_retries_are_known_when_the_broker_was_killed_right_after_a_roll(
    disk: SimulatedDisk, batches_after_the_roll: int
) -> None:
    """Five batches may be on their way without an answer; a snapshot of producers keeps the last one only."""
    log = open_log(disk, DIRECTORY)
    sent = [
        append(log, [NOW_MS], producer_id=7, producer_epoch=0, base_sequence=number)
        for number in range(5 - batches_after_the_roll)
    ]
    log.roll(NOW_MS)
    rolled_at = log.log_end_offset
    sent += [
        append(log, [NOW_MS], producer_id=7, producer_epoch=0, base_sequence=len(sent) + number)
        for number in range(batches_after_the_roll)
    ]
    log.close(clean=False)
    recovered = open_log(disk, DIRECTORY, clean=False, recovery_point=rolled_at)
    for batch in sent:
        verdict = recovered.producers.check(read_header(batch.data))
        assert isinstance(verdict, Duplicate) and verdict.base_offset == batch.base_offset


def test_a_marker_whose_index_entry_cannot_be_written_is_taken_back(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS], producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    before = state(log)
    data = build_control_batch(False, 3, 0, 1, NOW_MS, base_offset=1, leader_epoch=0)
    disk.fail_operation(2)
    with pytest.raises(OSError, match=r"."):
        log.append(data, read_header(data), 1, 0, NOW_MS)
    assert log.log_end_offset == 1 and state(log) == before
    log.append(data, read_header(data), 1, 0, NOW_MS)
    assert [aborted[:3] for aborted in log.aborted_transactions(0, 2)] == [(3, 0, 1)]
    assert log.last_stable_offset(2) == 2


# Power cuts


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_loses_nothing_that_was_flushed(seed: int) -> None:
    random = Random(seed)
    disk = new_disk(seed)
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = []
    checkpointed = 0
    for _ in range(4):
        for _ in range(random.randint(5, 60)):
            batches += fill(log, random, 1)
            if random.random() < 0.1:
                log.flush()
                checkpointed = log.recovery_point
            if random.random() < 0.1:
                log.write_indexes()
        flushed = [batch for batch in batches if batch.next_offset <= checkpointed]
        disk = disk.crash()
        log = open_log(disk, DIRECTORY, clean=False, recovery_point=checkpointed, **SMALL)
        assert log.log_end_offset >= checkpointed
        data = read_all(log)
        kept = [batch for batch in batches if batch.next_offset <= log.log_end_offset]
        assert data == b"".join(batch.data for batch in kept)
        assert kept[: len(flushed)] == flushed
        check_indexes(disk)
        batches = kept


def compact_first_segments(disk: SimulatedDisk, log: PartitionLog) -> None:
    """Replace the first four segments by two that keep every second batch, as the cleaner does."""
    old = log.segments[:4]
    new = []
    for pair in (old[:2], old[2:]):
        segment = Segment.create(
            disk, log._open_files, DIRECTORY, pair[0].base_offset, log.config, NOW_MS, suffix=CLEANED
        )
        for source in pair:
            for number, (position, header) in enumerate(source.batches()):
                if number % 2 == 0:
                    data = source.file.read(position, header.size_bytes)
                    segment.append(data, header.last_offset, header.max_timestamp_ms, NOW_MS)
        segment.complete()
        new.append(segment)
    mark_for_swap(disk, DIRECTORY, new)
    paths = log.begin_replacement([(old[:2], new[0]), (old[2:], new[1])])
    disk.sync_directory(DIRECTORY)
    log.finish_replacement()
    for path in paths:
        disk.remove(path)


def prepared_for_compaction(seed: int) -> tuple[SimulatedDisk, PartitionLog]:
    disk = new_disk(seed)
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(21), 100)
    log.flush()
    return disk, log


def test_replaced_segments_are_read_at_once_and_after_a_restart() -> None:
    disk, log = prepared_for_compaction(0)
    before, end = len(log.segments), log.log_end_offset
    size_bytes = log.size_bytes
    compact_first_segments(disk, log)
    assert len(log.segments) == before - 2 and log.size_bytes < size_bytes
    data = read_all(log)
    assert log.log_end_offset == end
    log.close()
    log = open_log(disk, DIRECTORY, **SMALL)
    assert read_all(log) == data and log.log_end_offset == end
    check_indexes(disk)


@pytest.mark.parametrize("power_cut", [True, False])
def test_a_stop_at_any_step_of_a_swap_leaves_the_old_segments_or_the_new(power_cut: bool) -> None:
    disk, log = prepared_for_compaction(0)
    old = read_all(log)
    operations_before = disk.operations_count
    compact_first_segments(disk, log)
    steps = disk.operations_count - operations_before
    new = read_all(log)
    assert new != old and steps > 20
    seen = set()
    for step in range(1, steps + 1):
        disk, log = prepared_for_compaction(step)
        end = log.log_end_offset
        disk.cut_power_at(step)
        with pytest.raises(PowerCut):
            compact_first_segments(disk, log)
        disk = disk.crash() if power_cut else disk.kill()
        log = open_log(disk, DIRECTORY, clean=False, recovery_point=end, **SMALL)
        data = read_all(log)
        assert data in (old, new), step
        assert log.log_end_offset == end
        seen.add(data == new)
        check_indexes(disk)
        assert not [name for name in disk.list(DIRECTORY) if name.endswith((".swap", ".cleaned", ".deleted"))]
    assert seen == {True, False}


# Holes


def log_with_a_gap(disk: SimulatedDisk) -> tuple[list[int], int]:
    """A log whose second segment is missing, as after Kafka's cleaner; the base offsets, and the end."""
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(31), 100)
    bases = [segment.base_offset for segment in log.segments]
    log.close(clean=False)
    for kind in (".log", ".index", ".timeindex"):
        disk.remove(log_path(bases[1], kind))
    return bases, log.log_end_offset


def test_a_gap_before_the_recovery_point_is_accepted(disk: SimulatedDisk) -> None:
    bases, end = log_with_a_gap(disk)
    for recovery_point in (end, bases[3], bases[2]):
        log = open_log(disk, DIRECTORY, clean=False, recovery_point=recovery_point, **SMALL)
        assert [segment.base_offset for segment in log.segments] == [bases[0], *bases[2:]]
        assert log.log_end_offset == end
        log.close(clean=False)


def test_a_gap_behind_the_recovery_point_ends_the_log(disk: SimulatedDisk) -> None:
    bases, _ = log_with_a_gap(disk)
    log = open_log(disk, DIRECTORY, clean=False, recovery_point=bases[1] - 1, **SMALL)
    assert [segment.base_offset for segment in log.segments] == [bases[0]]
    assert log.log_end_offset == bases[1] and log.truncated_bytes > 0
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".log") and int(name[:20]) > 0]


def test_segments_adjoin_even_if_offsets_are_missing_where_the_log_rolls(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    batches = fill(log, Random(32), 200, gaps=True)
    assert len(log.segments) > 4
    log.close(clean=False)
    log = open_log(disk, DIRECTORY, clean=False, **SMALL)
    assert read_all(log) == b"".join(batch.data for batch in batches)


@pytest.mark.parametrize("seed", range(40))
def test_what_recovery_cut_stays_cut(seed: int) -> None:
    disk = new_disk(seed)
    log = open_log(disk, DIRECTORY)
    fill(log, Random(33), 20)
    log.flush()
    whole = file_bytes(disk, log_path(0))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    overwrite(disk, log_path(0), bytes(damaged))
    disk.open(log_path(0), create=False).sync()
    log = open_log(disk, DIRECTORY, clean=False)
    size_bytes = log.size_bytes
    assert 0 < size_bytes < len(whole)
    assert len(file_bytes(disk.crash(), log_path(0))) == size_bytes


@pytest.mark.parametrize("damage", ["no index", "producers to replay"])
def test_damage_in_flushed_segments_is_for_a_person(disk: SimulatedDisk, damage: str) -> None:
    log = open_log(disk, DIRECTORY, **SMALL)
    fill(log, Random(34), 100)
    end = log.log_end_offset
    log.close()
    data = file_bytes(disk, log_path(0))
    overwrite(disk, log_path(0), data[:-5])
    if damage == "no index":
        disk.remove(log_path(0, ".index"))
    for name in disk.list(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.remove(f"{DIRECTORY}/{name}")
    for clean in (True, False):
        with pytest.raises(SegmentCorrupt, match=rf"{log_path(0)}: no whole batch at position \d+"):
            open_log(disk, DIRECTORY, clean=clean, recovery_point=end, **SMALL)
        assert len(file_bytes(disk, log_path(0))) == len(data) - 5


def test_a_control_batch_that_kafka_emptied_says_nothing(disk: SimulatedDisk) -> None:
    log = open_log(disk, DIRECTORY)
    append(log, [NOW_MS], producer_id=3, producer_epoch=0, base_sequence=0)
    marker = build_control_batch(False, 3, 0, 1, NOW_MS, base_offset=1, leader_epoch=0)
    empty = assemble(read_header(marker)._replace(records_count=0), b"", Codec.NONE)
    log.append(empty, read_header(empty), 1, 0, NOW_MS)
    before = state(log)
    log.close(clean=False)
    log = open_log(disk, DIRECTORY, clean=False)
    assert (log.log_end_offset, state(log)) == (2, before)


def test_a_swap_that_got_its_name_is_not_taken_for_one_of_the_replaced() -> None:
    """The three compacted segments get their names in any order when the power goes."""
    disk, log = prepared_for_compaction(0)
    old = log.segments[:3]
    new = []
    for source in old:
        segment = Segment.create(
            disk, log._open_files, DIRECTORY, source.base_offset, log.config, NOW_MS, suffix=CLEANED
        )
        *_, (position, header) = source.batches()
        segment.append(
            source.file.read(position, header.size_bytes), header.last_offset, header.max_timestamp_ms, NOW_MS
        )
        segment.complete()
        new.append(segment)
    mark_for_swap(disk, DIRECTORY, new)
    log.begin_replacement([([source], segment) for source, segment in zip(old, new, strict=True)])
    disk.sync_directory(DIRECTORY)
    expected = read_all(log)
    new[1].rename("")
    log = open_log(disk.kill(), DIRECTORY, clean=False, **SMALL)
    assert read_all(log) == expected


@pytest.mark.parametrize("segment_bytes", [1 << 20, 400])
@pytest.mark.parametrize("others", [0, 4])
def test_retries_are_known_after_a_clean_stop_and_after_a_cut(
    disk: SimulatedDisk, segment_bytes: int, others: int
) -> None:
    """Answers may be lost on their way when a broker stops: of all batches that a producer has in flight."""
    log = open_log(disk, DIRECTORY, segment_bytes=segment_bytes)
    sent: dict[int, list[Batch]] = {producer_id: [] for producer_id in range(7, 8 + others)}
    for number in range(12):
        for producer_id, batches in sent.items():
            sequence = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 2 * number}
            batches.append(append(log, [NOW_MS, NOW_MS], **sequence))
    log.close()
    log = open_log(disk, DIRECTORY, segment_bytes=segment_bytes)
    for batches in sent.values():
        for batch in batches[-5:]:
            verdict = log.producers.check(read_header(batch.data))
            assert isinstance(verdict, Duplicate) and verdict.base_offset == batch.base_offset
        assert isinstance(log.producers.check(read_header(batches[-6].data)), Refused), "five, as before"
    cut = sent[7][-2].base_offset
    log.truncate_to(cut)
    for batch in sent[7][-7:-2]:
        verdict = log.producers.check(read_header(batch.data))
        assert isinstance(verdict, Duplicate) and verdict.base_offset == batch.base_offset
    assert log.producers.check(read_header(sent[7][-2].data)) is None, "it is to be written again"
