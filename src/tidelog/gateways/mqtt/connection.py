"""One client's connection: bytes to packets, packets to the gateway, deliveries and answers to bytes.

Packets are handled in their order. One that needs the cluster first (CONNECT, SUBSCRIBE, a first PUBLISH) is
a task, and those behind it wait; meanwhile the socket is not read. Acknowledgements go out in the order
of what they acknowledge. What is written in one turn of the loop is written at once.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from tidelog.gateways.mqtt import packets
from tidelog.gateways.mqtt.access import Caller
from tidelog.gateways.mqtt.faults import PacketFault, ProtocolViolation, Reason
from tidelog.gateways.mqtt.framing import PacketReader
from tidelog.gateways.mqtt.packets import (
    V5,
    V311,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publish,
    Subscribe,
    Unsubscribe,
)
from tidelog.gateways.mqtt.properties import Kind, Property
from tidelog.gateways.mqtt.session import Delivery, Session

if TYPE_CHECKING:
    from tidelog.gateways.mqtt.gateway import Gateway

log = logging.getLogger(__name__)

LINGER_SECONDS = 2.0

#: what 3.1.1 says to a CONNECT, for reasons of 5
_OLD_REASONS = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}
_SERVER_UNAVAILABLE = 3
#: which reasons may stand in CONNACK only, and what DISCONNECT says instead (MQTT 5, section 3.14.2.1)
_WHEN_CONNECTED = {
    Reason.SERVER_UNAVAILABLE: Reason.SERVER_BUSY,
    Reason.BAD_USER_NAME_OR_PASSWORD: Reason.NOT_AUTHORIZED,
}
#: and the other way round (section 3.2.2.2)
_WHEN_CONNECTING = {Reason.SESSION_TAKEN_OVER: Reason.SERVER_BUSY}
_PINGRESP = packets.encode(V5, Ping(Kind.PINGRESP))


class _Slot:
    """An acknowledgement that waits for its turn."""

    __slots__ = ("begun", "data")

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.data: bytes | None = None


class _Held:
    """Deliveries that wait until their packet identifiers are in the log."""

    __slots__ = ("ready", "saved")

    def __init__(self, ready: list[tuple[int, Delivery]], saved: bool) -> None:
        self.ready = ready
        self.saved = saved


class Connection(asyncio.Protocol):
    """A socket, or a web socket, and the session that it belongs to."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.version = V311
        self.session: Session | None = None
        self.caller = Caller()
        self.address = ""
        self.closed = False
        #: whether the client said goodbye, so that its will is not published
        self.said_goodbye = False
        self.keep_alive_seconds = 0
        self.last_heard = time.monotonic()
        self.receive_maximum = 65_535
        self.packet_bytes_max = 0
        #: by alias: the topic, as the client set it
        self.aliases_in: dict[int, str] = {}
        self._aliases_out: dict[str, int] = {}
        self._aliases_out_max = 0
        self._transport: asyncio.Transport | None = None
        self._reader = PacketReader(gateway.limits.connect_bytes)
        self._waiting: deque[Packet] = deque()
        self._task: asyncio.Task[None] | None = None
        self._paused_reading = False
        self._paused_writing = False
        self._out: list[bytes] = []
        self._flushing = False
        self._slots: deque[_Slot] = deque()
        self._held: deque[_Held] = deque()
        self._connecting = False

    def __repr__(self) -> str:
        who = self.session.client_id if self.session is not None else "not connected"
        return f"<Connection {who!r} from {self.address} version={self.version}>"

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self.gateway.limits.write_bytes)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        if not self.gateway.opened(self):
            self.abort("too many connections")

    def data_received(self, data: bytes) -> None:
        self.last_heard = time.monotonic()
        if self.closed:
            return
        try:
            for first, body in self._reader.feed(data):
                self._waiting.append(packets.decode(self.version, first, body))
                if first >> 4 == Kind.CONNECT:
                    # The packets behind it are to be read as it says, even those of the same bytes.
                    self.version = cast(Connect, self._waiting[-1]).version
                    self._reader.limit_bytes = self.gateway.limits.packet_bytes
                if self._task is None:
                    self._handle_waiting()
                if self.closed:
                    return
        except PacketFault as fault:
            self.fail(fault)
            return
        self._look_at_flow()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._waiting.clear()
        self.gateway.lost(self)

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self.pump()

    def _look_at_flow(self) -> None:
        """Read from the socket, or let the client wait."""
        if self.closed or self._transport is None:
            return
        # While a packet waits for the cluster, those behind it are no more than was read at once with it.
        ours = self._task is not None or len(self._slots) >= self.gateway.limits.receive_maximum
        if ours or self.gateway.publisher.busy:
            if not ours:
                self.gateway.publisher.when_free(self._look_at_flow)
            if not self._paused_reading:
                self._paused_reading = True
                self._transport.pause_reading()
            return
        if self._paused_reading:
            self._paused_reading = False
            self._transport.resume_reading()

    # Packets

    def _handle_waiting(self) -> None:
        while self._waiting and self._task is None and not self.closed:
            later = self._handle(self._waiting.popleft())
            if later is not None:
                self._task = asyncio.ensure_future(self._finish(later))

    async def _finish(self, later: Awaitable[None]) -> None:
        try:
            await later
        except PacketFault as fault:
            self.fail(fault)
        except Exception:
            log.exception("a packet of %r could not be handled", self)
            self.fail(PacketFault(Reason.UNSPECIFIED_ERROR, "the gateway failed"))
        self._task = None
        try:
            self._handle_waiting()
        except PacketFault as fault:
            self.fail(fault)
        self._look_at_flow()

    def _handle(self, packet: Packet) -> Awaitable[None] | None:
        gateway = self.gateway
        gateway.metrics.received(packet)
        if isinstance(packet, Connect):
            if self._connecting:
                raise ProtocolViolation("CONNECT comes once")
            self._connecting = True
            return gateway.connect(self, packet)
        session = self.session
        if session is None:
            raise ProtocolViolation("the first packet is CONNECT")
        if isinstance(packet, Publish):
            return gateway.publish(self, session, packet)
        if isinstance(packet, Acknowledgement):
            self._acknowledged(session, packet)
            return None
        if isinstance(packet, Ping) and packet.kind == Kind.PINGREQ:
            self.write(_PINGRESP)
            return None
        if isinstance(packet, Subscribe):
            return gateway.subscribe(self, session, packet)
        if isinstance(packet, Unsubscribe):
            return gateway.unsubscribe(self, session, packet)
        if isinstance(packet, Disconnect):
            self._disconnected(session, packet)
            return None
        if isinstance(packet, Auth):
            raise ProtocolViolation("there is no authentication to go on with")
        raise ProtocolViolation("this packet is sent by servers")

    def _acknowledged(self, session: Session, packet: Acknowledgement) -> None:
        gateway = self.gateway
        packet_id = packet.packet_id
        if packet.kind == Kind.PUBACK:
            session.acknowledged(packet_id)
            gateway.changed(session)
            self.pump()
        elif packet.kind == Kind.PUBREC:
            refused = packet.reason >= Reason.UNSPECIFIED_ERROR
            known = session.received_by_client(packet_id, refused=refused)
            if refused:
                gateway.changed(session)
                self.pump()
            elif known and session.persistent:
                gateway.save(session, lambda: self.send(Acknowledgement(Kind.PUBREL, packet_id)))
            else:
                reason = Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND
                self.send(Acknowledgement(Kind.PUBREL, packet_id, reason))
        elif packet.kind == Kind.PUBCOMP:
            session.completed(packet_id)
            gateway.changed(session)
            self.pump()
        else:
            gateway.released(self, session, packet_id)

    def _disconnected(self, session: Session, packet: Disconnect) -> None:
        expiry = packet.properties.get(Property.SESSION_EXPIRY)
        if expiry is not None:
            if not session.persistent and expiry:
                raise ProtocolViolation("a session that ends with its connection cannot be kept after all")
            session.expiry_seconds = self.gateway.expiry_of(expiry)
        if packet.reason == Reason.SUCCESS:
            session.will = None
        self.said_goodbye = packet.reason != Reason.DISCONNECT_WITH_WILL
        self.close()

    # To the client

    def send(self, packet: Packet) -> None:
        self.write(packets.encode(self.version, packet))

    def write(self, data: bytes) -> None:
        if self.closed:
            return
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self.gateway.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        # The client may have gone in the same turn: there is nobody to write to.
        if self._out and self._transport is not None and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def promise(self) -> _Slot:
        """A place for an acknowledgement, behind those of earlier packets."""
        slot = _Slot()
        self._slots.append(slot)
        return slot

    def keep_promise(self, slot: _Slot, packet: Packet) -> None:
        slot.data = packets.encode(self.version, packet)
        self.gateway.metrics.acknowledged.observe(time.monotonic() - slot.begun)
        slots = self._slots
        while slots and (data := slots[0].data) is not None:
            slots.popleft()
            self.write(data)
        if self._paused_reading:
            self._look_at_flow()

    @property
    def waits_for_us(self) -> bool:
        """Whether its silence is ours: the socket is not read."""
        return self._paused_reading

    @property
    def promises(self) -> int:
        return len(self._slots)

    def send_once(self, delivery: Delivery) -> None:
        """A message of QoS 0; a client that does not read misses it."""
        if self._paused_writing or self.closed:
            self.gateway.metrics.dropped += 1
            return
        self._send_message(0, delivery)

    def send_again(self, packet_id: int, delivery: Delivery) -> None:
        self._send_message(packet_id, delivery)

    def send_unfinished(self, session: Session) -> None:
        """After a reconnect: what the client did not acknowledge, in its order."""
        for packet_id, found in list(session.in_flight.items()):
            if found.released:
                self.send(Acknowledgement(Kind.PUBREL, packet_id))
            elif found.delivery is not None:
                self._send_message(packet_id, found.delivery._replace(duplicate=True))

    def pump(self) -> None:
        """Send what waits for the client, as far as it allows."""
        session = self.session
        if session is None or self._paused_writing or self.closed:
            return
        gateway = self.gateway
        if session.outbox:
            ready = list(session.take(min(self.receive_maximum, gateway.limits.in_flight)))
            if ready:
                durable = session.persistent and any(delivery.qos == 2 for _, delivery in ready)
                if durable or self._held:
                    self._hold(session, ready, durable)
                else:
                    self._send_all(ready)
        if session.behind and not session.outbox:
            gateway.deliveries.resume(session)

    def _hold(self, session: Session, ready: list[tuple[int, Delivery]], durable: bool) -> None:
        held = _Held(ready, not durable)
        self._held.append(held)

        def saved() -> None:
            held.saved = True
            while self._held and self._held[0].saved:
                self._send_all(self._held.popleft().ready)

        if durable:
            self.gateway.save(session, saved)

    def _send_all(self, ready: list[tuple[int, Delivery]]) -> None:
        for packet_id, delivery in ready:
            self._send_message(packet_id, delivery)

    def _send_message(self, packet_id: int, delivery: Delivery) -> None:
        message = delivery.message
        properties: dict[int, Any] = {}
        topic = message.topic
        if message.expires_at_ms:
            left_ms = message.expires_at_ms - int(time.time() * 1000)
            if left_ms <= 0 and not delivery.duplicate:
                self._drop(packet_id)
                return
            properties[Property.MESSAGE_EXPIRY] = max(1, -(-left_ms // 1000))
        if self.version >= V5:
            properties.update(message.properties)
            if delivery.identifiers:
                properties[Property.SUBSCRIPTION_ID] = list(delivery.identifiers)
            if self._aliases_out_max:
                topic = self._alias(topic, properties)
        packet = Publish(
            topic, message.payload, delivery.qos, delivery.retain, delivery.duplicate, packet_id, properties
        )
        data = packets.encode(self.version, packet)
        if self.packet_bytes_max and len(data) > self.packet_bytes_max:
            if topic and Property.TOPIC_ALIAS in properties:
                del self._aliases_out[topic]  # the client was not told of it
            self._drop(packet_id)
            return
        self.gateway.metrics.sent(delivery.qos, len(message.payload))
        self.write(data)

    def _drop(self, packet_id: int) -> None:
        self.gateway.metrics.dropped += 1
        session = self.session
        if packet_id and session is not None and packet_id in session.in_flight:
            session.drop(packet_id)

    def _alias(self, topic: str, properties: dict[int, Any]) -> str:
        alias = self._aliases_out.get(topic)
        if alias is not None:
            properties[Property.TOPIC_ALIAS] = alias
            return ""
        if len(self._aliases_out) < self._aliases_out_max:
            self._aliases_out[topic] = properties[Property.TOPIC_ALIAS] = len(self._aliases_out) + 1
        return topic

    # Life

    def accept(self, session: Session, packet: Connect) -> None:
        """The client is connected: heed what its CONNECT says about sizes."""
        self.session = session
        self.receive_maximum = packet.properties.get(Property.RECEIVE_MAXIMUM, 65_535)
        self.packet_bytes_max = packet.properties.get(Property.MAXIMUM_PACKET_SIZE, 0)
        self._aliases_out_max = min(
            packet.properties.get(Property.TOPIC_ALIAS_MAXIMUM, 0), self.gateway.limits.topic_aliases
        )
        self.keep_alive_seconds = packet.keep_alive_seconds

    def fail(self, fault: PacketFault) -> None:
        """End the connection because of what the client sent, or because the gateway cannot go on."""
        if self.closed:
            return
        self.gateway.metrics.failed(fault.reason)
        log.info("%r is closed: %s", self, fault)
        if self.session is None:
            if self._connecting:
                reason: int = _WHEN_CONNECTING.get(fault.reason, fault.reason)
                if self.version < V5:
                    reason = _OLD_REASONS.get(fault.reason, _SERVER_UNAVAILABLE)
                self.send(Connack(False, reason))
        elif self.version >= V5:
            told = _WHEN_CONNECTED.get(fault.reason, fault.reason)
            self.send(Disconnect(told, {Property.REASON_STRING: str(fault)}))
        self._linger()

    def _linger(self) -> None:
        """Close so that the client can read why: with what it still sends, a closed socket would be reset."""
        transport = self._transport
        if self.closed or transport is None or not transport.can_write_eof():
            self.close()
            return
        self._flush()
        self.closed = True
        self._waiting.clear()
        transport.write_eof()
        self.gateway.lost(self)
        self.gateway.loop.call_later(LINGER_SECONDS, transport.abort)

    def take_away(self, reason: Reason) -> None:
        """Close because of what happened elsewhere."""
        if self.version >= V5 and self.session is not None:
            self.send(Disconnect(reason))
        self.close()

    def close(self) -> None:
        if not self.closed:
            self._flush()
            self.closed = True
            self._waiting.clear()
            if self._transport is not None:
                self._transport.close()
                # One who does not read keeps the socket open no longer than this.
                self.gateway.loop.call_later(5.0, self._transport.abort)

    def abort(self, why: str) -> None:
        log.info("%r is cut off: %s", self, why)
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
