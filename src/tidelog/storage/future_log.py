"""A log on its way to another data directory of the same broker.

The copy grows in a folder of its own beside the logs of the target directory:

    <topic>-<partition>.<id>-future/

It is appended to as a follower's log is, while the log itself goes on. When it has everything it takes the
log's place:

    1  the log's folder gets the note `moving-to`, with the id of the target directory
    2  the cluster is told that the replica is in the target directory (KIP-858)

and when the cluster knows, between two appends:

    3  the copy is closed durably, with the producer state and the leader epochs of the log,
       and the mark `moved-here` in it
    4  the log's folder gets the name of a deleted one
    5  the copy's folder gets the log's name
    6  the mark goes

After a crash, whichever directory is lost with it:

    before 4   the log is where the note is, also if the cluster believes it in the target directory; the
               copy is removed and the move begins again. Where the cluster believes so and the directory of
               the log is gone, a copy without the mark says that the log is lost.
    4 to 5     no folder has the log's name, and the copy with the mark gets it.

A version before this had 5 before 4. A crash between left two folders of one name: that with the mark is the
log.
"""

import logging
import re
from uuid import UUID

from tidelog.model.identifiers import TopicPartition
from tidelog.model.log_config import LogConfig
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.storage.disk import Disk
from tidelog.storage.leader_epochs import LEADER_EPOCH_CHECKPOINT
from tidelog.storage.open_files import OpenFiles
from tidelog.storage.partition_log import PartitionLog

logger = logging.getLogger(__name__)

FUTURE_SUFFIX = "-future"
MOVED_HERE = "moved-here"
MOVING_TO = "moving-to"
FOLDER_NAME_LENGTH_MAX = 255
_FOLDER_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\.[0-9a-f]{32}-future")


def tagged_folder_name(topic_partition: TopicPartition, tag: UUID, suffix: str) -> str:
    """A folder name for a log that is not in use; a long topic's name is cut to fit."""
    end = f"-{topic_partition.partition}.{tag.hex}{suffix}"
    return topic_partition.topic[: FOLDER_NAME_LENGTH_MAX - len(end)] + end


def parse_future_name(name: str) -> TopicPartition | None:
    """Whose copy the folder of this name holds; None if it is no copy's."""
    found = _FOLDER_NAME.fullmatch(name)
    return None if found is None else TopicPartition(found["topic"], int(found["partition"]))


def read_moving_to(disk: Disk, folder: str) -> str | None:
    """The id of the data directory to which the log in a folder is about to move; None if it stays."""
    try:
        file = disk.open(f"{folder}/{MOVING_TO}", create=False)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, min(file.size_bytes, 64)).decode(errors="replace")
    finally:
        file.close()


def write_moving_to(disk: Disk, folder: str, directory_id: str) -> None:
    """Note durably that the log in a folder is about to move to a data directory."""
    disk.replace_atomically(f"{folder}/{MOVING_TO}", directory_id.encode())


def remove_moving_to(disk: Disk, folder: str) -> None:
    """The log in a folder stays where it is."""
    if disk.exists(f"{folder}/{MOVING_TO}"):
        disk.remove(f"{folder}/{MOVING_TO}")


def is_moved_here(disk: Disk, folder: str) -> bool:
    """Whether a folder holds a copy that has taken the place of the log it was made from."""
    return disk.exists(f"{folder}/{MOVED_HERE}")


