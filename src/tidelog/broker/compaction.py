"""Runs the log cleaner: picks the dirtiest log, has it cleaned in a child process, swaps the result in.

One log at a time. After a round the next is looked for at once; when nothing needs cleaning the cleaner
rests for `log.cleaner.backoff.ms`. A log whose cleaning failed (a damaged batch, say) is left alone until
the broker restarts.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.partition import Partition
from tidelog.model.events import COMPACTION_FAILED, LOG_COMPACTED
from tidelog.model.identifiers import TopicPartition
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.storage.cleaner import (
    CleanerCheckpoint,
    CleaningPlan,
    CleaningResult,
    CleaningStopped,
    plan_cleaning,
)
from tidelog.storage.cleaning_process import CleaningProcess
from tidelog.storage.disk import OsDisk

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

RemoveLater = Callable[[Sequence[str], int], None]


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
        self._uncleanable: set[Partition] = set()
        self._cleaning: Partition | None = None
        self._stopped = False

    def start(self) -> None:
        """Look for work, from now on."""
        if self._broker.settings.get_bool("log.cleaner.enable"):
            self._rest()

    def stop(self) -> None:
        """Begin nothing more; a round under way is called off."""
        self._stopped = True
        if self._process is not None:
            self._process.close()

    def forget(self, partition: Partition) -> None:
        """The partition is deleted."""
        self._uncleanable.discard(partition)
        key = TopicPartition(partition.topic, partition.index)
        for checkpoint in self._checkpoints.values():
            if checkpoint.get(key) is not None:
                checkpoint.remove(key)
                self._broker.background.run(checkpoint.write, _report)
        if self._cleaning is partition:
            self._cleaning = None

    def _rest(self) -> None:
        broker = self._broker
        backoff_ms = broker.settings.get_int("log.cleaner.backoff.ms")
        broker.timers.set("compaction", broker.clock.now_ms() + backoff_ms, self._look)

    def _look(self) -> None:
        """Clean the log that needs it most."""
        if self._stopped:
            return
        found = self._dirtiest()
        if found is None:
            self._rest()
            return
        partition, plan = found
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

    def _dirtiest(self) -> tuple[Partition, CleaningPlan] | None:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        best: tuple[Partition, CleaningPlan] | None = None
        for partition in broker.replicas():
            if not partition.config.compacted or partition in self._uncleanable:
                continue
            plan = plan_cleaning(
                partition.log,
                checkpointed_offset=self._checkpoint_of(partition).get(
                    TopicPartition(partition.topic, partition.index)
                ),
                last_stable_offset=partition.last_stable_offset,
                now_ms=now_ms,
            )
            if plan is not None and (best is None or _urgency(plan) > _urgency(best[1])):
                best = (partition, plan)
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
        elif isinstance(result, CleaningStopped) or (called_off and isinstance(result, OSError)):
            pass
        elif isinstance(result, OSError | CorruptRecord):
            log.error("compaction of %s failed, it is left alone until a restart: %s", partition, result)
            self._leave_alone(partition, result)
        else:
            raise result
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
        except OSError as fault:
            self._cannot_swap(partition, fault)
            files = None
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
            except OSError as error:
                # The log works with the segments as they are; the next start gives them their names.
                self._cannot_swap(partition, error)
        self._go_on()

    def _cannot_swap(self, partition: Partition, fault: OSError) -> None:
        log.error("the compacted segments of %s could not be swapped in: %s", partition, fault)
        self._leave_alone(partition, fault)

    def _leave_alone(self, partition: Partition, fault: Exception) -> None:
        self._uncleanable.add(partition)
        metrics = self._broker.metrics
        metrics.cleaner.failures += 1
        fields = {"topic": partition.topic, "partition": partition.index}
        metrics.events.emit(COMPACTION_FAILED, fields, cause=str(fault))

    def _note(self, partition: Partition, result: CleaningResult, files: Sequence[str]) -> None:
        self._remove_later(files, partition.config.file_delete_delay_ms)
        checkpoint = self._checkpoint_of(partition)
        checkpoint.set(TopicPartition(partition.topic, partition.index), result.first_dirty_offset)
        self._broker.background.run(checkpoint.write, _report)
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


def _urgency(plan: CleaningPlan) -> tuple[bool, float]:
    return plan.overdue, plan.dirty_ratio


def _report(result: BaseException | None) -> None:
    if isinstance(result, BaseException):
        log.warning("the cleaner's checkpoint could not be written: %s", result)
