"""What a broker has to do with share groups beside their members: it keeps the state of share partitions, and
delivers the records of the partitions that it leads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tidelog.broker.coordinators.dead_letter_writer import DeadLetterWriter
from tidelog.broker.coordinators.log_ends import LogEnds
from tidelog.broker.coordinators.share_partitions import SharePartitions
from tidelog.broker.coordinators.share_persister import SharePersister
from tidelog.broker.coordinators.share_state_coordinator import ShareStateCoordinator
from tidelog.shares.sessions import ShareSession, ShareSessions


class Connection(Protocol):
    """What share sessions need of a connection."""

    leavings: tuple[Callable[[], None], ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """The parts that know of share groups."""

    #: of the share partitions whose state belongs to partitions led here
    coordinator: ShareStateCoordinator
    #: asks share coordinators, here or on other brokers
    persister: SharePersister
    #: of the partitions led here
    partitions: SharePartitions
    #: of the members that fetch here
    sessions: ShareSessions
    #: how far the partitions go that share groups read
    log_ends: LogEnds
    #: to topics of this and of other brokers
    dead_letters: DeadLetterWriter
    #: on which sessions were opened
    connections: set[Connection] = field(default_factory=set)

    def follow(self, connection: Connection) -> None:
        """A session was opened on a connection: it ends with it."""
        if connection not in self.connections:
            self.connections.add(connection)
            connection.leavings = (*connection.leavings, partial(self.connection_lost, connection))

    def session_ended(self, session: ShareSession, *, lost: bool) -> None:
        """Others get what the member had acquired; `lost` if it went without a word."""
        self.partitions.release(session.key.group_id, session.key.member_id, rests=lost)

    def connection_lost(self, connection: Connection) -> None:
        """A connection is gone, and with it the share sessions that were opened on it."""
        self.connections.discard(connection)
        for session in self.sessions.disconnected(connection):
            self.session_ended(session, lost=True)
