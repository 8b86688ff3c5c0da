"""One partition's log on disk: an ordered list of segments, the last of which is appended to.

Everything here runs on the event loop, to completion; nothing is awaited and nothing is locked. What would
wait for the disk is split: a plan is made here and run in a worker thread (`flush_plan`), segments leave the
log here and the disk later (`delete_segments`), and compacted ones come in two steps (`begin_replacement`).
Trouble with the disk is an `OSError`.

The bounds of a log: `log_start_offset` ≤ `log_end_offset`. Batches before the log start offset are gone for
readers even while their segment exists; batches before the recovery point were synced, which Kafka also says
of those that were merely deleted. What goes into the checkpoint is `recovery_checkpoint`: a closed segment
counts as flushed when its indexes are, too.
The high watermark belongs to the partition that owns the log, and is given where it is needed.
How a log is read is in `readable_log`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from uuid import UUID
from zlib import crc32

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import INT64_MAX, LogConfig
from tidelog.records.batch import CONTROL_BIT, BatchHeader
from tidelog.storage.disk import Bytes, Disk
from tidelog.storage.flush_plan import FlushPlan
from tidelog.storage.leader_epochs import LEADER_EPOCH_CHECKPOINT, LeaderEpochs
from tidelog.storage.offset_index import RELATIVE_OFFSET_MAX
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_metadata import read_topic_id, write_topic_id
from tidelog.storage.producer_replay import note_marker, recall_retries, replay_producers
from tidelog.storage.producer_state import (
    ProducerExpiration,
    ProducerState,
    list_snapshots,
    remove_snapshots,
    snapshot_path,
)
from tidelog.storage.readable_log import ReadableLog
from tidelog.storage.recovery import Recovery
from tidelog.storage.retention import DroppedSegments, RetentionPlan, plan_retention
from tidelog.storage.segment import (
    DELETED,
    OFFSET_INDEX,
    SEGMENT_BYTES_MAX,
    SWAP,
    TIME_INDEX,
    Segment,
)


class PartitionLog(ReadableLog):
    """A log; made by `open`."""

    __slots__ = (
        "_closed_bytes",
        "_disk",
        "_names_synced",
        "_names_version",
        "_open_files",
        "_roll_after_now_ms",
        "_roll_after_timestamp_ms",
        "_segment_bytes",
        "_swapping",
        "_unsynced_indexes",
        "config",
        "directory",
        "dropped",
        "recovery_point",
        "topic_id",
        "topic_partition",
        "truncated_bytes",
        "truncation_count",
    )

    def __init__(
        self,
        disk: Disk,
        open_files: OpenFiles,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        producers: ProducerState,
        leader_epochs: LeaderEpochs,
    ) -> None:
        super().__init__(producers, leader_epochs)
        self._disk = disk
        self._open_files = open_files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id: UUID | None = None
        self.config = config
        self.recovery_point = 0
        self.truncated_bytes = 0
        # Names of new segments become durable with the next flush; at first the folder's own name is in
        # doubt.
        self._names_version = 1
        self._names_synced = 0
        self.truncation_count = 0
        # Closed segments, oldest first, whose index files were written but not synced.
        self._unsynced_indexes: list[Segment] = []
        # Compacted segments that have taken their place in the log, but not yet their names.
        self._swapping: list[Segment] = []
        self.dropped = DroppedSegments(disk, directory)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        clean_shutdown: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        producer_expiration: ProducerExpiration | None = None,
        topic_id: UUID | None = None,
        open_files: OpenFiles | None = None,
    ) -> "PartitionLog":
        """Open the log in `directory`, or begin one there; recover what a crash left.

        `recovery_point` and `log_start_offset` come from the checkpoints of the data directory. `topic_id` is
        noted in a folder that has none yet. `truncated_bytes` tells afterwards what recovery had to cut. If
        `recovery_checkpoint` is then below the checkpoint's offset, that has to be written down before the
        log is used.
        """
        is_new = not disk.exists(directory)
        disk.make_directory(directory)
        if open_files is None:
            open_files = OpenFiles(disk)
        producers = ProducerState(producer_expiration)
        leader_epochs = LeaderEpochs(disk, f"{directory}/{LEADER_EPOCH_CHECKPOINT}")
        recovery = Recovery(disk, open_files, directory, config, producers, leader_epochs, now_ms)
        recover = recovery.begin if is_new else recovery.run
        recovered = recover(
            clean_shutdown=clean_shutdown, recovery_point=recovery_point, log_start_offset=log_start_offset
        )
        log = cls(disk, open_files, directory, topic_partition, config, producers, leader_epochs)
        log.topic_id = None if is_new else read_topic_id(disk, directory)
        if log.topic_id is None and topic_id is not None:
            log.set_topic_id(topic_id)
        log.log_start_offset = recovered.log_start_offset
        log.log_end_offset = recovered.log_end_offset
        log.recovery_point = recovered.recovery_point
        log.truncated_bytes = recovered.truncated_bytes
        log._set_segments(recovered.segments)
        log._unsynced_indexes = recovered.segments[recovered.first_recovered : -1]
        if clean_shutdown and not is_new:
            log._names_synced = log._names_version
        return log

    def set_topic_id(self, topic_id: UUID) -> None:
        """Note which topic the folder belongs to, durably."""
        write_topic_id(self._disk, self.directory, topic_id)
        self.topic_id = topic_id

    def reconfigure(self, config: LogConfig) -> None:
        """Obey new settings from now on."""
        self.config = config
        for segment in self.segments:
            segment.configure(config)
        self._set_limits()

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self.active.size_bytes

    @property
    def unflushed_messages(self) -> int:
        """How many offsets are not yet known to be durable, for `flush.messages`."""
        return self.log_end_offset - self.recovery_point

    @property
    def recovery_checkpoint(self) -> int:
        """The offset from whose segment on the next start after a crash has to read, for the checkpoint.

        It is the recovery point, except that a segment whose index files are not synced must be read again.
        So the end of the active one is not written down: a roll would make it the start of the next.
        """
        offset = self.recovery_point
        if self._unsynced_indexes:
            offset = min(offset, self._unsynced_indexes[0].base_offset)
        if offset == self.log_end_offset and self.active.has_unwritten_indexes:
            offset -= 1
        return offset

    @property
    def has_durable_name(self) -> bool:
        """Whether the names of the folder and of its first segment were synced. If not, the first roll waits
        for the disk to do so, unless somebody flushes before."""
        return self._names_synced > 0

    @property
    def first_stored_offset(self) -> int:
        """Where the oldest segment starts that the next start might find."""
        dropped_offset = self.dropped.first_offset
        return self.segments[0].base_offset if dropped_offset is None else dropped_offset

    def _set_segments(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.active = segments[-1]
        self._base_offsets = [segment.base_offset for segment in segments]
        self._closed_bytes = sum(segment.size_bytes for segment in segments[:-1])
        self._places.clear()
        self._set_limits()

    def _set_limits(self) -> None:
        """Work out when the active segment is full or too old, so that an append only compares."""
        self._segment_bytes = min(self.config.segment_bytes, SEGMENT_BYTES_MAX)
        self._roll_after_timestamp_ms = self._roll_after_now_ms = INT64_MAX
        first_timestamp_ms = self.active.first_timestamp_ms
        if first_timestamp_ms is None:
            return
        roll_ms = self.config.segment_ms - self._jitter_ms()
        if first_timestamp_ms >= 0:
            self._roll_after_timestamp_ms = first_timestamp_ms + roll_ms
        else:
            self._roll_after_now_ms = self.active.created_ms + roll_ms

    def _jitter_ms(self) -> int:
        """Spread the rolling of many logs; the same for the same segment, unlike Kafka's random number."""
        limit_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if limit_ms <= 0:
            return 0
        return crc32(f"{self.topic_partition}/{self.active.base_offset}".encode()) % limit_ms

    # Appending

    def append(
        self, view: Bytes, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Append one checked batch, whose bytes already carry `base_offset` and `leader_epoch`.

        `header` is the batch's header; its base offset and epoch are not looked at, its largest timestamp
        must be what the bytes say. After an `OSError` the log is unchanged and can be appended to again.
        """
        assert base_offset >= self.log_end_offset, f"{self!r} cannot take offset {base_offset}"
        last_offset = base_offset + header.last_offset_delta
        max_timestamp_ms = header.max_timestamp_ms
        segment = self.active
        position = segment.size_bytes
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX or (
            position
            and (
                position + len(view) > self._segment_bytes
                or max_timestamp_ms > self._roll_after_timestamp_ms
                or now_ms > self._roll_after_now_ms
                or segment.index_full
            )
        ):
            # Where the log ends, so that segments adjoin even if offsets are missing before this batch.
            adjoins = last_offset - self.log_end_offset <= RELATIVE_OFFSET_MAX
            segment = self.roll(now_ms, self.log_end_offset if adjoins else base_offset)
            position = 0
        segment.append(view, last_offset, max_timestamp_ms, now_ms)
        self.log_end_offset = last_offset + 1
        if not position:
            self._set_limits()
        if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            if header.attributes & CONTROL_BIT:
                self._append_marker(view, header, base_offset, now_ms)
            else:
                self.producers.update(header, base_offset, now_ms)

    def takes_in_one_write(
        self, size_bytes: int, last_offset: int, max_timestamp_ms: int, now_ms: int
    ) -> bool:
        """Whether batches of this size together, up to this offset, all go into the active segment."""
        segment = self.active
        return (
            0 < segment.size_bytes <= self._segment_bytes - size_bytes
            and last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX
            and max_timestamp_ms <= self._roll_after_timestamp_ms
            and now_ms <= self._roll_after_now_ms
            and not segment.index_full
        )

    def append_many(
        self, views: Sequence[Bytes], ends: Sequence[tuple[int, int]], leader_epoch: int, now_ms: int
    ) -> None:
        """Append checked batches without producer ids that `takes_in_one_write` said fit, with one write.

        `ends` has the last offset and the largest timestamp of each. After an `OSError` the log is unchanged.
        """
        base_offset = self.log_end_offset
        self.active.append_many(views, ends, now_ms)
        self.log_end_offset = ends[-1][0] + 1
        if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
            self.leader_epochs.assign(leader_epoch, base_offset)

    def append_replicated(self, views: Sequence[Bytes], headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Append checked batches as the leader has them, with its offsets and epochs; in one write if they
        fit. After an `OSError` the batches before the one that failed may be in the log.
        """
        last_offset = headers[-1].last_offset
        ends = [(header.last_offset, header.max_timestamp_ms) for header in headers]
        size_bytes = sum(map(len, views))
        if not self.takes_in_one_write(size_bytes, last_offset, max(end[1] for end in ends), now_ms):
            for view, header in zip(views, headers, strict=True):
                self.append(view, header, header.base_offset, header.partition_leader_epoch, now_ms)
            return
        assert headers[0].base_offset >= self.log_end_offset, f"{self!r} cannot take {headers[0].base_offset}"
        self.active.append_many(views, ends, now_ms)
        self.log_end_offset = last_offset + 1
        for view, header in zip(views, headers, strict=True):
            leader_epoch = header.partition_leader_epoch
            if leader_epoch != self.leader_epochs.latest and leader_epoch >= 0:
                self.leader_epochs.assign(leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                if header.attributes & CONTROL_BIT:
                    self._append_marker(view, header, header.base_offset, now_ms)
                else:
                    self.producers.update(header, header.base_offset, now_ms)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Note that a leadership begins here, before its first batch.

        A follower may hold batches of an epoch that never came so far as here; it is told to cut them
        because this entry says that they cannot be in the log of a later leader.
        """
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def _append_marker(self, view: Bytes, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        try:
            note_marker(self.producers, self.active, header, base_offset, view, now_ms)
        except OSError:
            # The transaction index could not be written: take the marker back, with what it did to the
            # producers.
            self.truncate_to(base_offset)
            raise

    def roll(self, now_ms: int, base_offset: int | None = None) -> Segment:
        """Close the active segment and begin a new one; an empty one that starts there is kept.

        The producer state is written as a snapshot at the new segment's start, where recovery will need it.
        After an `OSError` the old segment is still active.
        """
        old = self.active
        if base_offset is None:
            base_offset = self.log_end_offset
        if old.base_offset == base_offset:
            return old
        if not self._names_synced:
            # Of the names of several segments a power cut may keep any; one it keeps for sure must be the
            # first, or recovery could not tell what was lost before the others from what retention took.
            self._sync_names()
        old.write_indexes(final=True)
        self.producers.write_snapshot(self._disk, self.directory, base_offset)
        new = Segment.create(self._disk, self._open_files, self.directory, base_offset, self.config, now_ms)
        old.seal()
        self._closed_bytes += old.size_bytes
        self._unsynced_indexes.append(old)
        self.segments.append(new)
        self._base_offsets.append(base_offset)
        self.active = new
        self._names_version += 1
        self._set_limits()
        return new

    def _sync_names(self) -> None:
        """Make the folder and the names in it durable, waiting for the disk."""
        self._disk.sync_directory(self.directory)
        self._disk.sync_directory(self.directory.rpartition("/")[0] or ".")
        self._names_synced = self._names_version

    # Durability

    def flush_plan(self, *, closed_only: bool = False) -> FlushPlan | None:
        """What to sync so that the log, or all of it but its active segment, is durable; None if it is."""
        end_offset = self.active.base_offset if closed_only else self.log_end_offset
        indexed = tuple(self._unsynced_indexes)
        if (
            self.recovery_point >= end_offset
            and not indexed
            and (self.has_durable_name if closed_only else self._names_synced == self._names_version)
        ):
            return None
        first = max(0, bisect_right(self._base_offsets, self.recovery_point) - 1)
        segments = self.segments[first:-1] if closed_only else self.segments[first:]
        files = [segment.file for segment in segments]
        for segment in indexed:
            if segment.base_offset < self.segments[0].base_offset:
                continue  # dropped since
            files.extend(
                self._disk.open(segment.path(kind), create=True) for kind in (OFFSET_INDEX, TIME_INDEX)
            )
        directories: tuple[str, ...] = ()
        if self._names_synced != self._names_version or self.dropped:
            parent = self.directory.rpartition("/")[0] or "."
            directories = (self.directory, parent) if not self._names_synced else (self.directory,)
        return FlushPlan(
            disk=self._disk,
            end_offset=end_offset,
            files=tuple(files),
            new_paths=() if self._names_synced else self.active.index_paths,
            dropped_paths=self.dropped.paths(),
            indexed=indexed,
            transaction_indexes=tuple(segment.transaction_index for segment in segments),
            leader_epochs=self.leader_epochs,
            directories=directories,
            truncation_count=self.truncation_count,
            names_version=self._names_version,
        )

    def flushed(self, plan: FlushPlan) -> None:
        """Take note that a plan of this log has run."""
        self._names_synced = max(self._names_synced, plan.names_version)
        self._unsynced_indexes = [each for each in self._unsynced_indexes if each not in plan.indexed]
        if plan.truncation_count == self.truncation_count:
            self.recovery_point = max(self.recovery_point, plan.end_offset)

    def flush(self) -> None:
        """Make everything durable, waiting for the disk."""
        plan = self.flush_plan()
        if plan is not None:
            plan.run()
            self.flushed(plan)

    def write_indexes(self) -> None:
        """LogMaintenance: bring the index files up to date and free indexes that nobody used of late."""
        # Before its names are durable, a log is about to get its files elsewhere: there may be many new ones.
        make_files = self.has_durable_name
        for segment in self.segments:
            segment.write_indexes(make_files=make_files)
            segment.drop_unused_indexes()

    def close(self, clean: bool = True) -> None:
        """Stop using the log. Cleanly: everything is durable, and the next start need not recover."""
        if clean:
            self._finish_swap_now()
            self.dropped.run()
            self._write_end()
            self.flush()
        for segment in self.segments:
            segment.let_go()
        self._places.clear()

    def _write_end(self) -> None:
        """Write what a clean start wants to find; nothing if the log has not changed since it was opened."""
        if self.active.has_unwritten_indexes:
            self.active.write_indexes(final=True, sync=True)
            self._names_version += 1
        snapshot = snapshot_path(self.directory, self.log_end_offset)
        if self.log_end_offset > self.log_start_offset and not self._disk.exists(snapshot):
            self.producers.write_snapshot(self._disk, self.directory, self.log_end_offset)

    # Removing

    def retention_plan(self, now_ms: int, high_watermark: int) -> RetentionPlan:
        """Which segments have outlived the settings."""
        return plan_retention(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )

    def delete_segments(self, plan: RetentionPlan, now_ms: int) -> DroppedSegments:
        """Take the plan's segments out of the log; the result is to be run, off the event loop.

        Segments that went another way since the plan was made are passed over.
        """
        count = 0
        for segment, planned in zip(self.segments, plan.segments, strict=False):
            if segment is not planned:
                break
            count += 1
        if count == len(self.segments):
            self.roll(now_ms)
            count = min(count, len(self.segments) - 1)
        return self._drop_oldest(count)

    def advance_log_start(self, offset: int) -> DroppedSegments:
        """Hide everything before `offset`; segments that are not needed any more leave the log.

        The result is to be run, off the event loop. The caller has checked that the offset is not above the
        high watermark.
        """
        assert offset <= self.log_end_offset, f"{self!r} has no offset {offset}"
        if offset <= self.log_start_offset:
            return self.dropped
        self._move_log_start(offset)
        return self._drop_oldest(max(0, bisect_right(self._base_offsets, offset) - 1))

    def _move_log_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.advance_log_start(offset)

    def _drop_oldest(self, count: int) -> DroppedSegments:
        # One that has not got its final name yet has to stay until the next check.
        named = next((n for n, each in enumerate(self.segments) if each.suffix), count)
        count = min(count, named)
        if not count:
            return self.dropped
        dropped, kept = self.segments[:count], self.segments[count:]
        first_offset = kept[0].base_offset
        if first_offset > self.log_start_offset:
            self._move_log_start(first_offset)
        self._set_segments(kept)
        for segment in dropped:
            segment.let_go()
        self.dropped.add(dropped, first_offset)
        return self.dropped

    def lower_recovery_point(self, offset: int) -> None:
        """The log is about to be cut at `offset`: what is beyond it must not be taken for flushed.

        The checkpoint has to say so before the cut. Otherwise batches that take the place of the flushed
        ones, and are not flushed, would be trusted by the next recovery.
        """
        self.recovery_point = min(self.recovery_point, offset)
        # A flush under way was planned for the log as it is now.
        self.truncation_count += 1

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one: the leader's log differs from there.

        What is cut off is gone for sure when this returns, so it cannot come back after a power cut behind,
        or among, the batches that take its place; `lower_recovery_point` comes first, and its checkpoint.
        """
        if offset >= self.log_end_offset:
            # An epoch that was begun here and never written in may be another than the leader's.
            self.leader_epochs.truncate_from_end(offset)
            return
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self._finish_swap_now()
        self.truncation_count += 1
        keep = max(1, bisect_right(self._base_offsets, offset))
        removed = self.segments[keep:]
        kept = self.segments[:keep]
        kept[-1].reopen()
        kept[-1].truncate_to(offset)
        self._set_segments(kept)
        for segment in reversed(removed):
            segment.remove()
        self._unsynced_indexes = [each for each in self._unsynced_indexes if each in kept]
        self._names_version += bool(removed)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
        self._reload_producers()
        if removed:
            self._disk.sync_directory(self.directory)
        self.active.file.sync()

    def _reload_producers(self) -> None:
        now_ms = self.active.last_appended_ms
        replay_from = self.producers.load(
            self._disk, self.directory, self.log_start_offset, self.log_end_offset, now_ms
        )
        replay_producers(self.producers, self.segments, replay_from, self.log_end_offset)
        recall_retries(self.producers, self.segments, self.log_end_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and begin an empty log at `offset`."""
        self._finish_swap_now()
        # The new segment may have the name of one that is on its way out.
        self.dropped.run()
        self.truncation_count += 1
        config, now_ms = self.config, self.active.last_appended_ms
        for segment in reversed(self.segments):
            segment.remove()
        new = Segment.create(self._disk, self._open_files, self.directory, offset, config, now_ms)
        self._set_segments([new])
        self._unsynced_indexes = []
        self._names_version += 1
        self.log_start_offset = self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.leader_epochs.clear()
        self.producers.clear()
        remove_snapshots(self._disk, self.directory, list_snapshots(self._disk, self.directory))
        self._disk.sync_directory(self.directory)

    def begin_replacement(self, replacements: Sequence[tuple[Sequence[Segment], Segment]]) -> list[str]:
        """Put compacted segments in the place of closed ones; return the files to remove later.

        The new ones are complete and synced, and their names, ending with `.swap`, are durable
        (`mark_for_swap`). From here on the log reads them, but the old names must be gone for sure before
        they get them: the directory is to be synced, off the event loop, before `finish_replacement`. A crash
        at any point leaves the old segments or the new (see recovery).
        """
        assert not self._swapping, f"{self!r} has not finished the replacement before"
        segments = list(self.segments)
        for old, new in replacements:
            assert new.suffix == SWAP, f"{new!r} is not ready"
            first = segments.index(old[0])
            assert segments[first : first + len(old)] == list(old) and self.active not in old, (
                "not closed segments"
            )
            segments[first : first + len(old)] = [new]
        # Out of the log before their names change: a reader must not find them by the old name.
        self._set_segments(segments)
        self._swapping = [new for _, new in replacements]
        replaced = [segment for old, _ in replacements for segment in old]
        self._unsynced_indexes = [each for each in self._unsynced_indexes if each not in replaced]
        paths: list[str] = []
        for segment in replaced:
            segment.rename(DELETED)
            paths.extend(segment.files())
            segment.let_go()
        self._names_version += 1
        return paths

    def finish_replacement(self) -> None:
        """Give compacted segments their names: the directory was synced since `begin_replacement`."""
        swapping, self._swapping = self._swapping, []
        for segment in swapping:
            segment.rename("")
        self._names_version += bool(swapping)

    def _finish_swap_now(self) -> None:
        """The same, waiting for the disk."""
        if self._swapping:
            self._disk.sync_directory(self.directory)
            self.finish_replacement()

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic_partition} {self.log_start_offset}…{self.log_end_offset}>"


def mark_for_swap(disk: Disk, directory: str, segments: list[Segment]) -> None:
    """Declare a set of compacted segments complete, durably; from here on a crash keeps them."""
    # Every name must be there for sure before one of them changes, and the last segment must have changed for
    # sure before the one before it does: as long as one of them is `.cleaned`, recovery drops it and those
    # behind it, and could otherwise mistake a part for the whole.
    disk.sync_directory(directory)
    for segment in reversed(segments):
        segment.rename(SWAP)
        disk.sync_directory(directory)
