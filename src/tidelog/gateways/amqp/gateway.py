"""The gateway: what exists, who is logged in, who reads which queue; put together and kept in order.

No state is here that is not in topics, but for what dies with a connection. Several gateways may serve one
cluster: they read the same definitions, and the share groups deal records out among them.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, Protocol

from tidelog.client.client_settings import ClientSettings
from tidelog.client.faults import AuthenticationFailed, ClientFault
from tidelog.gateways.amqp.dead_letters import DeadLetters
from tidelog.gateways.amqp.definitions import Definitions, Queue
from tidelog.gateways.amqp.definitions_log import DefinitionsLog
from tidelog.gateways.amqp.kafka_access import KafkaAccess
from tidelog.gateways.amqp.limits import DEFINITIONS_TOPIC, Limits, QueueDefaults
from tidelog.gateways.amqp.metrics import Metrics
from tidelog.gateways.amqp.queue_reader import QueueReader
from tidelog.gateways.amqp.record_writer import RecordWriter

log = logging.getLogger(__name__)

READER_IDLE_SECONDS = 10.0
STOP_SECONDS_MAX = 8.0
#: mechanisms in which a password that an AMQP client sends can be used
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class OpenConnection(Protocol):
    """A connection, as much as the gateway knows of it."""

    def close(self) -> None: ...

    def output_changed(self) -> None:
        """There may be room again for what it sends."""


class UserSession:
    """One user with one password: all his AMQP connections share it."""

    def __init__(self, gateway: "Gateway", key: bytes, user: str, settings: ClientSettings) -> None:
        self.gateway = gateway
        self.key = key
        self.user = user
        self.access = KafkaAccess(settings)
        self.writer = RecordWriter(self.access)
        self.readers: dict[str, QueueReader] = {}
        self.connections = 0
        #: connections that are not read while too much is unconfirmed
        self.paused: set[OpenConnection] = set()
        self._opening: dict[str, asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<UserSession {self.user} connections={self.connections} readers={len(self.readers)}>"

    @property
    def full(self) -> bool:
        """Whether so much is on its way to the cluster that nothing more is read from the user's clients."""
        return self.writer.unconfirmed_bytes > self.gateway.limits.unconfirmed_bytes

    def written(self) -> None:
        """Something was written: clients that were not read may go on."""
        if self.paused and not self.full:
            for connection in list(self.paused):
                connection.output_changed()

    async def reader(self, queue: Queue) -> QueueReader:
        """The reader of a queue, in its share group by now; raises ClientFault."""
        async with self._opening.setdefault(queue.name, asyncio.Lock()):
            reader = self.readers.get(queue.name)
            if reader is not None and reader.queue == queue and reader.member.fault is None:
                reader.idle_since = time.monotonic()
                return reader
            if reader is not None:
                await self._close_reader(queue.name, reader)
            reader = QueueReader(
                self.access,
                self.writer,
                queue,
                self.gateway.dead_letters.write,
                self.gateway.metrics,
                self.gateway.limits.held_bytes,
            )
            try:
                await reader.open()
            except BaseException:
                await reader.member.leave()
                raise
            self.readers[queue.name] = reader
            return reader

    async def drop_reader(self, queue_name: str) -> None:
        """Stop reading a queue; its consumers are told."""
        async with self._opening.setdefault(queue_name, asyncio.Lock()):
            reader = self.readers.pop(queue_name, None)
            if reader is not None:
                reader.gone()
                await reader.close()
        self._opening.pop(queue_name, None)

    async def _close_reader(self, name: str, reader: QueueReader) -> None:
        self.readers.pop(name, None)
        reader.gone()
        await reader.close()

    async def close_idle(self, now: float) -> None:
        for name, reader in list(self.readers.items()):
            idle = not reader.consumers and not reader.getters and not reader.locked
            if idle and now - reader.idle_since > READER_IDLE_SECONDS:
                await self.drop_reader(name)

    async def close(self) -> None:
        for name in list(self.readers):
            await self.drop_reader(name)
        self.writer.close()
        self.access.close()


