"""One data directory of a broker (`log.dirs`): whose it is, whether it can be used, what is noted in it.

A directory with `meta.properties` is formatted: it has an id, a broker and a cluster. One without is empty,
and is formatted when it is first used. Not in every case: beside formatted directories, while the cluster
knows of replicas in a directory that is not there, an empty one may be what became of it: an empty disk in
its place, or the mount point of a disk that is not mounted. Then it stays as it is, and is offline, until
that directory is back or somebody says that it is lost (`tidelog.lost.directories`). So it is at the first
start after an older version, which told the cluster of one directory only.

A directory that the system cannot read is offline too, as long as another one can be used.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID, uuid4

from tidelog.model.identifiers import MIGRATING_DIRECTORY, TopicPartition
from tidelog.storage import checkpoints
from tidelog.storage.boot_id import kept_its_end, note_boot_id, read_failed
from tidelog.storage.disk import Disk, File
from tidelog.storage.partition_metadata import encode_topic_id

LOCK = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

logger = logging.getLogger(__name__)


class LogDirectoryUnusable(Exception):
    """A data directory cannot be used; the message says which, why and what to do."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose data a directory holds."""

    cluster_id: str
    node_id: int
    directory_id: str

    def encode(self) -> bytes:
        lines = {
            "version": 1,
            "cluster.id": self.cluster_id,
            "node.id": self.node_id,
            "directory.id": self.directory_id,
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items()).encode()


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """Read `meta.properties`; None in a directory that is not formatted yet."""
    path = f"{directory}/{META_PROPERTIES}"
    try:
        file = disk.open(path, create=False)
    except FileNotFoundError:
        return None
    try:
        text = file.read(0, min(file.size_bytes, 1 << 16)).decode(errors="replace")
    finally:
        file.close()
    lines = (line.strip() for line in text.splitlines())
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        if values["version"] != "1":
            raise LogDirectoryUnusable(f"{path}: version {values['version']} is not known, only 1 is")
        node_id = int(values["node.id"])
        return MetaProperties(values["cluster.id"], node_id, values.get("directory.id", ""))
    except KeyError as missing:
        raise LogDirectoryUnusable(
            f"{path}: it has no {missing.args[0]}; restore it, from a backup or another folder of log.dirs "
            "(each has a directory.id of its own), or move the folder aside to begin anew"
        ) from missing
    except ValueError as error:
        raise LogDirectoryUnusable(f"{path}: it is damaged: {error}") from error


def stored_cluster_id(disk: Disk, directories: Iterable[str]) -> str | None:
    """The cluster id that the data directories were formatted with; None if none that can be read was."""
    for directory in directories:
        try:
            properties = read_meta_properties(disk, directory)
        except OSError:
            continue
        if properties is not None:
            return properties.cluster_id
    return None


@dataclass(slots=True, eq=False)
class LogDirectory:
    """One data directory, locked by this broker."""

    path: str
    directory_id: str
    clean_shutdown: bool
    lock: File
    #: its logs have all that was ever appended: no power cut took their ends
    kept_its_end: bool = True
    #: its disk may have lost records since then: a clean stop is not to be believed
    doubtful: bool = False
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    log_count: int = 0

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path} clean_shutdown={self.clean_shutdown}>"


