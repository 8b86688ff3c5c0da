"""How far each compacted log has been cleaned, as the data directories note it."""

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.timers import Timers
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.cleaner import CleanerCheckpoint
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories

CHECKPOINT_JOB = "cleaner checkpoint"


class CleanerCheckpoints:
    """The cleaner's notes, one file in each data directory, written in worker threads."""

    def __init__(
        self,
        log_directories: LogDirectories,
        disk: Disk,
        background: Background,
        timers: Timers,
        jobs: BackgroundJobs,
    ) -> None:
        self._log_directories = log_directories
        self._background = background
        self._timers = timers
        self._jobs = jobs
        self._checkpoints = {
            directory.path: CleanerCheckpoint(disk, directory.path)
            for directory in log_directories.directories
        }
        self._stopped = False

    def stop(self) -> None:
        """What could not be written stays as it is."""
        self._stopped = True

    def get(self, partition: Partition) -> int | None:
        """The first offset of a log that is not clean; None if it never was cleaned."""
        return self._of(partition.place).get(partition.place)

    def set(self, partition: Partition, first_dirty_offset: int) -> None:
        place = partition.place
        checkpoint = self._of(place)
        checkpoint.set(place, first_dirty_offset)
        self._write(checkpoint)

    def forget(self, partition: Partition) -> None:
        """The log is gone, or about to move."""
        place = partition.place
        for checkpoint in self._checkpoints.values():
            if checkpoint.get(place) is not None:
                checkpoint.remove(place)
                self._write(checkpoint)

    def _of(self, place: TopicPartition) -> CleanerCheckpoint:
        return self._checkpoints[self._log_directories.directory_of(place).path]

    def _write(self, checkpoint: CleanerCheckpoint) -> None:
        def written(fault: BaseException | None) -> None:
            if not isinstance(fault, BaseException):
                self._jobs.ran(CHECKPOINT_JOB)
                return
            self._jobs.failed(CHECKPOINT_JOB, fault)
            if not self._stopped:
                retry_ms = self._jobs.job(CHECKPOINT_JOB).retry_ms
                self._timers.set_after(checkpoint, retry_ms, lambda: self._write(checkpoint))

        self._background.run(checkpoint.write, written)

    def __repr__(self) -> str:
        return f"<CleanerCheckpoints {sorted(self._checkpoints)}>"
