"""Logs that promise more than they keep: the simulation of power cuts has to notice every one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.support.simulated_disk import SimulatedDisk
from tidelog.storage.cleaner import CleaningResult
from tidelog.storage.flush_plan import FlushPlan
from tidelog.storage.leader_epochs import LeaderEpochs
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.recovery import RecoveredLog, Recovery
from tidelog.storage.retention import DroppedSegments
from tidelog.storage.segment import LOG, Segment


def _accept_holes(self: Recovery, segment: Segment, **how: int) -> int:
    end = _recover_segment(self, segment, **how)  # type: ignore[arg-type]
    names = self._segment_files().values()
    later = [
        name.base_offset for name in names if name.kind == LOG and name.base_offset > segment.base_offset
    ]
    return min(later, default=end)


def _recover_without_sync(self: Recovery, **how: int) -> RecoveredLog:
    with patch.object(SimulatedDisk, "sync_directory", lambda self, path: None):
        return _run_recovery(self, **how)  # type: ignore[arg-type]


def _replay_greater_epochs(self: LeaderEpochs, epoch: int, base_offset: int, last_offset: int) -> bool:
    return epoch > self.latest and self.assign(epoch, base_offset)


def _roll_and_forget_indexes(self: PartitionLog, now_ms: int, base_offset: int | None = None) -> Segment:
    new = _roll(self, now_ms, base_offset)
    self._unsynced_indexes.clear()
    return new


def _rename_unordered(self: DroppedSegments) -> Iterator[list[str]]:
    with patch.object(SimulatedDisk, "sync_directory", lambda self, path: None):
        paths = [path for step in _drop_steps(self) for path in step]
    self._disk.sync_directory(self._directory)
    yield paths


def _believe_names(self: PartitionLog) -> None:
    self._names_synced = self._names_version


def _flush_over_deleted(self: PartitionLog, offset: int) -> None:
    _move_log_start(self, offset)
    self.recovery_point = max(self.recovery_point, offset)


def _flush_files_alone(self: FlushPlan) -> None:
    for file in self.files:
        file.sync()


_recover_segment = Recovery._recover_segment
_run_recovery = Recovery.run
_roll = PartitionLog.roll
_move_log_start = PartitionLog._move_log_start
_drop_steps = DroppedSegments.steps

MUTANTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "recovery accepts holes": (Recovery, "_recover_segment", _accept_holes),
    "recovery removes without a sync": (Recovery, "run", _recover_without_sync),
    "recovery believes old epochs": (LeaderEpochs, "replay", _replay_greater_epochs),
    "indexes of closed segments stay unsynced": (PartitionLog, "roll", _roll_and_forget_indexes),
    "retention renames in any order": (DroppedSegments, "steps", _rename_unordered),
    "a flush forgets dropped segments": (DroppedSegments, "paths", lambda self: ()),
    "a swap is not synced": (CleaningResult, "sync", lambda self, disk: None),
    "the first roll syncs no names": (PartitionLog, "_sync_names", _believe_names),
    "deleted counts as flushed": (PartitionLog, "_move_log_start", _flush_over_deleted),
    "a flush syncs no names": (FlushPlan, "run", _flush_files_alone),
}


@contextmanager
def alive(mutant: str) -> Iterator[None]:
    """Let a mutant take the place of the real thing for a while."""
    owner, name, replacement = MUTANTS[mutant]
    with patch.object(owner, name, replacement):
        yield
