"""One fetch of a member on its way through the runs: what it gets, and what turns out not to be there.

What became available again comes first, by offset; what was never fetched follows, while there are locks
left. A run that failed often is delivered alone and in parts (`redelivery`). Deliveries keep to the batches
of the log unless the member wants exactly so many records (KIP-1206)."""

from typing import NamedTuple

from tidelog.shares.commands import Acquire
from tidelog.shares.fetched import BatchEnds, OffsetRange, gaps
from tidelog.shares.redelivery import company_max
from tidelog.shares.runs import Run, Runs
from tidelog.shares.settings import SharePartitionSettings
from tidelog.shares.states import AcquireMode, RecordState


class Hole(NamedTuple):
    """Offsets nobody gets: no record is there, or its time to live is over."""

    first: int
    last: int
    is_expired: bool


class Acquisition:
    """Made for one Acquire; `run` changes the runs, and says what by `taken`, `closed` and `expired`."""

    __slots__ = (
        "_command",
        "_deadline_ms",
        "_ends",
        "_exact",
        "_holes",
        "_left",
        "_runs",
        "_settings",
        "closed",
        "expired",
        "taken",
    )

    def __init__(
        self, runs: Runs, command: Acquire, settings: SharePartitionSettings, deadline_ms: int
    ) -> None:
        self._runs = runs
        self._command = command
        self._settings = settings
        self._deadline_ms = deadline_ms
        self._exact = command.mode is AcquireMode.RECORD_LIMIT
        self._left = command.max_records
        self._ends = BatchEnds(command.batches)
        self._holes = _holes(command, settings.read_committed)
        self.taken: list[Run] = []
        self.closed: list[Run] = []
        """Where no record is; these runs are archived."""
        self.expired: list[Run] = []
        """For the caller to archive."""

    def run(self, now_ms: int) -> None:
        """Take what there is to take."""
        command, runs = self._command, self._runs
        if not command.batches or command.max_records <= 0 or command.fetch_offset > runs.end:
            return
        last = command.batches[-1].last_offset
        if last < runs.start:
            return
        for hole in self._holes:
            self._close_known(hole)
        if command.preferred is None:
            self._take_ready(OffsetRange(max(command.batches[0].base_offset, runs.start), last))
            self._take_new(last)
            return
        self._offer_new(last, now_ms)
        for preferred in command.preferred:
            self._take_ready(preferred)

    # ------------------------------------------------------------ where nothing is

    def _close_known(self, hole: Hole) -> None:
        """Archive what was available there; what is acquired or done stays as it is."""
        runs = self._runs
        for run in runs.covering(hole.first, min(hole.last, runs.end - 1)):
            if run.state is RecordState.AVAILABLE:
                for part in runs.isolate(max(run.first, hole.first), min(run.last, hole.last)):
                    self._close(part, hole)

    def _close(self, run: Run, hole: Hole) -> None:
        if hole.is_expired:
            self._runs.withdraw(run)
            self.expired.append(run)
        else:
            self._runs.close(run, RecordState.ARCHIVED)
            self.closed.append(run)

    # ------------------------------------------------------------ what is available

    def _take_ready(self, where: OffsetRange) -> None:
        runs = self._runs
        position = max(where.first, runs.start)
        if position < runs.end and runs.at(position).is_ready:
            runs.isolate(position, where.last)
        while self._left > 0:
            run = runs.next_ready(position)
            if run is None or run.first > where.last:
                return
            most = company_max(
                run.delivery_count, run.size_before, len(run), self._settings.delivery_count_limit
            )
            if most is not None and self.taken:
                self._left = 0
                return
            wanted = self._left if most is None else min(most, self._left)
            end = run.first + wanted - 1
            if most is None and not self._exact:
                end = self._ends.end_of(end)
            self._take(runs.isolate(run.first, min(end, run.last, where.last))[0])
            if most is not None:
                self._left = 0

    def _take(self, run: Run) -> None:
        self._runs.lock(run, self._command.member_id, self._deadline_ms)
        run.delivery_count += 1
        self._left -= len(run)
        self.taken.append(run)

    # ------------------------------------------------------------ what was never fetched

    def _take_new(self, last: int) -> None:
        runs = self._runs
        while self._left > 0 and (until := self._pass_holes(last)) is not None:
            room = min(self._left, self._settings.partition_max_record_locks - runs.window)
            if room <= 0:
                return
            end = runs.end + room - 1
            if self._exact:
                pieces = [OffsetRange(runs.end, min(end, until))]
            else:
                end = min(self._ends.end_of(end), until)
                pieces = self._ends.pieces(runs.end, end, self._command.batch_size)
            for piece in pieces:
                self._take(runs.append(piece.last, RecordState.AVAILABLE))

    def _offer_new(self, last: int, now_ms: int) -> None:
        """Have all that was read among the runs, so that the best of it can be taken."""
        runs = self._runs
        while (until := self._pass_holes(last)) is not None:
            room = self._settings.partition_max_record_locks - runs.window
            if room <= 0:
                return
            run = runs.append(min(runs.end + room - 1, until), RecordState.AVAILABLE)
            runs.offer(run, now_ms, now_ms)

    def _pass_holes(self, last: int) -> int | None:
        """Close what is not there at the end of the runs. Then the offset up to which there are records from
        the end on; None if none were read.
        """
        runs = self._runs
        for hole in self._holes:
            if hole.last < runs.end:
                continue
            if hole.first > runs.end:
                return min(hole.first - 1, last) if runs.end <= last else None
            self._close(runs.append(hole.last, RecordState.AVAILABLE), hole)
        return last if runs.end <= last else None


def _holes(command: Acquire, read_committed: bool) -> list[Hole]:
    nothing = gaps(command.fetch_offset, command.batches, command.aborted, read_committed=read_committed)
    holes = [Hole(first, last, False) for first, last in nothing]
    holes += (Hole(first, last, True) for first, last in command.expired)
    return sorted(holes)
