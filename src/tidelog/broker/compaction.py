"""Runs the log cleaner: picks the dirtiest log, has it cleaned in a child process, swaps the result in.

One log at a time. After a round the next is looked for at once; when nothing needs cleaning the cleaner
rests for `log.cleaner.backoff.ms`.

A log whose cleaning failed (a damaged batch, say) is uncleanable: it is left alone for a while, longer each
time, and the others are cleaned; one whose new segments could not get their names, until a restart. When the
cleaner itself cannot work (no process can be started) no log is to blame, and it tries again a little later.
Nothing ends it: see `background_jobs`.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidelog.broker.background_jobs import ENVIRONMENT
from tidelog.broker.partition import Partition
from tidelog.model.events import COMPACTION_FAILED, LOG_COMPACTED
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.cleaner import (
    CleanerCheckpoint,
    CleaningPlan,
    CleaningResult,
    CleaningStopped,
    plan_cleaning,
)
from tidelog.storage.cleaning_process import CleanerUnavailable, CleaningProcess
from tidelog.storage.disk import OsDisk

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

RemoveLater = Callable[[Sequence[str], int], None]

JOB = "compaction"
CHECKPOINT_JOB = "cleaner checkpoint"
#: an uncleanable log is tried again after `log.cleaner.backoff.ms`, then twice as long, and so on up to this
UNCLEANABLE_MS_MAX = 3_600_000


class Uncleanable(NamedTuple):
    """A log that could not be compacted."""

    failures: int
    #: by the monotonic clock; infinity for not before a restart
    retry_at_ms: float
    reason: str


class Compaction:
    """The cleaner of one broker."""

    def __init__(self, broker: "Broker", remove_later: RemoveLater) -> None:
        self._broker = broker
        self._remove_later = remove_later
        self._checkpoints = {
            directory.path: CleanerCheckpoint(broker.disk, directory.path)
            for directory in broker.log_directories.directories
        }
        # Only real files can be seen by another process.
        self._process = (
            CleaningProcess(broker.disk, broker.log_directories.open_files)
            if isinstance(broker.disk, OsDisk)
            else None
        )
        #: the logs whose last compaction failed (Kafka's uncleanable partitions)
        self.uncleanable: dict[Partition, Uncleanable] = {}
        self._cleaning: Partition | None = None
        self._stopped = False

    def start(self) -> None:
        """Look for work, from now on."""
        if self._broker.settings.get_bool("log.cleaner.enable"):
            self._broker.jobs.job(JOB)
            self._rest()

    def stop(self) -> None:
        """Begin nothing more; a round under way is called off."""
        self._stopped = True
        if self._process is not None:
            self._process.close()

    def forget(self, partition: Partition) -> None:
        """The partition is deleted."""
        self.uncleanable.pop(partition, None)
        key = TopicPartition(partition.topic, partition.index)
        for checkpoint in self._checkpoints.values():
            if checkpoint.get(key) is not None:
                checkpoint.remove(key)
                self._write(checkpoint)
        if self._cleaning is partition:
            self._cleaning = None

    def _write(self, checkpoint: CleanerCheckpoint) -> None:
        broker = self._broker

        def written(fault: BaseException | None) -> None:
            if not isinstance(fault, BaseException):
                broker.jobs.ran(CHECKPOINT_JOB)
                return
            broker.jobs.failed(CHECKPOINT_JOB, fault)
            if not self._stopped:
                retry_ms = broker.jobs.job(CHECKPOINT_JOB).retry_ms
                broker.timers.set_after(checkpoint, retry_ms, lambda: self._write(checkpoint))

        self._broker.background.run(checkpoint.write, written)

    def _rest(self, delay_ms: int | None = None) -> None:
        broker = self._broker
        if delay_ms is None:
            delay_ms = broker.settings.get_int("log.cleaner.backoff.ms")
        broker.timers.set_after("compaction", delay_ms, self._look)

    def _look(self) -> None:
        """Clean the log that needs it most."""
        if self._stopped:
            return
        try:
            found = self._dirtiest()
            if found is None:
                self._broker.jobs.ran(JOB)
                self._rest()
            else:
                self._clean(*found)
        except Exception as fault:
            self._failed(fault)

    def _clean(self, partition: Partition, plan: CleaningPlan) -> None:
        broker = self._broker
        self._cleaning = partition
        run = partial(
            partial(plan.run, broker.disk, broker.log_directories.open_files)
            if self._process is None
            else partial(self._process.run, plan),
            dedupe_buffer_bytes=broker.settings.get_int("log.cleaner.dedupe.buffer.size"),
            should_stop=lambda: self._stopped or self._cleaning is not partition,
        )
        broker.background.run(run, lambda result: self._finish(partition, result))

    def _failed(self, fault: BaseException) -> None:
        """The cleaner cannot work, and no log is to blame: try again after a pause, longer each time."""
        self._cleaning = None
        self._broker.metrics.cleaner.failures += 1
        if not self._stopped:
            self._broker.jobs.failed(JOB, fault)
            self._rest(self._broker.jobs.job(JOB).retry_ms)

    def _failed_for(self, partition: Partition, fault: BaseException, *, until_restart: bool = False) -> None:
        """A round failed: leave the log alone, and go on with the others after the usual rest."""
        self._cleaning = None
        self._leave_alone(partition, fault, until_restart=until_restart)
        if not self._stopped:
            self._rest()

    def _dirtiest(self) -> tuple[Partition, CleaningPlan] | None:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        monotonic_ms = broker.clock.monotonic_ms()
        best: tuple[Partition, CleaningPlan] | None = None
        most_urgent: tuple[bool, bool, float] | None = None
        for partition in list(broker.replicas()):
            if not partition.config.compacted:
                continue
            uncleanable = self.uncleanable.get(partition)
            if uncleanable is not None and monotonic_ms < uncleanable.retry_at_ms:
                continue
            try:
                plan = plan_cleaning(
                    partition.log,
                    checkpointed_offset=self._checkpoint_of(partition).get(
                        TopicPartition(partition.topic, partition.index)
                    ),
                    last_stable_offset=partition.last_stable_offset,
                    now_ms=now_ms,
                )
            except Exception as fault:
                self._leave_alone(partition, fault)
                continue
            if plan is None:
                continue
            # One that failed before comes last: it must not take the turn of those that would go well.
            urgency = (uncleanable is None, plan.overdue, plan.dirty_ratio)
            if most_urgent is None or urgency > most_urgent:
                best, most_urgent = (partition, plan), urgency
        return best

    def _checkpoint_of(self, partition: Partition) -> CleanerCheckpoint:
        key = TopicPartition(partition.topic, partition.index)
        return self._checkpoints[self._broker.log_directories.directory_of(key).path]

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
        broker = self._broker
        try:
            files = result.begin(partition.log, broker.disk)
        except Exception as fault:
            self._failed_for(partition, fault, until_restart=True)
            return
        if files is None:
            self._go_on()
            return
        replaced = files
        broker.background.run(
            lambda: result.sync(broker.disk), lambda fault: self._swapped(partition, result, replaced, fault)
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

    def _leave_alone(
        self, partition: Partition, fault: BaseException, *, until_restart: bool = False
    ) -> None:
        """A log cannot be compacted for now; the others can."""
        broker = self._broker
        failures = 1 + (self.uncleanable[partition].failures if partition in self.uncleanable else 0)
        backoff_ms = max(1, broker.settings.get_int("log.cleaner.backoff.ms")) << min(failures - 1, 20)
        retry_ms = math.inf if until_restart else min(UNCLEANABLE_MS_MAX, backoff_ms)
        reason = str(fault) or type(fault).__name__
        self.uncleanable[partition] = Uncleanable(failures, broker.clock.monotonic_ms() + retry_ms, reason)
        until = "until a restart" if until_restart else f"for {retry_ms / 1000:g} s"
        bug = not isinstance(fault, ENVIRONMENT)
        if bug and broker.jobs.raise_unexpected:
            raise fault
        log.error(
            "%s cannot be compacted and is left alone %s: %s",
            partition,
            until,
            reason,
            exc_info=fault if bug else None,
        )
        broker.metrics.cleaner.failures += 1
        fields = {"topic": partition.topic, "partition": partition.index, "failures": failures}
        broker.metrics.events.emit(COMPACTION_FAILED, fields, cause=reason)

    def _note(self, partition: Partition, result: CleaningResult, files: Sequence[str]) -> None:
        self._remove_later(files, partition.config.file_delete_delay_ms)
        checkpoint = self._checkpoint_of(partition)
        checkpoint.set(TopicPartition(partition.topic, partition.index), result.first_dirty_offset)
        self._write(checkpoint)
        self.uncleanable.pop(partition, None)
        self._broker.jobs.ran(JOB)
        statistics = result.statistics
        totals = self._broker.metrics.cleaner
        totals.rounds += 1
        totals.records_read += statistics.records_read
        totals.records_kept += statistics.records_kept
        totals.bytes_read += statistics.bytes_read
        totals.bytes_written += statistics.bytes_written
        fields = {
            "topic": partition.topic,
            "partition": partition.index,
            "records_read": statistics.records_read,
            "records_kept": statistics.records_kept,
            "bytes_read": statistics.bytes_read,
            "bytes_written": statistics.bytes_written,
        }
        place = f"{partition}@{result.first_dirty_offset}"
        self._broker.metrics.events.emit(LOG_COMPACTED, fields, cause_id=place)
