"""What is stored of a share partition's records: batches of offsets in one state, sorted, without overlaps.

Where two writers disagree on an offset the higher delivery count counts, and among equal ones the later state
(Available, Acknowledged, Archiving, Archived): what is late or repeated never takes anything back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.shares.states import RecordState


class StateBatch(NamedTuple):
    first_offset: int
    last_offset: int
    delivery_state: RecordState
    delivery_count: int

    @property
    def rank(self) -> tuple[int, int]:
        """What decides between two states of one offset."""
        return self.delivery_count, self.delivery_state


class StateBatches:
    """The batches of one share partition. A merge costs what it touches, not what there is."""

    __slots__ = ("_batches", "_firsts")

    def __init__(self, batches: Iterable[StateBatch] = ()) -> None:
        self._firsts: list[int] = []
        self._batches: list[StateBatch] = []
        self.merge(batches)

    def __repr__(self) -> str:
        return f"<StateBatches {len(self._batches)}>"

    def __iter__(self) -> Iterator[StateBatch]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def prune(self, start_offset: int) -> None:
        """Forget what lies before the start offset."""
        keep_from = bisect_right(self._firsts, start_offset)
        if keep_from and self._batches[keep_from - 1].last_offset >= start_offset:
            keep_from -= 1
        del self._firsts[:keep_from], self._batches[:keep_from]
        if self._firsts and self._firsts[0] < start_offset:
            self._firsts[0] = start_offset
            self._batches[0] = self._batches[0]._replace(first_offset=start_offset)

    def merge(self, batches: Iterable[StateBatch]) -> None:
        for batch in batches:
            self._merge_one(batch)

    def _merge_one(self, new: StateBatch) -> None:
        begin = bisect_left(self._firsts, new.first_offset)
        # A neighbour that only touches the new batch may become one with it.
        if begin and self._batches[begin - 1].last_offset >= new.first_offset - 1:
            begin -= 1
        end = bisect_right(self._firsts, new.last_offset + 1)
        pieces: list[StateBatch] = []
        position = new.first_offset
        for old in self._batches[begin:end]:
            if old.last_offset < new.first_offset:
                _add(pieces, old)
                continue
            first = max(old.first_offset, new.first_offset)
            last = min(old.last_offset, new.last_offset)
            if old.first_offset < first:
                _add(pieces, old._replace(last_offset=first - 1))
            if position < first:
                _add(pieces, new._replace(first_offset=position, last_offset=min(first - 1, new.last_offset)))
            if first <= last:
                winner = old if old.rank > new.rank else new
                _add(pieces, winner._replace(first_offset=first, last_offset=last))
            position = last + 1
            if old.last_offset > new.last_offset:
                _add(pieces, old._replace(first_offset=max(old.first_offset, position)))
        if position <= new.last_offset:
            _add(pieces, new._replace(first_offset=position))
        self._batches[begin:end] = pieces
        self._firsts[begin:end] = [piece.first_offset for piece in pieces]


def _add(pieces: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch, or lengthen the last one if it continues it."""
    if pieces and pieces[-1].last_offset + 1 == batch.first_offset and pieces[-1].rank == batch.rank:
        pieces[-1] = pieces[-1]._replace(last_offset=batch.last_offset)
    else:
        pieces.append(batch)
