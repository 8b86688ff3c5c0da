"""Batches that no good client sends: the same error code as Kafka's, and nothing of them in the log.

The expected codes are what Apache Kafka 4.3.1 answers (tests/conformance/oracle).
"""

import struct
import time
from collections.abc import Callable

import crc32c
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.conformance.conformance_wire import produce_records, stored_batches
from tests.conformance.drivers.contract import TopicMaker

NONE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP = 0, 2, 3, 21, 32
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_RECORD = 45, 47, 87
GZIP = 1
# Where the fields of a batch lie.
BASE_OFFSET, LENGTH, MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA, COUNT = 0, 8, 16, 17, 21, 23, 57
CONTROL = 0x20


def batch(
    count: int = 3,
    *,
    timestamp_ms: int | None = None,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    key: bytes | None = b"k",
) -> bytearray:
    """A good batch; `producer` is its id, epoch and first sequence number."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 1 << 20)
    at_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    for index in range(count):
        builder.append(index, at_ms, key, b"value %d" % index, [])
    return bytearray(builder.build())


def with_field(position: int, layout: str, value: int, *, checksum: bool = True, codec: int = 0) -> bytes:
    """A batch with one field changed, its checksum made right again unless told otherwise."""
    changed = batch(codec=codec)
    struct.pack_into(layout, changed, position, value)
    if checksum:
        struct.pack_into(">I", changed, CRC, crc32c.crc32c(bytes(changed[ATTRIBUTES:])))
    return bytes(changed)


def with_last_byte_flipped() -> bytes:
    changed = batch()
    changed[-1] ^= 1
    return bytes(changed)


BAD: dict[str, tuple[Callable[[], bytes], int]] = {
    "a wrong checksum": (with_last_byte_flipped, CORRUPT_MESSAGE),
    "magic 1 over a newer layout": (lambda: with_field(MAGIC, ">b", 1, checksum=False), INVALID_RECORD),
    "magic 3": (lambda: with_field(MAGIC, ">b", 3, checksum=False), CORRUPT_MESSAGE),
    "cut short": (lambda: bytes(batch()[:-3]), INVALID_RECORD),
    "no bytes": (lambda: b"", INVALID_RECORD),
    "two batches": (lambda: bytes(batch() + batch()), INVALID_RECORD),
    "a count too low": (lambda: with_field(COUNT, ">i", 2), INVALID_RECORD),
    "a count too high": (lambda: with_field(COUNT, ">i", 4), INVALID_RECORD),
    "a count too low, compressed": (lambda: with_field(COUNT, ">i", 2, codec=GZIP), INVALID_RECORD),
    "a last offset too high": (lambda: with_field(LAST_OFFSET_DELTA, ">i", 9), INVALID_RECORD),
    "a control batch": (lambda: with_field(ATTRIBUTES, ">h", CONTROL), INVALID_RECORD),
    "a length below the header's": (lambda: with_field(LENGTH, ">i", 5, checksum=False), CORRUPT_MESSAGE),
    "a base offset": (lambda: with_field(BASE_OFFSET, ">q", 100, checksum=False), INVALID_RECORD),
    "a time two hours ahead": (
        lambda: bytes(batch(timestamp_ms=int(time.time() * 1000) + 7_200_000)),
        INVALID_TIMESTAMP,
    ),
    "a producer id without sequence": (lambda: bytes(batch(producer=(7777, 0, -1))), INVALID_RECORD),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_batch_is_refused(fault: str, topic: str, bootstrap: str) -> None:
    make, error = BAD[fault]
    assert produce_records(bootstrap, topic, make()) == error
    assert produce_records(bootstrap, topic, bytes(batch())) == NONE
    assert [stored.base_offset for stored in stored_batches(bootstrap, topic)] == [0], (
        "the bad batch left a trace"
    )


@pytest.mark.parametrize("acks", [2, -2])
def test_bad_acks(acks: int, topic: str, bootstrap: str) -> None:
    assert produce_records(bootstrap, topic, bytes(batch()), acks=acks) == INVALID_REQUIRED_ACKS


def test_unknown_partition(topic: str, bootstrap: str) -> None:
    assert produce_records(bootstrap, topic, bytes(batch()), partition=7) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("codec", [0, GZIP])
def test_keyless_on_a_compacted_topic(codec: int, make_topic: TopicMaker, bootstrap: str) -> None:
    topic = make_topic(cleanup_policy="compact")
    assert produce_records(bootstrap, topic, bytes(batch(key=None, codec=codec))) == INVALID_RECORD


def test_a_topic_with_its_own_codec_checks_what_it_rewrites(make_topic: TopicMaker, bootstrap: str) -> None:
    topic = make_topic(compression_type="zstd")
    assert produce_records(bootstrap, topic, with_field(COUNT, ">i", 2)) == INVALID_RECORD


def test_the_sequence_of_a_producer(topic: str, bootstrap: str) -> None:
    """Each step: producer epoch, first sequence number of three records, the answer."""
    steps = [
        (0, 0, NONE),
        (0, 0, NONE),  # the same once more: acknowledged, not written
        (0, 9, OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 3, NONE),
        (1, 0, NONE),
        (0, 6, INVALID_PRODUCER_EPOCH),
        (2, 5, OUT_OF_ORDER_SEQUENCE_NUMBER),
    ]
    for epoch, sequence, error in steps:
        records = bytes(batch(producer=(9999, epoch, sequence)))
        assert produce_records(bootstrap, topic, records) == error, (epoch, sequence)
    stored = [(each.producer_epoch, each.base_sequence) for each in stored_batches(bootstrap, topic)]
    assert stored == [(0, 0), (0, 3), (1, 0)]
