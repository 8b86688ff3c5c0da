"""One record, and the reading of the records of a batch.

Inside a batch (see `batch`) a record is stored as follows; varints are zig-zag, as in Protocol Buffers.

    length            varint   bytes that follow
    attributes        int8     unused
    timestamp_delta   varlong  to the batch's base timestamp
    offset_delta      varint   to the batch's base offset
    key_length        varint   -1 for no key
    key               bytes
    value_length      varint   -1 for no value: a tombstone on a compacted topic
    value             bytes
    headers_count     varint
      each: key_length varint, key (UTF-8), value_length varint (-1 for no value), value

Header keys become str. Bytes that are not UTF-8 survive as surrogates ("surrogateescape") and are written
back unchanged by `builder`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import HEADER_SIZE, BatchHeader, read_header
from tidelog.records.compression import Codec, decompress
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge

__all__ = [
    "DECOMPRESSED_BYTES_MAX",
    "CorruptRecord",
    "DecompressedTooLarge",
    "Record",
    "decompressed_records",
    "iterate_records",
    "parse_records",
    "unpacked_records",
]

DECOMPRESSED_BYTES_MAX = 512 << 20

# Length, attributes, two deltas, key length, value length and headers count, one byte each.
RECORD_SIZE_MIN = 7

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_new_tuple = tuple.__new__


class Record(NamedTuple):
    """A record with its absolute offset and timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def iterate_records(
    batch: bytes | bytearray | memoryview,
    header: BatchHeader | None = None,
    limit_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """Yield the records of the one batch that `batch` holds from its first byte.

    Raises `CorruptRecord`, possibly after some records, when the contents do not follow the format, and
    `DecompressedTooLarge` before the first record when they would take more than `limit_bytes`.
    """
    if header is None:
        if len(batch) < HEADER_SIZE:
            raise CorruptRecord(f"{len(batch)} bytes are too few for the header of a batch")
        header = read_header(batch)
    return parse_records(decompressed_records(batch, header, limit_bytes), header)


def decompressed_records(
    batch: bytes | bytearray | memoryview, header: BatchHeader, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return the bytes of the records of a batch, decompressed."""
    return bytes(unpacked_records(batch, header, limit_bytes))


def unpacked_records(
    batch: bytes | bytearray | memoryview, header: BatchHeader, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes | memoryview:
    """Return the bytes of the records of a batch, decompressed, where they are: nothing is copied."""
    if not HEADER_SIZE <= header.size_bytes <= len(batch):
        raise CorruptRecord(f"the batch claims {header.size_bytes} bytes, but {len(batch)} are there")
    payload = memoryview(batch)[HEADER_SIZE : header.size_bytes]
    codec = header.codec
    if codec is Codec.NONE:
        return payload
    if not header.records_count and not payload:
        return b""  # what compaction leaves of an emptied batch
    return decompress(codec, payload, limit_bytes)


def wrap_int64(value: int) -> int:
    """Wrap a sum of two int64 as Java does: hostile timestamps add up to more than 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


def _read_varint(data: bytes | memoryview, position: int, bits: int) -> tuple[int, int]:
    """Read a zig-zag varint of at most `bits` bits; return it and the position after it."""
    raw = data[position]
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), position + 1
    byte = data[position + 1]
    if byte < 0x80:  # two bytes are written out too, since most numbers need no more
        raw = raw & 0x7F | byte << 7
        return (raw >> 1) ^ -(raw & 1), position + 2
    raw &= 0x7F
    shift = 0
    while byte >= 0x80:
        shift += 7
        if shift >= bits:
            raise CorruptRecord(f"a varint at {position} is longer than {bits} bits")
        byte = data[position + shift // 7]
        raw |= (byte & 0x7F) << shift
    if raw >> bits:
        raise CorruptRecord(f"a varint at {position} is longer than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position + shift // 7 + 1


def _read_field(data: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    """Read a length and as many bytes, or None for the length -1; return the position after it too."""
    length = data[position]
    if length < 0x80:
        length = (length >> 1) ^ -(length & 1)
        position += 1
    else:
        length, position = _read_varint(data, position, 32)
    if length < 0:
        if length != -1:
            raise CorruptRecord(f"negative length {length}")
        return None, position
    field_end = position + length
    if field_end > end:
        raise CorruptRecord(f"a field of {length} bytes runs over the end of its record")
    return data[position:field_end], field_end  # type: ignore[return-value]


def _read_headers(
    data: bytes | memoryview, position: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if count < 0 or count > end - position:
        raise CorruptRecord(f"impossible number of record headers: {count}")
    headers = []
    for _ in range(count):
        key, position = _read_field(data, position, end)
        if key is None:
            raise CorruptRecord("a record header has no key")
        value, position = _read_field(data, position, end)
        headers.append((str(key, "utf-8", "surrogateescape"), value))
    return tuple(headers), position


def parse_records(data: bytes | memoryview, header: BatchHeader) -> Iterator[Record]:
    """Yield the records in `data`, which are the decompressed records of the batch with this header.

    Keys and values are parts of `data`: views of it if it is a view.
    """
    base_offset, base_timestamp_ms = header.base_offset, header.base_timestamp_ms
    append_time_ms = header.max_timestamp_ms if header.log_append_time else None
    size = len(data)
    position = 0
    try:
        for _ in range(header.records_count):
            length, position = _read_varint(data, position, 32)
            end = position + length
            if length < 0 or end > size:
                raise CorruptRecord(f"a record of {length} bytes does not fit in its batch")
            timestamp_ms, position = _read_varint(data, position + 1, 64)
            offset_delta, position = _read_varint(data, position, 32)
            key, position = _read_field(data, position, end)
            value, position = _read_field(data, position, end)
            if data[position] == 0:
                headers: tuple[tuple[str, bytes | None], ...] = ()
                position += 1
            else:
                headers_count, position = _read_varint(data, position, 32)
                headers, position = _read_headers(data, position, end, headers_count)
            if position != end:
                raise CorruptRecord(f"a record says it ends at {end}, but its fields end at {position}")
            if append_time_ms is not None:
                timestamp_ms = append_time_ms
            else:
                timestamp_ms += base_timestamp_ms
                if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
                    timestamp_ms = wrap_int64(timestamp_ms)
            yield _new_tuple(Record, (base_offset + offset_delta, timestamp_ms, key, value, headers))
    except IndexError:
        raise CorruptRecord(f"the records end early, at {size} bytes") from None
    if header.records_count < 0:
        raise CorruptRecord(f"negative number of records: {header.records_count}")
    if position != size:
        raise CorruptRecord(f"{size - position} bytes follow the last record")
