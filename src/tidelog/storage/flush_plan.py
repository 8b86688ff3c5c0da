"""What must be synced so that a log is durable up to an offset.

The plan is made on the event loop, which collects open files without waiting; `run` syncs them, in a worker
thread; the log then takes note on the loop (`PartitionLog.flushed`). Files that grow meanwhile only get
more durable, and a segment that is deleted meanwhile stays open here until the plan is dropped.

Segments that retention took out of the log are synced as well, as long as a power cut might bring them back
(see `retention.DroppedSegments`). They are named by path, because they may be renamed at any time: one that
is not found was renamed, and syncing the directory makes that durable.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.storage.disk import Disk, File
from tidelog.storage.leader_epochs import LeaderEpochs
from tidelog.storage.partition_metadata import PARTITION_METADATA
from tidelog.storage.segment import Segment
from tidelog.storage.transaction_index import TransactionIndex


class SyncFailed(OSError):
    """The system could not write records out.

    It says so once and forgets the pages, so a later sync that succeeds proves nothing.
    """


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """The files to sync, and what will be true afterwards: everything before `end_offset` is durable."""

    disk: Disk
    end_offset: int
    files: tuple[File, ...]
    # Files that a new log should have when its names are durable, though nothing needs them yet.
    new_paths: Sequence[str]
    dropped_paths: Sequence[str]
    # Closed segments whose index files are among the files.
    indexed: tuple[Segment, ...]
    transaction_indexes: tuple[TransactionIndex, ...]
    leader_epochs: LeaderEpochs
    directories: tuple[str, ...]
    # The state of the log that the plan was made for: cutting the log makes an older plan worthless.
    truncation_count: int
    names_version: int

    def run(self) -> None:
        """Sync everything; for a worker thread. An `OSError` means that nothing may be taken as durable."""
        with contextlib.suppress(OSError):
            for path in self.new_paths:
                self.disk.open(path, create=True).close()
        for file in self.files:
            try:
                file.sync()
            except OSError as fault:
                raise SyncFailed(fault.errno, f"{file.path} could not be synced: {fault.strerror}") from fault
        for path in self.dropped_paths:
            self._sync_if_there(path)
        for transaction_index in self.transaction_indexes:
            transaction_index.sync()
        for directory in self.directories:
            # A log that is there to stay must know its topic: another one may get the same name.
            self._sync_if_there(f"{directory}/{PARTITION_METADATA}")
            self.disk.sync_directory(directory)
        self.leader_epochs.flush()

    def _sync_if_there(self, path: str) -> None:
        try:
            file = self.disk.open(path, create=False)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()
