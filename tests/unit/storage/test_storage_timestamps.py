"""Finding records by time, against a search through all of them."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated_disk import SimulatedDisk
from tests.unit.storage.storage_logs import NOW_MS, append, fill, open_log
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

DIRECTORY = "/data/orders-0"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=4), min_size=1, max_size=60),
    st.integers(0, 60),
    st.booleans(),
)
def test_the_first_record_that_is_new_enough(
    batches: list[list[int]], log_start_offset: int, reopened: bool
) -> None:
    disk = SimulatedDisk(seed=1)
    small: dict[str, Any] = {"segment_bytes": 600, "index_interval_bytes": 150}
    log = open_log(disk, DIRECTORY, **small)
    records: list[tuple[int, int]] = []
    for timestamps_ms in batches:
        batch = append(log, timestamps_ms)
        records.extend(enumerate(timestamps_ms, batch.base_offset))
    log_start_offset = min(log_start_offset, log.log_end_offset)
    log.advance_log_start(log_start_offset)
    if reopened:
        log.close()
        log = open_log(disk, DIRECTORY, log_start_offset=log_start_offset, **small)
    visible = [(offset, time) for offset, time in records if offset >= log_start_offset]
    for timestamp_ms in range(-1, 303, 4):
        expected = next(((time, offset) for offset, time in visible if time >= timestamp_ms), None)
        found = log.offset_by_timestamp(timestamp_ms)
        assert (found and found[:2]) == expected, timestamp_ms


def test_every_timestamp_of_a_longer_log() -> None:
    log = open_log(SimulatedDisk(seed=2), DIRECTORY, segment_bytes=4000, index_interval_bytes=300)
    batches = fill(log, Random(31), 200)
    records = [
        (batch.base_offset + delta, time, batch.leader_epoch)
        for batch in batches
        for delta, time in enumerate(batch.timestamps_ms)
    ]
    for timestamp_ms in sorted({time for _, time, _ in records}):
        offset, time, epoch = next(record for record in records if record[1] >= timestamp_ms)
        assert log.offset_by_timestamp(timestamp_ms) == (time, offset, epoch)
    largest = max(time for _, time, _ in records)
    first = next(offset for offset, time, _ in records if time == largest)
    found = log.max_timestamp()
    assert found is not None and found[:2] == (largest, first)
    assert log.offset_by_timestamp(largest + 1) is None


def test_compressed_batches_and_log_append_time() -> None:
    log = open_log(SimulatedDisk(seed=3), DIRECTORY)
    for base_offset, codec, log_append_time_ms in ((0, Codec.GZIP, None), (3, Codec.ZSTD, NOW_MS + 100)):
        data = build_batch(
            [Record(0, NOW_MS + delta, None, b"v") for delta in range(3)],
            base_offset=base_offset,
            codec=codec,
            log_append_time_ms=log_append_time_ms,
        )
        log.append(data, read_header(data), base_offset, 0, NOW_MS)
    inside = log.offset_by_timestamp(NOW_MS + 1)
    assert inside is not None and inside[:2] == (NOW_MS + 1, 1)
    stamped = log.offset_by_timestamp(NOW_MS + 50)
    assert stamped is not None and stamped[:2] == (NOW_MS + 100, 3)


def test_a_log_without_timestamps_has_none_to_find() -> None:
    log = open_log(SimulatedDisk(seed=4), DIRECTORY)
    assert log.max_timestamp() is None
    append(log, [-1, -1])
    assert log.max_timestamp() is None
    assert log.offset_by_timestamp(0) is None
