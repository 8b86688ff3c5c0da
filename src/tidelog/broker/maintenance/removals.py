"""Removes what is out of use, a little later: segments, the folders of logs, copies that were given up.

Whoever reads a file when it leaves its log can go on for `file.delete.delay.ms`. What waits is removed when
the broker stops; what cannot be removed is tried again, and has a name by which the next start removes it.
"""

import logging
from collections.abc import Callable, Sequence
from random import Random

from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.timers import Timers
from tidelog.model.identifiers import TopicPartition, random_uuid
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.retention import DroppedSegments, remove_deleted_files

log = logging.getLogger(__name__)

REMOVAL_JOB = "removal of deleted files"


class Removals:
    """What one broker has to remove."""

    def __init__(
        self,
        log_directories: LogDirectories,
        disk: Disk,
        background: Background,
        timers: Timers,
        jobs: BackgroundJobs,
        random: Random,
    ) -> None:
        self._log_directories = log_directories
        self._disk = disk
        self._background = background
        self._timers = timers
        self._jobs = jobs
        self._random = random
        self._waiting: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Removals waiting={len(self._waiting)}>"

    def start(self) -> None:
        """Remove the folders that an earlier run left."""
        for folder in self._log_directories.doomed_folders():
            self._remove(self._removal_of(folder))

    def stop(self) -> None:
        """Remove what was waiting to be removed."""
        self._stopped = True
        waiting, self._waiting = self._waiting, {}
        for remove in waiting.values():
            try:
                remove()
            except OSError as fault:
                log.warning("deleted files are left for the next start to remove: %s", fault)

    def remove_files(self, files: Sequence[str] | DroppedSegments, delay_ms: int) -> None:
        """Remove files that left a log, after `file.delete.delay.ms`; dropped segments are renamed first."""
        if not files:
            return
        if isinstance(files, DroppedSegments):
            dropped = files

            def renamed(result: list[str] | BaseException) -> None:
                if isinstance(result, BaseException):
                    self._jobs.failed(REMOVAL_JOB, result)
                    self._after(self._retry_ms, lambda: self.remove_files(dropped, delay_ms))
                elif not self._stopped:
                    self.remove_files(result, delay_ms)

            self._background.run(dropped.run, renamed)
        else:
            paths = files
            self._later(delay_ms, lambda: remove_deleted_files(self._disk, paths))

    def remove_folder(self, folder: str, delay_ms: int) -> None:
        """Remove the folder of a log that is out of use."""
        self._later(delay_ms, self._removal_of(folder))

    def forget_logs(self, places: Sequence[TopicPartition]) -> None:
        """Have the checkpoints speak no more of logs that are about to be discarded; raises `OSError`."""
        self._log_directories.forget_logs(places)

    def discard_log(self, place: TopicPartition, delay_ms: int) -> None:
        """Take an open log out of use and remove its folder."""
        deletion_id = random_uuid(self._random)
        self.remove_folder(self._log_directories.delete_log(place, deletion_id), delay_ms)

    def _removal_of(self, folder: str) -> Callable[[], None]:
        return lambda: self._log_directories.remove_folder(folder)

    def _later(self, delay_ms: int, remove: Callable[[], None]) -> None:
        """Remove something in a worker thread after a delay, or when the broker stops."""
        number = self._count = self._count + 1
        self._waiting[number] = remove

        def due() -> None:
            if self._waiting.pop(number, None) is not None:
                self._remove(remove)

        self._after(delay_ms, due, number)

    def _remove(self, remove: Callable[[], None]) -> None:
        """Remove something in a worker thread, and try again for as long as that fails."""

        def removed(result: BaseException | None) -> None:
            if not isinstance(result, BaseException):
                self._jobs.ran(REMOVAL_JOB)
                return
            self._jobs.failed(REMOVAL_JOB, result)
            # What is still there when the broker stops has a name that the next start removes.
            self._after(self._retry_ms, lambda: self._remove(remove))

        self._background.run(remove, removed)

    @property
    def _retry_ms(self) -> int:
        return self._jobs.job(REMOVAL_JOB).retry_ms

    def _after(self, delay_ms: int, call: Callable[[], None], number: int | None = None) -> None:
        if number is None:
            number = self._count = self._count + 1
        if not self._stopped:
            self._timers.set_after(("removal", number), delay_ms, call)
