"""Reads the log of a delay partition: in order, to take records over, and single ones that are due.

Where a record begins in the unpacked records of its batch (its place) is noted when it is taken over. Of a
batch that is not compressed only the record itself is read then; compressed ones are unpacked, and the last
few of them are kept, up to `UNPACKED_BYTES_MAX`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog.broker.replicas.partition import Partition
from tidelog.delays.delay_partition import Entry
from tidelog.records.batch import HEADER_SIZE, BatchHeader, iterate_headers, read_header
from tidelog.records.compression import Codec
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.delivery_scan import recent_scans, scan_some
from tidelog.records.record import Record, parse_records, unpacked_records

READ_BYTES = 256 << 10
#: how many records are taken over at a time, before others get their turn
SCANNED_RECORDS = 2_000
#: what is read of a record before it is known how long it is
RECORD_BYTES_GUESSED = 2 << 10
UNPACKED_BYTES_MAX = 4 << 20
_VARINT_BYTES_MAX = 5


class Taken(NamedTuple):
    """A record with its place, or None for what holds none; and the offset to go on from."""

    record: Record | None
    place: int
    next_offset: int


class TakenBatch(NamedTuple):
    """Records of a batch that follow each other and have nothing but times in them."""

    base_offset: int
    due_ms: list[int]
    places: list[int]
    next_offset: int
    #: where the last one ends among the unpacked records
    end: int


#: the delay of the topic for the offsets from one up to another, if it is one for all of them
DelayOf = Callable[[int, int], int | None]


def _no_delay(offset: int, end_offset: int) -> None:
    return None


def committed_records(
    partition: Partition, offset: int, end_offset: int, delay_of: DelayOf = _no_delay
) -> Iterator[Taken | TakenBatch]:
    """The records from an offset up to another, without those of aborted transactions.

    Where `delay_of` says one delay, records are taken over many at a time if they can be. Ends early where no
    more can be read now. The caller may let time pass between two of them.
    """
    while offset < end_offset:
        piece = partition.log.read(offset, READ_BYTES, end_offset)
        if piece is None or not piece.size_bytes:
            return
        data = memoryview(piece.file.read(piece.position, piece.size_bytes))
        aborted = partition.log.aborted_transactions(offset, piece.next_offset)
        before = offset
        for position, header in iterate_headers(data):
            skipped = header.control or any(
                each.producer_id == header.producer_id
                and each.first_offset <= header.base_offset <= each.last_offset
                for each in aborted
                if header.transactional
            )
            if not skipped:
                batch = data[position : position + header.size_bytes]
                yield from _records_of(partition, batch, header, offset, delay_of)
            offset = header.next_offset
            yield Taken(None, 0, offset)
        if offset == before:
            return


def _records_of(
    partition: Partition, batch: memoryview, header: BatchHeader, offset: int, delay_of: DelayOf
) -> Iterator[Taken | TakenBatch]:
    records = unpacked_records(batch, header, partition.decompressed_bytes_max)
    place = 0
    if header.base_offset >= offset:
        for some in _scanned(bytes(records), header, delay_of):
            yield some
            offset, place = some.next_offset, some.end
    records = memoryview(records)
    while place < len(records):
        end = _record_end(records, place)
        record = next(parse_records(records[place:end], header))
        if record.offset >= offset:
            yield Taken(record, place, record.offset + 1)
        place = end


def _scanned(records: bytes, header: BatchHeader, delay_of: DelayOf) -> Iterator[TakenBatch]:
    """The records of a batch, some at a time, up to the first ones that have to be read one by one."""
    stamped = header.log_append_time
    base_ms = header.max_timestamp_ms if stamped else header.base_timestamp_ms
    index = place = 0
    while index < header.records_count:
        count = min(SCANNED_RECORDS, header.records_count - index)
        first_offset = header.base_offset + index
        delay_ms = delay_of(first_offset, first_offset + count)
        if delay_ms is None:
            return
        if count == header.records_count:
            found = recent_scans.take(records, count, base_ms, delay_ms, stamped=stamped)
        else:
            found = scan_some(records, place, index, count, base_ms, delay_ms, stamped=stamped)
        if found is None:
            return
        yield TakenBatch(first_offset, found.due_ms, found.places, first_offset + count, found.end)
        index, place = index + count, found.end


def _record_end(records: memoryview, place: int) -> int:
    """Where the record ends that begins at a place."""
    raw = shift = 0
    position = place
    while True:
        if position >= len(records) or position - place >= _VARINT_BYTES_MAX:
            raise CorruptRecord(f"no record begins at {place}")
        byte = records[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    size = (raw >> 1) ^ -(raw & 1)
    if size <= 0:
        raise CorruptRecord(f"a record of {size} bytes begins at {place}")
    return position + size


class RecordReader:
    """Reads records that were taken over before."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._unpacked: dict[int, tuple[BatchHeader, memoryview]] = {}
        self._unpacked_bytes = 0

    def read(self, entry: Entry) -> Record:
        """Raises CorruptRecord or OSError if it is not there any more."""
        offset = entry.offset
        for header, records in self._unpacked.values():
            if header.base_offset <= offset <= header.last_offset:
                return self._record(records[entry.place :], header, offset)
        log = self._partition.log
        piece = log.read(offset, 1, log.log_end_offset)
        if piece is None or not piece.size_bytes:
            raise CorruptRecord(f"{self._partition} has no record at {offset} any more")
        header = read_header(piece.file.read(piece.position, HEADER_SIZE))
        if header.codec is not Codec.NONE:
            records = self._unpack(memoryview(piece.file.read(piece.position, header.size_bytes)), header)
            return self._record(records[entry.place :], header, offset)
        left = header.size_bytes - HEADER_SIZE - entry.place
        start = piece.position + HEADER_SIZE + entry.place
        data = memoryview(piece.file.read(start, min(left, RECORD_BYTES_GUESSED)))
        size = _record_end(data, 0)
        if size > len(data):
            data = memoryview(piece.file.read(start, min(left, size)))
        return self._record(data, header, offset)

    def _record(self, data: memoryview, header: BatchHeader, offset: int) -> Record:
        record = next(parse_records(data[: _record_end(data, 0)], header))
        if record.offset != offset:
            raise CorruptRecord(f"{self._partition} has the record {record.offset} where {offset} was")
        return record

    def _unpack(self, batch: memoryview, header: BatchHeader) -> memoryview:
        records = memoryview(unpacked_records(batch, header, self._partition.decompressed_bytes_max))
        while self._unpacked and self._unpacked_bytes + len(records) > UNPACKED_BYTES_MAX:
            oldest = next(iter(self._unpacked))
            self._unpacked_bytes -= len(self._unpacked.pop(oldest)[1])
        self._unpacked[header.base_offset] = header, records
        self._unpacked_bytes += len(records)
        return records
