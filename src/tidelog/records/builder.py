"""The writing of record batches: for tests and clients, for compaction, and for the ends of transactions."""

import struct
from collections.abc import Iterable

from tidelog.model.identifiers import NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from tidelog.records.checksum import crc32c
from tidelog.records.compression import Codec, compress
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import Record, wrap_int64

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

_CONTROL_VERSION = 0
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER_VALUE = struct.Struct(">hi")
_CRC = struct.Struct(">I")


def _varint(value: int) -> bytes:
    """Write a zig-zag varint."""
    raw = (value << 1) ^ (value >> 63)
    output = bytearray()
    while raw > 0x7F:
        output.append((raw & 0x7F) | 0x80)
        raw >>= 7
    output.append(raw)
    return bytes(output)


#: those that most lengths and differences are
_SMALL_VARINTS = tuple(_varint(value) for value in range(1024))


def _number(value: int) -> bytes:
    return _SMALL_VARINTS[value] if 0 <= value < 1024 else _varint(value)


def _size_of(field: bytes | None) -> bytes:
    return _number(-1 if field is None else len(field))


def append_record(output: bytearray, record: Record, offset_delta: int, timestamp_delta_ms: int) -> None:
    """Write one record after the bytes that `output` already has."""
    _, _, key, value, headers = record
    fields = [
        b"\x00",  # the unused attributes
        _number(wrap_int64(timestamp_delta_ms)),
        _number(offset_delta),
        _size_of(key),
        key or b"",
        _size_of(value),
        value or b"",
        _number(len(headers)),
    ]
    for name, content in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        fields += (_number(len(encoded)), encoded, _size_of(content), content or b"")
    body = b"".join(fields)
    output += _number(len(body))
    output += body


def _encode(
    records: Iterable[Record], base_offset: int, base_timestamp_ms: int | None, keep_offsets: bool
) -> tuple[bytearray, int, int, int, int]:
    """Encode the records; return bytes, count, last offset delta, base timestamp and largest timestamp."""
    body = bytearray()
    count = 0
    offset_delta = -1
    largest_timestamp_ms = NO_TIMESTAMP
    for record in records:
        timestamp_ms = record.timestamp_ms
        if base_timestamp_ms is None:
            base_timestamp_ms = timestamp_ms
        if timestamp_ms > largest_timestamp_ms:
            largest_timestamp_ms = timestamp_ms
        if keep_offsets:
            assert record.offset - base_offset > offset_delta, "offsets must ascend from the base offset"
            offset_delta = record.offset - base_offset
        else:
            offset_delta += 1
        append_record(body, record, offset_delta, timestamp_ms - base_timestamp_ms)
        count += 1
    if base_timestamp_ms is None:
        base_timestamp_ms = NO_TIMESTAMP
    return body, count, offset_delta, base_timestamp_ms, largest_timestamp_ms


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_EPOCH,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Build one batch.

    By default the records get the offsets `base_offset`, `base_offset` + 1 and so on, whatever offsets they
    carry. Compaction sets `keep_offsets`, so that each record keeps its own (gaps allowed, ascending), and
    `last_offset_delta` and `max_timestamp_ms`, so that the batch still spans what it spanned before; with
    both of them a batch may be empty. `log_append_time_ms` marks the batch as stamped by the broker.
    `delete_horizon_ms` takes the place of the base timestamp (KIP-534).
    """
    body, count, offset_delta, base_timestamp_ms, largest_timestamp_ms = _encode(
        records, base_offset, delete_horizon_ms, keep_offsets
    )
    if last_offset_delta is None:
        last_offset_delta = offset_delta
    assert last_offset_delta >= max(offset_delta, 0), "the last offset is before that of the last record"
    if log_append_time_ms is not None:
        largest_timestamp_ms = log_append_time_ms
    elif max_timestamp_ms is not None:
        largest_timestamp_ms = max_timestamp_ms
    attributes = LOG_APPEND_TIME_BIT if log_append_time_ms is not None else 0
    attributes |= TRANSACTIONAL_BIT if transactional else 0
    attributes |= CONTROL_BIT if control else 0
    attributes |= DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        largest_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return bytes(assemble(header, body, codec if count else Codec.NONE, level))


def assemble(
    header: BatchHeader, records: bytes | bytearray | memoryview, codec: Codec, level: int | None = None
) -> bytearray:
    """Put a batch together from a header and encoded records, which are compressed with `codec`.

    The header's length, checksum and codec are set to what they must be; its other fields are kept.
    """
    payload = compress(codec, records, level)
    fields = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD + len(payload),
        crc=0,
        attributes=(header.attributes & ~CODEC_MASK) | codec,
    )
    batch = bytearray(HEADER_SIZE)
    HEADER.pack_into(batch, 0, *fields)
    batch += payload
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]))
    return batch


def build_control_batch(
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    *,
    log_append_time: bool = False,
) -> bytes:
    """Build the marker that ends a transaction in one partition; the topic may have LogAppendTime."""
    key = _CONTROL_KEY.pack(_CONTROL_VERSION, CONTROL_COMMIT if commit else CONTROL_ABORT)
    value = _END_MARKER_VALUE.pack(_CONTROL_VERSION, coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        leader_epoch=leader_epoch,
        log_append_time_ms=timestamp_ms if log_append_time else None,
    )


def control_type(record: Record) -> int:
    """Read the type of a control record: CONTROL_ABORT, CONTROL_COMMIT, or a number of other uses."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptRecord("a control record has no version and type in its key")
    version, kind = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptRecord(f"a control record has the version {version}")
    return int(kind)
