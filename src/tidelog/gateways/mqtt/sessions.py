"""Sessions and who holds them: each belongs to one gateway at a time, whose name is in its record.

A client that comes to another gateway takes its session along. That one writes a claim; the holder closes its
connection, writes the session without an owner, and lets go. A holder that does not answer within
CLAIM_SECONDS is fenced: its transactions are ended for good (`commits.fence`), so what the log then says of
the session is all there is. Where two gateways take the same session in the same moment, the later record
counts and the other connection is closed.

A gateway that starts again finds its sessions by its name: their connections are gone, so their wills are
published and those that do not outlive a connection end.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from tidelog.gateways.mqtt import commits, session_record
from tidelog.gateways.mqtt.commits import Commits
from tidelog.gateways.mqtt.faults import PacketFault, Reason
from tidelog.gateways.mqtt.feed import TopicEnds
from tidelog.gateways.mqtt.messages import Outgoing
from tidelog.gateways.mqtt.session import Session
from tidelog.gateways.mqtt.session_record import Stored, UnreadableSession
from tidelog.gateways.mqtt.state_log import StateLog

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

CLAIM_SECONDS = 2.0
#: in front of a client's identifier, which cannot have it
CLAIM_PREFIX = "\0claim/"


class Sessions:
    """All sessions, as their topic says, and those that are ours."""

    def __init__(
        self,
        name: str,
        topic: str,
        sessions_max: int,
        properties: Mapping[str, Any],
        executor: ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self.topic = topic
        self._sessions_max = sessions_max
        self._properties = properties
        self._executor = executor
        #: by client: the newest record
        self._stored: dict[str, bytes] = {}
        #: by client: whose it is, as its record says
        self._owners: dict[str, str] = {}
        self.ours: dict[str, Session] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._fenced: set[str] = set()
        #: clients whose tombstone is on its way
        self._ended: set[str] = set()
        self._commits: Commits | None = None
        self._ends: TopicEnds | None = None
        self._state_log: StateLog | None = None
        #: called with a session of ours that another gateway wants, or has
        self.on_lost: Callable[[Session], None] = lambda session: None

    def __repr__(self) -> str:
        return f"<Sessions ours={len(self.ours)} stored={len(self._stored)}>"

    def __len__(self) -> int:
        return len(self._stored)

    def connect(self, commits: Commits, ends: TopicEnds, state_log: StateLog) -> None:
        self._commits, self._ends, self._state_log = commits, ends, state_log

    # What the topic says

    def apply(self, record: "Record") -> None:
        """A record of the topic of sessions."""
        key = record.key()
        if key is None:
            return
        client_id = key.decode(errors="replace")
        value = record.value()
        if client_id.startswith(CLAIM_PREFIX):
            self._claimed(client_id.removeprefix(CLAIM_PREFIX), value)
            return
        if value is None:
            self._stored.pop(client_id, None)
            self._owners.pop(client_id, None)
            self._ended.discard(client_id)
            owner = ""
        else:
            owner = _owner_of(value)
            self._stored[client_id] = value
            self._owners[client_id] = owner
            self._fenced.discard(owner)
        if owner in ("", self.name) and client_id in self._waiting:
            self._answer(client_id)
        session = self.ours.get(client_id)
        if session is not None and owner not in ("", self.name):
            log.warning("client %s is at gateway %s now", client_id, owner)
            del self.ours[client_id]
            self.on_lost(session)

    def _claimed(self, client_id: str, value: bytes | None) -> None:
        session = self.ours.get(client_id)
        if value is None or session is None or _owner_of(value) == self.name:
            return
        del self.ours[client_id]
        self.on_lost(session)
        session.connected = False
        session.disconnected_at_ms = int(time.time() * 1000)
        assert self._commits is not None
        self._commits.save(session)

    def _answer(self, client_id: str) -> None:
        future = self._waiting.pop(client_id)
        if not future.done():
            future.set_result(None)

    # What is written

    def snapshot(self, session: Session) -> bytes | None:
        """The record of a session of ours, as it is now; one that was let go has no owner."""
        if session.ended:
            return None
        owner = self.name if self.ours.get(session.client_id) is session else ""
        return session_record.write(session, owner, self.positions())

    #: where the feed is; the gateway says
    positions: Callable[[], dict[tuple[str, int], int]] = staticmethod(dict)

    # Taking

    async def obtain(self, client_id: str) -> Stored | None:
        """The session of a client, which is ours or nobody's now; None if there is none."""
        session = self.ours.get(client_id)
        if session is not None:
            return Stored(self.name, session, [])
        owner = self._owners.get(client_id)
        if owner and owner != self.name:
            await self._claim(client_id, owner)
        value = self._stored.get(client_id)
        if value is None or client_id in self._ended:
            if len(self._stored) + len(self.ours) >= self._sessions_max:
                raise PacketFault(Reason.QUOTA_EXCEEDED, "there are too many sessions")
            return None
        try:
            return session_record.read(client_id, value)
        except UnreadableSession as fault:
            log.warning("%s", fault)
            return None

    async def _claim(self, client_id: str, owner: str) -> None:
        assert self._commits is not None and self._state_log is not None and self._ends is not None
        loop = asyncio.get_running_loop()
        key = (CLAIM_PREFIX + client_id).encode()
        if owner not in self._fenced:
            future = self._waiting.setdefault(client_id, loop.create_future())
            claim = Outgoing(self.topic, key, json.dumps({"owner": self.name}).encode(), [])
            self._commits.submit(None, [claim], lambda error: None)
            try:
                await asyncio.wait_for(asyncio.shield(future), CLAIM_SECONDS)
            except TimeoutError:
                self._waiting.pop(client_id, None)
        if self._owners.get(client_id) == owner:
            log.warning("gateway %s does not let go of client %s: it is fenced", owner, client_id)
            try:
                await loop.run_in_executor(self._executor, commits.fence, self._properties, owner)
                ends = await self._ends.ask([self.topic])
            except KafkaException as fault:
                raise PacketFault(Reason.SERVER_UNAVAILABLE, "the cluster does not answer") from fault
            self._fenced.add(owner)
            await self._state_log.reach({topic: end for (topic, _), end in ends.items()})
        self._commits.submit(None, [Outgoing(self.topic, key, None, [])], lambda error: None)

    def keep(self, session: Session) -> None:
        """The session is ours from now on."""
        before = self.ours.get(session.client_id)
        if before is not None and before is not session:
            before.ended = True
        self._ended.discard(session.client_id)
        self.ours[session.client_id] = session

    def end(self, session: Session) -> None:
        """Nothing of the session is left; to be saved once more."""
        session.ended = True
        if self.ours.get(session.client_id) is session:
            self._ended.add(session.client_id)
            del self.ours[session.client_id]

    def left_from_before(self) -> Iterator[Stored]:
        """Sessions that a gateway of our name held when it ended; they are ours."""
        for client_id, owner in list(self._owners.items()):
            if owner == self.name and client_id not in self.ours:
                try:
                    yield session_record.read(client_id, self._stored[client_id])
                except UnreadableSession as fault:
                    log.warning("%s", fault)


def _owner_of(value: bytes) -> str:
    try:
        return str(json.loads(value)["owner"])
    except (ValueError, KeyError, TypeError):
        return ""
