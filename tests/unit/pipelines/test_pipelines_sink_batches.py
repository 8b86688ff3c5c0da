"""Arrow columns to record batches, read back by the reader of single records."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.pipelines.record_batches import (
    BadRow,
    Rows,
    Stamp,
    choose_partitions,
    encode_batches,
    murmur2,
)
from tidelog.records.batch import crc_matches, read_header
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows_of(records: list[Record]) -> Rows:
    return Rows(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        np.array([record.timestamp_ms for record in records], dtype=np.int64),
        pa.array(
            [
                None
                if not record.headers
                else [{"key": key, "value": value} for key, value in record.headers]
                for record in records
            ],
            HEADERS,
        ),
    )


def random_records(seed: int, count: int, *, headers: bool = True) -> list[Record]:
    choose = random.Random(seed)

    def field(limit: int) -> bytes | None:
        return None if choose.random() < 0.1 else choose.randbytes(choose.choice([0, 1, 3, 4, 63, 64, limit]))

    found = []
    for number in range(count):
        row_headers: tuple[tuple[str, bytes | None], ...] = ()
        if headers and choose.random() < 0.4:
            row_headers = tuple((f"h{i}", field(200)) for i in range(choose.randint(1, 3)))
        timestamp_ms = 1_700_000_000_000 + choose.choice([0, -5, 1, 100_000, 2**40, -(2**40)])
        found.append(Record(number, timestamp_ms, field(300), field(9_000), row_headers))
    return found


def read_back(batches: list[Any]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for partition, data, count in batches:
        header = read_header(data)
        assert header.size_bytes == len(data) and header.records_count == count
        assert crc_matches(data, 0, len(data))
        records = list(iterate_records(data))
        assert [record.offset for record in records] == list(range(count))
        assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
        found.setdefault(partition, []).extend(record[1:] for record in records)
    return found


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("seed", range(4))
def test_records_come_back_as_they_were(codec: Codec, seed: int) -> None:
    records = random_records(seed, 700, headers=seed % 2 == 0)
    choose = np.random.default_rng(seed)
    partitions = choose.integers(0, 5, len(records))
    batches = list(encode_batches(rows_of(records), partitions, {}, Stamp(), batch_bytes=20_000, codec=codec))
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for record, partition in zip(records, partitions.tolist(), strict=True):
        expected.setdefault(partition, []).append(record[1:])
    assert read_back(batches) == expected
    assert len(batches) > 5


def test_slices_and_null_headers() -> None:
    records = random_records(9, 300)
    rows = rows_of(records).slice(37, 200)
    batches = list(encode_batches(rows, np.zeros(200, np.int64), {}, Stamp(), batch_bytes=1 << 20))
    assert read_back(batches) == {0: [record[1:] for record in records[37:237]]}


def test_headers_under_a_null_row_are_passed_over() -> None:
    entries = pa.array(
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}, {"key": "c", "value": None}]
    )
    offsets, hidden = pa.array([0, 1, 2, 3], pa.int32()), pa.array([False, True, False])
    headers = pa.ListArray.from_arrays(offsets, entries, mask=hidden)
    values = pa.array([b"x", b"y", b"z"])
    rows = Rows(pa.nulls(3, pa.binary()), values, np.zeros(3, np.int64), headers)
    found = read_back(list(encode_batches(rows, np.zeros(3, np.int64), {}, Stamp(), batch_bytes=1 << 20)))
    assert [record[3] for record in found[0]] == [(("a", b"1"),), (), (("c", None),)]


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS)
    rows = Rows(pa.nulls(1, pa.binary()), pa.array([b"x"]), np.zeros(1, np.int64), headers)
    with pytest.raises(BadRow, match="no key"):
        list(encode_batches(rows, np.zeros(1, np.int64), {}, Stamp(), batch_bytes=1 << 20))


def test_batches_stay_within_their_size() -> None:
    records = [Record(0, 0, b"k", bytes(100), ()) for _ in range(1_000)]
    batches = list(
        encode_batches(rows_of(records), np.zeros(1_000, np.int64), {}, Stamp(), batch_bytes=16_384)
    )
    assert all(len(data) <= 16_384 for _, data, _ in batches)
    assert len(batches) < 12
    large = [Record(0, 0, None, bytes(50_000), ()) for _ in range(3)]
    batches = list(encode_batches(rows_of(large), np.zeros(3, np.int64), {}, Stamp(), batch_bytes=16_384))
    assert [count for _, _, count in batches] == [1, 1, 1]


def test_sequences_go_on_for_each_partition_and_wrap() -> None:
    records = [Record(0, 0, None, b"v", ()) for _ in range(10)]
    sequences = {0: 2**31 - 3, 1: 7}
    stamp = Stamp(producer_id=4_711, producer_epoch=3, transactional=True)
    partitions = np.array([0, 1] * 5)
    for _ in range(2):
        for partition, data, count in encode_batches(
            rows_of(records), partitions, sequences, stamp, batch_bytes=1 << 20
        ):
            header = read_header(data)
            assert (header.producer_id, header.producer_epoch, header.transactional) == (4_711, 3, True)
            assert (header.last_sequence + 1) & (2**31 - 1) == sequences[partition]
            assert count == 5
    assert sequences == {0: 7, 1: 17}


def java_murmur2(data: bytes) -> int:
    """One key at a time, from the description of the algorithm."""
    mask = 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    for start in range(0, len(data) - len(data) % 4, 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0x5BD1E995 & mask
        word = (word ^ (word >> 24)) * 0x5BD1E995 & mask
        value = (value * 0x5BD1E995 & mask) ^ word
    tail = data[len(data) - len(data) % 4 :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & mask
    value = (value ^ (value >> 13)) * 0x5BD1E995 & mask
    return value ^ (value >> 15)


def test_murmur2() -> None:
    # from the Java client's own tests, as unsigned numbers
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert murmur2(pa.array(list(known))).astype(np.int32).tolist() == list(known.values())
    choose = random.Random(1)
    keys = [choose.randbytes(choose.randint(0, 70)) for _ in range(3_000)]
    assert murmur2(pa.array(keys)).tolist() == [java_murmur2(key) for key in keys]
    assert murmur2(pa.array(keys).slice(11, 50)).tolist() == [java_murmur2(key) for key in keys[11:61]]
    assert murmur2(pa.array([], pa.binary())).tolist() == []


def test_partitions_of_keys_nulls_and_the_column() -> None:
    keys = pa.array([b"21", None, b"abc", None], pa.binary())
    by_key = [(java_murmur2(key) & 0x7FFFFFFF) % 7 for key in (b"21", b"abc")]
    assert choose_partitions(keys, 7, 3).tolist() == [by_key[0], 3, by_key[1], 3]
    explicit = pa.array([None, None, 6, 0], pa.int32())
    assert choose_partitions(keys, 7, 3, explicit).tolist() == [by_key[0], 3, 6, 0]
    assert choose_partitions(pa.nulls(2, pa.binary()), 7, 5).tolist() == [5, 5]
    with pytest.raises(BadRow, match="no partition 7"):
        choose_partitions(keys, 7, 3, pa.array([7, None, None, None], pa.int32()))