class OfflineDirectory(NamedTuple):
    """A data directory that is not used: why, and its id if it has one that is known."""

    path: str
    reason: str
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose directories are opened, and what the cluster knows of them."""

    cluster_id: str
    node_id: int
    #: directories in which the cluster believes replicas of this broker: how many
    replica_counts: Mapping[str, int] = field(default_factory=dict)
    #: directories that somebody has given up
    lost: Collection[str] = ()
    new_directory_id: Callable[[], UUID] = uuid4


class _Found(NamedTuple):
    path: str
    lock: File
    properties: MetaProperties | None


def open_directories(
    disk: Disk, paths: Iterable[str], owner: Owner
) -> tuple[list[LogDirectory], list[OfflineDirectory]]:
    """Lock and check every directory, making and formatting new ones; those in use, and those offline.

    Raises LogDirectoryUnusable if one belongs to somebody else, or if none can be used.
    """
    found: list[_Found] = []
    offline: list[OfflineDirectory] = []
    opened: list[LogDirectory] = []
    try:
        for path in dict.fromkeys(path.rstrip("/") or "/" for path in paths):
            try:
                found.append(_find(disk, path, owner))
            except OSError as error:
                offline.append(OfflineDirectory(path, f"it cannot be used: {error.strerror or error}"))
        _refuse_copies(found)
        held_back = _held_back(found, offline, owner)
        for each in found:
            try:
                if each.properties is None and held_back:
                    offline.append(OfflineDirectory(each.path, held_back))
                    each.lock.close()
                else:
                    opened.append(_open(disk, each, owner))
            except OSError as error:
                each.lock.close()
                offline.append(OfflineDirectory(each.path, f"it cannot be used: {error.strerror or error}"))
        if not opened and offline:
            raise LogDirectoryUnusable(f"log.dirs: {offline[0].path}: {offline[0].reason}")
        if not opened:
            raise LogDirectoryUnusable("log.dirs names no directory")
        _distrust_failed(disk, opened)
    except LogDirectoryUnusable:
        for each in found:
            each.lock.close()
        raise
    return opened, offline


def _distrust_failed(disk: Disk, opened: list[LogDirectory]) -> None:
    """A directory that failed in an earlier life may have lost what it took, whatever it says itself."""
    failed: set[str] = set()
    for directory in opened:
        try:
            failed |= read_failed(disk, directory.path)
        except OSError as error:
            logger.warning("the failed directories cannot be read: %s", error)
    for directory in opened:
        if directory.directory_id in failed:
            directory.kept_its_end = False


def _find(disk: Disk, path: str, owner: Owner) -> _Found:
    _make_directory_durably(disk, path)
    lock = _lock(disk, path)
    try:
        properties = read_meta_properties(disk, path)
        if properties is not None:
            _check_owner(path, properties, owner)
    except (OSError, LogDirectoryUnusable):
        lock.close()
        raise
    return _Found(path, lock, properties)


def _check_owner(path: str, properties: MetaProperties, owner: Owner) -> None:
    if properties.cluster_id != owner.cluster_id:
        raise LogDirectoryUnusable(
            f"log.dirs: {path} belongs to cluster {properties.cluster_id}, not to {owner.cluster_id}"
        )
    if properties.node_id != owner.node_id:
        raise LogDirectoryUnusable(
            f"log.dirs: {path} belongs to broker {properties.node_id}, this is broker {owner.node_id}; give"
            " it back to that broker, and this one its own"
        )


def _refuse_copies(found: list[_Found]) -> None:
    by_id: dict[str, str] = {}
    for path, _, properties in found:
        if properties is not None and properties.directory_id:
            other = by_id.setdefault(properties.directory_id, path)
            if other != path:
                raise LogDirectoryUnusable(
                    f"log.dirs: {other} and {path} have the same directory.id: one is a copy of the other;"
                    " remove the copy"
                )


def _held_back(found: list[_Found], offline: list[OfflineDirectory], owner: Owner) -> str:
    """Why empty directories are not formatted; nothing if they are."""
    here = {each.properties.directory_id for each in found if each.properties is not None}
    missing = [each for each in owner.replica_counts if each not in here and each not in owner.lost]
    if not missing or not (here or offline):
        return ""
    named = [each for each in missing if each != MIGRATING_DIRECTORY]
    if not named:
        return (
            "it is empty, and an older version did not tell the cluster in which directories the"
            f" {owner.replica_counts[MIGRATING_DIRECTORY]} replicas of this broker are: some may have been in"
            " here. If a disk is not mounted, mount it and restart the broker. If it is lost, or the"
            " directory is new, restart the broker as it is: the cluster knows then that nothing is in here,"
            " and it is used"
        )
    count = sum(owner.replica_counts[each] for each in named)
    names = ",".join(named)
    return (
        f"it is empty, and the cluster knows of {count} replicas of this broker in {names}, which is not"
        " here. If that disk is not mounted, mount it and restart the broker. If it is lost, restart the"
        f" broker with tidelog.lost.directories={names}: its replicas are then copied from other brokers, as"
        " far as those have any"
    )


def _open(disk: Disk, found: _Found, owner: Owner) -> LogDirectory:
    path, lock, properties = found
    formatted = properties is not None
    if properties is None or not properties.directory_id:
        # Directories of early versions of Kafka have no id.
        directory_id = encode_topic_id(owner.new_directory_id())
        properties = MetaProperties(owner.cluster_id, owner.node_id, directory_id)
        disk.replace_atomically(f"{path}/{META_PROPERTIES}", properties.encode())
        if not formatted:
            logger.info("log.dirs: %s is new, and begins as directory.id %s", path, directory_id)
    marker = f"{path}/{CLEAN_SHUTDOWN}"
    clean_shutdown = disk.exists(marker)
    kept = clean_shutdown or not formatted or kept_its_end(disk, path)
    directory = LogDirectory(path, properties.directory_id, clean_shutdown, lock, kept)
    if kept:
        note_boot_id(disk, path)
    directory.recovery_points = _read_checkpoint(disk, path, checkpoints.RECOVERY_POINT_CHECKPOINT)
    directory.log_start_offsets = _read_checkpoint(disk, path, checkpoints.LOG_START_OFFSET_CHECKPOINT)
    directory.high_watermarks = _read_checkpoint(disk, path, checkpoints.REPLICATION_OFFSET_CHECKPOINT)
    if clean_shutdown:
        # From the first write on a stop is unclean until the end says otherwise.
        disk.remove(marker)
        disk.sync_directory(path)
    return directory


def refuse_used(disk: Disk, paths: Iterable[str]) -> None:
    """Raise LogDirectoryUnusable if a broker uses one of the directories; nothing is written."""
    for path in paths:
        if disk.exists(f"{path}/{LOCK}"):
            _lock(disk, path).close()


def _lock(disk: Disk, path: str) -> File:
    try:
        return disk.lock(f"{path}/{LOCK}")
    except BlockingIOError as error:
        raise LogDirectoryUnusable(
            f"log.dirs: {path} is in use by another broker; stop it, or give this one another directory"
        ) from error


def _make_directory_durably(disk: Disk, path: str) -> None:
    """Make a directory and its parents so that a power cut does not take them away again."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for directory in reversed(missing):
        disk.make_directory(directory)
        disk.sync_directory(directory.rpartition("/")[0] or ("/" if directory.startswith("/") else "."))


def _read_checkpoint(disk: Disk, path: str, name: str) -> dict[TopicPartition, int]:
    """Read a checkpoint; a damaged one costs time (everything is recovered), not data."""
    try:
        return checkpoints.read_offsets(disk, f"{path}/{name}")
    except checkpoints.CheckpointMalformed as error:
        logger.warning("ignoring a damaged checkpoint: %s", error)
        return {}
