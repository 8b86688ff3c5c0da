"""Records to sessions: who subscribed to what, new records to those who keep up, the log to the others.

What the feed brings is matched once against the filters of all sessions and given to those that are live. A
session that was away, or whose client is slow, reads the log by itself (`catch_up`) until it is where the
feed is; QoS 0 is not delivered there: at most once means not later either.
"""

import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from tidelog.gateways.mqtt import filters, messages
from tidelog.gateways.mqtt.catch_up import CatchUp
from tidelog.gateways.mqtt.feed import Feed, place
from tidelog.gateways.mqtt.filters import FilterTree
from tidelog.gateways.mqtt.mapping import TopicMap
from tidelog.gateways.mqtt.messages import Headers, Message, Origin
from tidelog.gateways.mqtt.session import Delivery, Partition, Session, Subscription

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)


class Link(Protocol):
    """The connection of a session."""

    def send_once(self, delivery: Delivery) -> None:
        """QoS 0: now or never."""

    def send_again(self, packet_id: int, delivery: Delivery) -> None:
        """A delivery that has its packet identifier from before."""

    def pump(self) -> None:
        """Send what waits in the outbox."""


class Deliveries:
    """The way of records to connections."""

    def __init__(self, topic_map: TopicMap) -> None:
        self._map = topic_map
        self._trees: dict[str, FilterTree[Session, Subscription]] = {}
        self._links: dict[Session, Link] = {}
        self._feed: Feed | None = None
        self._catch_up: CatchUp | None = None
        self.records = 0
        #: records of mapped topics whose MQTT topic cannot be known
        self.nameless = 0

    def __repr__(self) -> str:
        return f"<Deliveries sessions={len(self._links)} topics={len(self._trees)}>"

    def connect(self, feed: Feed, catch_up: CatchUp) -> None:
        self._feed, self._catch_up = feed, catch_up

    @property
    def positions(self) -> dict[Partition, int]:
        return self._feed.positions if self._feed is not None else {}

    @property
    def subscriptions(self) -> int:
        return sum(len(tree) for tree in self._trees.values())

    # Subscriptions

    async def follow(self, topics: Iterable[str]) -> dict[Partition, int]:
        """Where these topics end, which are read from now on; raises KafkaException."""
        assert self._feed is not None
        wanted = set(topics)
        return await self._feed.follow(wanted) if wanted else {}

    def add(self, session: Session, subscription: Subscription) -> None:
        for topic in subscription.topics:
            tree = self._trees.setdefault(topic, FilterTree())
            tree.add(subscription.filter, session, subscription)

    def remove(self, session: Session, subscription: Subscription) -> None:
        for topic in subscription.topics:
            tree = self._trees.get(topic)
            if tree is not None:
                tree.remove(subscription.filter, session)

    def attach(self, session: Session, link: Link) -> None:
        """The session has a connection: bring it to where the feed is."""
        self._links[session] = link
        self.resume(session)

    def detach(self, session: Session, link: Link) -> None:
        if self._links.get(session) is link:
            del self._links[session]
            session.leave(self.positions)
            for subscription in session.subscriptions.values():
                self.remove(session, subscription)

    # New records

    def arrived(self, batch: list["Record"]) -> None:
        positions = self.positions
        touched: dict[Session, Link] = {}
        for record in batch:
            partition, offset = place(record)
            topic, number = partition
            tree = self._trees.get(topic)
            if tree is not None and len(tree) and (message := self.read_message(record)) is not None:
                found: dict[Session, list[Subscription]] = {}
                for session, subscription in tree.match(message.topic):
                    if session.live and offset >= max(
                        subscription.starts.get(partition, 0), session.next_offsets.get(partition, 0)
                    ):
                        found.setdefault(session, []).append(subscription)
                origin = Origin(topic, number, offset)
                for session, rows in found.items():
                    link = self._links.get(session)
                    if link is not None and self._give(session, link, message, rows, origin):
                        touched[session] = link
            positions[partition] = offset + 1
        self.records += len(batch)
        for link in touched.values():
            link.pump()

    def read_message(self, record: "Record") -> Message | None:
        """A record as a message; None where its MQTT topic is not known."""
        topic = record.topic()
        assert topic is not None
        headers = cast(Headers | None, record.headers())
        # The header says it exactly; the key where there is none.
        message = messages.from_record(self._map.topic_of(topic, record.key()), record.value(), headers)
        if message is None:
            self.nameless += 1
        return message

    def _give(
        self, session: Session, link: Link, message: Message, rows: list[Subscription], origin: Origin
    ) -> bool:
        """Whether something waits in the outbox now."""
        delivery = make_delivery(session, message, rows, origin)
        if delivery is None:
            return False
        if delivery.qos == 0:
            link.send_once(delivery)
            return False
        if session.full:
            session.fall_behind(self.positions)
            session.behind = True
            return False
        session.offer(delivery)
        return True

    # Records of before

    def resume(self, session: Session) -> None:
        """Read the log for a session where it is not where the feed is."""
        session.behind = False
        positions = self.positions
        starts = dict(session.next_offsets)
        for origin in session.resume:
            partition = (origin.topic, origin.partition)
            starts[partition] = min(starts.get(partition, origin.offset), origin.offset)
        if not session.resume and all(
            start >= positions.get(partition, 0) for partition, start in starts.items()
        ):
            session.live = True
            return
        link = self._links.get(session)
        if link is not None and self._catch_up is not None:
            self._catch_up.read(starts, partial(self._caught, session, link, frozenset(starts)))

    def _caught(
        self,
        session: Session,
        link: Link,
        covered: frozenset[Partition],
        records: list["Record"],
        ends: dict[Partition, int],
    ) -> bool:
        """Records of the log for one session; whether to go on reading."""
        if self._links.get(session) is not link or session.live:
            return False
        going = True
        for record in records:
            if session.full:
                session.behind = True
                going = False
                break
            self._look_at(session, link, record)
        if going:
            for partition, end in ends.items():
                self._reached(session, partition, end)
        link.pump()
        if not going:
            if not session.full:
                self.resume(session)
            return False
        positions = self.positions
        if session.resume or any(
            session.next_offsets.get(partition, 0) < positions.get(partition, 0)
            for partition in covered
            if partition in session.next_offsets
        ):
            return True
        # A topic that was subscribed to meanwhile may be behind.
        self.resume(session)
        return False

    def _look_at(self, session: Session, link: Link, record: "Record") -> None:
        partition, offset = place(record)
        topic, number = partition
        origin = Origin(topic, number, offset)
        packet_id = session.resume.pop(origin, None)
        if packet_id is None and offset < session.next_offsets.get(partition, offset):
            return
        message = self.read_message(record)
        if packet_id is not None:
            found = session.in_flight.get(packet_id)
            if found is not None and message is not None:
                found.delivery = Delivery(message, found.qos, False, origin=origin, duplicate=True)
                link.send_again(packet_id, found.delivery)
        elif message is not None:
            rows = [
                row
                for row in session.subscriptions.values()
                if topic in row.topics
                and offset >= row.starts.get(partition, 0)
                and filters.matches(row.filter, message.topic)
            ]
            delivery = make_delivery(session, message, rows, origin) if rows else None
            if delivery is not None and delivery.qos:
                session.offer(delivery)
        if partition in session.next_offsets:
            session.next_offsets[partition] = max(session.next_offsets[partition], offset + 1)
        self._forget_missing(session, partition, offset)

    def _reached(self, session: Session, partition: Partition, end: int) -> None:
        if partition in session.next_offsets:
            session.next_offsets[partition] = max(session.next_offsets[partition], end)
        self._forget_missing(session, partition, end)

    def _forget_missing(self, session: Session, partition: Partition, before: int) -> None:
        """Deliveries whose records retention took away meanwhile."""
        if not session.resume:
            return
        for origin in [each for each in session.resume if each[:2] == partition and each.offset < before]:
            packet_id = session.resume.pop(origin)
            log.warning("a record that client %s was sent is gone: %s", session.client_id, origin)
            if packet_id in session.in_flight:
                session.drop(packet_id)


def make_delivery(
    session: Session, message: Message, rows: list[Subscription], origin: Origin | None
) -> Delivery | None:
    """What a session gets of a message, once for all its filters; None for nothing."""
    if message.client_id == session.client_id:
        rows = [row for row in rows if not row.no_local]
    if message.expires_at_ms and message.expires_at_ms <= time.time() * 1000:
        return None
    if not rows:
        return None
    if len(rows) == 1:
        row = rows[0]
        qos = min(message.qos, row.qos)
        identifiers = (row.identifier,) if row.identifier else ()
        return Delivery(message, qos, message.retain and row.retain_as_published, identifiers, origin)
    qos = min(message.qos, max(row.qos for row in rows))
    several = tuple(row.identifier for row in rows if row.identifier)
    retain = message.retain and any(row.retain_as_published for row in rows)
    return Delivery(message, qos, retain, several, origin)
