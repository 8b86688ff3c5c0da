"""Writes down how far the logs are flushed, where they start, and what of them is committed.

Everything is written together now and then, and when a log was begun anew or moved; the high watermarks of
replicated partitions by themselves, more often, once the broker is registered. Before a log is cut what was
written is taken back first.
"""

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.log_directories import LogDirectories

CHECKPOINT_JOB = "checkpoint"
HIGH_WATERMARK_JOB = "high watermark checkpoint"


class Checkpoints:
    """The checkpoints of one broker."""

    def __init__(
        self,
        log_directories: LogDirectories,
        replicas: Replicas,
        settings: LiveSettings,
        background: Background,
        jobs: BackgroundJobs,
    ) -> None:
        self._log_directories = log_directories
        self._replicas = replicas
        self._settings = settings
        self._background = background
        self._jobs = jobs
        self._writing = False
        self._write_again = False
        #: the high watermarks that were noted last; another, empty one after others were written at once
        self._noted: dict[TopicPartition, int] = {}
        self._noting = False

    def __repr__(self) -> str:
        return f"<Checkpoints writing={self._writing} noting={self._noting}>"

    def start(self) -> None:
        """Note the high watermarks of replicated partitions from now on."""
        self._jobs.every(
            HIGH_WATERMARK_JOB,
            lambda: self._settings.get_int("replica.high.watermark.checkpoint.interval.ms"),
            self._note_high_watermarks,
            tells_later=True,
        )

    # -- everything

    def write(self) -> None:
        """Write recovery points, log starts and high watermarks down, in a worker thread."""
        if self._writing:
            self._write_again = True
            return
        plan = self._log_directories.checkpoint_plan(self._replicas.high_watermarks())
        self._writing = True
        self._background.run(plan.run, self._written)

    def _written(self, result: BaseException | None) -> None:
        self._writing = False
        if isinstance(result, BaseException):
            self._jobs.failed(CHECKPOINT_JOB, result)
        else:
            self._jobs.ran(CHECKPOINT_JOB)
        if self._write_again:
            self._write_again = False
            self.write()

    def write_now(self) -> None:
        """Write the same at once, before something happens that must come after it; raises `OSError`."""
        self._noted = {}
        self._log_directories.checkpoint_plan(self._replicas.high_watermarks()).run()

    # -- high watermarks

    def write_high_watermarks_now(self) -> None:
        """Write all high watermarks at once; raises `OSError`."""
        self._noted = {}
        self._log_directories.high_watermark_plan(self._replicas.high_watermarks()).run()

    def _note_high_watermarks(self) -> None:
        """Write the high watermarks of replicated partitions down, if one of them moved."""
        if self._noting:
            return
        found = {partition.place: partition.high_watermark for partition in self._replicas.replicated()}
        if found == self._noted:
            self._jobs.ran(HIGH_WATERMARK_JOB)
            return
        plan = self._log_directories.high_watermark_plan(found)
        before = self._noted
        self._noting = True

        def noted(fault: BaseException | None) -> None:
            self._noting = False
            if isinstance(fault, BaseException):
                self._jobs.failed(HIGH_WATERMARK_JOB, fault)
            else:
                if self._noted is before:
                    self._noted = found
                self._jobs.ran(HIGH_WATERMARK_JOB)

        self._background.run(plan.run, noted)
