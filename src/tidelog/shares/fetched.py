"""What was read from the log for a share group: batches by their headers, and where there is nothing to
deliver.

No record is looked into. Control batches are never delivered, nor, to groups that read committed records,
those of aborted transactions; offsets between batches have no records (compaction took them)."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop
from typing import NamedTuple

from tidelog.model.identifiers import NO_PRODUCER_ID


class OffsetRange(NamedTuple):
    """Both offsets belong to it."""

    first: int
    last: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class FetchedBatch(NamedTuple):
    base_offset: int
    last_offset: int
    producer_id: int = NO_PRODUCER_ID
    is_transactional: bool = False
    is_control: bool = False


def aborted_batches(
    batches: Iterable[FetchedBatch], aborted: Iterable[AbortedTransaction]
) -> list[OffsetRange]:
    """The batches that belong to aborted transactions."""
    begins = [(transaction.first_offset, transaction.producer_id) for transaction in aborted]
    heapify(begins)
    producers: set[int] = set()
    found = []
    for batch in batches:
        while begins and begins[0][0] <= batch.last_offset:
            producers.add(heappop(begins)[1])
        if batch.is_control:
            # Each transaction of a producer ends with its marker, whatever that says.
            producers.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in producers:
            found.append(OffsetRange(batch.base_offset, batch.last_offset))
    return found


def gaps(
    fetch_offset: int,
    batches: Sequence[FetchedBatch],
    aborted: Iterable[AbortedTransaction],
    *,
    read_committed: bool,
) -> list[OffsetRange]:
    """Where there is nothing to deliver between the fetch offset and the end of what was read, in order."""
    found = aborted_batches(batches, aborted) if read_committed else []
    position = fetch_offset
    for batch in batches:
        if batch.base_offset > position:
            found.append(OffsetRange(position, batch.base_offset - 1))
        if batch.is_control:
            found.append(OffsetRange(batch.base_offset, batch.last_offset))
        position = batch.last_offset + 1
    return sorted(found)


class BatchEnds:
    """Where the batches that were read begin and end: deliveries keep to that where they may."""

    __slots__ = ("_bases", "_batches")

    def __init__(self, batches: Sequence[FetchedBatch]) -> None:
        self._batches = batches
        self._bases = [batch.base_offset for batch in batches]

    def end_of(self, offset: int) -> int:
        """The last offset of the batch that has this one; the offset itself if none has."""
        index = bisect_right(self._bases, offset) - 1
        return max(offset, self._batches[index].last_offset) if index >= 0 else offset

    def pieces(self, first: int, last: int, size: int) -> list[OffsetRange]:
        """Offsets in pieces that begin with batches, each as soon as the one before has `size` offsets."""
        found = []
        for base in self._bases[bisect_right(self._bases, first) : bisect_right(self._bases, last)]:
            if base - first >= size:
                found.append(OffsetRange(first, base - 1))
                first = base
        return [*found, OffsetRange(first, last)]