class FutureLog:
    """A copy of `source` in another data directory."""

    __slots__ = (
        "_disk",
        "_open_files",
        "_truncation_count",
        "copy",
        "source",
        "target",
    )

    def __init__(
        self,
        disk: Disk,
        open_files: OpenFiles,
        source: PartitionLog,
        target: str,
        future_id: UUID,
        *,
        now_ms: int,
    ) -> None:
        """Begin an empty copy in the data directory `target`."""
        self._disk = disk
        self._open_files = open_files
        self.source = source
        self.target = target
        self._truncation_count = source.truncation_count
        name = tagged_folder_name(source.topic_partition, future_id, FUTURE_SUFFIX)
        self.copy = self._open(f"{target}/{name}", source.config, 0, now_ms, clean=False)
        self.copy.truncate_fully_and_start_at(source.log_start_offset)
        # The folder is also how the next start knows of the move.
        disk.sync_directory(target)

    def _open(
        self, folder: str, config: LogConfig, recovery_point: int, now_ms: int, *, clean: bool
    ) -> PartitionLog:
        return PartitionLog.open(
            self._disk,
            folder,
            self.source.topic_partition,
            config,
            now_ms=now_ms,
            clean_shutdown=clean,
            recovery_point=recovery_point,
            log_start_offset=self.source.log_start_offset if clean else 0,
            producer_expiration=self.source.producers.expiration,
            topic_id=self.source.topic_id,
            open_files=self._open_files,
        )

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind."""
        return max(0, self.source.log_end_offset - self.copy.log_end_offset)

    def copy_some(self, size_bytes_max: int, now_ms: int) -> int:
        """Copy the next batches; return how many bytes, 0 when there is nothing left."""
        source, copy = self.source, self.copy
        if source.truncation_count != self._truncation_count:
            # What was cut off may be in the copy, and others may have taken its place.
            self._truncation_count = source.truncation_count
            copy.truncate_fully_and_start_at(source.log_start_offset)
        elif copy.log_end_offset < source.log_start_offset:
            copy.truncate_fully_and_start_at(source.log_start_offset)
        if copy.log_end_offset >= source.log_end_offset:
            return 0
        piece = source.read(copy.log_end_offset, size_bytes_max, source.log_end_offset)
        if piece is None or not piece.size_bytes:
            return 0
        data = memoryview(piece.file.read(piece.position, piece.size_bytes))
        views: list[memoryview] = []
        headers: list[BatchHeader] = []
        for position, header in iterate_headers(data):
            views.append(data[position : position + header.size_bytes])
            headers.append(header)
        copy.append_replicated(views, headers, now_ms)
        return len(data)

    def take_over(self, config: LogConfig, now_ms: int, deletion_id: UUID) -> tuple[PartitionLog, str]:
        """Put the copy, which has everything, in the log's place; return the log now, and the folder of the
        old one, to be removed. After an `OSError` the old log is still the log, and the copy is worthless.

        The cluster believes the replica in the target directory by now.
        """
        disk, source, copy = self._disk, self.source, self.copy
        assert copy.log_end_offset == source.log_end_offset, f"{copy!r} is behind {source!r}"
        self._finish_copy()
        final = f"{self.target}/{source.topic_partition}"
        parent = source.directory.rpartition("/")[0]
        # The name of a deleted log, see log_directories.
        doomed = f"{parent}/{tagged_folder_name(source.topic_partition, deletion_id, '-delete')}"
        disk.rename(source.directory, doomed)
        try:
            disk.sync_directory(parent)
            disk.rename(copy.directory, final)
            disk.sync_directory(self.target)
            log = self._open(final, config, copy.log_end_offset, now_ms, clean=True)
            # An epoch in which nothing was written yet is not read back.
            log.begin_epoch(source.leader_epochs.latest)
        except OSError:
            self._go_back(final, doomed)
            raise
        source.close(clean=False)
        try:
            disk.remove(f"{final}/{MOVED_HERE}")
        except OSError as fault:
            logger.warning("the mark of the move of %s stays: %s", source, fault)
        return log, doomed

    def _go_back(self, final: str, doomed: str) -> None:
        """Give the log its name back, and take the mark from the copy."""
        disk = self._disk
        if disk.exists(final):
            disk.rename(final, self.copy.directory)
        disk.rename(doomed, self.source.directory)
        try:
            disk.remove(f"{self.copy.directory}/{MOVED_HERE}")
        except OSError as fault:
            logger.warning("the copy of %s keeps its mark: %s", self.source, fault)

    def _finish_copy(self) -> None:
        """Make the copy durable and complete: also what its batches do not tell."""
        disk, source, copy = self._disk, self.source, self.copy
        if source.log_start_offset > copy.log_start_offset:
            copy.advance_log_start(source.log_start_offset).run()
        source.producers.write_snapshot(disk, copy.directory, copy.log_end_offset)
        copy.close(clean=True)
        source.leader_epochs.flush()
        epochs = f"{source.directory}/{LEADER_EPOCH_CHECKPOINT}"
        if disk.exists(epochs):
            file = disk.open(epochs, create=False)
            try:
                content = file.read(0, file.size_bytes)
            finally:
                file.close()
            disk.replace_atomically(f"{copy.directory}/{LEADER_EPOCH_CHECKPOINT}", content)
        stale = f"{source.directory}/{MOVED_HERE}"
        if disk.exists(stale):
            disk.remove(stale)
            disk.sync_directory(source.directory)
        disk.replace_atomically(f"{copy.directory}/{MOVED_HERE}", b"")

    def discard(self) -> None:
        """Give the copy up and remove it."""
        self.copy.close(clean=False)
        self._disk.remove_tree(self.copy.directory)

    def __repr__(self) -> str:
        return f"<FutureLog {self.source.topic_partition} to {self.target} lag={self.lag}>"
