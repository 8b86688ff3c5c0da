"""The data directories of a broker (`log.dirs`) and the partition logs in them.

A data directory holds, under Kafka's names:

    .lock                               held (flock) by the broker that uses the directory
    meta.properties                     version, cluster.id, node.id, directory.id: whose data this is
    .kafka_cleanshutdown                written by a clean stop and removed by the next start
    boot-id                             on which boot of the machine the logs were written (see boot_id)
    failed-directories                  which other directories failed in use, and are in doubt (see boot_id)
    recovery-point-offset-checkpoint    up to where each log was flushed
    log-start-offset-checkpoint         where each log starts, if that is not the start of a segment
    replication-offset-checkpoint       the high watermark of each partition
    cleaner-offset-checkpoint           up to where each log was compacted
    <topic>-<partition>/                a log
    <topic>-<partition>.<id>-delete/    a log on its way out
    <topic>-<partition>.<id>-future/    a log on its way in, from another data directory (future_log)
    <topic>-<partition>.<id>-stray/     a log that no topic claimed at a start

Everything that would make the broker use the wrong data is refused with `LogDirectoryUnusable`, whose
message is for the person who starts it.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID, uuid4

from tidelog.model.identifiers import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    RESERVED_DIRECTORIES,
    UNASSIGNED_DIRECTORY,
    TopicPartition,
    topic_name_fault,
)
from tidelog.model.log_config import LogConfig
from tidelog.storage import checkpoints
from tidelog.storage.boot_id import forget_boot_id, note_boot_id, note_failed, read_failed
from tidelog.storage.disk import Disk
from tidelog.storage.future_log import (
    FUTURE_SUFFIX,
    is_moved_here,
    parse_future_name,
    read_moving_to,
    tagged_folder_name,
)
from tidelog.storage.log_directory import (
    CLEAN_SHUTDOWN,
    LogDirectory,
    LogDirectoryUnusable,
    OfflineDirectory,
    Owner,
    open_directories,
)
from tidelog.storage.open_files import OPEN_FILES_MAX, OpenFiles
from tidelog.storage.partition_log import PartitionLog
from tidelog.storage.partition_metadata import PartitionMetadataMalformed
from tidelog.storage.producer_state import ProducerExpiration
from tidelog.storage.segment import SegmentCorrupt

CLEAN_SHUTDOWN_CONTENT = b'{"version":0,"brokerEpoch":-1}'
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

logger = logging.getLogger(__name__)


class Home(NamedTuple):
    """Where the log of a replica is, if it is anywhere here. It is offline if that is not the log which the
    cluster counts on, and lost if the cluster does not know that yet."""

    directory: "LogDirectory | None"
    offline: bool = False
    lost: bool = False


class StoredPartition(NamedTuple):
    """A log's folder found on disk."""

    topic_partition: TopicPartition
    directory: "LogDirectory"
    path: str


