"""What a broker does without being asked: retention, compaction, flushing by age, checkpoints, tidying up.

Each chore is a job that is done again and again (`background_jobs`); one log that fails keeps none of the
others waiting. What blocks runs in worker threads; what changes a log runs on the loop.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.compaction import Compaction, Uncleanable
from tidelog.broker.partition import Partition
from tidelog.model.events import SEGMENT_ROLLED
from tidelog.model.identifiers import TopicPartition
from tidelog.storage.retention import DroppedSegments, remove_deleted_files

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

log = logging.getLogger(__name__)

TICK_MS = 1_000
#: partitions whose index files are written in one tick; the files may lag behind, recovery rebuilds them
INDEXES_PER_TICK = 100
#: new logs whose names are made durable in one tick; a log that rolls before its turn does it by itself
NAMES_PER_TICK = 50
TICK_JOB = "flush by age"
RETENTION_JOB = "retention"
CHECKPOINT_JOB = "checkpoint"
EXPIRY_JOB = "producer id expiry"
REMOVAL_JOB = "removal of deleted files"


class Housekeeping:
    """The chores of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._compaction = Compaction(broker, self.remove_later)
        self._seen_bytes: dict[Partition, int] = {}
        self._unwritten_indexes: dict[Partition, None] = {}
        self._stopped = False
        self._checkpointing = False
        self._checkpoint_again = False
        self._removals: dict[int, Callable[[], None]] = {}
        self._removal_count = 0

    @property
    def uncleanable(self) -> Mapping[Partition, Uncleanable]:
        """The logs that cannot be compacted for now."""
        return self._compaction.uncleanable

    def start(self) -> None:
        """Begin all chores."""
        settings = self._broker.settings
        jobs = self._broker.jobs
        jobs.every(TICK_JOB, lambda: TICK_MS, self._tick)
        jobs.every(RETENTION_JOB, lambda: settings.get_int("log.retention.check.interval.ms"), self.retain)
        jobs.every(
            CHECKPOINT_JOB,
            lambda: settings.get_int("log.flush.offset.checkpoint.interval.ms"),
            self._flush_closed_and_checkpoint,
            tells_later=True,
        )
        jobs.every(
            EXPIRY_JOB,
            lambda: settings.get_int("producer.id.expiration.check.interval.ms"),
            self._expire_producers,
        )
        self._compaction.start()
        for folder in self._broker.log_directories.doomed_folders():
            self._remove_folder(folder)

    def stop(self) -> None:
        """Begin no more chores; remove what was waiting to be removed."""
        self._stopped = True
        self._compaction.stop()
        removals, self._removals = self._removals, {}
        for remove in removals.values():
            try:
                remove()
            except OSError as fault:
                log.warning("deleted files are left for the next start to remove: %s", fault)

    def _tick(self) -> None:
        """Once a second: write index entries, flush what is old enough, and the names of new logs."""
        if self._broker.unopened_topics:
            self._broker.open_unopened()
        now_ms = self._broker.clock.now_ms()
        names_left = NAMES_PER_TICK
        seen_bytes = self._seen_bytes
        for partition in list(self._broker.replicas()):
            try:
                config = partition.config
                if partition.flushes and (
                    partition.unflushed_messages >= config.flush_messages
                    or now_ms - partition.unflushed_since_ms >= config.flush_ms
                ):
                    # By number only for the broker's own records; those of clients are flushed as they come.
                    self._broker.flusher.request(partition)
                elif names_left and not partition.log.has_durable_name:
                    self._broker.flusher.request_closed(partition)
                    names_left -= 1
                if seen_bytes.get(partition, 0) != partition.appended_bytes:
                    seen_bytes[partition] = partition.appended_bytes
                    self._look_for_rolls(partition)
                    self._unwritten_indexes[partition] = None
            except Exception as fault:
                self._broker.jobs.failed(TICK_JOB, fault, partition)
        for partition in list(islice(self._unwritten_indexes, INDEXES_PER_TICK)):
            del self._unwritten_indexes[partition]
            try:
                partition.log.write_indexes()
            except Exception as fault:
                self._broker.jobs.failed(TICK_JOB, fault, partition)

    def _look_for_rolls(self, partition: Partition) -> None:
        """Tell of segments that were begun since the last look; an append itself does not stop for that."""
        if self._broker.metrics.traffic.settle(partition):
            log_ = partition.log
            fields = {
                "topic": partition.topic,
                "partition": partition.index,
                "base_offset": log_.active.base_offset,
                "segments": len(log_.segments),
            }
            cause_id = f"{partition}@{log_.active.base_offset}"
            self._broker.metrics.events.emit(SEGMENT_ROLLED, fields, cause_id=cause_id)

    # -- retention

    def retain(self) -> None:
        """Delete the segments that retention lets go."""
        now_ms = self._broker.clock.now_ms()
        for partition in list(self._broker.replicas()):
            try:
                plan = partition.log.retention_plan(now_ms, partition.high_watermark)
                if not plan:
                    continue
                for line in plan.explain():
                    log.info("%s: deleting segment %s", partition, line)
                dropped = partition.log.delete_segments(plan, now_ms)
            except Exception as fault:
                self._broker.jobs.failed(RETENTION_JOB, fault, partition)
                continue
            self.remove_later(dropped, partition.config.file_delete_delay_ms)

    def remove_later(self, files: Sequence[str] | DroppedSegments, delay_ms: int) -> None:
        """Remove files that left a log, after `file.delete.delay.ms`; dropped segments are renamed first."""
        if not files:
            return
        if isinstance(files, DroppedSegments):
            dropped = files

            def renamed(result: list[str] | BaseException) -> None:
                if isinstance(result, BaseException):
                    self._broker.jobs.failed(REMOVAL_JOB, result)
                    self._after(self._removal_retry_ms, lambda: self.remove_later(dropped, delay_ms))
                elif not self._stopped:
                    self.remove_later(result, delay_ms)

            self._broker.background.run(dropped.run, renamed)
        else:
            paths = files
            self._later(delay_ms, lambda: remove_deleted_files(self._broker.disk, paths))

    def delete_log(self, partition: Partition) -> None:
        """Take the log of a deleted partition out of use and remove its folder a little later."""
        self.forget(partition)
        place = TopicPartition(partition.topic, partition.index)
        try:
            self.discard_log(place, partition.config.file_delete_delay_ms)
        except OSError as fault:
            log.error("the folder of %s could not be renamed: %s", partition, fault)

    def forget(self, partition: Partition) -> None:
        """Do no more for a partition."""
        self._seen_bytes.pop(partition, None)
        self._unwritten_indexes.pop(partition, None)
        self._compaction.forget(partition)

    def let_compaction_go(self, partition: Partition) -> None:
        """The files of a partition are about to move: what the cleaner is doing with them is called off."""
        self._compaction.forget(partition)

    def remove_folder_later(self, folder: str, delay_ms: int) -> None:
        """Remove the folder of a log that is out of use a little later."""
        directories = self._broker.log_directories
        self._later(delay_ms, lambda: directories.remove_folder(folder))

    def discard_log(self, place: TopicPartition, delay_ms: int) -> None:
        """Take an open log out of use and remove its folder a little later."""
        broker = self._broker
        deletion_id = UUID(int=broker.random.getrandbits(128), version=4)
        self.remove_folder_later(broker.log_directories.delete_log(place, deletion_id), delay_ms)

    def _remove_folder(self, folder: str) -> None:
        directories = self._broker.log_directories
        self._remove(lambda: directories.remove_folder(folder))

    def _later(self, delay_ms: int, remove: Callable[[], None]) -> None:
        """Remove something in a worker thread after a delay, or when the broker stops."""
        number = self._removal_count = self._removal_count + 1
        self._removals[number] = remove

        def due() -> None:
            if self._removals.pop(number, None) is not None:
                self._remove(remove)

        self._after(delay_ms, due, number)

    def _remove(self, remove: Callable[[], None]) -> None:
        """Remove something in a worker thread, and try again for as long as that fails."""

        def removed(result: BaseException | None) -> None:
            if not isinstance(result, BaseException):
                self._broker.jobs.ran(REMOVAL_JOB)
                return
            self._broker.jobs.failed(REMOVAL_JOB, result)
            # What is still there when the broker stops has a name that the next start removes.
            self._after(self._removal_retry_ms, lambda: self._remove(remove))

        self._broker.background.run(remove, removed)

    @property
    def _removal_retry_ms(self) -> int:
        return self._broker.jobs.job(REMOVAL_JOB).retry_ms

    def _after(self, delay_ms: int, call: Callable[[], None], number: int | None = None) -> None:
        if number is None:
            number = self._removal_count = self._removal_count + 1
        if not self._stopped:
            self._broker.timers.set_after(("housekeeping", "removal", number), delay_ms, call)

    # -- checkpoints and producers

    def _flush_closed_and_checkpoint(self) -> None:
        """Flush segments that are closed, so that a crash need not read them again, and note it down.

        Not right when they roll: the system writes them out by itself within half a minute, and a flush
        that comes after that costs nearly nothing.
        """
        for partition in list(self._broker.replicas()):
            if partition.log.active.base_offset > partition.log.recovery_checkpoint:
                self._broker.flusher.request_closed(partition)
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks down, in a worker thread."""
        if self._checkpointing:
            self._checkpoint_again = True
            return
        broker = self._broker
        plan = broker.log_directories.checkpoint_plan(broker.high_watermarks())
        self._checkpointing = True
        broker.background.run(plan.run, self._checkpointed)

    def _checkpointed(self, result: BaseException | None) -> None:
        self._checkpointing = False
        if isinstance(result, BaseException):
            self._broker.jobs.failed(CHECKPOINT_JOB, result)
        else:
            self._broker.jobs.ran(CHECKPOINT_JOB)
        if self._checkpoint_again:
            self._checkpoint_again = False
            self.checkpoint()

    def _expire_producers(self) -> None:
        now_ms = self._broker.clock.now_ms()
        for partition in list(self._broker.replicas()):
            partition.log.producers.expire(now_ms)
