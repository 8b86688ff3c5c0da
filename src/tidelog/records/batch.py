"""The record batch of magic version 2: its layout, its header, its checksum, and the in-place patches.

A batch looks the same on the wire and on disk. All numbers are big-endian.

    position  size  field
           0     8  base_offset               int64    offset of the first record; the leader sets it
           8     4  batch_length              int32    bytes that follow this field
          12     4  partition_leader_epoch    int32    the leader sets it
          16     1  magic                     int8     2
          17     4  crc                       uint32   CRC-32C of everything from attributes to the end
          21     2  attributes                int16    see below
          23     4  last_offset_delta         int32    last_offset - base_offset, kept by compaction
          27     8  base_timestamp_ms         int64    first record's timestamp, or the delete horizon
          35     8  max_timestamp_ms          int64    largest timestamp, or the log append time
          43     8  producer_id               int64    -1 without idempotence
          51     2  producer_epoch            int16
          53     4  base_sequence             int32
          57     4  records_count             int32
          61     …  records, compressed as one block by the codec of the attributes

    attributes   15 … 7 │    6           │   5     │      4        │       3         │ 2 1 0
                 unused │ delete horizon │ control │ transactional │ log append time │ codec

The first three fields and magic are outside the checksum, so the leader assigns offsets and epoch without
reading the batch again. Records store offsets and timestamps as differences to the base (see `record`).
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.records.checksum import crc32c
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord

HEADER_SIZE = 61
LOG_OVERHEAD = 12
MAGIC = 2

CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
_LAST_ATTRIBUTES_BYTE = ATTRIBUTES_POSITION + 1
LAST_OFFSET_DELTA_POSITION = 23
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43

CODEC_MASK = 0b0000_0111
LOG_APPEND_TIME_BIT = 0b0000_1000
TRANSACTIONAL_BIT = 0b0001_0000
CONTROL_BIT = 0b0010_0000
DELETE_HORIZON_BIT = 0b0100_0000

INT32_MAX = 2**31 - 1

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_POSITION = 12
#: base offset, length, leader epoch
_START = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_CODECS = tuple(Codec)

assert HEADER.size == HEADER_SIZE


class BatchHeader(NamedTuple):
    """The thirteen fields of a batch header, in the order in which they are stored."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch with its header."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; sequences wrap from 2**31 - 1 to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX

    @property
    def codec(self) -> Codec:
        """The codec of the records; raises `CorruptRecord` for a number that no codec has."""
        number = self.attributes & CODEC_MASK
        if number >= len(_CODECS):
            raise CorruptRecord(f"unknown compression codec {number}")
        return _CODECS[number]

    @property
    def log_append_time(self) -> bool:
        """Whether all records carry the broker's time (`max_timestamp_ms`) rather than their own."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def timestamp_type(self) -> str:
        """The value of `message.timestamp.type` under which the batch was written."""
        return "LogAppendTime" if self.attributes & LOG_APPEND_TIME_BIT else "CreateTime"

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which tombstones may go (KIP-534), where `base_timestamp_ms` is that."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None


_unpack_header = HEADER.unpack_from
_new_tuple = tuple.__new__


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Read the header at `position`. The caller has made sure that HEADER_SIZE bytes are there."""
    return _new_tuple(BatchHeader, _unpack_header(buffer, position))


def is_transactional(batch: memoryview | None) -> bool:
    """Whether a produced batch belongs to a transaction, by a look at one byte of its header."""
    return (
        batch is not None
        and len(batch) >= HEADER_SIZE
        and batch[_LAST_ATTRIBUTES_BYTE] & TRANSACTIONAL_BIT != 0
    )


def checksum(buffer: bytes | bytearray | memoryview, position: int, size_bytes: int) -> int:
    """Compute the CRC-32C of the batch at `position` over the bytes that it covers, without a copy."""
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : position + size_bytes])


def crc_matches(
    buffer: bytes | bytearray | memoryview, position: int, size_bytes: int, crc: int | None = None
) -> bool:
    """Say whether the batch at `position` has the checksum `crc`, or the stored one if none is given."""
    if crc is None:
        crc = _CRC.unpack_from(buffer, position + CRC_POSITION)[0]
    return checksum(buffer, position, size_bytes) == crc


def iterate_headers(buffer: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every batch, ending where no whole batch of magic 2 stands.

    A torn tail, zeros or other junk end the iteration; a caller that must know compares the end of the last
    batch with the size of the buffer. Checksums are not looked at.
    """
    position = 0
    size_bytes = len(buffer)
    while position + HEADER_SIZE <= size_bytes:
        header = read_header(buffer, position)
        end = position + header.batch_length + LOG_OVERHEAD
        if header.magic != MAGIC or end < position + HEADER_SIZE or end > size_bytes:
            return
        yield position, header
        position = end


_patch_offset = _OFFSET.pack_into
_patch_leader_epoch = _LEADER_EPOCH.pack_into
_patch_start = _START.pack_into


def patch_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Write what the leader assigns; neither field is covered by the checksum."""
    _patch_offset(buffer, position, base_offset)
    _patch_leader_epoch(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)


def assign_offsets(views: Sequence[memoryview], offsets: Sequence[int], leader_epoch: int) -> None:
    """Do the same for several batches, each of which fills its view."""
    for view, base_offset in zip(views, offsets, strict=True):
        _patch_start(view, 0, base_offset, len(view) - LOG_OVERHEAD, leader_epoch)


def patch_max_timestamp(
    buffer: bytearray | memoryview, position: int, size_bytes: int, attributes: int, max_timestamp_ms: int
) -> int:
    """Write attributes and largest timestamp; compute, write and return the checksum."""
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _TIMESTAMP.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp_ms)
    crc = checksum(buffer, position, size_bytes)
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)
    return crc