class CheckpointOrder:
    """Sees to it that a checkpoint file never goes back to what an older plan gathered."""

    __slots__ = ("_lock", "_written", "planned")

    def __init__(self) -> None:
        self.planned = 0
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(self, disk: Disk, number: int, path: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            if self._written.get(path, 0) < number:
                checkpoints.write_offsets(disk, path, offsets)
                self._written[path] = number


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Checkpoint files to write, gathered on the event loop; `run` writes them, in a worker thread.

    A plan that runs after a later one writes nothing over what that wrote.
    """

    disk: Disk
    files: tuple[tuple[str, dict[TopicPartition, int]], ...]
    order: CheckpointOrder
    number: int

    def run(self) -> None:
        for path, offsets in self.files:
            self.order.write(self.disk, self.number, path, offsets)


def parse_folder_name(name: str) -> TopicPartition | None:
    """The partition whose folder has this name; None if it is no partition's."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not (partition.isascii() and partition.isdecimal()) or topic_name_fault(topic) is not None:
        return None
    if partition != str(int(partition)):
        return None
    return TopicPartition(topic, int(partition))


class LogDirectories:
    """All data directories of a broker, and its open logs."""

    __slots__ = (
        "_directory_of",
        "_disk",
        "_failed",
        "_forgotten",
        "_order",
        "_renamed_in",
        "_unfinished",
        "directories",
        "kept",
        "logs",
        "offline",
        "open_files",
        "preferred",
        "producer_expiration",
    )

    def __init__(
        self,
        disk: Disk,
        directories: list[LogDirectory],
        open_files: OpenFiles,
        offline: Iterable[OfflineDirectory] = (),
    ) -> None:
        self._disk = disk
        self.directories = directories
        #: those that cannot be used, from the start or since they failed
        self.offline = list(offline)
        self._failed: list[LogDirectory] = []
        self.open_files = open_files
        #: what every log obeys here, the open ones too
        self.producer_expiration = ProducerExpiration()
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        #: where logs that do not exist yet shall be, if somebody said so
        self.preferred: dict[TopicPartition, LogDirectory] = {}
        self._order = CheckpointOrder()
        #: logs that are gone, while the checkpoints on the disk may still speak of them, and logs that are
        #: about to go, of which these speak no more
        self._forgotten: set[TopicPartition] = set()
        #: directories with folders of deleted logs whose new names a power cut may take back
        self._renamed_in: set[str] = set()
        #: logs that lack records they had, as the checkpoints tell: those stay until the cluster knows
        self.kept: Collection[TopicPartition] = ()
        self._finish_moves()
        #: copies that an earlier run did not finish, and the data directories they are in
        self._unfinished = {
            (topic_partition, directory.path) for topic_partition, directory, _ in self.future_folders()
        }

    @classmethod
    def open(
        cls,
        disk: Disk,
        paths: Iterable[str],
        *,
        cluster_id: str,
        node_id: int,
        replica_counts: Mapping[str, int] | None = None,
        lost: Collection[str] = (),
        new_directory_id: Callable[[], UUID] = uuid4,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> "LogDirectories":
        """Lock and check every data directory, making and formatting new ones. Opens no logs yet.

        `replica_counts` are the directories in which the cluster believes replicas of this broker, `lost`
        those that somebody has given up (see log_directory).
        """
        owner = Owner(cluster_id, node_id, replica_counts or {}, lost, new_directory_id)
        opened, offline = open_directories(disk, paths, owner)
        return cls(disk, opened, OpenFiles(disk, open_files_max), offline)

    # What the logs may have lost

    @property
    def kept_their_ends(self) -> bool:
        """Whether the logs have everything that the broker had appended to them before it ended."""
        return all(directory.kept_its_end for directory in self.directories)

    def note_boot(self) -> None:
        """The cluster knows what the logs may have lost: from here on they are as good as any."""
        trusted = [directory for directory in self.directories if not directory.doubtful]
        for directory in trusted:
            try:
                note_boot_id(self._disk, directory.path)
            except OSError as error:
                logger.warning("the boot id could not be written: %s", error)
        self._note_failed(set(), {directory.directory_id for directory in trusted})

    def _note_failed(self, more: set[str], fewer: set[str]) -> None:
        """Change what the directories in use note of those that failed."""
        for directory in list(self.directories):
            try:
                noted = read_failed(self._disk, directory.path)
                if noted != (noted | more) - fewer:
                    note_failed(self._disk, directory.path, (noted | more) - fewer)
            except OSError as error:
                logger.warning("the failed directories could not be noted: %s", error)

    def note_failure(self, directory: LogDirectory) -> None:
        """Let the next start know that a directory failed; may run in a worker thread, which may hang."""
        self._note_failed({directory.directory_id}, set())
        self.doubt(directory)

    def sync_failed(self, topic_partition: TopicPartition) -> None:
        """A sync failed: what is behind the recovery point may be lost though the machine goes on."""
        directory = self._directory_of.get(topic_partition)
        if directory is not None:
            self.doubt(directory)

    def doubt(self, directory: LogDirectory) -> None:
        """The disk may have lost what it took: no stop of this broker makes its logs trustworthy any more.

        The system tells of a failed sync once, and forgets what it could not write: later ones succeed.
        """
        directory.doubtful = True
        try:
            forget_boot_id(self._disk, directory.path)
        except OSError as error:
            logger.error("%s may be trusted wrongly after a restart: %s", directory.path, error)

    # Opening logs

    def stored_partitions(
        self, believed: Callable[[TopicPartition], str | None] = lambda _: MIGRATING_DIRECTORY
    ) -> list[StoredPartition]:
        """The logs found in the data directories, by folder name.

        `believed` tells the id of the directory in which the cluster believes a log to be, None if it does
        not count on any. Of several folders of one log it decides: the others are left from a time when
        their directory was away.
        """
        found: dict[TopicPartition, StoredPartition] = {}
        for directory in self.directories:
            for name in self._disk.list(directory.path):
                topic_partition = parse_folder_name(name)
                path = f"{directory.path}/{name}"
                if topic_partition is None or not self._disk.is_directory(path):
                    continue
                stored = StoredPartition(topic_partition, directory, path)
                if topic_partition in found:
                    stored = self._the_true_one(found[topic_partition], stored, believed(topic_partition))
                found[topic_partition] = stored
        return list(found.values())

    def _the_true_one(
        self, one: StoredPartition, other: StoredPartition, believed: str | None
    ) -> StoredPartition:
        """Of two folders of a log, the one that the cluster counts on; the other is set aside."""
        true = [each for each in (one, other) if each.directory.directory_id == believed]
        if not true and believed is not None and believed != MIGRATING_DIRECTORY:
            true = [each for each in (one, other) if self._is_leaving(each.path, believed)]
        if len(true) != 1:
            moved = self._the_moved_one(one, other)
            if moved is not None:
                return moved
            if believed in RESERVED_DIRECTORIES:
                raise LogDirectoryUnusable(
                    f"log.dirs: {one.topic_partition} is in {one.path} and in {other.path}; "
                    "remove the one that is out of date"
                )
            # Both are left from earlier times: what counts is in a directory that is away, or nowhere here.
            true = [one]
        (kept,) = true
        stale = other if kept is one else one
        aside = self.set_aside(stale, uuid4())
        logger.warning("%s is in %s; what was in %s was set aside as %s", *kept[:2], stale.directory, aside)
        return kept

    def _is_leaving(self, folder: str, believed: str) -> bool:
        """Whether the log in a folder was about to move when a stop came: to where the cluster believes it,
        or to where it is not any more."""
        target = read_moving_to(self._disk, folder)
        return target is not None and believed in (target, LOST_DIRECTORY)

    def _the_moved_one(self, one: StoredPartition, other: StoredPartition) -> StoredPartition | None:
        """Of two folders of a log, the one that took the other's place when a crash came; the other goes."""
        moved = [stored for stored in (one, other) if is_moved_here(self._disk, stored.path)]
        if len(moved) != 1:
            return None
        (kept,) = moved
        stale = other if kept is one else one
        doomed = tagged_folder_name(stale.topic_partition, uuid4(), DELETE_SUFFIX)
        self._disk.rename(stale.path, f"{stale.directory.path}/{doomed}")
        self._disk.sync_directory(stale.directory.path)
        return kept

    def open_all(
        self,
        config_of: Callable[[TopicPartition], LogConfig],
        *,
        now_ms: int,
    ) -> dict[TopicPartition, PartitionLog]:
        """Open every stored log, recovering those that need it."""
        for stored in self.stored_partitions():
            config = config_of(stored.topic_partition)
            try:
                self._open_log(stored, config, now_ms, None)
            except OSError as error:
                raise LogDirectoryUnusable(f"log.dirs: {stored.path} cannot be opened: {error}") from error
        self.take_back_recovery_points()
        return self.logs

    def take_back_recovery_points(self) -> None:
        """Write the recovery points down if recovery took one back, before anything is appended.

        The next recovery would otherwise take for flushed what is not: batches appended where some were lost,
        or indexes that were written again. To be called when all stored logs are open. A disk that is full
        must not keep the broker from starting: the next checkpoint tries again.
        """
        for topic_partition, log in self.logs.items():
            checkpointed = self._directory_of[topic_partition].recovery_points.get(topic_partition, 0)
            if log.recovery_checkpoint < checkpointed:
                try:
                    self.checkpoint_plan().run()
                except OSError as error:
                    logger.warning("the recovery points could not be written: %s", error)
                return

    def open_log(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        topic_id: UUID | None = None,
        directory_id: str = UNASSIGNED_DIRECTORY,
    ) -> PartitionLog:
        """The log of a partition. A new one begins in the directory of the id or, if that is none of them, in
        the one with the fewest logs."""
        log = self.logs.get(topic_partition)
        if log is not None:
            return log
        directory = self.directory_with(topic_partition)
        if directory is None:
            for each in self.directories:
                if self._notes(each, topic_partition):
                    self._forget(topic_partition, each)
            if topic_partition in self._forgotten:
                self._checkpoint_forgotten()
            directory = self.directory_by_id(directory_id)
            self._sync_deletions()
        if directory is None:
            directory = min(self.directories, key=lambda each: each.log_count)
        stored = StoredPartition(topic_partition, directory, f"{directory.path}/{topic_partition}")
        return self._open_log(stored, config, now_ms, topic_id)

    def directory_with(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """The data directory that has the folder of a partition; None if it has none."""
        name = str(topic_partition)
        for directory in self.directories:
            if self._disk.is_directory(f"{directory.path}/{name}"):
                return directory
        return None

    def home_of(self, topic_partition: TopicPartition, believed: str) -> Home:
        """Where the log of a replica is that the cluster believes in the directory of this id.

        A log that is in another directory is the right one in two cases: it was about to move when a stop
        came, or its folder was moved by hand while the broker was down. If the directory is there and has
        only an unfinished copy, the log was in one that is gone. If the directory is not there, a log
        somewhere else may be a copy of any age.
        """
        found = self.directory_with(topic_partition)
        expected = self.directory_by_id(believed)
        if found is None:
            unfinished = expected is not None and (topic_partition, expected.path) in self._unfinished
            return Home(None, offline=unfinished or self._is_gone(believed), lost=unfinished)
        if found is expected or believed in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return Home(found)
        if expected is not None or self._is_leaving(f"{found.path}/{topic_partition}", believed):
            return Home(found)
        return Home(found, offline=True)

    def is_noted(self, topic_partition: TopicPartition, believed: str) -> bool:
        """Whether the checkpoints speak of records in the directory where a log is believed: it was there."""
        expected = self.directory_by_id(believed)
        searched = self.directories if expected is None else [expected]
        return any(self._notes(directory, topic_partition) for directory in searched)

    @staticmethod
    def _notes(directory: LogDirectory, topic_partition: TopicPartition) -> bool:
        noted = (directory.recovery_points, directory.high_watermarks)
        return any(offsets.get(topic_partition, 0) > 0 for offsets in noted)

    def forget_unfinished_copies(self) -> None:
        """The cluster knows where every log is: what is left of earlier moves tells nothing any more."""
        self._unfinished.clear()

    def _is_gone(self, believed: str) -> bool:
        if believed in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return False
        return self.directory_by_id(believed) is None

    def directory_by_id(self, directory_id: str) -> LogDirectory | None:
        """The data directory of this id; None if it is none of them."""
        return next((each for each in self.directories if each.directory_id == directory_id), None)

    def _open_log(
        self,
        stored: StoredPartition,
        config: LogConfig,
        now_ms: int,
        topic_id: UUID | None,
    ) -> PartitionLog:
        topic_partition, directory, path = stored
        try:
            log = PartitionLog.open(
                self._disk,
                path,
                topic_partition,
                config,
                now_ms=now_ms,
                clean_shutdown=directory.clean_shutdown,
                recovery_point=directory.recovery_points.get(topic_partition, 0),
                log_start_offset=directory.log_start_offsets.get(topic_partition, 0),
                producer_expiration=self.producer_expiration,
                topic_id=topic_id,
                open_files=self.open_files,
            )
        except PartitionMetadataMalformed as error:
            raise LogDirectoryUnusable(str(error)) from error
        except SegmentCorrupt as error:
            raise LogDirectoryUnusable(
                f"log.dirs: {error}. These batches were flushed, so the disk has damaged them. Restore {path}"
                " from a copy. Or move the folder away: the replica is then copied from another broker; if"
                " there is none, only an unclean election begins the partition anew, without its records. Or"
                " cut the damaged file at that position (truncate -s): what comes after it is lost here, and"
                " is copied if another broker has it"
            ) from error
        self.logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        self._forgotten.discard(topic_partition)
        directory.log_count += 1
        return log

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        return self._directory_of[topic_partition]

    def high_watermark(self, topic_partition: TopicPartition) -> int:
        """The high watermark that was last written down for an open log; 0 if none was."""
        return self._directory_of[topic_partition].high_watermarks.get(topic_partition, 0)

    # Directories that fail

    def fail(self, directory: LogDirectory, reason: str) -> list[TopicPartition]:
        """Use a data directory no more, whose disk has failed; return the logs that were in it.

        No log is written: the next start recovers them (`note_failure` has it know). The lock stays, as files
        may be open.
        """
        gone = [place for place, found in self._directory_of.items() if found is directory]
        for place in gone:
            del self._directory_of[place]
            try:
                self.logs.pop(place).close(clean=False)
            except OSError as error:
                logger.warning("%s could not be closed: %s", place, error)
        self.directories.remove(directory)
        self._failed.append(directory)
        self.offline.append(OfflineDirectory(directory.path, reason, directory.directory_id))
        for place in [place for place, wished in self.preferred.items() if wished is directory]:
            del self.preferred[place]
        return gone

    # Moving logs between directories

    def directory_at(self, path: str) -> LogDirectory | None:
        """The data directory of this path; None if it is none of them."""
        wanted = path.rstrip("/") or "/"
        return next((each for each in self.directories if each.path == wanted), None)

    def moved(self, log: PartitionLog, directory: LogDirectory) -> None:
        """A log has moved to another data directory: it takes its place among the open ones."""
        topic_partition = log.topic_partition
        before = self._directory_of[topic_partition]
        before.log_count -= 1
        for noted in (before.recovery_points, before.log_start_offsets):
            noted.pop(topic_partition, None)
        directory.high_watermarks[topic_partition] = before.high_watermarks.pop(topic_partition, 0)
        self.logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        directory.log_count += 1

    def future_folders(self) -> list[tuple[TopicPartition | None, LogDirectory, str]]:
        """Copies that an earlier run did not finish: of which log, if that can be told, where, the folder."""
        return [
            (parse_future_name(name), directory, f"{directory.path}/{name}")
            for directory in self.directories
            for name in self._disk.list(directory.path)
            if name.endswith(FUTURE_SUFFIX) and self._disk.is_directory(f"{directory.path}/{name}")
        ]

    def _finish_moves(self) -> None:
        """Give copies the name of the log whose place they were about to take when a crash came."""
        for topic_partition, directory, folder in self.future_folders():
            if topic_partition is None or self.directory_with(topic_partition) is not None:
                continue
            if is_moved_here(self._disk, folder):
                self._disk.rename(folder, f"{directory.path}/{topic_partition}")
                self._disk.sync_directory(directory.path)

    # Deleting logs

    def delete_log(self, topic_partition: TopicPartition, deletion_id: UUID) -> str:
        """Take a log out of use at once; return the folder to remove, which a restart would remove too.

        A power cut may bring it back under its name until it is removed or another log begins: as if it had
        come before.
        """
        log = self.logs.pop(topic_partition)
        directory = self._directory_of.pop(topic_partition)
        directory.log_count -= 1
        log.close(clean=False)
        self._gone(topic_partition, directory)
        doomed = f"{directory.path}/{tagged_folder_name(topic_partition, deletion_id, DELETE_SUFFIX)}"
        self._disk.rename(log.directory, doomed)
        self._renamed_in.add(directory.path)
        return doomed

    def _sync_deletions(self) -> None:
        """Before a log begins: a power cut must not bring one of its name back, here or elsewhere."""
        for directory in self.directories:
            if directory.path in self._renamed_in:
                self._disk.sync_directory(directory.path)
                self._renamed_in.discard(directory.path)

    def forget_logs(self, places: Iterable[TopicPartition]) -> None:
        """Have the checkpoints on the disk speak of these logs no more, before their folders go.

        A log of a new topic of the name that has not begun here when the broker is killed would be taken at
        the next start for one that was there, and is lost. Some may be open; raises `OSError`.
        """
        noted = [place for place in places if self._may_be_noted(place)]
        for place in noted:
            for directory in self.directories:
                self._forget(place, directory)
        if noted:
            self._checkpoint_forgotten()

    def _may_be_noted(self, topic_partition: TopicPartition) -> bool:
        log = self.logs.get(topic_partition)
        if log is not None and log.log_end_offset > 0:
            return True
        return any(self._notes(directory, topic_partition) for directory in self.directories)

    def _forget(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        for offsets in (directory.recovery_points, directory.log_start_offsets, directory.high_watermarks):
            offsets.pop(topic_partition, None)
        self._forgotten.add(topic_partition)

    def _gone(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """A log goes, and what was noted of it, unless the checkpoints are without it already."""
        if topic_partition in self._forgotten:
            self._forgotten.discard(topic_partition)
        else:
            self._forget(topic_partition, directory)

    def _checkpoint_forgotten(self) -> None:
        """Before a log begins that has the name of one that is gone, or one goes: what was noted of that one
        must not be believed of the next. Notes of logs that are not open yet are kept."""
        plan = self.checkpoint_plan({})
        files = dict(plan.files)
        for directory in self.directories:
            for name, noted in (
                (checkpoints.RECOVERY_POINT_CHECKPOINT, directory.recovery_points),
                (checkpoints.LOG_START_OFFSET_CHECKPOINT, directory.log_start_offsets),
            ):
                offsets = files[f"{directory.path}/{name}"]
                offsets.update({each: offset for each, offset in noted.items() if each not in self.logs})
        plan.run()
        self._forgotten.intersection_update(self.logs)

    def set_aside(self, stored: StoredPartition, stray_id: UUID) -> str:
        """Rename the folder of a log that no topic claims, so that no new topic of the name gets its records.

        Nothing is removed: whoever runs the broker may want to look at it. Returns the new path.
        """
        topic_partition, directory, path = stored
        self._gone(topic_partition, directory)
        aside = f"{directory.path}/{tagged_folder_name(topic_partition, stray_id, STRAY_SUFFIX)}"
        self._disk.rename(path, aside)
        self._disk.sync_directory(directory.path)
        return aside

    def doomed_folders(self) -> list[str]:
        """Folders of deleted logs that an earlier run did not get to remove; for `remove_folder`."""
        return [
            f"{directory.path}/{name}"
            for directory in self.directories
            for name in self._disk.list(directory.path)
            if name.endswith(DELETE_SUFFIX) and self._disk.is_directory(f"{directory.path}/{name}")
        ]

    def remove_folder(self, path: str) -> None:
        """Remove the folder of a deleted log or of a copy; may run in a worker thread."""
        assert path.endswith((DELETE_SUFFIX, FUTURE_SUFFIX)), f"{path} is not the folder of a deleted log"
        # First its name: what came back after a power cut without some of its files would pass for a log.
        self._disk.sync_directory(path.rpartition("/")[0])
        self._disk.remove_tree(path)

    # Checkpoints and closing

    def checkpoint_plan(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> CheckpointPlan:
        """What to write down now: recovery points, log start offsets and, if given, high watermarks."""
        files: list[tuple[str, dict[TopicPartition, int]]] = []
        for directory in self.directories:
            logs = {
                topic_partition: log
                for topic_partition, log in self.logs.items()
                if self._directory_of[topic_partition] is directory and topic_partition not in self._forgotten
            }
            path = directory.path
            recovery_points = {place: log.recovery_checkpoint for place, log in logs.items()}
            for place in self.kept:
                if place in directory.recovery_points:
                    recovery_points.setdefault(place, directory.recovery_points[place])
            files.append((f"{path}/{checkpoints.RECOVERY_POINT_CHECKPOINT}", recovery_points))
            # A log that starts where its oldest file does needs no note: the file tells.
            files.append(
                (
                    f"{path}/{checkpoints.LOG_START_OFFSET_CHECKPOINT}",
                    {
                        topic_partition: log.log_start_offset
                        for topic_partition, log in logs.items()
                        if log.log_start_offset > log.first_stored_offset
                    },
                )
            )
        if high_watermarks is not None:
            files += self._high_watermark_files(high_watermarks)
        return self._plan(files)

    def high_watermark_plan(self, high_watermarks: Mapping[TopicPartition, int]) -> CheckpointPlan:
        """The same for the high watermarks alone, which move more often than the rest."""
        return self._plan(self._high_watermark_files(high_watermarks))

    def _high_watermark_files(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[tuple[str, dict[TopicPartition, int]]]:
        for topic_partition, high_watermark in high_watermarks.items():
            directory = self._directory_of.get(topic_partition)
            if directory is None or topic_partition in self.kept or topic_partition in self._forgotten:
                continue
            directory.high_watermarks[topic_partition] = high_watermark
        return [
            (f"{each.path}/{checkpoints.REPLICATION_OFFSET_CHECKPOINT}", dict(each.high_watermarks))
            for each in self.directories
        ]

    def _plan(self, files: list[tuple[str, dict[TopicPartition, int]]]) -> CheckpointPlan:
        self._order.planned += 1
        return CheckpointPlan(self._disk, tuple(files), self._order, self._order.planned)

    def close(
        self,
        *,
        clean: bool = True,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        threads: int = 1,
    ) -> None:
        """Close all logs and give up the directories; a clean close spares the next start the recovery.

        Closing waits for the disk, which syncs many files faster from several threads. Trouble with a disk is
        logged, and its directory is then left for recovery; the others close cleanly.
        """

        def close_log(topic_partition: TopicPartition) -> None:
            try:
                self.logs[topic_partition].close(clean)
            except OSError as error:
                logger.error("%s could not be closed cleanly: %s", topic_partition, error)
                self.doubt(self._directory_of[topic_partition])

        if threads > 1:
            with ThreadPoolExecutor(threads, "closing-logs") as pool:
                list(pool.map(close_log, self.logs))
        else:
            for topic_partition in self.logs:
                close_log(topic_partition)
        try:
            if clean:
                self.checkpoint_plan(high_watermarks).run()
            for directory in self.directories:
                if clean and not directory.doubtful:
                    self._disk.replace_atomically(
                        f"{directory.path}/{CLEAN_SHUTDOWN}", CLEAN_SHUTDOWN_CONTENT
                    )
        except OSError as error:
            logger.error("the data directories could not be closed cleanly: %s", error)
        self.logs.clear()
        self._directory_of.clear()
        for directory in (*self.directories, *self._failed):
            directory.lock.close()

    def __repr__(self) -> str:
        return f"<LogDirectories {', '.join(each.path for each in self.directories)} logs={len(self.logs)}>"
