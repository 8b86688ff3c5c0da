"""What a broker does with its logs without being asked: retention, flushing by age, indexes, checkpoints.

Each chore is a job that is done again and again (`background_jobs`); one log that fails keeps none of the
others waiting. What blocks runs in worker threads; what changes a log runs on the loop.
"""

import logging
from collections.abc import Sequence
from itertools import islice

from tidelog.broker.maintenance.checkpoints import CHECKPOINT_JOB, Checkpoints
from tidelog.broker.maintenance.compaction import Compaction
from tidelog.broker.maintenance.flusher import Flusher
from tidelog.broker.maintenance.removals import Removals
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.liveness import Liveness
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.turn import Turn
from tidelog.model.events import SEGMENT_ROLLED
from tidelog.model.identifiers import TopicPartition
from tidelog.model.ports import Clock

log = logging.getLogger(__name__)

TICK_MS = 1_000
#: partitions whose index files are written in one tick; the files may lag behind, recovery rebuilds them
INDEXES_PER_TICK = 100
#: new logs whose names are made durable in one tick; a log that rolls before its turn does it by itself
NAMES_PER_TICK = 50
TICK_JOB = "flush by age"
RETENTION_JOB = "retention"
EXPIRY_JOB = "producer id expiry"


class LogMaintenance:
    """The chores of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        flusher: Flusher,
        checkpoints: Checkpoints,
        removals: Removals,
        compaction: Compaction,
        settings: LiveSettings,
        clock: Clock,
        jobs: BackgroundJobs,
        metrics: Metrics,
        liveness: Liveness,
        turn: Turn,
    ) -> None:
        self._replicas = replicas
        self._flusher = flusher
        self._checkpoints = checkpoints
        self._removals = removals
        self._compaction = compaction
        self._settings = settings
        self._clock = clock
        self._jobs = jobs
        self._metrics = metrics
        self._liveness = liveness
        self._turn = turn
        self._seen_bytes: dict[Partition, int] = {}
        self._unwritten_indexes: dict[Partition, None] = {}

    def __repr__(self) -> str:
        return f"<LogMaintenance unwritten_indexes={len(self._unwritten_indexes)}>"

    def start(self) -> None:
        """Begin all chores."""
        get_int = self._settings.get_int
        every = self._jobs.every
        every(TICK_JOB, lambda: TICK_MS, self._tick)
        every(RETENTION_JOB, lambda: get_int("log.retention.check.interval.ms"), self.retain)
        every(
            CHECKPOINT_JOB,
            lambda: get_int("log.flush.offset.checkpoint.interval.ms"),
            self._flush_closed_and_checkpoint,
            tells_later=True,
        )
        every(
            EXPIRY_JOB,
            lambda: get_int("producer.id.expiration.check.interval.ms"),
            self._expire_producers,
        )

    def _tick(self) -> None:
        """Once a second: write index entries, flush what is old enough, and the names of new logs."""
        now_ms = self._clock.now_ms()
        names_left = NAMES_PER_TICK
        seen_bytes = self._seen_bytes
        for partition in list(self._replicas):
            try:
                config = partition.config
                if partition.flushes and (
                    partition.unflushed_messages >= config.flush_messages
                    or now_ms - partition.unflushed_since_ms >= config.flush_ms
                ):
                    # By number only for the broker's own records; those of clients are flushed as they come.
                    self._flusher.request(partition)
                elif names_left and not partition.log.has_durable_name:
                    self._flusher.request_closed(partition)
                    names_left -= 1
                if seen_bytes.get(partition, 0) != partition.appended_bytes:
                    seen_bytes[partition] = partition.appended_bytes
                    self._look_for_rolls(partition)
                    self._unwritten_indexes[partition] = None
            except Exception as fault:
                self._jobs.failed(TICK_JOB, fault, partition)
        for partition in list(islice(self._unwritten_indexes, INDEXES_PER_TICK)):
            del self._unwritten_indexes[partition]
            try:
                partition.log.write_indexes()
            except Exception as fault:
                self._jobs.failed(TICK_JOB, fault, partition)

    def _look_for_rolls(self, partition: Partition) -> None:
        """Tell of segments that were begun since the last look; an append itself does not stop for that."""
        if self._metrics.traffic.settle(partition):
            log_ = partition.log
            fields = {
                "topic": partition.topic,
                "partition": partition.index,
                "base_offset": log_.active.base_offset,
                "segments": len(log_.segments),
            }
            cause_id = f"{partition}@{log_.active.base_offset}"
            self._metrics.events.emit(SEGMENT_ROLLED, fields, cause_id=cause_id)

    # -- retention

    def retain(self) -> None:
        """Delete the segments that retention lets go."""
        now_ms = self._clock.now_ms()
        for partition in list(self._replicas):
            try:
                plan = partition.log.retention_plan(now_ms, partition.retained_to)
                if not plan:
                    continue
                for line in plan.explain():
                    log.info("%s: deleting segment %s", partition, line)
                dropped = partition.log.delete_segments(plan, now_ms)
            except Exception as fault:
                self._jobs.failed(RETENTION_JOB, fault, partition)
                continue
            self._removals.remove_files(dropped, partition.config.file_delete_delay_ms)
            if partition.leads:
                self._turn.note_progress(partition)  # followers of a delay topic go by its start

    def advance_log_start(self, partition: Partition, offset: int) -> None:
        """Delete the records before an offset; whole segments leave the disk a little later."""
        files = partition.log.advance_log_start(offset)
        self._removals.remove_files(files, partition.config.file_delete_delay_ms)
        self._checkpoints.write()

    # -- logs that go

    def forget_logs(self, places: Sequence[TopicPartition]) -> None:
        """The topics of these logs are deleted: what the checkpoints say of them goes first."""
        try:
            self._removals.forget_logs(places)
        except OSError as fault:
            log.error("the checkpoints still speak of logs of deleted topics: %s", fault)

    def delete_log(self, partition: Partition) -> None:
        """Take the log of a deleted partition out of use and remove its folder a little later."""
        self.forget(partition)
        place = partition.place
        try:
            self._removals.discard_log(place, partition.config.file_delete_delay_ms)
        except OSError as fault:
            log.error("the folder of %s could not be renamed: %s", partition, fault)
        finally:
            # Thousands of logs take their time on a busy disk, but they go.
            self._liveness.moved()

    def forget(self, partition: Partition) -> None:
        """Do no more for a partition: its log is closed."""
        self._seen_bytes.pop(partition, None)
        self._unwritten_indexes.pop(partition, None)
        self._compaction.forget(partition)

    # -- checkpoints and producers

    def _flush_closed_and_checkpoint(self) -> None:
        """Flush segments that are closed, so that a crash need not read them again, and note it down.

        Not right when they roll: the system writes them out by itself within half a minute, and a flush
        that comes after that costs nearly nothing.
        """
        for partition in list(self._replicas):
            if partition.log.active.base_offset > partition.log.recovery_checkpoint:
                self._flusher.request_closed(partition)
        self._checkpoints.write()

    def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        for partition in list(self._replicas):
            partition.log.producers.expire(now_ms)
