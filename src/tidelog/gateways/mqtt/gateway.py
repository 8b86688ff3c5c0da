"""A gateway: MQTT clients on one side, a Kafka cluster on the other, and all state in topics of the cluster.

PUBLISH    rights, rule, record; QoS 1 is acknowledged when it is written with acks=all; QoS 2, when the
           record and its packet identifier are written in one transaction
SUBSCRIBE  rights; from the end of the Kafka topics on; what is retained comes first
records    `deliveries`; sessions and who holds them: `sessions`
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import KafkaError, KafkaException

from tidelog.client.client_settings import ClientSettings
from tidelog.gateways.mqtt import messages
from tidelog.gateways.mqtt.access import WRITE, Access, Caller
from tidelog.gateways.mqtt.catch_up import CatchUp
from tidelog.gateways.mqtt.commits import Commits
from tidelog.gateways.mqtt.connecting import Connecting
from tidelog.gateways.mqtt.connection import Connection
from tidelog.gateways.mqtt.deliveries import Deliveries
from tidelog.gateways.mqtt.faults import PacketFault, ProtocolViolation, Reason
from tidelog.gateways.mqtt.feed import Feed, TopicEnds
from tidelog.gateways.mqtt.filters import read_share
from tidelog.gateways.mqtt.limits import Limits
from tidelog.gateways.mqtt.mapping import TopicMap
from tidelog.gateways.mqtt.messages import Headers, Message, Outgoing
from tidelog.gateways.mqtt.metrics import Metrics
from tidelog.gateways.mqtt.packets import V5, Acknowledgement, Connect, Publish, Subscribe, Unsubscribe, Will
from tidelog.gateways.mqtt.properties import Kind, Property
from tidelog.gateways.mqtt.publisher import Publisher
from tidelog.gateways.mqtt.retained import Retained
from tidelog.gateways.mqtt.session import Session
from tidelog.gateways.mqtt.sessions import Sessions
from tidelog.gateways.mqtt.share_feed import Shares
from tidelog.gateways.mqtt.state_log import COMPACTED, StateLog, create_topics
from tidelog.gateways.mqtt.subscribing import Subscribing

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)
#: what librdkafka has to say
client_log = logging.getLogger(f"{__name__}.client")

SESSIONS_TOPIC = "__tidelog_mqtt_sessions"
RETAINED_TOPIC = "__tidelog_mqtt_retained"
TICK_SECONDS = 1.0
SAVE_TICKS = 2
REFRESH_TICKS = 60
DRAIN_SECONDS_MAX = 5.0
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway is told."""

    #: of confluent-kafka, with bootstrap.servers
    properties: Mapping[str, Any] = field(repr=False)
    #: the same for our own client
    client: ClientSettings
    name: str
    topic_map: TopicMap
    limits: Limits = field(default_factory=Limits)
    sessions_topic: str = SESSIONS_TOPIC
    retained_topic: str = RETAINED_TOPIC
    #: of topics that it makes; -1 is the cluster's default
    replication_factor: int = -1


