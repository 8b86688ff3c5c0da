"""Opening a partition's folder: from whatever files a stop or a crash left to a log that can be used.

1. Finish or undo a swap of compacted segments. Compaction writes `.cleaned` files, renames them to `.swap`
   from the last segment to the first, renames the replaced segments to `.deleted`, then gives the `.swap`
   files their final names. So `.cleaned` files are unfinished and go; a `.swap` at or behind a `.cleaned`
   is part of an unfinished set and goes too; any other `.swap` wins over the segments it covers. `.deleted`
   files go.
2. Remove index files without a log, and segments that lie wholly before the log start offset.
3. After an unclean stop, read every batch from the recovery point's segment on: size, magic, checksum,
   ascending offsets. At the first that fails, cut the segment there. Remove the segments behind the first
   one that does not start where the one before it ends. Rebuild indexes, transaction index and leader epochs
   from the batches read. What lies before the recovery point was flushed.
4. Other segments, and all after a clean stop: look at the ends of their index files, and rebuild them if
   missing or impossible. The last segment is read from its last index entry on; if that fails it is
   recovered as in 3. Damage in a segment before it that was flushed is for a person to decide about
   (`SegmentCorrupt`).
5. Restore the producer state from the newest snapshot and the batches behind it.

Holes. A power cut may keep a later file and lose an earlier one, so behind the recovery point a segment must
start where the last one ended, or nothing can be said about what lies between. Segments of this broker always
adjoin, also after compaction, which keeps the header of the last batch of a segment, and after retention,
which takes them from the disk oldest first. (One exception: a follower whose leader sends it a batch more
than 2³¹ offsets behind its end. What recovery then drops it gets again.) The cleaner of Kafka does leave
gaps. Before the recovery point they are accepted; a folder from Kafka therefore has to come from a clean
stop, after which its recovery point is its end.

What recovery cut and removed is durable before anything is appended. Running it twice gives the same log, and
so does running it again after a power cut in the middle. It works in any thread, before the log is in use.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.model.log_config import LogConfig
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC,
    read_header,
)
from tidelog.records.checksum import crc32c
from tidelog.storage.disk import Disk, File
from tidelog.storage.leader_epochs import LeaderEpochs
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.producer_replay import recall_retries, replay_batch, replay_producers
from tidelog.storage.producer_state import (
    ProducerState,
    list_snapshots,
    remove_snapshots,
    snapshot_path,
)
from tidelog.storage.segment import (
    CLEANED,
    DELETED,
    LOG,
    SEGMENT_KINDS,
    SWAP,
    BatchPlace,
    Segment,
    SegmentCorrupt,
)

BLOCK_BYTES = 1 << 20
BASE_OFFSET_DIGITS = 20

logger = logging.getLogger(__name__)


class RecoveredLog(NamedTuple):
    """The segments, the last one open for appending, and the bounds of the log."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    truncated_bytes: int
    # The number of the first segment whose batches were all read, and whose indexes are not synced.
    first_recovered: int


class SegmentFileName(NamedTuple):
    """A parsed name such as `00000000000000000042.index.swap`."""

    base_offset: int
    kind: str
    suffix: str

    @classmethod
    def parse(cls, name: str) -> "SegmentFileName | None":
        digits, rest = name[:BASE_OFFSET_DIGITS], name[BASE_OFFSET_DIGITS:]
        if len(digits) != BASE_OFFSET_DIGITS or not (digits.isascii() and digits.isdecimal()):
            return None
        for kind in SEGMENT_KINDS:
            for suffix in ("", CLEANED, SWAP, DELETED):
                if rest == kind + suffix:
                    return cls(int(digits), kind, suffix)
        return None


