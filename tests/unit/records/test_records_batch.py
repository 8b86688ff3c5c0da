"""The batch header: its fields, its checksum, the walk over a buffer, and the in-place patches."""

import struct

import pytest

from tidelog.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    crc_matches,
    iterate_headers,
    patch_offset_and_epoch,
    read_header,
)
from tidelog.records.builder import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    build_batch,
    build_control_batch,
    control_type,
)
from tidelog.records.compression import Codec
from tidelog.records.record import CorruptRecord, Record, iterate_records

NOW_MS = 1_700_000_000_000


def records(count: int = 3) -> list[Record]:
    return [Record(index, NOW_MS + index, b"k%d" % index, b"v%d" % index) for index in range(count)]


def header_with(**fields: int) -> BatchHeader:
    return read_header(build_batch(records()))._replace(**fields)


def test_header_fields_stand_where_the_format_says() -> None:
    batch = build_batch(
        records(),
        base_offset=70,
        leader_epoch=5,
        producer_id=99,
        producer_epoch=4,
        base_sequence=17,
        transactional=True,
    )
    header = read_header(batch)
    assert struct.unpack_from(">q", batch, 0) == (70,)
    assert struct.unpack_from(">i", batch, 8) == (len(batch) - LOG_OVERHEAD,)
    assert struct.unpack_from(">i", batch, 12) == (5,)
    assert batch[16] == 2
    assert struct.unpack_from(">h", batch, 21) == (0b10000,)
    assert struct.unpack_from(">iqqqhii", batch, 23) == (2, NOW_MS, NOW_MS + 2, 99, 4, 17, 3)
    assert header[:4] == (70, len(batch) - 12, 5, 2)
    assert header[5:] == (0b10000, 2, NOW_MS, NOW_MS + 2, 99, 4, 17, 3)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (len(batch), 72, 73)
    assert header.transactional
    assert not header.control
    assert not header.log_append_time
    assert header.timestamp_type == "CreateTime"


def crc32c_bit_by_bit(data: bytes) -> int:
    """CRC-32C as its definition says: the Castagnoli polynomial, reflected, inverted at both ends."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_batch_of_known_bytes_is_read() -> None:
    """A batch put together by hand from the format's description, not by the builder under test."""
    record = bytes([0, 2, 0, 2, 0x6B, 4, 0x76, 0x76, 2, 2, 0x68, 1])  # ts +1, offset 0, "k", "vv", h=null
    after_crc = struct.pack(">hiqqqhii", 0, 0, 1000, 1001, -1, -1, -1, 1) + bytes([len(record) * 2]) + record
    before_crc = struct.pack(">qiib", 40, 9 + len(after_crc), 0, 2)
    assert crc32c_bit_by_bit(b"123456789") == 0xE3069283  # the check value of the CRC's definition
    batch = before_crc + struct.pack(">I", crc32c_bit_by_bit(after_crc)) + after_crc
    assert crc_matches(batch, 0, len(batch))
    assert list(iterate_records(batch)) == [Record(40, 1001, b"k", b"vv", (("h", None),))]


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 3, 8), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 2, 4, 2), (-1, 5, -1)],
)
def test_last_sequence_wraps_to_zero(base: int, delta: int, last: int) -> None:
    assert header_with(base_sequence=base, last_offset_delta=delta).last_sequence == last


def test_unknown_codec_is_corrupt() -> None:
    assert header_with(attributes=4).codec is Codec.ZSTD
    for number in (5, 6, 7):
        with pytest.raises(CorruptRecord):
            _ = header_with(attributes=number).codec


def test_crc_covers_everything_after_it_and_nothing_before() -> None:
    batch = build_batch(records())
    for position in range(len(batch)):
        flipped = bytearray(batch)
        flipped[position] ^= 1
        assert crc_matches(flipped, 0, len(flipped)) is (position < 17), position
    padded = b"....." + batch + b"..."
    assert crc_matches(memoryview(padded), 5, len(batch), read_header(batch).crc)


def test_iterate_headers_ends_at_every_torn_tail() -> None:
    batches = [build_batch(records(count), base_offset=count * 10) for count in (1, 2, 3)]
    log = b"".join(batches)
    ends = [len(batches[0]), len(batches[0] + batches[1]), len(log)]
    for size in range(len(log) + 1):
        found = [
            (position, header.base_offset) for position, header in iterate_headers(memoryview(log)[:size])
        ]
        assert found == list(zip([0, *ends], [10, 20, 30], strict=False))[: sum(end <= size for end in ends)]


@pytest.mark.parametrize("junk", [bytes(200), b"\xff" * 200, struct.pack(">qi", 0, -12) + bytes(200)])
def test_iterate_headers_ends_at_junk(junk: bytes) -> None:
    batch = build_batch(records())
    assert [position for position, _ in iterate_headers(memoryview(batch + junk))] == [0]


def test_patch_offset_and_epoch_keeps_the_checksum() -> None:
    batch = bytearray(b"??" + build_batch(records()))
    patch_offset_and_epoch(batch, 2, 2**40, 77)
    header = read_header(batch, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 77)
    assert crc_matches(batch, 2, len(batch) - 2)
    assert [record.offset for record in iterate_records(batch[2:])] == [2**40, 2**40 + 1, 2**40 + 2]


def test_compaction_keeps_offsets_and_the_end_of_the_batch() -> None:
    kept = [record for record in records(10) if record.offset in (2, 7)]
    batch = build_batch(
        kept, base_offset=0, keep_offsets=True, last_offset_delta=9, delete_horizon_ms=NOW_MS - 500
    )
    header = read_header(batch)
    assert list(iterate_records(batch)) == kept
    assert (header.last_offset, header.records_count) == (9, 2)
    assert header.delete_horizon_ms == NOW_MS - 500
    assert header.max_timestamp_ms == NOW_MS + 7


def test_an_emptied_batch_keeps_its_span() -> None:
    batch = build_batch(
        [], base_offset=50, codec=Codec.ZSTD, last_offset_delta=4, max_timestamp_ms=NOW_MS, producer_id=3,
        producer_epoch=0, base_sequence=8,
    )  # fmt: skip
    header = read_header(batch)
    assert len(batch) == HEADER_SIZE
    assert (header.next_offset, header.max_timestamp_ms, header.last_sequence) == (55, NOW_MS, 12)
    assert list(iterate_records(batch)) == []


@pytest.mark.parametrize(("commit", "kind"), [(True, CONTROL_COMMIT), (False, CONTROL_ABORT)])
def test_control_batch(commit: bool, kind: int) -> None:
    batch = build_control_batch(commit, 8, 2, 31, NOW_MS, base_offset=5)
    header = read_header(batch)
    (record,) = iterate_records(batch)
    assert (header.control, header.transactional, header.producer_id, header.base_sequence) == (
        True,
        True,
        8,
        -1,
    )
    assert control_type(record) == kind
    assert record.key == struct.pack(">hh", 0, kind)
    assert record.value == struct.pack(">hi", 0, 31)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_control_type_of_a_malformed_key(key: bytes | None) -> None:
    with pytest.raises(CorruptRecord):
        control_type(Record(0, 0, key, b""))