class Gateway:
    """All parts of one gateway; `start` and `stop` are called on its event loop."""

    def __init__(
        self,
        settings: GatewaySettings,
        access: Access,
        executor: ThreadPoolExecutor,
        on_fenced: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.access = access
        self.topic_map = settings.topic_map
        self.metrics = Metrics()
        self.loop = asyncio.get_running_loop()
        self._executor = executor
        properties = {
            "client.id": "tidelog-mqtt",
            "logger": client_log,
            # A broker that is away is told once per second and client, not twenty times.
            "reconnect.backoff.ms": 500,
            "reconnect.backoff.max.ms": 2_000,
            "log.connection.close": False,
            **settings.properties,
        }
        self._properties = properties
        self.retained = Retained(self.limits.retained_messages, self.limits.retained_bytes)
        self.deliveries = Deliveries(settings.topic_map)
        self.sessions = Sessions(
            settings.name, settings.sessions_topic, self.limits.sessions, properties, executor
        )
        self.sessions.positions = lambda: self.deliveries.positions
        self.sessions.on_lost = self._session_lost
        self.publisher = Publisher(properties, self.loop)
        self.commits = Commits(
            properties,
            settings.name,
            settings.sessions_topic,
            self.sessions.snapshot,
            self.publisher.ends,
            on_fenced,
        )
        self.ends = TopicEnds(properties, executor)
        self.feed = Feed(properties, self.ends, self.deliveries.arrived, self.publisher.ends, self.loop)
        self.catch_up = CatchUp(properties, self.loop)
        self.state_log = StateLog(
            properties, (settings.sessions_topic, settings.retained_topic), self._apply, self.loop
        )
        self.deliveries.connect(self.feed, self.catch_up)
        self.sessions.connect(self.commits, self.ends, self.state_log)
        self.connections: set[Connection] = set()
        #: by client
        self.connected: dict[str, Connection] = {}
        self._dirty: set[Session] = set()
        #: QoS 2 on its way into the log: who waits for it
        self._receiving: dict[tuple[Session, int], list[Callable[[KafkaError | None], None]]] = {}
        self._connecting = Connecting(self)
        self._shares = Shares(properties, settings.client, self.deliveries.read_message, self.loop, executor)
        self._subscribing = Subscribing(self, self._shares)
        self._ticker: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Future[None] | None = None
        self._ticks = 0
        self.stopping = False
        self.clock = time.time

    def __repr__(self) -> str:
        return f"<Gateway {self.settings.name} connected={len(self.connected)}>"

    # Life

    async def start(self) -> None:
        """Topics, state and what was left behind; raises KafkaException."""
        await self.loop.run_in_executor(self._executor, self._prepare)
        self.state_log.follow()
        self._ticker = asyncio.ensure_future(self._tick())
        for stored in self.sessions.left_from_before():
            session = stored.session
            self.sessions.keep(session)
            if session.connected:
                self._disconnected(session)

    def _prepare(self) -> None:
        settings = self.settings
        topics: dict[str, Mapping[str, str]] = {name: {} for name in self.topic_map.topics}
        topics |= {settings.sessions_topic: COMPACTED, settings.retained_topic: COMPACTED}
        create_topics(self._properties, topics, settings.replication_factor)
        self.commits.start()
        self.state_log.load()

    async def stop(self) -> None:
        """Say goodbye to all clients, and write what is to be written."""
        self.stopping = True
        for task in (self._ticker, self._refreshing):
            if task is not None:
                task.cancel()
        for connection in list(self.connections):
            connection.take_away(Reason.SERVER_SHUTTING_DOWN)
            self.lost(connection)
        self._shares.close()
        for session in self._dirty:
            self.commits.save(session)
        try:
            await asyncio.wait_for(self.commits.drain(), DRAIN_SECONDS_MAX)
        except TimeoutError:
            log.warning("not every session was written")
        for part in (self.publisher, self.feed, self.catch_up, self.state_log, self.commits):
            await self.loop.run_in_executor(self._executor, part.close)

    def _apply(self, record: "Record") -> None:
        """A record of the gateways' own topics."""
        if record.topic() == self.settings.sessions_topic:
            self.sessions.apply(record)
            return
        key, value, offset = record.key(), record.value(), record.offset()
        if key is None or offset is None:
            return
        try:
            topic = key.decode()
        except UnicodeDecodeError:
            return
        message = (
            None
            if value is None
            else messages.from_record(topic, value, cast(Headers | None, record.headers()))
        )
        self.retained.put(topic, message, offset)

    # Connections

    def opened(self, connection: Connection) -> bool:
        if self.stopping or len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        self.metrics.connections_total += 1
        self.loop.call_later(self.limits.connect_seconds, self._await_connect, connection)
        return True

    def _await_connect(self, connection: Connection) -> None:
        if (
            connection.session is None
            and not connection.closed
            and not self._connecting.busy_with(connection)
        ):
            connection.abort("no CONNECT in time")

    def connect(self, connection: Connection, packet: Connect) -> Awaitable[None]:
        return self._connecting.connect(connection, packet)

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe) -> Awaitable[None]:
        return self._subscribing.subscribe(connection, session, packet)

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe) -> Awaitable[None]:
        return self._subscribing.unsubscribe(connection, session, packet)

    def resubscribe(self, session: Session, caller: Caller) -> Awaitable[None]:
        return self._subscribing.resubscribe(session, caller)

    def rejoin(self, session: Session, connection: Connection) -> None:
        """Shared subscriptions of a session that goes on."""
        for text, subscription in session.subscriptions.items():
            share = read_share(text)
            if share is not None and subscription.topics:
                self._shares.join(share, session, connection, subscription)

    def lost(self, connection: Connection) -> None:
        """A connection is gone, or is as good as gone; may be called again."""
        self.connections.discard(connection)
        session = connection.session
        if session is None or self.connected.get(session.client_id) is not connection:
            return
        del self.connected[session.client_id]
        self.deliveries.detach(session, connection)
        self._shares.leave(session)
        if self.sessions.ours.get(session.client_id) is session:
            self._disconnected(session)

    def _disconnected(self, session: Session) -> None:
        """The session goes on without a connection, or ends."""
        session.connected = False
        now = time.time()
        session.disconnected_at_ms = int(now * 1000)
        if session.will is not None:
            delay = session.will.properties.get(Property.WILL_DELAY, 0)
            if session.expiry_seconds is not None:
                delay = min(delay, session.expiry_seconds)
            session.will_due_at_ms = int((now + delay) * 1000)
            if not delay:
                self.publish_will(session)
        if not session.persistent and session.will is None:
            self.sessions.end(session)
        self._dirty.discard(session)
        self.commits.save(session)

    def _session_lost(self, session: Session) -> None:
        """Another gateway wants a session of ours, or has it."""
        connection = self.connected.pop(session.client_id, None)
        self._dirty.discard(session)
        if connection is not None:
            self.metrics.takeovers += 1
            self.deliveries.detach(session, connection)
            self._shares.leave(session)
            connection.take_away(Reason.SESSION_TAKEN_OVER)

    # Sessions

    def expiry_of(self, seconds: int) -> int | None:
        """How long a session is kept that asks for so much."""
        return min(seconds, self.limits.session_expiry_seconds)

    def changed(self, session: Session) -> None:
        """Something that may be repeated after a crash; written soon."""
        if session.persistent:
            self._dirty.add(session)

    def save(self, session: Session, then: Callable[[], None]) -> None:
        """Write the session, and go on when it is written."""
        self.commits.save(session, lambda error: then())

    def publish_will(self, session: Session) -> None:
        """Publish the will of a session that is ours, together with the session without it."""
        will, session.will = session.will, None
        assert will is not None
        message = will_message(will, session.client_id)
        rule = self.topic_map.find(message.topic)
        if rule is None:
            return
        self.metrics.wills += 1

        def done(error: KafkaError | None) -> None:
            if error is not None:
                log.warning("the will of %s was not written: %s", session.client_id, error.str())

        self.commits.submit(session, self._records(message, messages.to_record(message, rule)), done)

    async def _tick(self) -> None:
        """Once a second: keep-alive, wills that are due, sessions that expired or changed."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._ticks += 1
                self._look_at_connections()
                self._look_at_sessions()
            except Exception:
                log.exception("a tick failed")

    def _look_at_connections(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            seconds = connection.keep_alive_seconds
            if connection.waits_for_us:
                connection.last_heard = now
            elif seconds and now - connection.last_heard > seconds * 1.5:
                connection.take_away(Reason.KEEP_ALIVE_TIMEOUT)

    def _look_at_sessions(self) -> None:
        now_ms = int(time.time() * 1000)
        for session in list(self.sessions.ours.values()):
            if session.connected:
                continue
            if session.will is not None and session.will_due_at_ms <= now_ms:
                self.publish_will(session)
            if session.expired(now_ms):
                if session.will is not None:
                    self.publish_will(session)
                self.sessions.end(session)
                self.commits.save(session)
        if self._ticks % SAVE_TICKS == 0:
            dirty, self._dirty = self._dirty, set()
            for session in dirty:
                if self.sessions.ours.get(session.client_id) is session:
                    self.commits.save(session)
        if self._ticks % REFRESH_TICKS == 0:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.ensure_future(self._refresh())
            # Where an idle client is moves on too: it would have to read all of it after a crash.
            for session in self._deliverable():
                self.changed(session)

    async def _refresh(self) -> None:
        """Once a minute: rights that were taken away, partitions that were added."""
        try:
            for partition in await self.feed.refresh():
                for session in self.sessions.ours.values():
                    if any(partition[0] == topic for topic, _ in session.next_offsets):
                        session.next_offsets.setdefault(partition, 0)
        except KafkaException as fault:
            log.warning("the cluster does not say how many partitions there are: %s", fault)
        for connection in list(self.connected.values()):
            if connection.session is not None and not connection.closed:
                try:
                    await self._subscribing.recheck(connection.session, connection.caller)
                except PacketFault as fault:
                    if fault.reason == Reason.BAD_USER_NAME_OR_PASSWORD:
                        connection.fail(PacketFault(Reason.NOT_AUTHORIZED, "the login counts no more"))

    def _deliverable(self) -> list[Session]:
        return [session for session in self.sessions.ours.values() if session.live and session.next_offsets]

    # Publishing

    def _records(self, message: Message, record: Outgoing) -> list[Outgoing]:
        if not message.retain:
            return [record]
        return [record, messages.to_retained(message, self.settings.retained_topic)]

    def publish(self, connection: Connection, session: Session, packet: Publish) -> Awaitable[None] | None:
        topic = self._topic(connection, packet)
        if packet.qos:
            under_way = connection.promises + len(session.received)
            if connection.version >= V5 and under_way >= self.limits.receive_maximum:
                raise PacketFault(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more messages under way than allowed")
        rule = self.topic_map.find(topic)
        allowed: bool | None = False
        if rule is not None:
            allowed = self.access.allowed_now(connection.caller, rule.topic, WRITE)
        if allowed is None:
            return self._publish_later(connection, session, packet, topic)
        self._publish(connection, session, packet, topic, allowed)
        return None

    def _topic(self, connection: Connection, packet: Publish) -> str:
        alias = packet.properties.get(Property.TOPIC_ALIAS) if packet.properties else None
        if alias is None:
            return packet.topic
        if not 0 < alias <= self.limits.topic_aliases:
            raise PacketFault(Reason.TOPIC_ALIAS_INVALID, "a topic alias that is not allowed")
        if packet.topic:
            connection.aliases_in[alias] = packet.topic
            return packet.topic
        if alias not in connection.aliases_in:
            raise ProtocolViolation("a topic alias that was never set")
        return connection.aliases_in[alias]

    async def _publish_later(
        self, connection: Connection, session: Session, packet: Publish, topic: str
    ) -> None:
        rule = self.topic_map.find(topic)
        assert rule is not None
        allowed = await self.access.allowed(connection.caller, (rule.topic,), WRITE)
        if not connection.closed:
            self._publish(connection, session, packet, topic, bool(allowed))

    def _publish(
        self, connection: Connection, session: Session, packet: Publish, topic: str, allowed: bool
    ) -> None:
        rule = self.topic_map.find(topic)
        if rule is None or not allowed:
            self._refuse(connection, packet, Reason.NOT_AUTHORIZED)
            return
        message = messages.from_packet(packet, topic, session.client_id, int(time.time() * 1000))
        if message.retain and not self.retained.has_room(message):
            self._refuse(connection, packet, Reason.QUOTA_EXCEEDED)
            return
        records = self._records(message, messages.to_record(message, rule))
        if packet.qos == 2:
            self._receive(connection, session, packet, records)
            return
        try:
            if packet.qos == 0:
                for record in records:
                    self.publisher.publish(record)
            else:
                self._publish_once_at_least(connection, packet.packet_id, records)
        except BufferError:
            raise PacketFault(Reason.SERVER_BUSY, "the cluster does not take any more") from None

    def _refuse(self, connection: Connection, packet: Publish, reason: Reason) -> None:
        self.metrics.refused += 1
        if not packet.qos:
            return
        if connection.version < V5:
            # 3.1.1 has no way to say it but to go; what is not written is never acknowledged.
            raise PacketFault(reason, f"publishing to {packet.topic!r} was refused")
        kind = Kind.PUBACK if packet.qos == 1 else Kind.PUBREC
        connection.keep_promise(connection.promise(), Acknowledgement(kind, packet.packet_id, reason))

    def _publish_once_at_least(self, connection: Connection, packet_id: int, records: list[Outgoing]) -> None:
        slot = connection.promise()
        left = len(records)
        failure: KafkaError | None = None

        def done(offset: int, error: KafkaError | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left:
                return
            if failure is not None and not self._can_tell(connection, failure):
                return
            reason = Reason.SUCCESS if failure is None else reason_of(failure)
            connection.keep_promise(slot, Acknowledgement(Kind.PUBACK, packet_id, reason))

        for record in records:
            self.publisher.publish(record, done)

    def _can_tell(self, connection: Connection, failure: KafkaError) -> bool:
        self.metrics.refused += 1
        if connection.version >= V5:
            return True
        connection.fail(PacketFault(reason_of(failure), f"a message was not written: {failure.str()}"))
        return False

    # QoS 2

    def _receive(
        self, connection: Connection, session: Session, packet: Publish, records: list[Outgoing]
    ) -> None:
        packet_id = packet.packet_id
        slot = connection.promise()

        def answer(error: KafkaError | None) -> None:
            if error is not None and not self._can_tell(connection, error):
                return
            reason = Reason.SUCCESS if error is None else reason_of(error)
            connection.keep_promise(slot, Acknowledgement(Kind.PUBREC, packet_id, reason))

        if packet_id in session.received:
            answer(None)
            return
        key = (session, packet_id)
        waiting = self._receiving.get(key)
        if waiting is not None:
            waiting.append(answer)
            return
        self._receiving[key] = [answer]

        def done(error: KafkaError | None) -> None:
            if error is not None:
                session.received.discard(packet_id)
            for each in self._receiving.pop(key, ()):
                each(error)

        def note() -> None:
            session.received.add(packet_id)

        if session.persistent:
            self.commits.submit(session, records, done, note)
            return
        left = len(records)

        def written(offset: int, error: KafkaError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None and key in self._receiving:
                done(error)
            elif not left and key in self._receiving:
                note()
                done(None)

        for record in records:
            self.publisher.publish(record, written)

    def released(self, connection: Connection, session: Session, packet_id: int) -> None:
        """PUBREL: the packet identifier is free when the log knows it."""
        known = packet_id in session.received
        session.received.discard(packet_id)

        def complete() -> None:
            reason = Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND
            connection.send(Acknowledgement(Kind.PUBCOMP, packet_id, reason))

        if known and session.persistent:
            self.save(session, complete)
        else:
            complete()

    # Numbers

    def metrics_text(self) -> str:
        gauges: dict[str, tuple[str, float]] = {
            "connections": ("Connections open.", len(self.connections)),
            "clients": ("Clients connected.", len(self.connected)),
            "sessions": ("Sessions of all gateways.", len(self.sessions)),
            "sessions_held": ("Sessions of this gateway.", len(self.sessions.ours)),
            "shared_subscriptions": ("Shared subscriptions with a client here.", len(self._shares)),
            "subscriptions": ("Subscriptions of connected clients.", self.deliveries.subscriptions),
            "retained_messages": ("Retained messages.", self.retained.count),
            "retained_bytes": ("Their size.", self.retained.size_bytes),
            "outstanding_bytes": ("Not acknowledged by the cluster.", self.publisher.outstanding_bytes),
            "commits_waiting": ("Changes of sessions not written.", self.commits.waiting),
        }
        counters: dict[str, tuple[str, float]] = {
            "records_read_total": ("Records of the cluster.", self.deliveries.records),
            "records_nameless_total": ("Those whose MQTT topic is not known.", self.deliveries.nameless),
            "catch_ups_total": ("Sessions that read the log by themselves.", self.catch_up.jobs),
            "transactions_total": ("Transactions written.", self.commits.transactions),
        }
        return self.metrics.text(gauges, counters)


def will_message(will: Will, client_id: str) -> Message:
    packet = Publish(will.topic, will.payload, will.qos, will.retain, properties=will.properties)
    message = messages.from_packet(packet, will.topic, client_id, int(time.time() * 1000))
    message.properties = {
        identifier: value
        for identifier, value in message.properties.items()
        if identifier != Property.WILL_DELAY
    }
    return message


def reason_of(error: KafkaError) -> Reason:
    """Why a message was not written, as PUBACK and PUBREC may tell a client (sections 3.4.2.1, 3.5.2.1)."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return Reason.NOT_AUTHORIZED
    if error.code() in (*_TOO_LARGE, KafkaError.INVALID_RECORD):
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR
    return Reason.UNSPECIFIED_ERROR
