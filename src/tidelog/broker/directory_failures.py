"""Log directories that fail while the broker runs (KIP-112, KIP-858).

An I/O error of the system says that a disk cannot be trusted any more. The directory goes offline until the
broker is started again: its replicas are neither read nor written here, clients are told KAFKA_STORAGE_ERROR,
and the controller is told at once, so that other replicas lead. When no directory is left, the broker stops;
so it does when the controller has not heard of it for `log.dir.failure.timeout.ms`, since others believe that
it leads.

A disk that is full is none that has failed: appends are refused, and go on when there is room. So it is with
limits of the process (too many open files, no memory). Deliberate difference: Kafka takes a full disk, too,
offline.
"""

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.broker.partition import Partition
from tidelog.controller.commands import FailDirectories, ReplicaPlacement, Result
from tidelog.model.errors import Refused
from tidelog.model.events import DIRECTORY_FAILED
from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.broker.broker import Broker
    from tidelog.storage.log_directory import LogDirectory

log = logging.getLogger(__name__)

RETRY_MS = 200
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


class DirectoryFailures:
    """Takes directories offline, and tells the controller."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        broker.jobs.on_fault = self.noticed
        #: called with the reason when no directory is left, and the broker cannot go on
        self.on_fatal: Callable[[str], None] = log.critical
        #: failed, and the controller does not know it yet
        self._untold: list[str] = []
        self._in_flight = False

    def __repr__(self) -> str:
        return f"<DirectoryFailures untold={self._untold}>"

    def noticed(self, fault: BaseException | None, about: object = None) -> None:
        """Something could not be read or written, of a partition or of the file that the fault names."""
        if not isinstance(fault, OSError) or fault.errno is None:
            return
        directory = self._directory(fault, about if isinstance(about, Partition) else None)
        if directory is not None and self._is_failure(fault.errno, directory):
            # Not in the middle of whatever met the fault.
            reason = fault.strerror or str(fault)
            self._broker.timers.set(
                ("directory failure", directory.path),
                self._broker.clock.now_ms(),
                lambda: self.failed(directory, reason),
            )

    def _directory(self, fault: OSError, partition: Partition | None) -> "LogDirectory | None":
        directories = self._broker.log_directories
        path = partition.log.directory if partition is not None else fault.filename
        if not isinstance(path, str):
            return None
        within = [each for each in directories.directories if path.startswith(each.path.rstrip("/") + "/")]
        # One directory may be inside another.
        return max(within, key=lambda each: len(each.path), default=None)

    def _is_failure(self, number: int, directory: "LogDirectory") -> bool:
        if number in FAILED:
            return True
        return number in GONE and not self._broker.disk.is_directory(directory.path)

    def failed(self, directory: "LogDirectory", reason: str) -> None:
        """Use a directory no more."""
        broker = self._broker
        directories = broker.log_directories
        if directory not in directories.directories:
            return
        log.critical(
            "the log directory %s has failed: %s; mend the disk and restart the broker, or, if it is lost, "
            "restart it with an empty folder there and tidelog.lost.directories=%s",
            directory.path,
            reason,
            directory.directory_id,
        )
        fields = {"directory": directory.path, "id": directory.directory_id}
        broker.metrics.events.emit(DIRECTORY_FAILED, fields, cause=reason)
        if len(directories.directories) == 1:
            directories.doubt(directory)
            self.on_fatal(f"all log directories have failed, {directory.path} with: {reason}")
            return
        # Requests like earlier ones are not to find what is not here any more, until the image tells so.
        broker.image_version = -1
        broker.produce_shapes.forget()
        announced = dict(broker.log_moves.announced)
        broker.log_moves.directory_failed(directory)
        for partition in list(broker.replicas()):
            place = TopicPartition(partition.topic, partition.index)
            if directories.directory_of(place) is directory:
                broker.replication.take_offline(partition, directory.directory_id, announced.get(place))
        directories.fail(directory, reason)
        broker.background.run(lambda: directories.note_failure(directory), lambda _: None)
        self._untold.append(directory.directory_id)
        self._tell()
        timeout_ms = broker.settings.get_int("log.dir.failure.timeout.ms")
        broker.timers.set_after(
            ("untold directory failure", directory.path),
            timeout_ms,
            lambda: self._check_told(directory, timeout_ms),
        )

    def _check_told(self, directory: "LogDirectory", timeout_ms: int) -> None:
        if directory.directory_id in self._untold:
            self.on_fatal(
                f"the controller has not heard for {timeout_ms} ms that {directory.path} has failed"
            )

    def _tell(self) -> None:
        broker = self._broker
        if self._in_flight or not self._untold:
            return
        epoch = broker.metadata.broker_epoch
        if epoch < 0:
            # Between two registrations; the next one tells what is online.
            self._retry()
            return
        told = tuple(self._untold)
        lost = []
        for place, offline in broker.replication.offline.items():
            topic = broker.image.topics.get(place.topic)
            if offline.lost and topic is not None:
                lost.append(ReplicaPlacement(topic.topic_id, place.partition, offline.placement))
        self._in_flight = True
        command = FailDirectories(broker.node_id, epoch, told, tuple(lost))
        broker.metadata.submit(command, lambda results: self._decided(told, results))

    def _decided(self, told: tuple[str, ...], results: "Sequence[Result]") -> None:
        self._in_flight = False
        [result] = results
        own = self._broker.image.brokers.get(self._broker.node_id)
        known = own is not None and not set(told) & set(own.directories)
        if isinstance(result, Refused) and not known:
            log.warning("the controller does not know of the failed directories yet: %s", result.message)
            self._retry()
            return
        self._untold = [each for each in self._untold if each not in told]
        self._tell()

    def _retry(self) -> None:
        self._broker.timers.set("directory failures", self._broker.clock.now_ms() + RETRY_MS, self._tell)
