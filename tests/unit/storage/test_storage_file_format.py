"""The files of a segment, read by readers that are not ours; and a segment that is not ours, served by us."""

import struct
from pathlib import Path
from random import Random
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AioMemoryRecords
from kafka.record.memory_records import MemoryRecords

from tests.unit.storage.storage_logs import (
    NOW_MS,
    append,
    content,
    fill,
    offsets_and_timestamps,
    open_log,
    overwrite,
    read_all,
)
from tidelog.records.batch import patch_offset_and_epoch
from tidelog.storage.disk import OsDisk

INDEX_INTERVAL_BYTES = 700


def batches_of(data: bytes) -> list[tuple[int, int, int, int]]:
    """Position, base offset, last offset and largest timestamp of every batch, by Kafka's own drawing."""
    batches, position = [], 0
    while position < len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        (last_offset_delta,) = struct.unpack_from(">i", data, position + 23)
        (max_timestamp,) = struct.unpack_from(">q", data, position + 35)
        batches.append((position, base_offset, base_offset + last_offset_delta, max_timestamp))
        position += 12 + length
    assert position == len(data)
    return batches


def test_segments_are_named_by_base_offset_and_read_by_kafka_python(tmp_path: Path) -> None:
    log = open_log(
        OsDisk(), str(tmp_path / "p"), segment_bytes=6000, index_interval_bytes=INDEX_INTERVAL_BYTES
    )
    batches = fill(log, Random(1), 200)
    log.close()
    names = sorted(path.name for path in (tmp_path / "p").glob("*.log"))
    assert len(names) > 3
    expected = [pair for batch in batches for pair in offsets_and_timestamps(batch.data)]
    for reader in (MemoryRecords, AioMemoryRecords):
        found: list[tuple[int, int]] = []
        for name in names:
            data = (tmp_path / "p" / name).read_bytes()
            assert int(name.removesuffix(".log")) == batches_of(data)[0][1]
            records = reader(data)
            while records.has_next():
                batch = records.next_batch()
                assert batch.validate_crc()
                found.extend((record.offset, record.timestamp) for record in batch)
        assert found == expected


def test_index_entries_are_kafkas(tmp_path: Path) -> None:
    log = open_log(
        OsDisk(), str(tmp_path / "p"), segment_bytes=6000, index_interval_bytes=INDEX_INTERVAL_BYTES
    )
    fill(log, Random(2), 200)
    log.close()
    for path in sorted((tmp_path / "p").glob("*.log")):
        base_offset = int(path.stem)
        batches = batches_of(path.read_bytes())
        # Kafka's rule, spelled out: an entry for the batch before which more than the interval was appended.
        offset_entries: list[Any] = []
        time_entries: list[Any] = []
        largest, since_entry, size = (-1, 0), 0, path.stat().st_size
        ends = [position for position, *_ in batches[1:]] + [size]
        for (position, _, last_offset, max_timestamp), end in zip(batches, ends, strict=True):
            if max_timestamp > largest[0]:
                largest = (max_timestamp, last_offset)
            if since_entry > INDEX_INTERVAL_BYTES:
                offset_entries.append((last_offset - base_offset, position))
                if not time_entries or largest[0] > time_entries[-1][0]:
                    time_entries.append((largest[0], largest[1] - base_offset))
                since_entry = 0
            since_entry += end - position
        if not time_entries or largest[0] > time_entries[-1][0]:
            time_entries.append((largest[0], largest[1] - base_offset))
        assert offset_entries
        assert list(struct.iter_unpack(">ii", path.with_suffix(".index").read_bytes())) == offset_entries
        assert list(struct.iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes())) == time_entries


def test_rebuilt_indexes_are_those_of_appending(tmp_path: Path) -> None:
    log = open_log(
        OsDisk(), str(tmp_path / "p"), segment_bytes=6000, index_interval_bytes=INDEX_INTERVAL_BYTES
    )
    fill(log, Random(3), 200)
    log.close()
    indexes = [path for path in sorted((tmp_path / "p").iterdir()) if path.suffix in (".index", ".timeindex")]
    before = [path.read_bytes() for path in indexes]
    for path in indexes:
        path.unlink()
    log = open_log(
        OsDisk(), str(tmp_path / "p"), segment_bytes=6000, index_interval_bytes=INDEX_INTERVAL_BYTES
    )
    log.close()
    assert [path.read_bytes() for path in indexes] == before


def test_a_segment_built_by_aiokafka_is_served(tmp_path: Path) -> None:
    segment = bytearray()
    expected = []
    for number in range(50):
        builder = DefaultRecordBatchBuilder(2, number % 2, 0, -1, -1, -1, 1 << 20)
        base_offset = 100 + 3 * number
        for delta in range(3):
            timestamp_ms = NOW_MS + number * 10 + delta
            builder.append(delta, timestamp_ms, b"k", b"v" * 50, [("h", b"x")])
            expected.append((base_offset + delta, timestamp_ms))
        batch = bytearray(builder.build())
        patch_offset_and_epoch(batch, 0, base_offset, 4)
        segment += batch
    disk = OsDisk()
    disk.make_directory(str(tmp_path / "p"))
    overwrite(disk, str(tmp_path / "p" / f"{100:020d}.log"), bytes(segment))
    log = open_log(disk, str(tmp_path / "p"), clean=False, index_interval_bytes=INDEX_INTERVAL_BYTES)
    assert (log.log_start_offset, log.log_end_offset) == (100, 250)
    assert offsets_and_timestamps(read_all(log)) == expected
    assert offsets_and_timestamps(content(log.read(151, 1, 250))) == expected[51:54]
    found = log.offset_by_timestamp(NOW_MS + 251)
    assert found is not None and found.offset == 176
    assert log.leader_epochs.latest == 4
    append(log, [NOW_MS + 1000])
    assert log.log_end_offset == 251
