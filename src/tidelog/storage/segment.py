"""One segment of a partition log: a run of record batches in a file, and the indexes that lead into it.

The files of a segment are named by its base offset, twenty digits wide, and are byte-compatible with Kafka's:

    00000000000000000042.log         record batches as they travel, one after the other (see records.batch)
    00000000000000000042.index       offset to position (see offset_index)
    00000000000000000042.timeindex   timestamp to offset (see time_index)
    00000000000000000042.txnindex    aborted transactions (see transaction_index)

A further suffix marks a stage of life: `.cleaned` while compaction writes it, `.swap` once it is complete
and about to take the place of others, `.deleted` when it waits for removal.

Only the active segment of a log is appended to; it keeps its file open and its indexes in memory. An index
entry is due when more than `index.interval.bytes` were appended since the last one. Entries reach the disk
in `write_indexes`, not one by one: recovery can always rebuild them. A closed segment opens its file
through the shared `OpenFiles`, loads its indexes when it is read, and may drop them again.

Kafka makes the index files with the segment, ten megabytes large and mostly holes, maps them into memory and
trims them when the segment is closed. Here they are small, empty before the first entry, and neither open nor
mapped. They come right after the segment, not with it: a new log gets them in the worker thread that makes
its names durable (`FlushPlan`), others when their indexes are next written. To make two files takes a
millisecond and more, which is too long for the first record of each of a thousand partitions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.model.identifiers import NO_EPOCH, NO_TIMESTAMP
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import HEADER_SIZE, MAGIC, BatchHeader, read_header
from tidelog.records.corrupt_record import CorruptRecord
from tidelog.records.record import iterate_records
from tidelog.storage import offset_index, time_index
from tidelog.storage.disk import Bytes, Disk, File
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.time_index import TimeIndex
from tidelog.storage.transaction_index import TransactionIndex

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SEGMENT_KINDS = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"

SEGMENT_BYTES_MAX = 2**31 - 1
# A lookup scans a little more than index.interval.bytes; small reads keep that cheap when batches are large.
SCAN_BLOCK_BYTES = 8 << 10
REBUILD_BLOCK_BYTES = 1 << 20
# A look-up by time unpacks batches up to this size; of larger ones it gives the beginning.
LOOK_UP_BYTES_MAX = 32 << 20
# A file that grows gets its blocks in large pieces ahead of the appends, which saves the file system work on
# every block; small ones do not, since a broker has thousands of them.
RESERVE_FROM_BYTES = 1 << 20
RESERVE_STEP_BYTES_MAX = 8 << 20


class SegmentCorrupt(OSError):
    """Bytes of a segment that must be whole batches are not."""


class BatchPlace(NamedTuple):
    """A batch and where it starts in the file of its segment."""

    position: int
    header: BatchHeader


class TimestampedOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp_ms: int
    offset: int
    leader_epoch: int = NO_EPOCH


def segment_file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of one file of a segment, such as `00000000000000000042.index.swap`."""
    return f"{base_offset:020d}{kind}{suffix}"


