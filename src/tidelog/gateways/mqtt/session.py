"""What the gateway owes a client, and what a client has said already; pure, without clocks and I/O.

A session is a cursor on the log. For each partition of the Kafka topics that it subscribed to, `next_offsets`
says from where on records were not yet looked at for it; what was looked at is done with, or waits in
`outbox` (it has no packet identifier yet) or `in_flight` (it has). A connected session that keeps up is
`live`: then the gateway's feed is its cursor. Nothing is queued for a client that is away: its records are in
the log.

    published  ──PUBACK──▶ done                         QoS 1
    published  ──PUBREC──▶ released ──PUBCOMP──▶ done    QoS 2; its packet identifier, and that it is
                                                       released, are in the log before the client hears of it
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.gateways.mqtt.messages import Message, Origin
from tidelog.gateways.mqtt.packets import Will

PACKET_IDS = 65_535
#: messages that wait for the client; beyond, the session reads the log again when it has caught up
OUTBOX_MESSAGES_MAX = 5_000
OUTBOX_BYTES_MAX = 4 << 20
RETAINED = ""

Partition = tuple[str, int]
#: tells whoever shares a record with others whether this client took it
Settle = Callable[[bool], None]


@dataclass(slots=True)
class Subscription:
    """What a client asked for with one filter."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    #: records before these are older than the subscription
    starts: dict[Partition, int] = field(default_factory=dict)
    #: the Kafka topics that are read for it: those that the map names and the user may read
    topics: tuple[str, ...] = ()


class Delivery(NamedTuple):
    """A message on its way to a client."""

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...] = ()
    #: in the log; for a retained message the topic is RETAINED; None for a shared record
    origin: Origin | None = None
    settle: Settle | None = None
    duplicate: bool = False


@dataclass(slots=True)
class InFlight:
    """A delivery that the client has not acknowledged in full."""

    delivery: Delivery | None
    origin: Origin | None
    qos: int
    released: bool = False
    #: for a retained message, its topic
    retained_topic: str = ""


