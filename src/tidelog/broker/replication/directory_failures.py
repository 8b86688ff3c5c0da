"""Log directories that fail while the broker runs (KIP-112, KIP-858).

A directory that has failed (`replication.disk_faults`) goes offline until the broker is started again: its
replicas are neither read nor written here, clients are told KAFKA_STORAGE_ERROR, and the controller is told
at once, so that other replicas lead (`directory_failure_reports`). When no directory is left, the broker
stops.

This is the top of the package: it tells the moves and the replicas, and none of them knows it.
"""

import logging
from collections.abc import Callable

from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.replication.directory_failure_reports import DirectoryFailureReports
from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.replication.replication import Replication
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.events import Events
from tidelog.model.events import DIRECTORY_FAILED
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.log_directory import LogDirectory

log = logging.getLogger(__name__)


class DirectoryFailures:
    """Takes directories offline."""

    def __init__(
        self,
        log_directories: LogDirectories,
        replicas: Replicas,
        log_moves: LogMoves,
        replication: Replication,
        reports: DirectoryFailureReports,
        background: Background,
        events: Events,
        *,
        before_offline: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`before_offline` is called before replicas go offline, `on_fatal` with why the broker cannot go on
        when no directory is left."""
        self._log_directories = log_directories
        self._replicas = replicas
        self._log_moves = log_moves
        self._replication = replication
        self._reports = reports
        self._background = background
        self._events = events
        self._before_offline = before_offline
        self._on_fatal = on_fatal

    def __repr__(self) -> str:
        return f"<DirectoryFailures {self._log_directories!r}>"

    def failed(self, directory: LogDirectory, reason: str) -> None:
        """Use a directory no more."""
        directories = self._log_directories
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
        self._events.emit(DIRECTORY_FAILED, fields, cause=reason)
        if len(directories.directories) == 1:
            directories.doubt(directory)
            self._on_fatal(f"all log directories have failed, {directory.path} with: {reason}")
            return
        self._before_offline()
        announced = dict(self._log_moves.announced)
        self._log_moves.directory_failed(directory)
        for partition in list(self._replicas):
            place = partition.place
            if directories.directory_of(place) is directory:
                self._replication.take_offline(partition, directory.directory_id, announced.get(place))
        directories.fail(directory, reason)
        self._background.run(lambda: directories.note_failure(directory), lambda _: None)
        self._reports.report(directory)
