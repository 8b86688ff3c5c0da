"""Cross-checks with two independent implementations of the format: each reads what the other wrote."""

from collections.abc import Callable
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_python_records
import pytest

from tidelog.records.batch import crc_matches, read_header
from tidelog.records.builder import build_batch, build_control_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records

NOW_MS = 1_700_000_000_000
CLIENTS = [
    pytest.param(kafka_python_records, id="kafka-python"),
    pytest.param(aiokafka_records, id="aiokafka"),
]

RECORDS = [
    Record(0, NOW_MS, b"key", b"value"),
    Record(1, NOW_MS + 70_000, None, b"no key", (("trace", b"abc"), ("empty", b""))),
    Record(2, NOW_MS - 5, b"", b""),
    Record(3, NOW_MS, b"tombstone", None, (("none", None), ("näme", b"\xff\x00"))),
    Record(4, NOW_MS, b"large", bytes(range(256)) * 700),
    *(Record(index, NOW_MS + index, b"k%d" % index, b"value " * index) for index in range(5, 400)),
]


def built_by(client: Any, codec: Codec, records: list[Record]) -> bytes:
    builder = client.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=12,
        producer_epoch=3,
        base_sequence=44,
        batch_size=1 << 30,
    )
    for record in records:
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def read_by(client: Any, batch: bytes) -> list[Record]:
    reader = client.DefaultRecordBatch(bytearray(batch))
    assert reader.validate_crc()
    return [
        Record(
            record.offset,
            record.timestamp,
            record.key if record.key is None else bytes(record.key),
            record.value if record.value is None else bytes(record.value),
            tuple(record.headers),
        )
        for record in reader
    ]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_reads_ours(client: Any, codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec)
    assert read_header(batch).codec is codec
    assert read_by(client, batch) == RECORDS


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("client", CLIENTS)
def test_we_read_the_clients(client: Any, codec: Codec) -> None:
    batch = built_by(client, codec, RECORDS)
    header = read_header(batch)
    assert header.codec is codec
    assert header.size_bytes == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (12, 3, 44)
    assert crc_matches(batch, 0, len(batch))
    assert list(iterate_records(batch)) == RECORDS


@pytest.mark.parametrize("client", CLIENTS)
def test_uncompressed_batches_are_the_same_bytes(client: Any) -> None:
    ours = build_batch(RECORDS, producer_id=12, producer_epoch=3, base_sequence=44, leader_epoch=-1)
    theirs = bytearray(built_by(client, Codec.NONE, RECORDS))
    theirs[12:16] = ours[12:16]  # what a producer puts for the leader epoch is its own choice
    assert ours == bytes(theirs)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("codec", Codec)
def test_clients_read_sparse_and_stamped_batches(client: Any, codec: Codec) -> None:
    kept = [record._replace(offset=record.offset + 1000) for record in RECORDS if record.offset % 3 == 1]
    batch = build_batch(kept, base_offset=1000, codec=codec, keep_offsets=True, last_offset_delta=500)
    assert read_by(client, batch) == kept
    stamped = build_batch(RECORDS, codec=codec, log_append_time_ms=777)
    assert {record.timestamp_ms for record in read_by(client, stamped)} == {777}
    assert {record.timestamp_ms for record in iterate_records(stamped)} == {777}


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "read_type",
    [
        pytest.param(lambda batch: next(iter(_kafka_python_control(batch))), id="kafka-python"),
        pytest.param(lambda batch: next(iter(aiokafka_records.DefaultRecordBatch(batch))), id="aiokafka"),
    ],
)
def test_clients_read_our_end_markers(commit: bool, read_type: Callable[[bytes], Any]) -> None:
    batch = build_control_batch(commit, 5, 1, 9, NOW_MS)
    record = read_type(batch)
    assert bytes(record.key) == bytes([0, 0, 0, int(commit)])
    assert bytes(record.value) == bytes([0, 0, 0, 0, 0, 9])


def _kafka_python_control(batch: bytes) -> Any:
    reader = kafka_python_records.DefaultRecordBatch(bytearray(batch))
    assert reader.is_control_batch
    assert reader.is_transactional
    return reader
