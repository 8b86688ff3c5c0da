"""Reads the log for a share group: as many batches as one fetch may take, and what part of them it got.

Records are not looked into. What was read is in memory, for the answer names only what was acquired of it.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.broker.replicas.partition import Partition
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.shares.fetched import AbortedTransaction, FetchedBatch, OffsetRange

log = logging.getLogger(__name__)

#: what is read at a time; a batch above it comes whole
STEP_BYTES = 64 << 10


class SharedBatch(NamedTuple):
    header: BatchHeader
    data: memoryview


class SharedRead(NamedTuple):
    """What was read from an offset on."""

    fetch_offset: int
    batches: tuple[SharedBatch, ...]
    aborted: tuple[AbortedTransaction, ...] = ()

    def headers(self) -> tuple[FetchedBatch, ...]:
        return tuple(
            FetchedBatch(
                header.base_offset,
                header.last_offset,
                header.producer_id,
                header.transactional,
                header.control,
            )
            for header, _ in self.batches
        )

    def records(self, acquired: Sequence[OffsetRange]) -> list[memoryview]:
        """The batches from the first to the last that have something that was acquired."""
        if not acquired:
            return []
        first, last = acquired[0].first, acquired[-1].last
        return [
            data
            for header, data in self.batches
            if header.last_offset >= first and header.base_offset <= last
        ]

    def only(self, acquired: Sequence[OffsetRange]) -> list[memoryview]:
        """The batches that have something that was acquired, in whatever order that was."""
        return [
            data
            for header, data in self.batches
            if any(header.last_offset >= each.first and header.base_offset <= each.last for each in acquired)
        ]


def readable_bytes(partition: Partition, offset: int, wanted_bytes: int, *, read_committed: bool) -> int:
    """How much there is from an offset on; where a segment ends before, at least what is wanted."""
    end_offset = partition.readable_end(read_committed)
    if offset >= end_offset:
        return 0
    try:
        found = partition.log.read(offset, wanted_bytes, end_offset)
    except OSError as fault:
        _unreadable(partition, offset, fault)
        return 0
    if found is None:
        return 0
    return found.size_bytes if found.next_offset >= end_offset else max(found.size_bytes, wanted_bytes)


def _unreadable(partition: Partition, offset: int, fault: OSError) -> None:
    log.error("%s could not be read at offset %d: %s", partition, offset, fault)
    partition.on_fault(fault, partition)


def read_shared(
    partition: Partition, offset: int, records_max: int, bytes_max: int, *, read_committed: bool
) -> SharedRead:
    """Whole batches with up to so many offsets and bytes, at least one if there is one."""
    end_offset = partition.readable_end(read_committed)
    batches: list[SharedBatch] = []
    position, left_bytes = offset, bytes_max
    while position < end_offset and position - offset < records_max and (left_bytes > 0 or not batches):
        size = max(0, min(left_bytes, STEP_BYTES))
        try:
            piece = partition.log.read(position, size, end_offset)
            if piece is None or piece.size_bytes == 0:
                break
            data = memoryview(piece.file.read(piece.position, piece.size_bytes))
        except OSError as fault:
            _unreadable(partition, position, fault)
            break
        before = position
        for start, header in iterate_headers(data):
            if position - offset >= records_max or (batches and header.size_bytes > left_bytes):
                break
            batches.append(SharedBatch(header, data[start : start + header.size_bytes]))
            position, left_bytes = header.next_offset, left_bytes - header.size_bytes
        if position == before:
            break
    if not (read_committed and batches):
        return SharedRead(offset, tuple(batches))
    found = partition.log.aborted_transactions(offset, batches[-1].header.next_offset)
    aborted = tuple(AbortedTransaction(each.producer_id, each.first_offset) for each in found)
    return SharedRead(offset, tuple(batches), aborted)
