"""Logs for the tests of storage: opening them, filling them, and an independent idea of what they hold."""

from random import Random
from typing import NamedTuple

from tests.support.simulated_disk import SimulatedDisk
from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import iterate_headers, read_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records
from tidelog.storage.disk import Disk
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.readable_log import LogSlice

TOPIC_PARTITION = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


class Batch(NamedTuple):
    """A batch as it was appended."""

    base_offset: int
    next_offset: int
    data: bytes
    timestamps_ms: tuple[int, ...]
    leader_epoch: int


def new_disk(seed: int) -> SimulatedDisk:
    """A disk with the data directory `/data`, which is there to stay."""
    disk = SimulatedDisk(seed=seed)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def open_log(
    disk: Disk,
    directory: str,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    now_ms: int = NOW_MS,
    **config: object,
) -> PartitionLog:
    return PartitionLog.open(
        disk,
        directory,
        TOPIC_PARTITION,
        LogConfig(**config),  # type: ignore[arg-type]
        now_ms=now_ms,
        clean_shutdown=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
    )


def append(
    log: PartitionLog,
    timestamps_ms: list[int],
    *,
    base_offset: int | None = None,
    leader_epoch: int = 0,
    value_bytes: int = 10,
    now_ms: int = NOW_MS,
    **fields: int,
) -> Batch:
    """Append one batch with a record for every timestamp."""
    if base_offset is None:
        base_offset = log.log_end_offset
    data = build_batch(
        [Record(0, timestamp_ms, b"key", b"v" * value_bytes) for timestamp_ms in timestamps_ms],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        **fields,  # type: ignore[arg-type]
    )
    log.append(memoryview(data), read_header(data), base_offset, leader_epoch, now_ms)
    return Batch(base_offset, base_offset + len(timestamps_ms), data, tuple(timestamps_ms), leader_epoch)


def fill(log: PartitionLog, random: Random, count: int, *, gaps: bool = False) -> list[Batch]:
    """Append `count` batches of random sizes; with `gaps`, offsets are missing as after compaction."""
    batches = []
    for number in range(count):
        base_offset = log.log_end_offset + (random.choice([0, 0, 0, 1, 7]) if gaps else 0)
        timestamps_ms = [NOW_MS + number * 10 + random.randint(-50, 50) for _ in range(random.randint(1, 5))]
        batches.append(
            append(
                log,
                timestamps_ms,
                base_offset=base_offset,
                leader_epoch=number * 4 // count,
                value_bytes=random.randint(0, 60),
            )
        )
    return batches


def content(log_slice: LogSlice | None) -> bytes:
    assert log_slice is not None
    data = log_slice.file.read(log_slice.position, log_slice.size_bytes)
    assert len(data) == log_slice.size_bytes
    return data


def read_all(log: PartitionLog, max_bytes: int = 2000) -> bytes:
    """Everything in the log, read as a consumer does: from slice to slice."""
    offset = log.log_start_offset
    pieces = []
    while offset < log.log_end_offset:
        log_slice = log.read(offset, max_bytes, log.log_end_offset)
        assert log_slice is not None
        assert log_slice.next_offset > offset or not log_slice.size_bytes
        if not log_slice.size_bytes:
            break
        pieces.append(content(log_slice))
        offset = log_slice.next_offset
    return b"".join(pieces)


def offsets_and_timestamps(data: bytes) -> list[tuple[int, int]]:
    view = memoryview(data)
    return [
        (record.offset, record.timestamp_ms)
        for position, header in iterate_headers(view)
        for record in iterate_records(view[position : position + header.size_bytes], header)
    ]


def file_bytes(disk: Disk, path: str) -> bytes:
    file = disk.open(path, create=False)
    try:
        return file.read(0, file.size_bytes)
    finally:
        file.close()


def folder(disk: Disk, directory: str) -> dict[str, bytes]:
    """Every file of a partition's folder with its content."""
    return {name: file_bytes(disk, f"{directory}/{name}") for name in disk.list(directory)}


def overwrite(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append(data)
    file.close()
