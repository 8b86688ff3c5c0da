"""Which leader wrote which part of a log: the start offset of every leader epoch.

A replica that comes back asks the leader where an epoch ended and cuts its log there (KIP-101, KIP-279);
consumers detect truncation the same way (KIP-320). The entries live in memory, and in
`leader-epoch-checkpoint` in the partition's folder, in Kafka's format:

    0                           the version of the format
    2                           how many rows follow
    0 0                         <epoch> <start offset>
    3 1500

Durability. A change touches memory alone, so that an epoch change (every partition has one when a broker
starts) costs neither a write nor an fsync on the event loop. `flush` replaces the file durably and in one
step, from a worker thread; the log calls it before it moves its recovery point and when it closes. A crash or
power cut therefore loses only entries for batches behind the recovery point, and those come back: recovery
reads these batches anyway, every batch names its leader epoch, and `replay` puts the entry back (and drops
what contradicts it). `truncate_from_end(log_end_offset)` then drops entries whose batches did not survive.
Writing an unsynced file at every change would be worse: a power cut can leave it empty or torn, and with it
go the entries of batches that recovery does not read.

A file that is malformed all the same (damaged by others) is read as empty and reported by `was_malformed`;
the log then puts all of its batches through `replay`.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from tidelog.model.identifiers import NO_EPOCH, NO_OFFSET
from tidelog.storage import checkpoints
from tidelog.storage.disk import Disk

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of the first batch written in it."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one log, ascending in epoch and in start offset."""

    __slots__ = ("_disk", "_path", "_rows", "_synced_version", "_version", "latest", "was_malformed")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        # Replaced, never changed in place: `flush` reads it in another thread.
        self._rows: tuple[EpochEntry, ...] = ()
        self.was_malformed = False
        try:
            rows = checkpoints.read_rows(disk, path, _entry)
        except checkpoints.CheckpointMalformed:
            self.was_malformed = True
            rows = []
        for row in rows:
            self._rows = (*self._rows_before(row), row)
        #: the epoch of the last batch, or NO_EPOCH
        self.latest = self._rows[-1].epoch if self._rows else NO_EPOCH
        self._version = 0
        self._synced_version = -1 if self.was_malformed else 0

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._rows

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that a batch of `epoch` was written at `start_offset`; return whether that was news.

        Entries that contradict the new one (a higher epoch, or a start at or behind it) are dropped.
        """
        rows = self._rows
        if rows and rows[-1].epoch == epoch and rows[-1].start_offset <= start_offset:
            return False
        assert epoch >= 0, f"invalid leader epoch {epoch}"
        assert start_offset >= 0, f"invalid start offset {start_offset} of epoch {epoch}"
        row = EpochEntry(epoch, start_offset)
        self._change((*self._rows_before(row), row))
        return True

    def replay(self, epoch: int, base_offset: int, last_offset: int) -> bool:
        """Note a stored batch that recovery reads; return whether that was news.

        Entries that agree with the batch stay as they are: after compaction they know better than the
        batches where an epoch began. Entries that do not (another epoch at its start, or one that begins
        inside of it) are from before a crash or a cut, and go.
        """
        if epoch == NO_EPOCH:
            return False
        rows = self._rows
        if rows and rows[-1].epoch == epoch and rows[-1].start_offset <= base_offset:
            return False
        at = bisect_right(rows, base_offset, key=_start_offset_of)
        if at and rows[at - 1].epoch == epoch and (at == len(rows) or rows[at].start_offset > last_offset):
            return False
        before = [row for row in rows[:at] if row.epoch <= epoch]
        if not before or before[-1].epoch < epoch:
            before.append(EpochEntry(epoch, base_offset))
        after = [row for row in rows[at:] if row.epoch > epoch and row.start_offset > last_offset]
        self._change((*before, *after))
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and the offset where it ended.

        The latest epoch ends at the end of the log. An epoch from before the first entry is returned as
        asked, ending where the first entry starts: its batches are gone. An unknown later epoch gives
        (NO_EPOCH, NO_OFFSET).
        """
        rows = self._rows
        if epoch == NO_EPOCH or not rows or epoch > rows[-1].epoch:
            return NO_EPOCH, NO_OFFSET
        if epoch == rows[-1].epoch:
            return epoch, log_end_offset
        higher = bisect_right(rows, epoch, key=_epoch_of)
        floor_epoch = rows[higher - 1].epoch if higher > 0 else epoch
        return floor_epoch, rows[higher].start_offset

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the batch at `offset`, or NO_EPOCH if that lies before the first entry."""
        index = bisect_right(self._rows, offset, key=_start_offset_of) - 1
        return self._rows[index].epoch if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that start at or behind `end_offset`, the new end of the log."""
        keep = bisect_left(self._rows, end_offset, key=_start_offset_of)
        if keep < len(self._rows):
            self._change(self._rows[:keep])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end before `start_offset`; the one it lies in now starts there."""
        rows = self._rows
        index = bisect_right(rows, start_offset, key=_start_offset_of) - 1
        if index < 0 or (index == 0 and rows[0].start_offset == start_offset):
            return
        self._change((EpochEntry(rows[index].epoch, start_offset), *rows[index + 1 :]))

    def clear(self) -> None:
        """Forget everything: the log was emptied and starts somewhere else."""
        if self._rows:
            self._change(())

    def flush(self) -> None:
        """Make the entries durable; may run in a worker thread while the event loop goes on assigning."""
        version = self._version
        if version == self._synced_version:
            return
        rows = (f"{epoch} {start_offset}" for epoch, start_offset in self._rows)
        self._disk.replace_atomically(self._path, checkpoints.encode(rows))
        self._synced_version = version

    def _rows_before(self, row: EpochEntry) -> tuple[EpochEntry, ...]:
        """The entries that `row` does not contradict."""
        keep = len(self._rows)
        while keep and (
            self._rows[keep - 1].epoch >= row.epoch or self._rows[keep - 1].start_offset >= row.start_offset
        ):
            keep -= 1
        return self._rows[:keep]

    def _change(self, rows: tuple[EpochEntry, ...]) -> None:
        self._rows = rows
        self.latest = rows[-1].epoch if rows else NO_EPOCH
        self._version += 1

    def __repr__(self) -> str:
        return f"<LeaderEpochs {self._path} latest={self.latest} entries={len(self._rows)}>"


def _epoch_of(row: EpochEntry) -> int:
    return row.epoch


def _start_offset_of(row: EpochEntry) -> int:
    return row.start_offset


def _entry(words: list[str]) -> EpochEntry:
    if len(words) != 2:
        raise ValueError(f"{' '.join(words)[:80]!r} is not '<epoch> <start offset>'")
    epoch, start_offset = (checkpoints.whole_number(word) for word in words)
    if epoch < 0 or start_offset < 0:
        raise ValueError(f"epoch {epoch} with start offset {start_offset} is negative")
    return EpochEntry(epoch, start_offset)
