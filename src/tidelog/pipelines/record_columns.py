"""Fetched bytes to columns: many record batches become Arrow arrays without a Python object per record.

Only where a record begins is found by walking, one length after another, since each tells where the next one
is; records of one length are found many at a time. Everything else is read for all records at once: positions
are numpy arrays, varints are read a byte of all of them at a time, and keys and values are cut out of the
buffer by Arrow.

Batches that a reader must not see are left out: control batches, those of aborted transactions (from the
list that comes with a read_committed Fetch), and the records outside the range that was asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_matches,
    iterate_headers,
)
from tidelog.records.builder import CONTROL_COMMIT, control_type
from tidelog.records.compression import Codec, decompress_into
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge
from tidelog.records.record import DECOMPRESSED_BYTES_MAX, RECORD_SIZE_MIN, iterate_records

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: a varint of 64 bits has ten bytes at most
VARINT_BYTES_MAX = 10
#: after the last record: four numbers can be read past its end
_PADDING_BYTES = 4 * VARINT_BYTES_MAX
#: of Arrow's binary arrays
OFFSET_MAX = 2**31 - 1
#: what compressed records become, about
UNPACKED_RATIO_GUESS = 4
#: records whose lengths are read one by one before those that follow are compared with them
WALK_RECORDS_MIN = 32
WALK_RECORDS_MAX = 4096
CREATE_TIME = 0
LOG_APPEND_TIME = 1

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class AbortedTransaction(NamedTuple):
    """A transaction that did not happen, as Fetch lists it."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The records of one partition in a range of offsets, a column for each field."""

    offsets: Numbers
    timestamps_ms: Numbers
    timestamp_types: npt.NDArray[np.int32]
    leader_epochs: npt.NDArray[np.int32]
    keys: pa.Array
    values: pa.Array
    #: None unless asked for
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.offsets)


class _Stretch(NamedTuple):
    """The records of one batch in the joined buffer."""

    header: BatchHeader
    position: int
    end: int


def decode(
    data: bytes | memoryview,
    start_offset: int,
    end_offset: int,
    *,
    aborted: Sequence[AbortedTransaction] | None = None,
    with_headers: bool = False,
    check_crc: bool = True,
) -> tuple[RecordColumns, int]:
    """The records from `start_offset` up to `end_offset`, and the offset to fetch from next.

    `aborted` is the list of a read_committed Fetch, None for read_uncommitted. A batch that was cut off at
    the end of the fetched bytes is left for the next fetch. Raises CorruptRecord.
    """
    view = memoryview(data)
    headers, next_offset = _visible_batches(view, start_offset, end_offset, aborted, check_crc)
    if all(header.codec is Codec.NONE for _, header in headers):
        records, stretches = _in_place(view, headers)
    else:
        records, stretches = _join(view, headers)
    try:
        starts, ends = _record_bounds(records, stretches)
        columns = _columns(records, stretches, starts, ends, start_offset, end_offset, with_headers)
    except IndexError:
        raise CorruptRecord("a record has more fields than the fetched bytes hold") from None
    return columns, min(max(next_offset, start_offset), end_offset)


