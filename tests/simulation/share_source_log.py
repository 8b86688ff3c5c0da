"""The partition that members of a share group read in the simulated world: batches of all sizes, holes,
control batches, and transactions of which some were aborted.
"""

import random
from bisect import bisect_left, bisect_right

from tidelog.shares.fetched import AbortedTransaction, FetchedBatch


class SourceLog:
    """The partition that is read."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self.batches: list[FetchedBatch] = []
        self.aborted: list[AbortedTransaction] = []
        self.records: set[int] = set()
        """Offsets that have records which a group that reads committed records may get."""
        self.aborted_offsets: set[int] = set()
        self.start = 0
        self.end = 0

    def append_some(self) -> None:
        kind = self._random.random()
        if kind < 0.15:
            self.end += self._random.randint(1, 6)  # compaction took what was here
        elif kind < 0.35:
            self._append_transaction(aborts=self._random.random() < 0.5)
        else:
            self._append(self._random.choice((1, 1, 3, 10, 40)), FetchedBatch(0, 0))

    def _append(self, size: int, like: FetchedBatch) -> range:
        offsets = range(self.end, self.end + size)
        self.batches.append(like._replace(base_offset=offsets[0], last_offset=offsets[-1]))
        self.end = offsets[-1] + 1
        if not like.is_control:
            self.records.update(offsets)
        return offsets

    def _append_transaction(self, *, aborts: bool) -> None:
        producer_id = self._random.randint(1, 3)
        first = self.end
        for _ in range(self._random.randint(1, 2)):
            offsets = self._append(self._random.randint(1, 8), FetchedBatch(0, 0, producer_id, True))
            if aborts:
                self.aborted_offsets.update(offsets)
        if aborts:
            self.aborted.append(AbortedTransaction(producer_id, first))
        self._append(1, FetchedBatch(0, 0, producer_id, True, True))

    def read(self, offset: int, batches_max: int) -> tuple[FetchedBatch, ...]:
        index = bisect_left([batch.last_offset for batch in self.batches], offset)
        return tuple(self.batches[index : index + batches_max])

    def aborted_in(self, batches: tuple[FetchedBatch, ...]) -> tuple[AbortedTransaction, ...]:
        """As the index of aborted transactions says: those that were open somewhere in what was read."""
        if not batches:
            return ()
        found = []
        for transaction in self.aborted:
            index = bisect_right([batch.base_offset for batch in self.batches], transaction.first_offset)
            end = next(
                batch.base_offset
                for batch in self.batches[index:]
                if batch.is_control and batch.producer_id == transaction.producer_id
            )
            if end >= batches[0].base_offset and transaction.first_offset <= batches[-1].last_offset:
                found.append(transaction)
        return tuple(found)
