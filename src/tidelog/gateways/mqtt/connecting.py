"""CONNECT: who it is, whether they may, which session is theirs, and what of it goes on."""

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tidelog.gateways.mqtt.access import WRITE
from tidelog.gateways.mqtt.deliveries import make_delivery
from tidelog.gateways.mqtt.faults import PacketFault, ProtocolViolation, Reason
from tidelog.gateways.mqtt.messages import Origin
from tidelog.gateways.mqtt.packets import V5, Connack, Connect
from tidelog.gateways.mqtt.properties import Properties, Property
from tidelog.gateways.mqtt.session import RETAINED, Session, Subscription
from tidelog.gateways.mqtt.session_record import Stored

if TYPE_CHECKING:
    from tidelog.gateways.mqtt.connection import Connection
    from tidelog.gateways.mqtt.gateway import Gateway

log = logging.getLogger(__name__)


class Connecting:
    """Brings connections and sessions together; one CONNECT of a client at a time."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._locks: dict[str, asyncio.Lock] = {}
        self._busy: set[Connection] = set()

    def busy_with(self, connection: "Connection") -> bool:
        return connection in self._busy

    async def connect(self, connection: "Connection", packet: Connect) -> None:
        gateway = self._gateway
        if Property.AUTHENTICATION_METHOD in packet.properties:
            raise PacketFault(Reason.BAD_AUTHENTICATION_METHOD, "there is none but user name and password")
        if Property.AUTHENTICATION_DATA in packet.properties:
            raise ProtocolViolation("authentication data without a method")
        self._busy.add(connection)
        try:
            connection.caller = await gateway.access.login(
                packet.user_name, packet.password, connection.address
            )
            await self._check_will(connection, packet)
            client_id = self._client_id(packet)
            lock = self._locks.setdefault(client_id, asyncio.Lock())
            async with lock:
                if not connection.closed and not gateway.stopping:
                    await self._connect_as(connection, packet, client_id)
            if not lock.locked():
                self._locks.pop(client_id, None)
        finally:
            self._busy.discard(connection)

    def _client_id(self, packet: Connect) -> str:
        if not packet.client_id:
            if packet.version < V5 and not packet.clean_start:
                raise PacketFault(Reason.CLIENT_IDENTIFIER_NOT_VALID, "a session that lasts needs a name")
            return f"tidelog-{secrets.token_hex(12)}"
        if len(packet.client_id.encode()) > self._gateway.limits.client_id_bytes:
            raise PacketFault(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client identifier is too long")
        return packet.client_id

    async def _check_will(self, connection: "Connection", packet: Connect) -> None:
        if packet.will is None:
            return
        rule = self._gateway.topic_map.find(packet.will.topic)
        if rule is None or not await self._gateway.access.allowed(connection.caller, (rule.topic,), WRITE):
            raise PacketFault(Reason.NOT_AUTHORIZED, "the will may not be published")

    async def _connect_as(self, connection: "Connection", packet: Connect, client_id: str) -> None:
        gateway = self._gateway
        before = gateway.connected.get(client_id)
        if before is not None:
            if before.caller.name != connection.caller.name:
                raise PacketFault(Reason.CLIENT_IDENTIFIER_NOT_VALID, "another user has this client")
            self._take_over(before, packet)
        stored = await gateway.sessions.obtain(client_id)
        session = self._session_of(connection, packet, client_id, stored)
        present = stored is not None and session is stored.session
        self._read_expiry(session, packet)
        session.connected = True
        session.will = packet.will
        gateway.sessions.keep(session)
        try:
            await gateway.resubscribe(session, connection.caller)
            if stored is not None and present:
                self._recall_retained(session, stored)
        except KafkaException as fault:
            raise PacketFault(Reason.SERVER_UNAVAILABLE, "the cluster does not answer") from fault
        written: asyncio.Future[None] = gateway.loop.create_future()
        gateway.save(session, lambda: None if written.done() else written.set_result(None))
        await written
        if gateway.sessions.ours.get(client_id) is not session:
            raise PacketFault(Reason.SESSION_TAKEN_OVER, "another gateway has the session")
        if connection.closed:
            session.will = session.will if packet.will is None else packet.will
            connection.session = session
            gateway.connected[client_id] = connection
            gateway.lost(connection)
            return
        connection.accept(session, packet)
        gateway.connected[client_id] = connection
        connection.send(Connack(present, Reason.SUCCESS, self._answer(connection, packet, session)))
        if present:
            connection.send_unfinished(session)
        gateway.deliveries.attach(session, connection)
        gateway.rejoin(session, connection)
        connection.pump()

    def _take_over(self, before: "Connection", packet: Connect) -> None:
        gateway = self._gateway
        gateway.metrics.takeovers += 1
        session = before.session
        will = None if session is None else session.will
        if session is not None and will is not None and not packet.clean_start:
            # One with a delay is not due yet when the session goes on.
            session.will = None if will.properties.get(Property.WILL_DELAY) else will
        before.take_away(Reason.SESSION_TAKEN_OVER)
        gateway.lost(before)

    def _session_of(
        self, connection: "Connection", packet: Connect, client_id: str, stored: Stored | None
    ) -> Session:
        """The one that goes on, or a new one."""
        gateway = self._gateway
        if stored is None:
            return Session(client_id, connection.caller.name)
        session = stored.session
        if session.user != connection.caller.name:
            raise PacketFault(Reason.CLIENT_IDENTIFIER_NOT_VALID, "another user has this client")
        now_ms = int(gateway.clock() * 1000)
        ends = packet.clean_start or session.expired(now_ms) or not session.persistent or session.ended
        if session.will is not None and not session.connected and ends:
            # Its delay ends with the session.
            gateway.publish_will(session)
        return Session(client_id, connection.caller.name) if ends else session

    def _read_expiry(self, session: Session, packet: Connect) -> None:
        if packet.version >= V5:
            asked = packet.properties.get(Property.SESSION_EXPIRY, 0)
        else:
            asked = 0 if packet.clean_start else 0xFFFFFFFF
        session.expiry_seconds = self._gateway.expiry_of(asked)

    def _recall_retained(self, session: Session, stored: Stored) -> None:
        """Retained messages that were on their way when the gateway ended."""
        retained = self._gateway.retained
        for packet_id, found in list(session.in_flight.items()):
            if found.retained_topic and found.delivery is None and not found.released:
                message = retained.get(found.retained_topic)
                if message is None:
                    session.drop(packet_id)
                    continue
                row = Subscription(found.retained_topic, found.qos, retain_as_published=True)
                found.delivery = make_delivery(session, message, [row], Origin(RETAINED, 0, 0))
        for topic, qos in stored.unsent_retained:
            message = retained.get(topic)
            if message is not None:
                row = Subscription(topic, qos, retain_as_published=True)
                delivery = make_delivery(session, message, [row], Origin(RETAINED, 0, 0))
                if delivery is not None and delivery.qos:
                    session.offer(delivery)

    def _answer(self, connection: "Connection", packet: Connect, session: Session) -> Properties:
        if packet.version < V5:
            return {}
        limits = self._gateway.limits
        found: Properties = {
            Property.RECEIVE_MAXIMUM: limits.receive_maximum,
            Property.MAXIMUM_PACKET_SIZE: limits.packet_bytes,
            Property.TOPIC_ALIAS_MAXIMUM: limits.topic_aliases,
        }
        if not packet.client_id:
            found[Property.ASSIGNED_CLIENT_ID] = session.client_id
        asked = packet.properties.get(Property.SESSION_EXPIRY, 0)
        if session.expiry_seconds != asked and session.expiry_seconds is not None:
            found[Property.SESSION_EXPIRY] = session.expiry_seconds
        if limits.keep_alive_seconds and not 0 < packet.keep_alive_seconds <= limits.keep_alive_seconds:
            found[Property.SERVER_KEEP_ALIVE] = connection.keep_alive_seconds = limits.keep_alive_seconds
        return found
