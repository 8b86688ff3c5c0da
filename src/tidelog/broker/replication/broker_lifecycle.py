"""A broker's life in the cluster: what it tells of itself, what begins with a registration and ends with it.

Each session with the coordination store is a life of its own (`metadata`). What the logs may have lost before
this process began is told with its first registration; from then on they are as good as any.
"""

import logging
from collections.abc import Callable, Mapping

from tidelog.broker.metadata.metadata import Metadata, Registration
from tidelog.broker.replication.log_moves import LogMoves
from tidelog.broker.replication.placements import Placements
from tidelog.broker.replication.replication import Replication
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.controller.commands import ShutDownBroker
from tidelog.model.errors import Refused
from tidelog.model.metadata import Endpoint
from tidelog.storage.log_directories import LogDirectories

log = logging.getLogger(__name__)

#: how long a clean stop waits for other brokers to take over
HAND_OVER_MS_MAX = 5_000


class BrokerLifecycle:
    """The lives of one broker."""

    def __init__(
        self,
        metadata: Metadata,
        log_directories: LogDirectories,
        placements: Placements,
        log_moves: LogMoves,
        replication: Replication,
        settings: LiveSettings,
        endpoints: Mapping[str, Endpoint],
    ) -> None:
        self._metadata = metadata
        self._log_directories = log_directories
        self._placements = placements
        self._log_moves = log_moves
        self._replication = replication
        self._settings = settings
        self._endpoints = endpoints
        self._was_registered = False
        self._ends_in_doubt = not log_directories.kept_their_ends
        # A directory that is there now is none of them, should it fail later.
        self._given_up = tuple(
            each
            for each in settings.get_list("tidelog.lost.directories")
            if log_directories.directory_by_id(each) is None
        )

    def __repr__(self) -> str:
        return f"<BrokerLifecycle registered={not self._metadata.fenced}>"

    def register(self, then: Callable[[Refused | None], None]) -> None:
        """Tell the cluster that this broker is here and where to reach it; `then` when the cluster knows."""
        if self._ends_in_doubt:
            log.warning("the machine was restarted without a clean stop: the logs may have lost their ends")
        self._metadata.start(self._registration, then)

    def _registration(self) -> Registration:
        """What this broker tells of itself when it registers: as things are now."""
        directories = self._log_directories
        return Registration(
            self._endpoints,
            self._settings.static.rack,
            tuple(each.directory_id for each in directories.directories),
            len(directories.offline),
            self._placements.at_start(self._metadata.image),
            unclean_shutdown=self._ends_in_doubt,
            lost_directories=self._given_up,
        )

    def registered(self) -> None:
        """The cluster knows this life of the broker: it has the roles that the image gives it."""
        first, self._was_registered = not self._was_registered, True
        if first:
            # The cluster knows; later incarnations of this process have lost nothing more.
            self._ends_in_doubt = False
            self._log_directories.note_boot()
            self._log_directories.forget_unfinished_copies()
        self._replication.take_roles()
        if first:
            self._placements.start()
            self._log_moves.resume()
        self._placements.tell_losses()

    def hand_over(self, then: Callable[[], None]) -> None:
        """Before a clean stop: have the other brokers lead what this one leads, as far as they can."""
        metadata = self._metadata
        others = [broker for broker in metadata.image.alive_brokers.values() if broker.id != metadata.node_id]
        epoch = metadata.broker_epoch
        if not others or epoch < 0 or not self._settings.get_bool("controlled.shutdown.enable"):
            then()
            return
        command = ShutDownBroker(metadata.node_id, epoch)
        metadata.submit(command, lambda results: then(), timeout_ms=HAND_OVER_MS_MAX)
