"""Tells the controller of log directories that have failed (KIP-858).

When the controller has not heard of one for `log.dir.failure.timeout.ms` the broker stops: others believe
that it leads.
"""

import logging
from collections.abc import Callable, Sequence

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import FailDirectories, ReplicaPlacement, Result
from tidelog.model.errors import Refused
from tidelog.storage.log_directory import LogDirectory

log = logging.getLogger(__name__)

RETRY_MS = 200


class DirectoryFailureReports:
    """The failed directories of one broker of which the controller has to hear."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        settings: LiveSettings,
        timers: Timers,
        on_fatal: Callable[[str], None],
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._settings = settings
        self._timers = timers
        self._on_fatal = on_fatal
        #: failed, and the controller does not know it yet
        self._untold: list[str] = []
        self._in_flight = False

    def __repr__(self) -> str:
        return f"<DirectoryFailureReports untold={self._untold}>"

    def report(self, directory: LogDirectory) -> None:
        """A directory has failed, and its replicas are offline."""
        self._untold.append(directory.directory_id)
        self._tell()
        timeout_ms = self._settings.get_int("log.dir.failure.timeout.ms")
        self._timers.set_after(
            ("untold directory failure", directory.path),
            timeout_ms,
            lambda: self._check_told(directory, timeout_ms),
        )

    def _check_told(self, directory: LogDirectory, timeout_ms: int) -> None:
        if directory.directory_id in self._untold:
            self._on_fatal(
                f"the controller has not heard for {timeout_ms} ms that {directory.path} has failed"
            )

    def _tell(self) -> None:
        metadata = self._metadata
        if self._in_flight or not self._untold:
            return
        epoch = metadata.broker_epoch
        if epoch < 0:
            # Between two registrations; the next one tells what is online.
            self._retry()
            return
        told = tuple(self._untold)
        lost = []
        for place, offline in self._replicas.offline.items():
            topic = metadata.image.topics.get(place.topic)
            if offline.lost and topic is not None:
                lost.append(ReplicaPlacement(topic.topic_id, place.partition, offline.placement))
        self._in_flight = True
        command = FailDirectories(metadata.node_id, epoch, told, tuple(lost))
        metadata.submit(command, lambda results: self._decided(told, results))

    def _decided(self, told: tuple[str, ...], results: Sequence[Result]) -> None:
        self._in_flight = False
        [result] = results
        own = self._metadata.image.brokers.get(self._metadata.node_id)
        known = own is not None and not set(told) & set(own.directories)
        if isinstance(result, Refused) and not known:
            log.warning("the controller does not know of the failed directories yet: %s", result.message)
            self._retry()
            return
        self._untold = [each for each in self._untold if each not in told]
        self._tell()

    def _retry(self) -> None:
        self._timers.set_after("directory failures", RETRY_MS, self._tell)
