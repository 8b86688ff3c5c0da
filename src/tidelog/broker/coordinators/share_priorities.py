"""What records that were read for a share group say of themselves: which have expired, which go first.

Only for topics that opted in: the records of all that was read are unpacked and looked at, at each fetch.

The order of priorities holds inside what was read, a window of `WINDOW_RECORDS` offsets or `WINDOW_BYTES`
from the first record that is available. A record counts as one priority higher for each
`tidelog.priority.ageing.ms` that have passed since its timestamp, so that none starves; those that count the
same go by offset.
"""

import logging
from typing import NamedTuple

from tidelog.broker.coordinators.share_reading import SharedRead
from tidelog.broker.replicas.partition import Partition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import BatchHeader
from tidelog.records.corrupt_record import CorruptRecord, DecompressedTooLarge
from tidelog.records.delivery_headers import PRIORITY_DEFAULT, BadHeader, lenient_expiry_of, priority_of
from tidelog.records.record import Record, iterate_records
from tidelog.shares.fetched import FetchedBatch, OffsetRange

log = logging.getLogger(__name__)

WINDOW_RECORDS = 500
WINDOW_BYTES = 1 << 20


class Looked(NamedTuple):
    """What is known of the records; `preferred` is None where they have no order but that of the log.

    `batches` are those that were read; where the cleaner has left offsets without a record inside of one, it
    comes in pieces: those stand for nothing, as control batches do, or the window would end before them.
    """

    batches: tuple[FetchedBatch, ...]
    expired: tuple[OffsetRange, ...]
    preferred: tuple[OffsetRange, ...] | None


def looks_into(config: LogConfig) -> bool:
    """Whether the records of a topic have to be looked into."""
    return config.tidelog_ttl_enable or config.tidelog_priority_enable


def look(partition: Partition, read: SharedRead, now_ms: int) -> Looked:
    """Look into everything that was read."""
    config = partition.config
    expired: list[int] = []
    ranked: list[tuple[int, int]] = []
    batches: list[FetchedBatch] = []
    for fetched, (header, data) in zip(read.headers(), read.batches, strict=True):
        if fetched.is_control:
            batches.append(fetched)
            continue
        records, whole = _records(partition, header, data)
        batches += _pieces(fetched, [record.offset for record in records]) if whole else [fetched]
        for record in records:
            if record.offset < read.fetch_offset:
                continue
            if config.tidelog_ttl_enable and _is_expired(record, config.tidelog_ttl_ms, now_ms):
                expired.append(record.offset)
            elif config.tidelog_priority_enable:
                ranked.append((-_rank(record, config.tidelog_priority_ageing_ms, now_ms), record.offset))
    preferred = None
    if config.tidelog_priority_enable:
        preferred = _ranges([offset for _, offset in sorted(ranked)])
    return Looked(tuple(batches), _ranges(expired), preferred)


def _records(partition: Partition, header: BatchHeader, data: memoryview) -> tuple[list[Record], bool]:
    """The records of a batch, and whether these are all."""
    records: list[Record] = []
    try:
        records.extend(iterate_records(data, header, partition.decompressed_bytes_max))
    except (CorruptRecord, DecompressedTooLarge, ValueError) as fault:
        log.warning("%s: records at %d could not be read: %s", partition, header.base_offset, fault)
        return records, False
    return records, True


def _pieces(batch: FetchedBatch, offsets: list[int]) -> list[FetchedBatch]:
    """A batch that has records at these offsets, and what stands for the others."""
    if len(offsets) == batch.last_offset - batch.base_offset + 1:
        return [batch]
    found: list[FetchedBatch] = []
    position = batch.base_offset
    for first, last in _ranges(offsets):
        if first > position:
            found.append(FetchedBatch(position, first - 1, is_control=True))
        found.append(batch._replace(base_offset=first, last_offset=last))
        position = last + 1
    if position <= batch.last_offset:
        found.append(FetchedBatch(position, batch.last_offset, is_control=True))
    return found


def _is_expired(record: Record, ttl_ms: int, now_ms: int) -> bool:
    expiry_ms = lenient_expiry_of(record, ttl_ms)
    return expiry_ms is not None and expiry_ms <= now_ms


def _rank(record: Record, ageing_ms: int, now_ms: int) -> int:
    try:
        priority = priority_of(record)
    except BadHeader:
        priority = PRIORITY_DEFAULT
    age_ms = max(0, now_ms - record.timestamp_ms) if record.timestamp_ms >= 0 else 0
    return priority + age_ms // ageing_ms


def _ranges(offsets: list[int]) -> tuple[OffsetRange, ...]:
    """Neighbours that follow each other are one range."""
    found: list[OffsetRange] = []
    for offset in offsets:
        if found and found[-1].last + 1 == offset:
            found[-1] = OffsetRange(found[-1].first, offset)
        else:
            found.append(OffsetRange(offset, offset))
    return tuple(found)
