"""Columns against the record-by-record reader: the same records, whatever the batches look like."""

import contextlib
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from tidelog.pipelines import record_columns
from tidelog.pipelines.record_columns import (
    OFFSET_MAX,
    AbortedTransaction,
    RecordColumns,
    cut_out,
    decode,
)
from tidelog.records.batch import read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge
from tidelog.records.record import Record, iterate_records

EVERYTHING = 1 << 60
NOW_MS = 1_700_000_000_000


def some_bytes(random: Random, size_max: int) -> bytes | None:
    return None if random.random() < 0.1 else random.randbytes(random.choice((0, 1, 5, 63, 64, size_max)))


def some_batch(random: Random, base_offset: int) -> bytes:
    """A batch with holes between its offsets, as compaction leaves them."""
    offsets = sorted(random.sample(range(300), random.randint(1, 200)))
    records = [
        Record(
            base_offset + offset,
            NOW_MS + random.randint(-(10**10), 10**10),
            some_bytes(random, 200),
            some_bytes(random, 20_000),
            tuple((f"h{n}", some_bytes(random, 70)) for n in range(random.choice((0, 0, 0, 1, 3)))),
        )
        for offset in offsets
    ]
    codec = random.choice(list(Codec))
    return bytes(build_batch(records, base_offset=base_offset, codec=codec, keep_offsets=True))


def rows(columns: RecordColumns) -> list[Record]:
    assert columns.headers is not None
    headers = [tuple((h["key"], h["value"]) for h in row) for row in columns.headers.to_pylist()]
    fields = (
        columns.offsets.tolist(),
        columns.timestamps_ms.tolist(),
        columns.keys.to_pylist(),
        columns.values.to_pylist(),
        headers,
    )
    return [Record(*row) for row in zip(*fields, strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_columns_are_the_records(seed: int) -> None:
    random = Random(seed)
    batches: list[bytes] = []
    next_offset = random.randint(0, 1000)
    for _ in range(random.randint(1, 8)):
        batches.append(some_batch(random, next_offset))
        next_offset = read_header(batches[-1]).next_offset + random.randint(0, 3)
    expected = [record for batch in batches for record in iterate_records(batch)]
    start, end = sorted(random.sample(range(expected[0].offset, expected[-1].offset + 2), 2))
    data = b"".join(batches)
    columns, after = decode(data, 0, EVERYTHING, with_headers=True)
    assert rows(columns) == expected
    assert after == read_header(batches[-1]).next_offset
    columns, after = decode(data, start, end, with_headers=True)
    assert rows(columns) == [record for record in expected if start <= record.offset < end]
    assert after == end
    cut = random.randrange(len(batches[-1]))
    columns, _ = decode(data[: len(data) - len(batches[-1]) + cut], 0, EVERYTHING, with_headers=True)
    assert rows(columns) == [record for batch in batches[:-1] for record in iterate_records(batch)]


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_records_of_one_length(seed: int) -> None:
    random = Random(seed)
    sizes = [
        size
        for _ in range(random.randint(1, 12))
        for size in [random.choice((0, 30, 57, 58, 59, 100, 8_180, 9_000))] * random.choice((1, 31, 33, 90))
    ]
    records = [
        Record(offset, NOW_MS + random.choice((0, 0, 0, 70)), None, random.randbytes(size), ())
        for offset, size in enumerate(sizes)
    ]
    codec = random.choice(list(Codec))
    batch = bytes(build_batch(records, base_offset=0, codec=codec, keep_offsets=True))
    columns, after = decode(batch, 0, EVERYTHING, with_headers=True)
    assert rows(columns) == records
    assert after == len(records)


def test_aborted_transactions_and_markers_are_left_out() -> None:
    def batch(offset: int, producer_id: int) -> bytes:
        return bytes(
            build_batch(
                [Record(offset, NOW_MS, None, b"%d" % offset, ())],
                base_offset=offset,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=producer_id >= 0,
            )
        )

    def marker(offset: int, producer_id: int, committed: bool) -> bytes:
        return bytes(build_control_batch(committed, producer_id, 0, 0, NOW_MS, offset, 0))

    data = b"".join(
        (
            batch(0, 7),
            batch(1, 8),
            batch(2, -1),
            marker(3, 7, False),
            batch(4, 7),
            marker(5, 8, True),
            marker(6, 7, True),
            batch(7, 7),
            marker(8, 7, False),
        )
    )
    aborted = [AbortedTransaction(7, 0), AbortedTransaction(7, 7)]
    columns, after = decode(data, 0, EVERYTHING, aborted=aborted)
    assert columns.offsets.tolist() == [1, 2, 4]
    assert after == 9
    columns, _ = decode(data, 0, EVERYTHING)
    assert columns.offsets.tolist() == [0, 1, 2, 4, 7]
    columns, after = decode(data, 8, EVERYTHING, aborted=aborted)
    assert (len(columns), after) == (0, 9)


def test_log_append_time_is_the_time_of_all() -> None:
    records = [Record(offset, NOW_MS + offset, None, b"v", ()) for offset in range(3)]
    batch = build_batch(records, base_offset=0, log_append_time_ms=NOW_MS + 99)
    columns, _ = decode(bytes(batch), 0, EVERYTHING)
    assert columns.timestamps_ms.tolist() == [NOW_MS + 99] * 3
    assert columns.timestamp_types.tolist() == [1] * 3


@pytest.mark.parametrize("seed", range(100))
def test_damaged_bytes_are_an_error_or_other_records_but_never_a_crash(seed: int) -> None:
    random = Random(seed)
    damaged = bytearray(some_batch(random, 0))
    for position in random.sample(range(61, len(damaged)), random.randint(1, 4)):
        damaged[position] ^= random.randint(1, 255)
    with pytest.raises(CorruptRecord, match="checksum"):
        decode(bytes(damaged), 0, EVERYTHING)
    with contextlib.suppress(CorruptRecord):
        decode(bytes(damaged), 0, EVERYTHING, with_headers=True, check_crc=False)


def test_records_beyond_two_gigabytes() -> None:
    """Of one piece, unpacked; the buffer of the test is never touched, save for a few bytes."""
    data = np.zeros(OFFSET_MAX + 4096, dtype=np.uint8)
    places = np.array([10, OFFSET_MAX - 2, OFFSET_MAX + 100, OFFSET_MAX + 200], dtype=np.int64)
    for number, place in enumerate(places[:3]):
        data[place : place + 5] = np.frombuffer(b"rec-%d" % number, dtype=np.uint8)
    lengths = np.array([5, 5, 5, -1], dtype=np.int64)
    found = cut_out(pa.py_buffer(data), places, lengths)
    assert found.type == pa.binary() and found.to_pylist() == [b"rec-0", b"rec-1", b"rec-2", None]


def test_a_column_beyond_two_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "OFFSET_MAX", 7)
    places, lengths = np.array([0, 4], dtype=np.int64), np.array([4, 4], dtype=np.int64)
    with pytest.raises(DecompressedTooLarge):
        cut_out(pa.py_buffer(b"12345678"), places, lengths)
    assert cut_out(pa.py_buffer(b"12345678"), places, lengths - 1).to_pylist() == [b"123", b"567"]
