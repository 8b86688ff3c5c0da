"""Columns to record batches: Arrow arrays become what Produce sends, without a Python object per record.

The numbers of all records (lengths, time and offset differences) are written as varints, a byte of all of
them at a time; Arrow joins them with keys, values and headers, and what it joins is the body of a batch. Rows
go to partitions as the Java client's default partitioner sends them: the partition column where it has a
number, the murmur2 of the key where there is one, else all rows of a call to one partition that the caller
changes now and then (sticky, KIP-480).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.model.identifiers import NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tidelog.records.batch import HEADER_SIZE, INT32_MAX, MAGIC, TRANSACTIONAL_BIT, BatchHeader
from tidelog.records.builder import assemble
from tidelog.records.compression import Codec

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
#: a record's length, attributes, two differences, two lengths and headers count take no more than this
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
#: what is joined in one go; Arrow's binary arrays end at 2 GiB
ROWS_BYTES_MAX = 256 << 20


class BadRow(ValueError):
    """A row that cannot become a record."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of equal length for one topic; no headers are None."""

    keys: pa.Array
    values: pa.Array
    timestamps_ms: Numbers
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    @property
    def size_bytes(self) -> int:
        """What keys, values and headers take, about."""
        headers_bytes = 0 if self.headers is None else self.headers.nbytes
        return int(self.keys.nbytes + self.values.nbytes + headers_bytes)

    def take(self, order: Numbers) -> "Rows":
        """The rows in another order."""
        picks = pa.array(order)
        headers = None if self.headers is None else self.headers.take(picks)
        return Rows(self.keys.take(picks), self.values.take(picks), self.timestamps_ms[order], headers)

    def slice(self, start: int, count: int) -> "Rows":
        """Some rows, without a copy."""
        headers = None if self.headers is None else self.headers.slice(start, count)
        return Rows(
            self.keys.slice(start, count),
            self.values.slice(start, count),
            self.timestamps_ms[start : start + count],
            headers,
        )


