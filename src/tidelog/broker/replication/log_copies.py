"""Copies of logs in other log directories: begins them, puts them in the place of the log, or lets them go.

When a copy may take the log's place is decided in `log_moves`.
"""

import logging
from random import Random

from tidelog.broker.maintenance.checkpoints import Checkpoints
from tidelog.broker.maintenance.compaction import Compaction
from tidelog.broker.maintenance.flusher import Flusher
from tidelog.broker.maintenance.removals import Removals
from tidelog.broker.replicas.partition import Partition
from tidelog.model.identifiers import random_uuid
from tidelog.model.ports import Clock
from tidelog.storage.disk import Disk
from tidelog.storage.future_log import FutureLog, remove_moving_to, write_moving_to
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import LogDirectory

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20


class LogCopies:
    """What is done on the disks of one broker when its replicas move."""

    def __init__(
        self,
        log_directories: LogDirectories,
        disk: Disk,
        flusher: Flusher,
        compaction: Compaction,
        checkpoints: Checkpoints,
        removals: Removals,
        clock: Clock,
        random: Random,
    ) -> None:
        self._log_directories = log_directories
        self._disk = disk
        self._flusher = flusher
        self._compaction = compaction
        self._checkpoints = checkpoints
        self._removals = removals
        self._clock = clock
        self._random = random

    def __repr__(self) -> str:
        return f"<LogCopies in {self._log_directories!r}>"

    def begin(self, partition: Partition, directory: LogDirectory) -> FutureLog:
        """Begin a copy; raises `OSError`."""
        return FutureLog(
            self._disk,
            self._log_directories.open_files,
            partition.log,
            directory.path,
            random_uuid(self._random),
            now_ms=self._clock.now_ms(),
        )

    def copy_some(self, future: FutureLog) -> int:
        """Copy a piece; the bytes of it, 0 when the copy has caught up. Raises `OSError`."""
        return future.copy_some(PIECE_BYTES, self._clock.now_ms())

    def may_take_over(self, partition: Partition) -> bool:
        """Whether nothing reads or writes the files of the log just now."""
        return not self._flusher.is_flushing(partition)

    def take_over(self, partition: Partition, future: FutureLog, directory: LogDirectory) -> None:
        """Have the copy take the log's place; raises `OSError`."""
        self._compaction.forget(partition)
        moved, doomed = future.take_over(partition.config, self._clock.now_ms(), random_uuid(self._random))
        partition.log = moved
        self._log_directories.moved(moved, directory)
        self._removals.remove_folder(doomed, partition.config.file_delete_delay_ms)
        self._checkpoints.write()

    def remove(self, folder: str) -> None:
        """Remove a copy that is of no use any more."""
        self._removals.remove_folder(folder, 0)

    def write_note(self, partition: Partition, directory: LogDirectory) -> None:
        """Note beside the log where it is about to go; raises `OSError`."""
        write_moving_to(self._disk, partition.log.directory, directory.directory_id)

    def remove_note(self, partition: Partition) -> None:
        """The log stays where it is."""
        try:
            remove_moving_to(self._disk, partition.log.directory)
        except OSError as fault:
            log.warning("the note of a move of %s stays: %s", partition, fault)