class Recovery:
    """The recovery of one partition's folder; `run` once."""

    def __init__(
        self,
        disk: Disk,
        open_files: OpenFiles,
        directory: str,
        config: LogConfig,
        producers: ProducerState,
        leader_epochs: LeaderEpochs,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._directory = directory
        self._config = config
        self._producers = producers
        self._leader_epochs = leader_epochs
        self._now_ms = now_ms
        self._truncated_bytes = 0
        self._removed_names = False

    def run(self, *, clean_shutdown: bool, recovery_point: int, log_start_offset: int) -> RecoveredLog:
        self._finish_swaps()
        segments = self._load_segments()
        if segments:
            log_start_offset = max(log_start_offset, segments[0].base_offset)
            self._remove_hidden(segments, log_start_offset)
        if clean_shutdown:
            unflushed_from = len(segments)
        else:
            unflushed_from = _floor_index(segments, recovery_point)
        self._check_indexes(segments, unflushed_from)
        if unflushed_from < len(segments):
            log_end_offset = self._recover_unflushed(segments, unflushed_from, log_start_offset)
        else:
            log_end_offset = self._open_clean(segments, log_start_offset)
        if not segments or log_end_offset < log_start_offset:
            log_end_offset = self._start_anew(segments, log_start_offset)
            unflushed_from = len(segments)
        if self._removed_names:
            self._disk.sync_directory(self._directory)
        segments[-1].reopen()
        self._settle_leader_epochs(segments, log_start_offset, log_end_offset)
        self._remove_stray_snapshots(segments)
        return RecoveredLog(
            segments,
            log_start_offset,
            log_end_offset,
            log_end_offset
            if clean_shutdown and not self._truncated_bytes
            else min(recovery_point, log_end_offset),
            self._truncated_bytes,
            unflushed_from,
        )

    def begin(self, *, clean_shutdown: bool, recovery_point: int, log_start_offset: int) -> RecoveredLog:
        """What `run` makes of a folder that was just made, without a look at what cannot be there."""
        segment = Segment.create(
            self._disk,
            self._open_files,
            self._directory,
            log_start_offset,
            self._config,
            self._now_ms,
            in_new_folder=True,
        )
        if not clean_shutdown:
            recovery_point = min(recovery_point, log_start_offset)
        else:
            recovery_point = log_start_offset
        return RecoveredLog([segment], log_start_offset, log_start_offset, recovery_point, 0, 1)

    # Files

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _segment_files(self) -> dict[str, SegmentFileName]:
        names = self._disk.list(self._directory)
        return {name: parsed for name in names if (parsed := SegmentFileName.parse(name)) is not None}

    def _remove(self, name: str, why: str) -> None:
        logger.info("%s: removing %s: %s", self._directory, name, why)
        self._disk.remove(self._path(name))
        self._removed_names = True

    def _remove_segment(self, segment: Segment, why: str) -> None:
        logger.warning("%r: removing it: %s", segment, why)
        segment.remove()
        self._removed_names = True

    def _finish_swaps(self) -> None:
        files = self._segment_files()
        if all(file.suffix == "" for file in files.values()):
            return
        # What a killed process has renamed is there, but may not be durable: it has to be before some of it
        # goes, or a power cut could bring back one segment and not the next.
        self._disk.sync_directory(self._directory)
        cleaned_from = min(
            (file.base_offset for file in files.values() if file.suffix == CLEANED), default=None
        )
        if cleaned_from is not None:
            for name, file in list(files.items()):
                if file.suffix == SWAP and file.base_offset >= cleaned_from:
                    self._remove(name, "it belongs to an unfinished compaction")
                    del files[name]
            # Durably, before the `.cleaned` files that tell us so are gone.
            self._disk.sync_directory(self._directory)
        for name, file in list(files.items()):
            if file.suffix in (CLEANED, DELETED):
                self._remove(name, "it is unfinished, or waited for removal")
                del files[name]
        swaps = {name: file for name, file in files.items() if file.suffix == SWAP}
        swap_logs = [file for file in swaps.values() if file.kind == LOG]
        with_log = {file.base_offset for file in swap_logs}
        for name in [name for name, file in swaps.items() if file.base_offset not in with_log]:
            # Its log has its final name already, or never came so far; the index can be rebuilt.
            self._remove(name, "it has no log to take the place of another")
            del swaps[name]
        if swap_logs:
            # Each by itself: one between them may have its final name already.
            covered = [(file.base_offset, self._swap_end(file)) for file in swap_logs]
            for name, file in files.items():
                if file.suffix == "" and any(start <= file.base_offset < end for start, end in covered):
                    self._remove(name, "a compacted segment takes its place")
            self._disk.sync_directory(self._directory)
        # The log goes last, so that a crash in between comes back to here.
        for name in sorted(swaps, key=lambda name: (swaps[name].kind == LOG, name)):
            self._disk.rename(self._path(name), self._path(name.removesuffix(SWAP)))
        self._disk.sync_directory(self._directory)

    def _swap_end(self, swap: SegmentFileName) -> int:
        """The offset after the last batch of a `.swap` log."""
        file = self._disk.open(self._path(f"{swap.base_offset:020d}{LOG}{SWAP}"), create=False)
        end = swap.base_offset
        for place in checked_batches(file, file.size_bytes, swap.base_offset):
            end = place.header.next_offset
        return end

    def _load_segments(self) -> list[Segment]:
        files = self._segment_files()
        base_offsets = sorted(file.base_offset for file in files.values() if file.kind == LOG)
        known = set(base_offsets)
        for name, file in files.items():
            if file.base_offset not in known:
                self._remove(name, "it has no log")
        return [
            Segment.load(
                self._disk, self._open_files, self._directory, base_offset, self._config, self._now_ms
            )
            for base_offset in base_offsets
        ]

    def _remove_hidden(self, segments: list[Segment], log_start_offset: int) -> None:
        """Remove segments that lie wholly before the start of the log: retention was about to."""
        while len(segments) > 1 and segments[1].base_offset <= log_start_offset:
            self._remove_segment(segments.pop(0), f"the log starts at {log_start_offset}")

    # Segments

    def _check_indexes(self, segments: list[Segment], end: int) -> None:
        """Rebuild what is wrong with the indexes of the segments that are not going to be recovered."""
        for segment in segments[:end]:
            fault = segment.index_fault()
            if fault is not None:
                if segment.size_bytes:
                    logger.warning("%r: rebuilding the indexes: %s", segment, fault)
                self._recover_segment(segment, may_cut=segment is segments[-1])

    def _open_clean(self, segments: list[Segment], log_start_offset: int) -> int:
        """Find the end of the log by reading on from the last index entry, then restore the producers."""
        if not segments:
            return log_start_offset
        last = segments[-1]
        try:
            log_end_offset = last.next_offset()
        except SegmentCorrupt as error:
            logger.warning("%r: recovering it although the stop was clean: %s", last, error)
            log_end_offset = self._recover_segment(last)
        self._load_producers(segments, log_start_offset, log_end_offset)
        return log_end_offset

    def _load_producers(self, segments: list[Segment], log_start_offset: int, end_offset: int) -> None:
        replay_from = self._producers.load(
            self._disk, self._directory, log_start_offset, end_offset, self._now_ms
        )
        replay_producers(self._producers, segments, replay_from, end_offset)
        recall_retries(self._producers, segments, end_offset)

    def _recover_unflushed(self, segments: list[Segment], first: int, log_start_offset: int) -> int:
        """Read all batches of the segments from number `first` on; return the end of the log."""
        log_end_offset = segments[first].base_offset
        self._load_producers(segments[:first], log_start_offset, log_end_offset)
        for index in range(first, len(segments)):
            segment = segments[index]
            if index > first:
                if segment.base_offset != log_end_offset:
                    for later in segments[index:]:
                        self._truncated_bytes += later.size_bytes
                        self._remove_segment(later, f"the log before it ends at {log_end_offset}")
                    del segments[index:]
                    # Durably, before one in front of them goes: no power cut must make them the first.
                    self._disk.sync_directory(self._directory)
                    break
                self._producers.write_snapshot(self._disk, self._directory, segment.base_offset)
            log_end_offset = self._recover_segment(segment, replay_from=log_start_offset)
        stale = [offset for offset in list_snapshots(self._disk, self._directory) if offset > log_end_offset]
        remove_snapshots(self._disk, self._directory, stale)
        return log_end_offset

    def _recover_segment(
        self, segment: Segment, *, replay_from: int | None = None, may_cut: bool = True
    ) -> int:
        """Check the batches of one segment, cut it at the first bad one and rebuild its indexes.

        Returns the offset after the last good batch. Given `replay_from`, the batches also go through leader
        epochs and, unless they lie before that offset, through producer state and transaction index. Unless
        it `may_cut`, a bad batch is a `SegmentCorrupt`.
        """
        segment.start_indexes()
        if replay_from is not None:
            segment.transaction_index.reset()
        leader_epochs = self._leader_epochs
        end = 0
        next_offset = segment.base_offset
        file = segment.file
        for place in checked_batches(file, segment.size_bytes, segment.base_offset):
            segment.index_batch(place)
            header = place.header
            if replay_from is not None:
                leader_epochs.replay(header.partition_leader_epoch, header.base_offset, header.last_offset)
                if header.producer_id >= 0 and header.last_offset >= replay_from:
                    replay_batch(self._producers, segment, place, index_aborted=True)
            end = place.position + header.size_bytes
            next_offset = header.next_offset
        if end < segment.size_bytes:
            if not may_cut:
                raise SegmentCorrupt(f"{segment.path(LOG)}: no whole batch at position {end}")
            lost_bytes = segment.size_bytes - end
            logger.warning("%r: cutting %d bytes that are no whole batch at its end", segment, lost_bytes)
            self._truncated_bytes += lost_bytes
            segment.cut(end)
        # Without replay the segment lies before the recovery point: no flush will come back to it.
        try:
            segment.write_indexes(final=True, sync=replay_from is None)
            segment.drop_unused_indexes()
        except OSError as error:
            # A full disk must not keep the broker from starting: they are in memory, and written later.
            logger.warning("%r: its indexes could not be written: %s", segment, error)
        return next_offset

    def _start_anew(self, segments: list[Segment], log_start_offset: int) -> int:
        """Begin an empty log at its start offset, dropping batches that all lie before it."""
        for segment in segments:
            self._remove_segment(segment, f"the log starts at {log_start_offset}")
        self._producers.clear()
        remove_snapshots(self._disk, self._directory, list_snapshots(self._disk, self._directory))
        segments[:] = [
            Segment.create(
                self._disk, self._open_files, self._directory, log_start_offset, self._config, self._now_ms
            )
        ]
        return log_start_offset

    def _remove_stray_snapshots(self, segments: list[Segment]) -> None:
        """Keep the snapshots at the starts of segments and the newest; the others are of former ends."""
        useful = {segment.base_offset for segment in segments}
        for offset in list_snapshots(self._disk, self._directory)[:-1]:
            if offset not in useful:
                self._disk.remove(snapshot_path(self._directory, offset))

    def _settle_leader_epochs(
        self, segments: list[Segment], log_start_offset: int, log_end_offset: int
    ) -> None:
        epochs = self._leader_epochs
        if epochs.was_malformed:
            logger.warning("%s: rebuilding the leader epochs from all batches", self._directory)
            for segment in segments:
                for _, header in segment.batches(block_bytes=BLOCK_BYTES):
                    epochs.replay(header.partition_leader_epoch, header.base_offset, header.last_offset)
        epochs.truncate_from_end(log_end_offset)
        epochs.truncate_from_start(log_start_offset)


def _floor_index(segments: list[Segment], offset: int) -> int:
    """The number of the segment that holds `offset`, the first one when it lies before all."""
    index = 0
    for number, segment in enumerate(segments):
        if segment.base_offset <= offset:
            index = number
    return index


def checked_batches(file: File, size_bytes: int, base_offset: int) -> Iterator[BatchPlace]:
    """Yield the batches from the start of a log file, ending before the first that is not whole and right."""
    position = 0
    next_offset = base_offset
    offset_max = base_offset + 2**31 - 1
    block = memoryview(b"")
    block_start = 0
    while position + HEADER_SIZE <= size_bytes:
        at = position - block_start
        if at + HEADER_SIZE > len(block):
            block, block_start, at = _read_block(file, position, size_bytes), position, 0
            if len(block) < HEADER_SIZE:
                return
        header = read_header(block, at)
        size = header.batch_length + 12
        if (
            header.magic != MAGIC
            or size < HEADER_SIZE
            or position + size > size_bytes
            or header.base_offset < next_offset
            or header.last_offset_delta < 0
            or header.last_offset > offset_max
        ):
            return
        if at + size > len(block) and size <= BLOCK_BYTES:
            block, block_start, at = _read_block(file, position, size_bytes), position, 0
        if at + size <= len(block):
            crc = crc32c(block[at + ATTRIBUTES_POSITION : at + size])
        else:
            crc = _crc_in_file(file, position, size)
        if crc != header.crc:
            return
        yield BatchPlace(position, header)
        next_offset = header.next_offset
        position += size


def _read_block(file: File, position: int, size_bytes: int) -> memoryview:
    return memoryview(file.read(position, min(BLOCK_BYTES, size_bytes - position)))


def _crc_in_file(file: File, position: int, size: int) -> int:
    """The checksum of a batch that is larger than a block, read piece by piece."""
    crc = 0
    end = position + size
    position += ATTRIBUTES_POSITION
    while position < end:
        block = file.read(position, min(BLOCK_BYTES, end - position))
        if not block:
            return -1
        crc = crc32c(block, crc)
        position += len(block)
    return crc