@dataclass(slots=True)
class Stamp:
    """Who writes: what goes into the batch headers, and the next sequence number of each partition."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    transactional: bool = False

    def sequence_after(self, sequence: int, count: int) -> int:
        """Sequences wrap from 2**31 - 1 to 0."""
        return (sequence + count) & INT32_MAX


class EncodedBatch(NamedTuple):
    """One batch for one partition."""

    partition: int
    data: bytearray
    records_count: int


# ---------------------------------------------------------------- partitions


def _binary_parts(array: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """The bytes of a binary array, where each value starts in them, and its length (0 for a null)."""
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32, count=len(array) + array.offset + 1)[
        array.offset :
    ]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts = offsets[:-1].astype(np.int64)
    return data, starts, offsets[1:].astype(np.int64) - starts


def murmur2(keys: pa.Array) -> Hashes:
    """The hash of each key as the Java client computes it; that of a null means nothing."""
    if not len(keys):
        return np.zeros(0, np.uint32)
    data, starts, lengths = _binary_parts(keys)
    # Whole words are read without looking where the data ends.
    data = np.concatenate((data, np.zeros(4, np.uint8)))
    with np.errstate(over="ignore"):
        hashes = _SEED ^ lengths.astype(np.uint32)
        words = lengths // 4
        # Long keys first: those that have a further word are always the first so many.
        order = np.argsort(-words, kind="stable")
        sorted_starts, ascending = starts[order], np.sort(words)
        mixed = hashes[order]
        for word in range(int(words.max())):
            count = len(words) - int(np.searchsorted(ascending, word, side="right"))
            at = sorted_starts[:count] + 4 * word
            bits = data[at].astype(np.uint32)
            for byte in (1, 2, 3):
                bits |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
            bits *= _MULTIPLIER
            bits ^= bits >> np.uint32(24)
            bits *= _MULTIPLIER
            mixed[:count] = (mixed[:count] * _MULTIPLIER) ^ bits
        hashes[order] = mixed
        tails, rest = starts + 4 * words, lengths % 4
        for byte in (2, 1, 0):
            rows = np.flatnonzero(rest > byte)
            hashes[rows] ^= data[tails[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
        rows = np.flatnonzero(rest)
        hashes[rows] *= _MULTIPLIER
        hashes ^= hashes >> np.uint32(13)
        hashes *= _MULTIPLIER
        hashes ^= hashes >> np.uint32(15)
    return hashes


def choose_partitions(
    keys: pa.Array, partition_count: int, sticky_partition: int, explicit: pa.Array | None = None
) -> Numbers:
    """The partition of each row; raises BadRow for one that the topic does not have."""
    assert 0 <= sticky_partition < partition_count
    if keys.null_count == len(keys):
        chosen = np.full(len(keys), sticky_partition, dtype=np.int64)
    else:
        chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partition_count
        if keys.null_count:
            chosen[np.asarray(keys.is_null())] = sticky_partition
    if explicit is not None and explicit.null_count < len(explicit):
        given = explicit.is_valid().to_numpy(zero_copy_only=False)
        numbers = explicit.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = given & ((numbers < 0) | (numbers >= partition_count))
        if wrong.any():
            number = int(numbers[np.flatnonzero(wrong)[0]])
            raise BadRow(f"there is no partition {number}: the topic has {partition_count}")
        chosen = np.where(given, numbers, chosen)
    return chosen


# ---------------------------------------------------------------- varints


def _zigzag(values: Numbers) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_sizes(raw: npt.NDArray[np.uint64]) -> Numbers:
    sizes = np.ones(len(raw), dtype=np.int64)
    rest = raw >> np.uint64(7)
    while rest.any():
        sizes += rest > 0
        rest >>= np.uint64(7)
    return sizes


def _write_varints(out: Bytes, positions: Numbers, raw: npt.NDArray[np.uint64], sizes: Numbers) -> Numbers:
    """Write each number at its position; return the positions after them."""
    for byte in range(int(sizes.max())):
        rows = np.flatnonzero(sizes > byte)
        piece = ((raw[rows] >> np.uint64(7 * byte)) & np.uint64(0x7F)).astype(np.uint8)
        piece[sizes[rows] > byte + 1] |= 0x80
        out[positions[rows] + byte] = piece
    return positions + sizes


def _binary_array(data: Bytes | pa.Buffer, bounds: Numbers) -> pa.Array:
    """A binary array without nulls over bytes that lie next to each other."""
    offsets = np.ascontiguousarray(bounds, dtype=np.int32)
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(offsets), buffer])


def _varint_column(*columns: Numbers, leading_zero: bool = False) -> pa.Array:
    """The varints of several columns, row by row, as one binary array."""
    raws = [_zigzag(column) for column in columns]
    sizes = [_varint_sizes(raw) for raw in raws]
    lead = 1 if leading_zero else 0
    bounds = np.zeros(len(columns[0]) + 1, dtype=np.int64)
    np.cumsum(sum(sizes) + lead, out=bounds[1:])
    out = np.zeros(int(bounds[-1]), dtype=np.uint8)
    positions = bounds[:-1] + lead
    for raw, size in zip(raws, sizes, strict=True):
        positions = _write_varints(out, positions, raw, size)
    return _binary_array(out, bounds)


def _joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """The pieces of each row behind each other; a null counts as nothing."""
    return pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )


def _lengths(array: pa.Array) -> Numbers:
    """The length of each value, -1 for a null."""
    _, _, lengths = _binary_parts(array)
    return np.where(np.asarray(array.is_null()), -1, lengths) if array.null_count else lengths


def _header_column(headers: pa.Array) -> pa.Array:
    """Count and bytes of the headers of each row; a null is none."""
    _, offsets_buffer = headers.buffers()[:2]
    offsets = np.frombuffer(offsets_buffer, np.int32, len(headers) + headers.offset + 1)[headers.offset :]
    entries = headers.values
    keys, values = entries.field(0).cast(pa.binary()), entries.field(1).cast(pa.binary())
    if keys.null_count or entries.null_count:
        raise BadRow("a header has no key")
    counts = np.diff(offsets).astype(np.int64)
    if headers.null_count:
        counts[np.asarray(headers.is_null())] = 0
    if not len(entries):
        return _varint_column(counts)
    each = _joined(_varint_column(_lengths(keys)), keys, _varint_column(_lengths(values)), values)
    # What belongs to a row lies together: the bounds of its entries are those of its headers.
    each_bounds = np.frombuffer(each.buffers()[1], np.int32, len(each) + 1).astype(np.int64)
    starts, ends = each_bounds[offsets[:-1]], each_bounds[offsets[1:]]
    ends = np.where(counts > 0, ends, starts)
    if (starts[1:] != ends[:-1]).any():  # entries under a null row lie between
        return _joined(_varint_column(counts), _gathered(each, starts, ends))
    bounds = np.concatenate((starts, ends[-1:]))
    return _joined(_varint_column(counts), _binary_array(each.buffers()[2], bounds))


def _gathered(pieces: pa.Array, starts: Numbers, ends: Numbers) -> pa.Array:
    count = len(starts)
    bounds = np.empty(2 * count + 1, dtype=np.int64)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = ends[-1]
    return _binary_array(pieces.buffers()[2], bounds).take(pa.array(np.arange(0, 2 * count, 2)))


# ---------------------------------------------------------------- batches


def encode_batches(
    rows: Rows,
    partitions: Numbers,
    sequences: dict[int, int],
    stamp: Stamp,
    *,
    batch_bytes: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> Iterator[EncodedBatch]:
    """The batches of all partitions, each at most about `batch_bytes` before compression, rows in order.

    `sequences` has the next sequence number of each partition and is moved on (idempotent producers).
    """
    if not len(rows):
        return
    if len(rows) > 1 and rows.size_bytes > ROWS_BYTES_MAX:
        half = len(rows) // 2
        for start, count in ((0, half), (half, len(rows) - half)):
            yield from encode_batches(
                rows.slice(start, count),
                partitions[start : start + count],
                sequences,
                stamp,
                batch_bytes=batch_bytes,
                codec=codec,
                level=level,
            )
        return
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")
        rows, partitions = rows.take(order), partitions[order]
    cuts = _batch_cuts(rows, partitions, batch_bytes)
    counts = np.diff(cuts)
    deltas = np.arange(len(rows), dtype=np.int64) - np.repeat(cuts[:-1], counts)
    base_timestamps = rows.timestamps_ms[cuts[:-1]]
    largest = np.maximum.reduceat(rows.timestamps_ms, cuts[:-1])
    data, bounds = _encode_records(rows, rows.timestamps_ms - np.repeat(base_timestamps, counts), deltas)
    for index, first in enumerate(cuts[:-1].tolist()):
        count = int(counts[index])
        partition = int(partitions[first])
        sequence = NO_SEQUENCE
        if stamp.producer_id != NO_PRODUCER_ID:
            sequence = sequences.get(partition, 0)
            sequences[partition] = stamp.sequence_after(sequence, count)
        header = BatchHeader(
            0,
            0,
            NO_EPOCH,
            MAGIC,
            0,
            TRANSACTIONAL_BIT if stamp.transactional else 0,
            count - 1,
            int(base_timestamps[index]),
            int(largest[index]),
            stamp.producer_id,
            stamp.producer_epoch,
            sequence,
            count,
        )
        body = data[bounds[first] : bounds[first + count]]
        yield EncodedBatch(partition, assemble(header, body, codec, level), count)


def _batch_cuts(rows: Rows, partitions: Numbers, batch_bytes: int) -> Numbers:
    """The first row of each batch, and the number of rows: one ends with its partition or when it is full."""
    sizes = np.maximum(_lengths(rows.keys), 0) + np.maximum(_lengths(rows.values), 0) + RECORD_OVERHEAD_MAX
    if rows.headers is not None and len(rows.headers):
        sizes = sizes + rows.headers.nbytes // len(rows.headers)
    ends = np.cumsum(sizes)
    room = max(1, batch_bytes - HEADER_SIZE)
    borders = np.flatnonzero(np.diff(partitions)) + 1
    cuts: list[int] = []
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(partitions)], strict=True):
        while start < end:
            cuts.append(start)
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + room, side="right"))
            start = min(end, max(start + 1, full))
    return np.array([*cuts, len(partitions)], dtype=np.int64)


def _encode_records(
    rows: Rows, timestamp_deltas: Numbers, offset_deltas: Numbers
) -> tuple[memoryview, Numbers]:
    """The bytes of all records, and where each begins and the last one ends."""
    # attributes (a zero byte), timestamp, offset, length of the key
    before_key = _varint_column(timestamp_deltas, offset_deltas, _lengths(rows.keys), leading_zero=True)
    before_value = _varint_column(_lengths(rows.values))
    after_value: pa.Array | pa.Scalar = pa.scalar(b"\x00", pa.binary())
    if rows.headers is not None:
        after_value = _header_column(rows.headers)
    bodies = _joined(before_key, rows.keys, before_value, rows.values, after_value)
    _, _, body_lengths = _binary_parts(bodies)
    records = _joined(_varint_column(body_lengths), bodies)
    bounds = np.frombuffer(records.buffers()[1], np.int32, len(records) + 1).astype(np.int64)
    return memoryview(records.buffers()[2]), bounds
