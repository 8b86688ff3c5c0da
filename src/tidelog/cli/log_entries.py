"""What a broker's files say, as values: read from the bytes alone, without a lock and without the broker.

`reader_for(path)` picks the reader by the file's name; it yields frozen entries in file order, ending with
a `Summary`. Damage is an entry too (`crc_ok=False`, `Damage`), never an exception: broken files are what
this is for. `log_text` turns entries into sentences.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidelog.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, crc_matches, read_header
from tidelog.records.checksum import crc32c
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import iterate_records
from tidelog.storage.index_entries import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexContent,
    OffsetIndexEntry,
    TimeIndexEntry,
    read_offset_entries,
    read_time_entries,
)

_TRANSACTION_INDEX_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_START = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_TYPES = {0: "ABORT", 1: "COMMIT"}
_LEADING_DIGITS = re.compile(r"(\d{20})\.")


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch: the 61-byte header and the state of its checksum."""

    position: int
    base_offset: int
    last_offset: int
    records_count: int
    size_bytes: int
    crc: int
    crc_ok: bool
    codec: str
    timestamp_type: str
    base_timestamp_ms: int
    max_timestamp_ms: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A record inside a batch; `marker` is COMMIT or ABORT for the record of a control batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    marker: str | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what they should be, and what the broker does about them."""

    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """What the log knew of one idempotent producer when the snapshot was taken."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction, which read_committed consumers skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A row of a checkpoint file: an epoch, or a topic and partition, with an offset."""

    subject: str
    offset: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a file: how many entries, and how many of them are damaged."""

    entries_count: int
    damaged_count: int
    note: str


Entry = (
    Batch
    | BatchRecord
    | Damage
    | OffsetIndexEntry
    | TimeIndexEntry
    | ProducerEntry
    | AbortedTransaction
    | CheckpointRow
    | Summary
)


def base_offset_of(path: Path) -> int | None:
    """The offset in a segment file's name, or None."""
    found = _LEADING_DIGITS.match(path.name)
    return int(found[1]) if found is not None else None


def reader_for(path: Path) -> Callable[[Path], Iterator[Entry]] | None:
    """The reader of this kind of file, or None when the name says nothing we know."""
    # A file on its way out (.deleted) or in (.cleaned, .swap) has the format of what it was or will be.
    name = re.sub(r"\.(deleted|cleaned|swap)$", "", path.name)
    for ending, reader in _READERS.items():
        if name.endswith(ending):
            return reader
    return None


def known_endings() -> tuple[str, ...]:
    return tuple(_READERS)


def read_log(path: Path, *, with_records: bool = True) -> Iterator[Entry]:
    """The batches of a segment, their records, and what is wrong with the tail."""
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        yield Summary(0, 0, "the file is empty: no record was written to this segment yet")
        return
    with path.open("rb") as file:
        yield from _read_batches(file, size_bytes, with_records)


def _read_batches(file: BinaryIO, size_bytes: int, with_records: bool) -> Iterator[Entry]:
    """Read batch by batch; the file is not mapped, because a running broker may cut it meanwhile."""
    position, batches, records, damaged = 0, 0, 0, 0
    first_offset: int | None = None
    last_offset = -1
    while position < size_bytes:
        start = file.read(HEADER_SIZE)
        fault = _torn(start, size_bytes - position)
        if fault is not None:
            damaged += 1
            yield Damage(position, size_bytes - position, fault)
            break
        header = read_header(start)
        content = start + file.read(header.size_bytes - HEADER_SIZE)
        batch = _batch(content, position, header)
        yield batch
        batches += 1
        records += header.records_count
        first_offset = header.base_offset if first_offset is None else first_offset
        last_offset = header.last_offset
        damaged += not batch.crc_ok
        if with_records:
            for entry in _records(content, header, position):
                damaged += isinstance(entry, Damage)
                yield entry
        position += header.size_bytes
    note = f"{batches} batches with {records} records"
    if first_offset is not None:
        note += f", offsets {first_offset} to {last_offset}"
    yield Summary(batches, damaged, note)


def _torn(start: bytes, left: int) -> str | None:
    """Why no whole batch begins with `start` and fits in the bytes left, or None when one does."""
    if len(start) < HEADER_SIZE:
        return f"{len(start)} bytes are too few for a batch header ({HEADER_SIZE} bytes): a torn write"
    if not any(start):
        return "zeros where a batch should begin: space that was reserved but not written"
    header = read_header(start)
    if header.magic != MAGIC:
        return f"the format byte (magic) is {header.magic}, not {MAGIC}"
    if header.size_bytes < HEADER_SIZE:
        return f"the batch claims an impossible length of {header.batch_length}"
    if header.size_bytes > left:
        return f"the batch claims {header.size_bytes} bytes, but only {left} are left: a torn write"
    return None


def _batch(content: bytes, position: int, header: BatchHeader) -> Batch:
    try:
        codec = header.codec.name.lower()
    except CorruptRecord as fault:
        codec = f"? ({fault})"
    return Batch(
        position=position,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records_count=header.records_count,
        size_bytes=header.batch_length + LOG_OVERHEAD,
        crc=header.crc,
        crc_ok=crc_matches(content, 0, header.size_bytes),
        codec=codec,
        timestamp_type=header.timestamp_type,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.transactional,
        control=header.control,
    )


