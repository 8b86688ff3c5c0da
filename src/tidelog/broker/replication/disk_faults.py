"""Tells whether a fault means that a log directory has failed (KIP-112).

An I/O error of the system says that a disk cannot be trusted any more. A disk that is full is none that has
failed: appends are refused, and go on when there is room. So it is with limits of the process (too many open
files, no memory). Deliberate difference: Kafka takes a full disk, too, offline.

Whoever meets a fault, anywhere in the broker, notes it here; what a failure leads to is up to the listeners
(`replication.directory_failures`).
"""

import errno
from collections.abc import Callable

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.runtime.timers import Timers
from tidelog.storage.disk import Disk
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import LogDirectory

FailureListener = Callable[[LogDirectory, str], None]

#: what a system says of a disk that does not work, is gone, or became read-only
FAILED = frozenset(
    getattr(errno, name)
    for name in (
        "EIO",
        "EROFS",
        "ENXIO",
        "ENODEV",
        "ESTALE",
        "EACCES",
        "EPERM",
        "ENOTCONN",
        "ESHUTDOWN",
        "EHOSTDOWN",
        "EUCLEAN",
        "EREMOTEIO",
        "ENOMEDIUM",
    )
    if hasattr(errno, name)
)
#: of one file these say little; they do if the directory itself is gone
GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


class DiskFaults:
    """The faults of one broker's disks."""

    def __init__(self, log_directories: LogDirectories, disk: Disk, timers: Timers) -> None:
        self._log_directories = log_directories
        self._disk = disk
        self._timers = timers
        self._listeners: list[FailureListener] = []

    def __repr__(self) -> str:
        return f"<DiskFaults of {self._log_directories!r}>"

    def listen(self, listener: FailureListener) -> None:
        """Call `listener` with every directory that fails, and why."""
        self._listeners.append(listener)

    def noticed(self, fault: BaseException | None, about: object = None) -> None:
        """Something could not be read or written, of a partition or of the file that the fault names."""
        if not isinstance(fault, OSError) or fault.errno is None:
            return
        directory = self._directory(fault, about if isinstance(about, Partition) else None)
        if directory is not None and self._is_failure(fault.errno, directory):
            # Not in the middle of whatever met the fault.
            reason = fault.strerror or str(fault)
            self._timers.set_after(
                ("directory failure", directory.path), 0, lambda: self._tell(directory, reason)
            )

    def flush_failed(self, partition: Partition, fault: OSError) -> None:
        """A partition could not be flushed; if a sync failed its directory is in doubt."""
        if partition.flush_fault is not None:
            self._log_directories.sync_failed(partition.place)
        self.noticed(fault, partition)

    def _tell(self, directory: LogDirectory, reason: str) -> None:
        for listener in self._listeners:
            listener(directory, reason)

    def _directory(self, fault: OSError, partition: Partition | None) -> LogDirectory | None:
        path = partition.log.directory if partition is not None else fault.filename
        if not isinstance(path, str):
            return None
        directories = self._log_directories.directories
        within = [each for each in directories if path.startswith(each.path.rstrip("/") + "/")]
        # One directory may be inside another.
        return max(within, key=lambda each: len(each.path), default=None)

    def _is_failure(self, number: int, directory: LogDirectory) -> bool:
        if number in FAILED:
            return True
        return number in GONE and not self._disk.is_directory(directory.path)