def _visible_batches(
    view: memoryview,
    start_offset: int,
    end_offset: int,
    aborted: Sequence[AbortedTransaction] | None,
    check_crc: bool,
) -> tuple[list[tuple[int, BatchHeader]], int]:
    """The positions and headers of the batches to show, and the offset after the last one seen."""
    upcoming = sorted(aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    visible: list[tuple[int, BatchHeader]] = []
    next_offset = start_offset
    for position, header in iterate_headers(view):
        if header.magic != MAGIC:
            raise CorruptRecord(f"message format {header.magic} is not read here; it is of Kafka before 0.11")
        if header.base_offset >= end_offset:
            next_offset = end_offset
            break
        size = header.size_bytes
        if check_crc and not crc_matches(view, position, size, header.crc):
            raise CorruptRecord(f"the checksum of the batch at offset {header.base_offset} is wrong")
        next_offset = header.next_offset
        while upcoming and upcoming[-1].first_offset <= header.last_offset:
            aborting.add(upcoming.pop().producer_id)
        if header.control:
            if header.producer_id in aborting and not _commits(view[position : position + size], header):
                aborting.discard(header.producer_id)
            continue
        hidden = aborted is not None and header.transactional and header.producer_id in aborting
        if not hidden and header.last_offset >= start_offset:
            visible.append((position, header))
    return visible, next_offset


def _commits(batch: memoryview, header: BatchHeader) -> bool:
    return any(control_type(record) == CONTROL_COMMIT for record in iterate_records(batch, header))


def _in_place(view: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> tuple[Bytes, list[_Stretch]]:
    """Where each batch without compression lies in what was fetched: nothing is copied."""
    stretches: list[_Stretch] = []
    for position, header in headers:
        begin, end = position + HEADER_SIZE, position + header.size_bytes
        _check_count(header, end - begin)
        stretches.append(_Stretch(header, begin, end))
    return np.frombuffer(view, dtype=np.uint8), stretches


def _check_count(header: BatchHeader, size: int) -> None:
    if header.records_count * RECORD_SIZE_MIN > size:
        raise CorruptRecord(f"{size} bytes cannot hold {header.records_count} records")


def _join(view: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> tuple[Bytes, list[_Stretch]]:
    """All records in one buffer, those of compressed batches unpacked, and where each batch lies in it."""
    guess = sum(
        header.size_bytes if header.codec is Codec.NONE else UNPACKED_RATIO_GUESS * header.size_bytes
        for _, header in headers
    )
    # Not zeroed: most of a guess that is too large is never touched.
    buffer = np.empty(guess + _PADDING_BYTES, dtype=np.uint8)
    stretches: list[_Stretch] = []
    end = 0
    for position, header in headers:
        piece = view[position + HEADER_SIZE : position + LOG_OVERHEAD + header.batch_length]
        buffer, size = _unpack(header.codec, piece, buffer, end)
        _check_count(header, size)
        stretches.append(_Stretch(header, end, end + size))
        end += size
    # The numbers of a record that is too short are read past its end before it is found wrong.
    buffer[end : end + _PADDING_BYTES] = 0
    return buffer[: end + _PADDING_BYTES], stretches


def _unpack(codec: Codec, piece: memoryview, buffer: Bytes, begin: int) -> tuple[Bytes, int]:
    """Write the piece into the buffer, or into a larger one; the buffer, and how much was written."""
    while True:
        room = buffer.data[begin : len(buffer) - _PADDING_BYTES]
        written = decompress_into(codec, piece, room[:DECOMPRESSED_BYTES_MAX])
        if written is not None:
            return buffer, written
        if len(room) >= DECOMPRESSED_BYTES_MAX:
            raise DecompressedTooLarge(DECOMPRESSED_BYTES_MAX)
        larger = np.empty(begin + 4 * max(len(room), len(piece)) + _PADDING_BYTES, dtype=np.uint8)
        larger[:begin] = buffer[:begin]
        buffer = larger


def _record_bounds(data: Bytes, stretches: list[_Stretch]) -> tuple[Positions, Positions]:
    """Where the content of each record starts, after its length, and where it ends."""
    buffer = data.data
    parts: list[Positions] = []
    for stretch in stretches:
        try:
            end = _walk(buffer, data, stretch, parts)
        except IndexError:
            end = -1
        if end != stretch.end:
            raise CorruptRecord(
                f"the records of the batch at offset {stretch.header.base_offset} do not fill it"
            )
    if not parts:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing
    lengths, starts = _read_varints(data, np.concatenate(parts))
    if (lengths < 0).any():
        raise CorruptRecord("a record has a negative length")
    return starts, starts + lengths


def _walk(buffer: memoryview, data: Bytes, stretch: _Stretch, parts: list[Positions]) -> int:
    """Find the records of a batch, one length after another; the position after the last one.

    After some that have the same length, those that follow with the same one are found all at once.
    """
    position, left = stretch.position, stretch.header.records_count
    portion = WALK_RECORDS_MIN
    while left:
        found: list[int] = []
        add = found.append
        for _ in range(min(left, portion)):
            add(position)
            length = buffer[position]
            if length < 0x80:
                position += 1 + (length >> 1)
                continue
            second = buffer[position + 1]
            if second < 0x80:
                position += 2 + ((length & 0x7F | second << 7) >> 1)
            else:
                position = _after_long(buffer, position)
        left -= len(found)
        parts.append(np.array(found, dtype=np.int64))
        size = position - found[-1]
        if size * (len(found) - 1) != found[-1] - found[0]:
            portion = min(2 * portion, WALK_RECORDS_MAX)
        elif left and size:
            same = _same_length(data, found[-1], size, min(left, max(0, stretch.end - position) // size))
            parts.append(same)
            left -= len(same)
            position += len(same) * size
    return position


def _after_long(buffer: memoryview, position: int) -> int:
    """The position after a record of 8 KiB or more."""
    length = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position + (length >> 1)
        if shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptRecord("a number has too many bytes")


def _same_length(data: Bytes, last: int, size: int, count_max: int) -> Positions:
    """The records after the one at `last` that follow each other at the distance `size`, its own size.

    A record whose length is written like that of the one before is as long, so the next one is where it is
    looked for: this is no guess.
    """
    following = last + size * np.arange(1, count_max + 1, dtype=np.int64)
    different = np.zeros(count_max, dtype=bool)
    for index in range(VARINT_BYTES_MAX):
        different |= data[following + index] != data[last + index]
        if data[last + index] < 0x80:
            break
    return following[: int(different.argmax())] if different.any() else following


def _read_varints(data: Bytes, positions: Positions) -> tuple[Numbers, Positions]:
    """The zig-zag varint at each position, and the position after it."""
    byte = data[positions]
    positions = positions + 1
    unsigned = (byte & 0x7F).astype(np.uint64)
    rows = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(rows):
        if shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptRecord("a number has too many bytes")
        byte = data[positions[rows]]
        positions[rows] += 1
        unsigned[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        rows = rows[byte >= 0x80]
        shift += 7
    # Zig-zag: the lowest bit is the sign.
    sign = -(unsigned & np.uint64(1)).astype(np.int64)
    return (unsigned >> np.uint64(1)).astype(np.int64) ^ sign, positions


def cut_out(buffer: pa.Buffer, starts: Positions, lengths: Numbers) -> pa.Array:
    """The bytes at `starts` as a binary array; a negative length makes a null.

    Arrow wants offsets that lie next to each other, so it is told of the gaps as values too and asked to take
    every other one. Where the buffer is too large for Arrow's 32-bit offsets, only what is taken has to fit.
    """
    count = len(starts)
    is_large = buffer.size > OFFSET_MAX
    bounds = np.empty(2 * count, dtype=np.int64 if is_large else np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    kind = pa.large_binary() if is_large else pa.binary()
    pieces = pa.Array.from_buffers(kind, max(0, 2 * count - 1), [None, pa.py_buffer(bounds), buffer])
    every_other = np.arange(0, 2 * count, 2, dtype=np.int32)
    missing = lengths < 0
    taken = pieces.take(pa.array(every_other, mask=missing if missing.any() else None))
    if not is_large:
        return taken
    if int(np.maximum(lengths, 0).sum()) > OFFSET_MAX:
        raise DecompressedTooLarge(OFFSET_MAX)
    return taken.cast(pa.binary())


def _columns(
    data: Bytes,
    stretches: list[_Stretch],
    starts: Positions,
    ends: Positions,
    start_offset: int,
    end_offset: int,
    with_headers: bool,
) -> RecordColumns:
    counts = np.array([stretch.header.records_count for stretch in stretches], dtype=np.int64)
    timestamp_deltas, positions = _read_varints(data, starts + 1)
    offset_deltas, positions = _read_varints(data, positions)
    offsets = _of_batches(stretches, "base_offset", counts) + offset_deltas
    # A batch that straddles the ends of the range is cut down to it; offsets ascend.
    first, last = np.searchsorted(offsets, (start_offset, end_offset))
    wanted = slice(int(first), int(last))
    offsets, positions = offsets[wanted], positions[wanted]
    key_lengths, key_starts = _read_varints(data, positions)
    _check_within(key_starts, key_lengths, ends[wanted])
    value_lengths, value_starts = _read_varints(data, key_starts + np.maximum(key_lengths, 0))
    _check_within(value_starts, value_lengths, ends[wanted])
    header_counts, header_starts = _read_varints(data, value_starts + np.maximum(value_lengths, 0))
    if (header_starts > ends[wanted]).any() or ((header_counts == 0) & (header_starts != ends[wanted])).any():
        raise CorruptRecord("a record has another length than its fields")
    stamps = np.array([stretch.header.log_append_time for stretch in stretches], dtype=bool)
    appended = np.repeat(stamps, counts)[wanted]
    created_ms = (_of_batches(stretches, "base_timestamp_ms", counts) + timestamp_deltas)[wanted]
    appended_ms = _of_batches(stretches, "max_timestamp_ms", counts)[wanted]
    arrow_buffer = pa.py_buffer(data)
    return RecordColumns(
        offsets,
        np.where(appended, appended_ms, created_ms),
        np.where(appended, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32),
        _of_batches(stretches, "partition_leader_epoch", counts)[wanted].astype(np.int32),
        cut_out(arrow_buffer, key_starts, key_lengths),
        cut_out(arrow_buffer, value_starts, value_lengths),
        _read_headers(data.tobytes(), header_counts, header_starts, ends[wanted]) if with_headers else None,
    )


def _of_batches(stretches: list[_Stretch], field: str, counts: Numbers) -> Numbers:
    """A field of the batch headers, repeated for each record."""
    fields = np.array([getattr(stretch.header, field) for stretch in stretches], dtype=np.int64)
    return np.repeat(fields, counts)


def _check_within(starts: Positions, lengths: Numbers, ends: Positions) -> None:
    if (lengths < -1).any() or (starts + np.maximum(lengths, 0) >= ends).any():
        raise CorruptRecord("a key or a value does not fit into its record")


def _read_headers(buffer: bytes, counts: Numbers, starts: Positions, ends: Positions) -> pa.Array:
    """The headers, one record after another: few topics have them, and those have few."""
    rows: list[list[dict[str, object]]] = []
    for count, position, end in zip(counts.tolist(), starts.tolist(), ends.tolist(), strict=True):
        row: list[dict[str, object]] = []
        for _ in range(count):
            key, position = _read_field(buffer, position, end)
            value, position = _read_field(buffer, position, end)
            if key is None:
                raise CorruptRecord("a header has no key")
            row.append({"key": key.decode("utf-8", "replace"), "value": value})
        if position != end:
            raise CorruptRecord("a record has another length than its fields")
        rows.append(row)
    return pa.array(rows, type=HEADERS_TYPE)


def _read_field(buffer: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    unsigned = shift = 0
    while True:
        if position >= end or shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptRecord("a header does not fit into its record")
        byte = buffer[position]
        position += 1
        unsigned |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    length = (unsigned >> 1) ^ -(unsigned & 1)
    if length < 0:
        return None, position
    if position + length > end:
        raise CorruptRecord("a header does not fit into its record")
    return buffer[position : position + length], position + length
