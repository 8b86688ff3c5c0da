"""Runs the log cleaner: has the dirtiest log cleaned in a child process, and swaps the result in.

One log at a time. After a round the next is looked for at once; when nothing needs cleaning the cleaner
rests for `log.cleaner.backoff.ms`.

A log whose cleaning failed is left alone (`dirty_logs`). When the cleaner itself cannot work (no process can
be started) no log is to blame, and it tries again a little later. Nothing ends it: see `background_jobs`.
"""

from collections.abc import Sequence
from functools import partial

from tidelog.broker.maintenance.dirty_logs import DirtyLogs
from tidelog.broker.maintenance.removals import Removals
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.timers import Timers
from tidelog.model.events import LOG_COMPACTED
from tidelog.storage.cleaner import CleaningPlan, CleaningResult, CleaningStopped
from tidelog.storage.cleaning_process import CleanerUnavailable, CleaningProcess
from tidelog.storage.disk import Disk, OsDisk
from tidelog.storage.open_files import OpenFiles

JOB = "compaction"


class Compaction:
    """The cleaner of one broker."""

    def __init__(
        self,
        dirty_logs: DirtyLogs,
        disk: Disk,
        open_files: OpenFiles,
        removals: Removals,
        settings: LiveSettings,
        background: Background,
        timers: Timers,
        jobs: BackgroundJobs,
        metrics: Metrics,
    ) -> None:
        self._dirty_logs = dirty_logs
        self._disk = disk
        self._open_files = open_files
        self._removals = removals
        self._settings = settings
        self._background = background
        self._timers = timers
        self._jobs = jobs
        self._metrics = metrics
        # Only real files can be seen by another process.
        self._process = CleaningProcess(disk, open_files) if isinstance(disk, OsDisk) else None
        self._cleaning: Partition | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Compaction of {self._cleaning}>"

    def start(self) -> None:
        """Look for work, from now on."""
        if self._settings.get_bool("log.cleaner.enable"):
            self._jobs.job(JOB)
            self._rest()

    def stop(self) -> None:
        """Begin nothing more; a round under way is called off."""
        self._stopped = True
        if self._process is not None:
            self._process.close()

    def forget(self, partition: Partition) -> None:
        """The partition is deleted, or its files are about to move: a round under way is called off."""
        self._dirty_logs.forget(partition)
        if self._cleaning is partition:
            self._cleaning = None

    def _rest(self, delay_ms: int | None = None) -> None:
        if delay_ms is None:
            delay_ms = self._settings.get_int("log.cleaner.backoff.ms")
        self._timers.set_after("compaction", delay_ms, self._look)

    def _look(self) -> None:
        """Clean the log that needs it most."""
        if self._stopped:
            return
        try:
            found = self._dirty_logs.dirtiest()
            if found is None:
                self._jobs.ran(JOB)
                self._rest()
            else:
                self._clean(*found)
        except Exception as fault:
            self._failed(fault)

    def _clean(self, partition: Partition, plan: CleaningPlan) -> None:
        self._cleaning = partition
        run = partial(
            partial(plan.run, self._disk, self._open_files)
            if self._process is None
            else partial(self._process.run, plan),
            dedupe_buffer_bytes=self._settings.get_int("log.cleaner.dedupe.buffer.size"),
            should_stop=lambda: self._stopped or self._cleaning is not partition,
        )
        self._background.run(run, lambda result: self._finish(partition, result))

    def _failed(self, fault: BaseException) -> None:
        """The cleaner cannot work, and no log is to blame: try again after a pause, longer each time."""
        self._cleaning = None
        self._metrics.cleaner.failures += 1
        if not self._stopped:
            self._jobs.failed(JOB, fault)
            self._rest(self._jobs.job(JOB).retry_ms)

    def _failed_for(self, partition: Partition, fault: BaseException, *, until_restart: bool = False) -> None:
        """A round failed: leave the log alone, and go on with the others after the usual rest."""
        self._cleaning = None
        self._dirty_logs.leave_alone(partition, fault, until_restart=until_restart)
        if not self._stopped:
            self._rest()

    def _finish(self, partition: Partition, result: CleaningResult | BaseException) -> None:
        called_off = self._cleaning is not partition
        if isinstance(result, CleaningResult):
            if not called_off and not self._stopped:
                self._swap_in(partition, result)
                return
        elif not called_off and not isinstance(result, CleaningStopped):
            if isinstance(result, CleanerUnavailable):
                self._failed(result)
            else:
                self._failed_for(partition, result)
            return
        self._go_on()

    def _go_on(self) -> None:
        self._cleaning = None
        if not self._stopped:
            self._look()

    def _swap_in(self, partition: Partition, result: CleaningResult) -> None:
        """Put the compacted segments into the log; the sync that this takes runs in a worker thread."""
        try:
            files = result.begin(partition.log, self._disk)
        except Exception as fault:
            self._failed_for(partition, fault, until_restart=True)
            return
        if files is None:
            self._go_on()
            return
        replaced = files
        self._background.run(
            lambda: result.sync(self._disk), lambda fault: self._swapped(partition, result, replaced, fault)
        )

    def _swapped(
        self,
        partition: Partition,
        result: CleaningResult,
        files: Sequence[str],
        fault: BaseException | None,
    ) -> None:
        if self._cleaning is partition and not self._stopped:
            try:
                if fault is not None:
                    raise fault
                partition.log.finish_replacement()
                self._note(partition, result, files)
            except Exception as error:
                # The log works with the segments as they are; the next start gives them their names. Another
                # round before that would take these for what a killed one left behind.
                self._failed_for(partition, error, until_restart=True)
                return
        self._go_on()

    def _note(self, partition: Partition, result: CleaningResult, files: Sequence[str]) -> None:
        self._removals.remove_files(files, partition.config.file_delete_delay_ms)
        self._dirty_logs.cleaned(partition, result)
        self._jobs.ran(JOB)
        statistics = result.statistics
        totals = self._metrics.cleaner
        totals.rounds += 1
        totals.records_read += statistics.records_read
        totals.records_kept += statistics.records_kept
        totals.bytes_read += statistics.bytes_read
        totals.bytes_written += statistics.bytes_written
        if result.looks and not result.replacements:
            return  # nothing had expired
        fields = {
            "topic": partition.topic,
            "partition": partition.index,
            "records_read": statistics.records_read,
            "records_kept": statistics.records_kept,
            "bytes_read": statistics.bytes_read,
            "bytes_written": statistics.bytes_written,
        }
        place = f"{partition}@{result.first_dirty_offset}"
        self._metrics.events.emit(LOG_COMPACTED, fields, cause_id=place)