def _records(content: bytes, header: BatchHeader, position: int) -> Iterator[BatchRecord | Damage]:
    try:
        for record in iterate_records(content, header):
            marker = _marker(record.key) if header.control else None
            yield BatchRecord(
                record.offset, record.timestamp_ms, record.key, record.value, record.headers, marker
            )
    except CorruptRecord as fault:
        yield Damage(position, header.size_bytes, f"the records cannot be read: {fault}")


def _marker(key: bytes | None) -> str:
    if key is None or len(key) < _CONTROL_KEY.size:
        return "?"
    _, kind = _CONTROL_KEY.unpack_from(key)
    return _CONTROL_TYPES.get(kind, f"control type {kind}")


def _index_entries(
    content: IndexContent[OffsetIndexEntry] | IndexContent[TimeIndexEntry],
    entry_bytes: int,
    size_bytes: int,
    without: str,
) -> Iterator[Entry]:
    """The entries and what is wrong with them; `without` says why there may be none."""
    yield from content.entries
    faults: list[Damage] = []
    if content.disorder is not None:
        reason = f"entry {content.disorder} goes backwards; the broker rebuilds such an index when it starts"
        faults.append(Damage(0, 0, reason))
    if content.odd_bytes:
        place = size_bytes - content.odd_bytes
        faults.append(Damage(place, content.odd_bytes, "an incomplete entry at the end of the file"))
    yield from faults
    count = len(content.entries)
    note = f"{count} entries of {entry_bytes} bytes" if count else f"no entries yet: {without}"
    yield Summary(count, len(faults), note)


def read_offset_index(path: Path) -> Iterator[Entry]:
    """The entries of a .index file with absolute offsets."""
    data = path.read_bytes()
    content = read_offset_entries(data, base_offset_of(path) or 0)
    without = "the first is due when more than index.interval.bytes (4096 by default) have been appended"
    return _index_entries(content, OFFSET_ENTRY_BYTES, len(data), without)


def read_time_index(path: Path) -> Iterator[Entry]:
    """The entries of a .timeindex file with absolute offsets."""
    data = path.read_bytes()
    content = read_time_entries(data, base_offset_of(path) or 0)
    without = "one is due with each of the offset index, the last when the segment or the broker is closed"
    return _index_entries(content, TIME_ENTRY_BYTES, len(data), without)


def read_transaction_index(path: Path) -> Iterator[Entry]:
    """The aborted transactions of a .txnindex file."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _TRANSACTION_INDEX_ENTRY.size
    count = 0
    for row in _TRANSACTION_INDEX_ENTRY.iter_unpack(data[:whole]):
        count += 1
        yield AbortedTransaction(*row[1:])
    if whole != len(data):
        yield Damage(whole, len(data) - whole, "an incomplete entry at the end of the file")
    yield Summary(count, int(whole != len(data)), f"{count} aborted transactions")


def read_snapshot(path: Path) -> Iterator[Entry]:
    """The producers of a .snapshot file."""
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_START.size:
        yield Damage(
            0, len(data), "the file is too short for a snapshot; the broker goes back to an older one"
        )
        yield Summary(0, 1, "no producers can be read")
        return
    version, crc, count = _SNAPSHOT_START.unpack_from(data)
    fault: str | None = None
    if crc32c(data[6:]) != crc:
        fault = "the checksum is BAD; the broker goes back to an older snapshot"
    elif version != 1:
        fault = f"version {version} is not known (expected 1)"
    elif len(data) != _SNAPSHOT_START.size + count * _SNAPSHOT_ENTRY.size:
        fault = f"{count} producers announced, but the file has {len(data)} bytes"
    if fault is not None:
        yield Damage(0, len(data), fault)
        yield Summary(0, 1, "no producers can be read")
        return
    for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_START.size :]):
        yield ProducerEntry(*row)
    yield Summary(count, 0, f"{count} producers, checksum ok")


def read_checkpoint(path: Path) -> Iterator[Entry]:
    """The rows of a checkpoint: version, count, then `<epoch> <offset>` or `<topic> <partition> <offset>`."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows: list[CheckpointRow] = []
    faults: list[Damage] = []
    for number, line in enumerate(lines[2:], start=3):
        *subject, offset = line.split() or [""]
        if len(subject) in (1, 2) and re.fullmatch(r"-?\d+", offset):
            rows.append(CheckpointRow("-".join(subject), int(offset)))
        else:
            faults.append(Damage(0, len(line), f"line {number} is not a row: {line[:80]!r}"))
    if len(lines) < 2 or lines[0].strip() != "0" or lines[1].strip() != str(len(rows)):
        announced = lines[:2]
        faults.append(Damage(0, 0, f"the first lines (version 0, number of rows) are {announced}"))
    yield from rows
    yield from faults
    yield Summary(len(rows), len(faults), f"{len(rows)} rows")


_READERS: dict[str, Callable[[Path], Iterator[Entry]]] = {
    ".log": read_log,
    ".timeindex": read_time_index,
    ".txnindex": read_transaction_index,
    ".index": read_offset_index,
    ".snapshot": read_snapshot,
    "leader-epoch-checkpoint": read_checkpoint,
    "offset-checkpoint": read_checkpoint,
}
