"""A log as a follower uses it: batches with the leader's offsets, cuts that a power cut cannot undo."""

from random import Random

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tests.unit.storage.storage_logs import (
    NOW_MS,
    TOPIC_PARTITION,
    append,
    fill,
    new_disk,
    open_log,
    read_all,
)
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.record import Record
from tidelog.storage import checkpoints
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.partition_log import PartitionLog

DIRECTORY = "/data/orders-0"


def replicate(leader: PartitionLog, follower: PartitionLog, pieces: Random) -> None:
    """Copy what the follower has not, in pieces of any number of batches."""
    while follower.log_end_offset < leader.log_end_offset:
        piece = leader.read(follower.log_end_offset, pieces.choice((1, 300, 5000)), leader.log_end_offset)
        assert piece is not None and piece.size_bytes
        data = memoryview(piece.file.read(piece.position, piece.size_bytes))
        found = list(iterate_headers(data))
        views = [data[position : position + header.size_bytes] for position, header in found]
        follower.append_replicated(views, [header for _, header in found], NOW_MS)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_knows_what_the_original_knows(seed: int) -> None:
    random = Random(seed)
    leader = open_log(new_disk(seed), DIRECTORY, segment_bytes=2000, index_interval_bytes=200)
    sequences = {7: 0, 8: 0}
    for _ in range(60):
        producer_id = random.choice((None, 7, 8))
        epoch = max(leader.leader_epochs.latest, 0) + (random.random() < 0.1)
        if producer_id is None:
            append(leader, [NOW_MS] * random.randint(1, 3), leader_epoch=epoch)
        elif random.random() < 0.3 and leader.producers.has_open_transaction(producer_id):
            committed = random.random() < 0.5
            marker = build_control_batch(committed, producer_id, 0, 1, NOW_MS, leader.log_end_offset, epoch)
            [(_, header)] = iterate_headers(memoryview(marker))
            leader.append(memoryview(marker), header, leader.log_end_offset, epoch, NOW_MS)
        else:
            batch = build_batch(
                [Record(0, NOW_MS, None, b"v")],
                base_offset=leader.log_end_offset,
                leader_epoch=epoch,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequences[producer_id],
                transactional=True,
            )
            sequences[producer_id] += 1
            [(_, header)] = iterate_headers(memoryview(batch))
            leader.append(memoryview(batch), header, leader.log_end_offset, epoch, NOW_MS)
    follower = open_log(new_disk(seed), DIRECTORY, segment_bytes=random.choice((700, 3000, 1 << 20)))
    replicate(leader, follower, random)
    assert read_all(follower) == read_all(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert follower.producers.describe() == leader.producers.describe()
    end_offset = leader.log_end_offset
    assert follower.aborted_transactions(0, end_offset) == leader.aborted_transactions(0, end_offset)
    assert follower.last_stable_offset(end_offset) == leader.last_stable_offset(end_offset)


def test_a_cut_inside_a_batch_takes_the_whole_batch() -> None:
    log = open_log(new_disk(1), DIRECTORY)
    append(log, [NOW_MS] * 5)
    append(log, [NOW_MS] * 5)
    assert [log.boundary_at(offset) for offset in (0, 3, 5, 7, 10, 12)] == [0, 0, 5, 5, 10, 12]


def test_an_epoch_that_was_begun_and_not_written_in_can_be_taken_back() -> None:
    log = open_log(new_disk(1), DIRECTORY)
    append(log, [NOW_MS] * 5, leader_epoch=2)
    log.begin_epoch(4)
    log.begin_epoch(3)
    assert log.leader_epochs.entries == ((2, 0), (4, 5))
    log.truncate_to(5)
    assert log.leader_epochs.entries == ((2, 0),)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("seed", range(60))
def test_what_was_cut_stays_cut_through_a_power_cut(seed: int) -> None:
    """A flushed tail is cut, other batches take its place, the power goes: old and new are never mixed."""
    random = Random(seed)
    disk = new_disk(seed)
    directories = open_directories(disk)
    log = directories.open_log(TOPIC_PARTITION, LogConfig(segment_bytes=1500), now_ms=NOW_MS)
    fill(log, random, 40)
    log.flush()
    directories.checkpoint_plan({TOPIC_PARTITION: 0}).run()
    old_plan = directories.checkpoint_plan({TOPIC_PARTITION: 0})
    cut = log.boundary_at(random.randrange(log.log_end_offset))
    kept = read_all(log)[: len(read_all_below(log, cut))]
    log.lower_recovery_point(cut)
    directories.checkpoint_plan({TOPIC_PARTITION: 0}).run()
    old_plan.run()  # a worker thread was late: it must not bring the old recovery point back
    log.truncate_to(cut)
    new = b""
    for number in range(random.randrange(12)):
        new += append(log, [NOW_MS], leader_epoch=9, value_bytes=random.randint(1, 200)).data
        if random.random() < 0.2:
            log.flush()
            if number % 2:
                directories.checkpoint_plan({TOPIC_PARTITION: 0}).run()
    flushed = log.recovery_point
    directories = open_directories(disk.crash())
    log = directories.open_log(TOPIC_PARTITION, LogConfig(segment_bytes=1500), now_ms=NOW_MS)
    content = read_all(log)
    assert (kept + new).startswith(content) and len(content) >= len(kept)
    assert log.log_end_offset >= flushed
    assert all(epoch == 9 or start < cut for epoch, start in log.leader_epochs.entries)


def read_all_below(log: PartitionLog, offset: int) -> bytes:
    data = read_all(log)
    size = 0
    for position, header in iterate_headers(memoryview(data)):
        if header.base_offset >= offset:
            break
        size = position + header.size_bytes
    return data[:size]


def open_directories(disk: SimulatedDisk) -> LogDirectories:
    return LogDirectories.open(disk, ["/data"], cluster_id="c", node_id=1)


def test_a_late_checkpoint_does_not_undo_a_newer_one() -> None:
    disk = new_disk(1)
    directories = open_directories(disk)
    place = TopicPartition("orders", 0)
    directories.open_log(place, LogConfig(), now_ms=NOW_MS)
    late = directories.high_watermark_plan({place: 50})
    directories.checkpoint_plan({place: 40}).run()
    late.run()
    path = f"/data/{checkpoints.REPLICATION_OFFSET_CHECKPOINT}"
    assert checkpoints.read_offsets(disk, path) == {place: 40}
    directories.high_watermark_plan({place: 60}).run()
    assert checkpoints.read_offsets(disk, path) == {place: 60}