class Segment:
    """A segment on disk; made by `create` (empty, appended to) or `load` (closed, sized by its files)."""

    __slots__ = (
        "_disk",
        "_file",
        "_has_index_files",
        "_index_entries_max",
        "_index_used",
        "_indexed_bytes",
        "_indexes_rebuilt",
        "_offset_index",
        "_offset_index_written",
        "_open_files",
        "_path",
        "_reserve_at_bytes",
        "_suffix",
        "_time_index",
        "_time_index_entries_max",
        "_time_index_written",
        "_transaction_index",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "first_timestamp_ms",
        "index_full",
        "index_interval_bytes",
        "last_appended_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "size_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._open_files = open_files
        self._path = f"{directory}/{base_offset:020d}"
        self._suffix = ""
        self.base_offset = base_offset
        self.size_bytes = 0
        # The size from which more room on the disk is asked for.
        self._reserve_at_bytes = RESERVE_FROM_BYTES
        self.created_ms = now_ms
        self.last_appended_ms = now_ms
        # The largest timestamp of the first batch (segment.ms counts from it), None before there is one.
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.bytes_since_index_entry = 0
        self.index_full = False
        self._file: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        self._offset_index_written = 0
        self._time_index_written = 0
        self._index_used = False
        self._has_index_files = True
        # The size up to which the index files, with their final entry, durably describe the log.
        self._indexed_bytes = -1
        self._indexes_rebuilt = False
        self.configure(config)

    @classmethod
    def create(
        cls,
        disk: Disk,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        suffix: str = "",
        in_new_folder: bool = False,
    ) -> "Segment":
        """Make an empty segment to append to; leftovers of the same name, which a folder that was just made
        has none of, are emptied."""
        segment = cls(disk, open_files, directory, base_offset, config, now_ms)
        segment._suffix = suffix
        segment._file = disk.open(segment.path(LOG), create=True)
        if segment._file.size_bytes:
            segment._file.truncate(0)
        for kind in () if in_new_folder else (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
            if disk.exists(segment.path(kind)):
                disk.remove(segment.path(kind))
        segment._offset_index = OffsetIndex(base_offset)
        segment._time_index = TimeIndex(base_offset)
        segment._has_index_files = False
        return segment

    @classmethod
    def load(
        cls,
        disk: Disk,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        *,
        suffix: str = "",
    ) -> "Segment":
        """Take an existing segment as a closed one; its indexes are not looked at yet."""
        segment = cls(disk, open_files, directory, base_offset, config, now_ms)
        segment._suffix = suffix
        segment.size_bytes = disk.size_bytes(segment.path(LOG))
        return segment

    def configure(self, config: LogConfig) -> None:
        """Obey new settings from the next append on."""
        self.index_interval_bytes = config.index_interval_bytes
        self._index_entries_max = max(1, config.segment_index_bytes // offset_index.ENTRY_SIZE)
        # One entry is kept in reserve for closing the segment.
        self._time_index_entries_max = max(1, config.segment_index_bytes // time_index.ENTRY_SIZE - 1)

    # Names

    def path(self, kind: str) -> str:
        """The present path of one of the segment's files."""
        return f"{self._path}{kind}{self._suffix}"

    @property
    def index_paths(self) -> tuple[str, str]:
        """The present paths of both index files, whether they are there or not."""
        return self.path(OFFSET_INDEX), self.path(TIME_INDEX)

    @property
    def suffix(self) -> str:
        return self._suffix

    def rename(self, suffix: str) -> None:
        """Give all files of the segment another suffix; open readers are not disturbed."""
        old_paths = [self.path(kind) for kind in SEGMENT_KINDS]
        self._open_files.forget(old_paths[0])
        self._suffix = suffix
        # The log goes last: while a `.swap` log exists, recovery finishes the job.
        for old_path, kind in reversed(list(zip(old_paths, SEGMENT_KINDS, strict=True))):
            if kind == TRANSACTION_INDEX and self._transaction_index is not None:
                self._transaction_index.rename_to(self.path(kind))
            elif self._disk.exists(old_path):
                self._disk.rename(old_path, self.path(kind))

    def files(self) -> list[str]:
        """The paths of the files that the segment has."""
        return [path for kind in SEGMENT_KINDS if self._disk.exists(path := self.path(kind))]

    def remove(self) -> None:
        """Remove all files of the segment; whoever reads them at the moment can go on."""
        self.let_go()
        for path in self.files():
            self._disk.remove(path)

    # Appending

    @property
    def file(self) -> File:
        """The log file, open."""
        return self._file or self._open_files.get(self.path(LOG))

    def append(self, view: Bytes, last_offset: int, max_timestamp_ms: int, now_ms: int) -> None:
        """Append one batch that ends with `last_offset`. An `OSError` leaves the segment as it was."""
        file = self._file
        assert file is not None, "only an open segment is appended to"
        file.append(view)
        self._note_batch(len(view), last_offset, max_timestamp_ms, now_ms)

    def append_many(self, views: Sequence[Bytes], ends: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Append several batches with one write: all of them, or none after an `OSError`.

        `ends` has the last offset and the largest timestamp of each.
        """
        file = self._file
        assert file is not None, "only an open segment is appended to"
        file.append_many(views)
        for view, (last_offset, max_timestamp_ms) in zip(views, ends, strict=True):
            self._note_batch(len(view), last_offset, max_timestamp_ms, now_ms)

    def _note_batch(self, size: int, last_offset: int, max_timestamp_ms: int, now_ms: int) -> None:
        """Count a batch in that was written at the end of the file."""
        position = self.size_bytes
        self.size_bytes = position + size
        self.last_appended_ms = now_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self._add_index_entry(last_offset, position)
            self.bytes_since_index_entry = size
        else:
            self.bytes_since_index_entry += size
            if position == 0:
                self.first_timestamp_ms = max_timestamp_ms
        if self.size_bytes > self._reserve_at_bytes:
            self._reserve_room()

    def _reserve_room(self) -> None:
        """Ask for the blocks of the next appends at once, more of them the faster the file has grown."""
        assert self._file is not None
        step = min(self.size_bytes, RESERVE_STEP_BYTES_MAX)
        # It is only a wish: what was appended is in the log, whatever the file system says to this.
        with contextlib.suppress(OSError):
            self._file.reserve(self.size_bytes + step)
        self._reserve_at_bytes = self.size_bytes + step - step // 4

    def _release_room(self, file: File) -> None:
        # A crash may have left room behind a segment that was opened again, so the size decides.
        if self.size_bytes > RESERVE_FROM_BYTES:
            with contextlib.suppress(OSError):
                file.release()

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        offsets, times = self._offset_index, self._time_index
        assert offsets is not None and times is not None, "an open segment holds its indexes"
        offsets.append(last_offset, position)
        times.append(self.max_timestamp_ms, self.max_timestamp_offset)
        self.index_full = (
            len(offsets.positions) >= self._index_entries_max
            or len(times.timestamps_ms) >= self._time_index_entries_max
        )

    def seal(self) -> None:
        """Stop appending and leave the file to the shared open files; the indexes are written beforehand."""
        file, self._file = self._file, None
        assert file is not None, "a closed segment cannot be sealed"
        self._release_room(file)
        self._open_files.put(self.path(LOG), file)

    def complete(self) -> None:
        """End a segment that nobody reads yet: everything written and synced, the file given up.

        For compaction, in a worker thread, before the segment takes the place of others.
        """
        file = self._file
        assert file is not None, "a closed segment is complete"
        self._release_room(file)
        file.sync()
        self.write_indexes(final=True, sync=True)
        if self._transaction_index is not None:
            self._transaction_index.sync()
        self._file = None

    def let_go(self) -> None:
        """Give up the open file and the indexes, without writing anything."""
        if self._file is not None:
            self._release_room(self._file)
        self._open_files.forget(self.path(LOG))
        self._file = self._offset_index = self._time_index = None

    def reopen(self) -> None:
        """Make a closed segment appendable again."""
        if self._file is not None:
            return
        # The indexes are kept from here on, whole.
        self.offset_index, self.time_index  # noqa: B018
        path = self.path(LOG)
        self._open_files.forget(path)
        file = self._disk.open(path, create=False)
        if file.size_bytes > self.size_bytes:
            file.truncate(self.size_bytes)
        self._file = file
        self._reserve_at_bytes = max(RESERVE_FROM_BYTES, self.size_bytes)
        self.bytes_since_index_entry = self.size_bytes - self.offset_index.last_position
        self.first_timestamp_ms = self._read_first_timestamp_ms()

    def _read_first_timestamp_ms(self) -> int | None:
        for place in self.batches():
            return place.header.max_timestamp_ms
        return None

    # Indexes

    @property
    def offset_index(self) -> OffsetIndex:
        self._index_used = True
        if self._offset_index is None:
            self._load_indexes()
            assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        self._index_used = True
        if self._time_index is None:
            self._load_indexes()
            assert self._time_index is not None
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        if self._transaction_index is None:
            self._transaction_index = TransactionIndex(
                self._disk, self.path(TRANSACTION_INDEX), self.base_offset
            )
        return self._transaction_index

    def index_fault(self) -> str | None:
        """Look at the index files of a closed segment, at their ends only, and say what is wrong with them.

        Finding nothing wrong also tells the segment's largest timestamp, which the last time index entry
        holds.
        """
        if not self.size_bytes and not self._disk.exists(self.path(OFFSET_INDEX)):
            return None
        offsets_end = self._read_index_end(OFFSET_INDEX, offset_index.ENTRY_SIZE)
        times_end = self._read_index_end(TIME_INDEX, time_index.ENTRY_SIZE)
        if offsets_end is None or times_end is None:
            return "an index file is missing or its size is not a multiple of an entry's"
        offsets = OffsetIndex.decode(self.base_offset, offsets_end)
        times = TimeIndex.decode(self.base_offset, times_end)
        assert offsets is not None and times is not None
        first = self._read_header(0)
        if first is None:
            if len(offsets) or len(times):
                return "an index has entries, but the log has no batches"
        elif len(offsets):
            indexed = self._read_header(offsets.last_position) if offsets.last_position > 0 else None
            if indexed is None or indexed.last_offset - self.base_offset != offsets.relative_offsets[-1]:
                return "the last entry of the offset index does not lead to its batch"
        if first is not None and times.last_timestamp_ms < first.max_timestamp_ms:
            return "the time index does not know the segment's timestamps"
        if len(times) and times.relative_offsets[-1] < 0:
            return "the last entry of the time index is impossible"
        self.max_timestamp_ms = times.last_timestamp_ms
        self.max_timestamp_offset = times.last_offset
        self._indexed_bytes = self.size_bytes
        return None

    def _read_header(self, position: int) -> BatchHeader | None:
        """The header at `position`; None where there can be none."""
        if position + HEADER_SIZE > self.size_bytes:
            return None
        file = self._file or self._disk.open(self.path(LOG), create=False)
        header = read_header(file.read(position, HEADER_SIZE))
        return header if header.magic == MAGIC else None

    def _read_index_end(self, kind: str, entry_size: int) -> bytes | None:
        """The last entry of an index file, empty if it has none; None when the file cannot be an index."""
        try:
            file = self._disk.open(self.path(kind), create=False)
        except FileNotFoundError:
            return None
        try:
            size = file.size_bytes
            if size % entry_size:
                return None
            return file.read(max(0, size - entry_size), min(size, entry_size))
        finally:
            file.close()

    def _load_indexes(self) -> None:
        offsets = OffsetIndex.decode(self.base_offset, self._read_index_file(OFFSET_INDEX))
        times = TimeIndex.decode(self.base_offset, self._read_index_file(TIME_INDEX))
        if (
            offsets is None
            or times is None
            or offsets.last_position >= max(1, self.size_bytes)
            or not (offsets.ascends() and times.ascends())
        ):
            self.rebuild_indexes()
            return
        self._offset_index, self._offset_index_written = offsets, len(offsets)
        self._time_index, self._time_index_written = times, len(times)

    def _read_index_file(self, kind: str) -> bytes:
        try:
            file = self._disk.open(self.path(kind), create=False)
        except FileNotFoundError:
            # One byte is no entry: the caller rebuilds.
            return b"\0" if self.size_bytes else b""
        try:
            return file.read(0, file.size_bytes)
        finally:
            file.close()

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the batches, and write them."""
        self.start_indexes()
        for place in self.batches(block_bytes=REBUILD_BLOCK_BYTES):
            self.index_batch(place)
        self.write_indexes(final=self._file is None)

    def start_indexes(self) -> None:
        """Forget what the indexes hold, before every batch goes through `index_batch`."""
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._offset_index_written = self._time_index_written = 0
        self.max_timestamp_ms, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp_ms = None
        self.bytes_since_index_entry = 0
        self.index_full = False

    def index_batch(self, place: BatchPlace) -> None:
        """Index a batch that is already in the file, as `append` would have done."""
        position, header = place
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
            self.max_timestamp_offset = header.last_offset
        if position == 0:
            self.first_timestamp_ms = header.max_timestamp_ms
        if self.bytes_since_index_entry > self.index_interval_bytes:
            self._add_index_entry(header.last_offset, position)
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += header.size_bytes

    @property
    def has_unwritten_indexes(self) -> bool:
        """Whether a segment open for appending has batches that its index files may not know of."""
        return self.size_bytes > 0 and self.size_bytes != self._indexed_bytes

    def write_indexes(self, *, final: bool = False, sync: bool = False, make_files: bool = False) -> None:
        """Bring the index files up to what memory holds; with `make_files` also where that is nothing yet.

        With `final` the time index gets the entry with the segment's largest timestamp that ends it. With
        `sync` the files are durable afterwards.
        """
        offsets, times = self._offset_index, self._time_index
        if offsets is None or times is None:
            return
        if final:
            times.append(self.max_timestamp_ms, self.max_timestamp_offset)
        whole = final or (make_files and self.size_bytes > 0 and not self._has_index_files)
        if whole or self._offset_index_written != len(offsets):
            entry_size = offset_index.ENTRY_SIZE
            self._write_index(OFFSET_INDEX, offsets, self._offset_index_written, entry_size, sync)
            self._offset_index_written = len(offsets)
        if whole or self._time_index_written != len(times):
            entry_size = time_index.ENTRY_SIZE
            self._write_index(TIME_INDEX, times, self._time_index_written, entry_size, sync)
            self._time_index_written = len(times)
        self._has_index_files = self._has_index_files or whole
        if final and sync:
            self._indexed_bytes = self.size_bytes

    def _write_index(
        self, kind: str, index: OffsetIndex | TimeIndex, written: int, entry_size: int, sync: bool
    ) -> None:
        file = self._disk.open(self.path(kind), create=True)
        try:
            if file.size_bytes < written * entry_size:
                written = 0
            if file.size_bytes > written * entry_size:
                file.truncate(written * entry_size)
            if len(index) > written:
                file.append(index.encode(written))
            if sync:
                file.sync()
        finally:
            file.close()

    def drop_unused_indexes(self) -> None:
        """Free the indexes of a closed segment unless they were used since the last call."""
        if self._file is None and not self._index_used:
            self._offset_index = None
            self._time_index = None
        self._index_used = False

    # Reading

    def batches(self, position: int = 0, *, block_bytes: int = SCAN_BLOCK_BYTES) -> Iterator[BatchPlace]:
        """Yield the batches from a batch boundary on; raises `SegmentCorrupt` where no whole one is."""
        file = self.file
        end = self.size_bytes
        block = b""
        block_start = position
        while position < end:
            at = position - block_start
            if at + HEADER_SIZE > len(block):
                block = file.read(position, min(block_bytes, end - position))
                block_start, at = position, 0
                if len(block) < HEADER_SIZE:
                    raise SegmentCorrupt(f"{self.path(LOG)}: no batch header at position {position}")
            header = read_header(block, at)
            size = header.size_bytes
            if size < HEADER_SIZE or position + size > end or header.magic != MAGIC:
                raise SegmentCorrupt(f"{self.path(LOG)}: no whole batch at position {position}")
            yield BatchPlace(position, header)
            position += size

    def find(self, offset: int) -> BatchPlace | None:
        """The batch that holds `offset`, or the first one after it; None when all batches end before it."""
        try:
            return self._scan_for(offset)
        except SegmentCorrupt:
            if self._file is not None or self._indexes_rebuilt:
                raise
        # The index file led astray; once is enough to tell a damaged index from a damaged log.
        self._indexes_rebuilt = True
        self.rebuild_indexes()
        return self._scan_for(offset)

    def _scan_for(self, offset: int) -> BatchPlace | None:
        start = self.offset_index.position_for(offset)
        expected = self.offset_index.offset_at(start)
        for place in self.batches(start):
            if expected is not None and place.header.last_offset != expected:
                raise SegmentCorrupt(f"{self.path(LOG)}: the offset index is wrong about position {start}")
            if place.header.last_offset >= offset:
                return place
            expected = None
        return None

    def last_boundary(self, start: int, limit: int) -> tuple[int, int]:
        """The end of the last batch that ends at or before `limit`, counting from the boundary `start`.

        Also returns the offset that follows there, -1 when the end is `start` itself.
        """
        indexed = self.offset_index.boundary_before(limit)
        end, next_offset = start, -1
        for position, header in self.batches(max(start, indexed)):
            end = position
            if position > start:
                next_offset = header.base_offset
            if position + header.size_bytes > limit:
                return end, next_offset
            next_offset = header.next_offset
            end = position + header.size_bytes
        return end, next_offset

    def find_by_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampedOffset | None:
        """The first record at or after `start_offset` whose timestamp is `timestamp_ms` or greater."""
        search_offset = max(self.time_index.offset_for(timestamp_ms), start_offset)
        for position, header in self.batches(self.offset_index.position_for(search_offset)):
            if header.max_timestamp_ms < timestamp_ms or header.last_offset < start_offset:
                continue
            found = self._record_by_timestamp(position, header, timestamp_ms, start_offset)
            if found is not None:
                return found
        return None

    def _record_by_timestamp(
        self, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
    ) -> TimestampedOffset | None:
        """The first such record of one batch; of a batch that cannot be unpacked, the whole of it."""
        epoch = header.partition_leader_epoch
        try:
            batch = self.file.read(position, header.size_bytes)
            for record in iterate_records(batch, header, LOOK_UP_BYTES_MAX):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                    return TimestampedOffset(record.timestamp_ms, record.offset, epoch)
        except CorruptRecord:
            return TimestampedOffset(header.max_timestamp_ms, max(header.base_offset, start_offset), epoch)
        return None

    def next_offset(self) -> int:
        """The offset after the last batch, found by scanning from the last index entry on."""
        next_offset = self.base_offset
        for _, header in self.batches(self.offset_index.last_position):
            next_offset = header.next_offset
        return next_offset

    # Cutting

    def cut(self, size: int) -> None:
        """Cut a closed segment's log to `size` bytes, durably; the caller sees to the indexes."""
        path = self.path(LOG)
        self._open_files.forget(path)
        file = self._disk.open(path, create=False)
        file.truncate(size)
        # What is cut off must not come back behind, or among, the batches that take its place.
        file.sync()
        self.size_bytes = size

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one; the segment must be open for appending."""
        file = self._file
        assert file is not None, "only an open segment is cut"
        place = self.find(offset)
        offsets, times = self.offset_index, self.time_index
        offsets.truncate_to(offset)
        times.truncate_to(offset)
        self._offset_index_written = min(self._offset_index_written, len(offsets))
        self._time_index_written = min(self._time_index_written, len(times))
        self.transaction_index.truncate_to(offset)
        if place is not None:
            file.truncate(place.position)
            self.size_bytes = place.position
            self._reserve_at_bytes = max(RESERVE_FROM_BYTES, place.position)
        self.bytes_since_index_entry = self.size_bytes - offsets.last_position
        self.index_full = False
        self._find_largest_timestamp()
        # Written at once, with the entry that stands for the end: a stale entry must not outlive its batch.
        self.write_indexes(final=True)
        if self.size_bytes == 0:
            self.first_timestamp_ms = None

    def _find_largest_timestamp(self) -> None:
        times = self.time_index
        self.max_timestamp_ms, self.max_timestamp_offset = times.last_timestamp_ms, times.last_offset
        for _, header in self.batches(self.offset_index.position_for(times.last_offset)):
            if header.max_timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms, self.max_timestamp_offset = header.max_timestamp_ms, header.last_offset

    @property
    def largest_timestamp_ms(self) -> int:
        """The time by which retention judges the segment: of its records, else of its last append."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.last_appended_ms

    def __repr__(self) -> str:
        return f"<Segment {self._path}{self._suffix} size_bytes={self.size_bytes}>"