class Gateway:
    """One gateway, in one event loop."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        limits: Limits | None = None,
        queue_defaults: QueueDefaults | None = None,
        definitions_topic: str = DEFINITIONS_TOPIC,
    ) -> None:
        self.settings = settings
        self.limits = limits or Limits()
        self.queue_defaults = queue_defaults or QueueDefaults()
        self.id = secrets.token_hex(8)
        self.metrics = Metrics()
        self.definitions = Definitions()
        self.dead_letters = DeadLetters(self.definitions, self.metrics)
        self.own = UserSession(self, b"", "", settings)
        self.log = DefinitionsLog(self.own.access, definitions_topic, self.definitions)
        self.sessions: dict[bytes, UserSession] = {}
        self.connections = 0
        #: whether the other gateways know that this one is there
        self.leased = False
        self.open_connections: set[OpenConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._salt = secrets.token_bytes(32)

    def __repr__(self) -> str:
        return f"<Gateway {self.id} connections={self.connections} {self.definitions!r}>"

    async def start(self) -> None:
        await self.log.start()

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, but for `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Tell the clients, give back what they held, leave the share groups."""
        for connection in list(self.open_connections):
            connection.close()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while (self.open_connections or self._tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for session in list(self.sessions.values()):
            await session.close()
        self.sessions.clear()
        await self.log.stop()
        await self.own.close()

    # Users

    async def login(self, user: str, password: str) -> UserSession:
        """Who an AMQP client is: the cluster says so. Raises AuthenticationFailed, LinkFault."""
        settings = self.settings
        key = b""
        if settings.authenticated:
            if settings.sasl_mechanism not in PASSWORD_MECHANISMS:
                raise AuthenticationFailed("the cluster has no passwords that a client could log in with")
            settings = replace(
                settings, sasl_username=user, sasl_password=password, sasl_mechanism=settings.sasl_mechanism
            )
            key = hmac.digest(self._salt, f"{user}\0{password}".encode(), hashlib.sha256)
        session = self.sessions.get(key)
        if session is None:
            session = UserSession(self, key, user if settings.authenticated else "anonymous", settings)
        # Each login is asked for, so that a password that was changed is no use any more.
        probe = KafkaAccess(settings)
        try:
            await probe.any_link()
        finally:
            probe.close()
        session = self.sessions.setdefault(key, session)
        session.connections += 1
        return session

    async def logout(self, session: UserSession) -> None:
        session.connections -= 1
        if session.connections <= 0 and self.sessions.get(session.key) is session:
            del self.sessions[session.key]
            await session.close()

    # Queues

    def all_sessions(self) -> Iterator[UserSession]:
        yield from list(self.sessions.values())
        yield self.own

    def readers_of(self, queue_name: str) -> list[QueueReader]:
        found = (session.readers.get(queue_name) for session in self.all_sessions())
        return [reader for reader in found if reader is not None]

    def consumers_of(self, queue_name: str) -> int:
        """The consumers of a queue at this gateway."""
        return sum(len(reader.consumers) for reader in self.readers_of(queue_name))

    async def depth(self, session: UserSession, queue: Queue) -> int:
        """About how many messages a queue has that nobody holds."""
        readers = self.readers_of(queue.name)
        if sum(reader.member.flush() for reader in readers):
            await asyncio.sleep(0.02)  # what was acknowledged just now is on its way to be stored
        offsets = await session.access.share_offsets(queue.group, queue.topic)
        if offsets is not None:
            lag = sum(row[1] for row in offsets.values())
        else:
            lag = await session.access.persist(lambda: session.access.log_size(queue.topic))
        return max(0, lag - sum(reader.locked for reader in readers))

    async def drop_readers(self, queue_name: str) -> None:
        for session in self.all_sessions():
            if queue_name in session.readers:
                await session.drop_reader(queue_name)

    async def close_idle(self) -> None:
        """Leave the share groups that nobody here reads, and those of queues that are gone."""
        now = time.monotonic()
        for session in self.all_sessions():
            try:
                for name, reader in list(session.readers.items()):
                    if self.definitions.queues.get(name) != reader.queue:
                        await session.drop_reader(name)
                await session.close_idle(now)
            except ClientFault as fault:
                log.info("closing idle readers: %s", fault)