class Session:
    """One client's."""

    def __init__(self, client_id: str, user: str = "") -> None:
        self.client_id = client_id
        self.user = user
        #: how long it outlives its connection: 0 not at all, None for ever
        self.expiry_seconds: int | None = 0
        self.connected = False
        self.disconnected_at_ms = 0
        self.will: Will | None = None
        self.will_due_at_ms = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.next_offsets: dict[Partition, int] = {}
        #: by packet identifier, in the order of sending
        self.in_flight: dict[int, InFlight] = {}
        self.outbox: deque[Delivery] = deque()
        self.outbox_bytes = 0
        #: packet identifiers of QoS 2 that the client sent and has not released
        self.received: set[int] = set()
        #: the same that are on their way into the log
        self.receiving: set[int] = set()
        self.live = False
        #: its client was slow: the log is read for it again when the outbox is empty
        self.behind = False
        #: nothing is left of it: its record is a tombstone
        self.ended = False
        self._last_packet_id = 0
        #: deliveries that wait for others to be acknowledged, by where they were before the gateway ended
        self.resume: dict[Origin, int] = {}

    def __repr__(self) -> str:
        return (
            f"<Session {self.client_id!r} {'connected' if self.connected else 'away'}"
            f" subscriptions={len(self.subscriptions)} in_flight={len(self.in_flight)}"
            f" outbox={len(self.outbox)}>"
        )

    @property
    def persistent(self) -> bool:
        return self.expiry_seconds != 0

    def expired(self, now_ms: int) -> bool:
        if self.connected or self.expiry_seconds is None:
            return False
        return now_ms >= self.disconnected_at_ms + self.expiry_seconds * 1000

    @property
    def full(self) -> bool:
        return len(self.outbox) >= OUTBOX_MESSAGES_MAX or self.outbox_bytes >= OUTBOX_BYTES_MAX

    # To the client

    def offer(self, delivery: Delivery) -> None:
        """Keep a delivery of QoS 1 or 2 until `take`."""
        self.outbox.append(delivery)
        self.outbox_bytes += len(delivery.message.payload)

    def take(self, receive_maximum: int) -> Iterator[tuple[int, Delivery]]:
        """Deliveries that may be sent now, with their packet identifiers."""
        while self.outbox and len(self.in_flight) < receive_maximum:
            delivery = self.outbox.popleft()
            self.outbox_bytes -= len(delivery.message.payload)
            packet_id = self._free_packet_id()
            retained = delivery.message.topic if _is_retained(delivery) else ""
            self.in_flight[packet_id] = InFlight(
                delivery, delivery.origin, delivery.qos, retained_topic=retained
            )
            yield packet_id, delivery

    def _free_packet_id(self) -> int:
        assert len(self.in_flight) < PACKET_IDS
        while True:
            self._last_packet_id = self._last_packet_id % PACKET_IDS + 1
            if self._last_packet_id not in self.in_flight:
                return self._last_packet_id

    def acknowledged(self, packet_id: int) -> bool:
        """PUBACK; False for a packet identifier that is not in use for QoS 1."""
        found = self.in_flight.get(packet_id)
        if found is None or found.qos != 1:
            return False
        self._settle(packet_id, found, taken=True)
        return True

    def received_by_client(self, packet_id: int, *, refused: bool) -> bool:
        """PUBREC; False for a packet identifier that is not in use. A refusal ends the delivery."""
        found = self.in_flight.get(packet_id)
        if found is None or found.qos != 2:
            return False
        if refused:
            self._settle(packet_id, found, taken=True)
        else:
            found.released = True
            if found.delivery is not None and found.delivery.settle is not None:
                found.delivery.settle(True)
            # The message will not be sent again.
            found.delivery = None
        return True

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP."""
        found = self.in_flight.get(packet_id)
        if found is None or not found.released:
            return False
        self._settle(packet_id, found, taken=True)
        return True

    def drop(self, packet_id: int) -> None:
        """A delivery that will never be sent: it has expired, or is too large for the client."""
        self._settle(packet_id, self.in_flight[packet_id], taken=True)

    def _settle(self, packet_id: int, found: InFlight, *, taken: bool) -> None:
        del self.in_flight[packet_id]
        if found.delivery is not None and found.delivery.settle is not None:
            found.delivery.settle(taken)

    # Cursors

    def fall_behind(self, positions: dict[Partition, int]) -> None:
        """From here on the log is read for this session alone, until it has caught up."""
        if self.live:
            self.live = False
            for partition in self.next_offsets:
                if partition in positions:
                    self.next_offsets[partition] = positions[partition]

    def cursors(self, positions: dict[Partition, int]) -> dict[Partition, int]:
        """Where the session is now; what waits in the outbox was not sent and is read again."""
        found = dict(self.next_offsets)
        if self.live:
            for partition in found:
                found[partition] = max(found[partition], positions.get(partition, 0))
        for delivery in self.outbox:
            origin = delivery.origin
            if origin is not None and origin.topic != RETAINED:
                partition = (origin.topic, origin.partition)
                if partition in found:
                    found[partition] = min(found[partition], origin.offset)
        return found

    def leave(self, positions: dict[Partition, int]) -> None:
        """The connection is gone: what is in the log is left there, what was shared is given back."""
        self.next_offsets = self.cursors(positions)
        self.live = False
        kept: deque[Delivery] = deque()
        for delivery in self.outbox:
            if delivery.settle is not None:
                delivery.settle(False)
            elif _is_retained(delivery):
                kept.append(delivery)
        self.outbox = kept
        self.outbox_bytes = sum(len(delivery.message.payload) for delivery in kept)
        for packet_id, found in list(self.in_flight.items()):
            if found.delivery is not None and found.delivery.settle is not None:
                self._settle(packet_id, found, taken=False)

    def unsent_retained(self) -> list[Delivery]:
        return [delivery for delivery in self.outbox if _is_retained(delivery)]


def _is_retained(delivery: Delivery) -> bool:
    return delivery.origin is not None and delivery.origin.topic == RETAINED
