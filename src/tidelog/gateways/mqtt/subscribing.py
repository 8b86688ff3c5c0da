"""SUBSCRIBE and UNSUBSCRIBE: rights, where a subscription begins, and what is retained."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tidelog.client.faults import ClientFault
from tidelog.gateways.mqtt import filters
from tidelog.gateways.mqtt.access import READ, Caller
from tidelog.gateways.mqtt.deliveries import make_delivery
from tidelog.gateways.mqtt.faults import PacketFault, ProtocolViolation, Reason
from tidelog.gateways.mqtt.messages import Origin
from tidelog.gateways.mqtt.packets import V5, Answers, FilterOptions, Subscribe, Unsubscribe
from tidelog.gateways.mqtt.properties import Kind, Property
from tidelog.gateways.mqtt.session import RETAINED, Partition, Session, Subscription
from tidelog.gateways.mqtt.share_feed import Shares

if TYPE_CHECKING:
    from tidelog.gateways.mqtt.connection import Connection
    from tidelog.gateways.mqtt.gateway import Gateway

log = logging.getLogger(__name__)

_REFUSED = Reason.UNSPECIFIED_ERROR
RETAIN_IF_NEW = 1
RETAIN_NEVER = 2


class Subscribing:
    """What clients ask to be told of."""

    def __init__(self, gateway: "Gateway", shares: Shares) -> None:
        self._gateway = gateway
        self._shares = shares

    async def subscribe(self, connection: "Connection", session: Session, packet: Subscribe) -> None:
        gateway = self._gateway
        faults = {row.filter: self._fault(row) for row in packet.filters}
        wanted = {
            text: gateway.topic_map.topics_for(_covered(text))
            for text, fault in faults.items()
            if fault is None
        }
        topics = {topic for names in wanted.values() for topic in names}
        allowed = await gateway.access.allowed(connection.caller, topics, READ) if topics else set()
        try:
            ends = await gateway.deliveries.follow(allowed)
        except KafkaException as fault:
            raise PacketFault(Reason.SERVER_UNAVAILABLE, "the cluster does not answer") from fault
        for text, names in wanted.items():
            share = filters.read_share(text)
            mine = _of_topics(ends, [name for name in names if name in allowed])
            if mine and share is not None and not await self._begin(share, mine):
                faults[text] = Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if connection.closed:
            return
        identifier = packet.properties.get(Property.SUBSCRIPTION_ID, 0)
        reasons: list[int] = []
        new: list[tuple[Subscription, FilterOptions, bool]] = []
        for row in packet.filters:
            names = wanted.get(row.filter, ())
            granted = [name for name in names if name in allowed]
            reason = faults[row.filter] or self._refusal(session, row, bool(names), bool(granted))
            if reason is None:
                new.append(self._add(connection, session, row, identifier, tuple(granted), ends))
                reason = Reason(row.qos)
            reasons.append(reason if connection.version >= V5 or reason < _REFUSED else _REFUSED)

        def answer() -> None:
            connection.send(Answers(Kind.SUBACK, packet.packet_id, reasons))
            for subscription, row, existed in new:
                self._send_retained(connection, session, subscription, row, existed)
            connection.pump()

        if session.persistent:
            gateway.save(session, answer)
        else:
            answer()

    async def _begin(self, share: filters.Share, ends: dict[Partition, int]) -> bool:
        """Whether the cluster has the share group."""
        try:
            await self._shares.begin(share, ends)
        except ClientFault as fault:
            log.warning("a share group could not begin: %s", fault)
            return False
        return True

    def _refusal(self, session: Session, row: FilterOptions, mapped: bool, granted: bool) -> Reason | None:
        if mapped and not granted:
            return Reason.NOT_AUTHORIZED
        if row.filter in session.subscriptions:
            return None
        limits = self._gateway.limits
        size = len(row.filter.encode()) + sum(len(text.encode()) for text in session.subscriptions)
        full = len(session.subscriptions) >= limits.subscriptions or size > limits.filter_bytes
        return Reason.QUOTA_EXCEEDED if full else None

    def _fault(self, row: FilterOptions) -> Reason | None:
        try:
            share = filters.read_share(row.filter)
        except ValueError:
            return Reason.TOPIC_FILTER_INVALID
        if share is not None and row.no_local:
            raise ProtocolViolation("a shared subscription has no No Local")
        return None if filters.filter_fault(_covered(row.filter)) is None else Reason.TOPIC_FILTER_INVALID

    def _add(
        self,
        connection: "Connection",
        session: Session,
        row: FilterOptions,
        identifier: int,
        topics: tuple[str, ...],
        ends: dict[tuple[str, int], int],
    ) -> tuple[Subscription, FilterOptions, bool]:
        deliveries = self._gateway.deliveries
        before = session.subscriptions.get(row.filter)
        share = filters.read_share(row.filter)
        if share is not None:
            subscription = Subscription(
                row.filter, row.qos, False, row.retain_as_published, identifier, topics=topics
            )
            session.subscriptions[row.filter] = subscription
            if topics:
                self._shares.join(share, session, connection, subscription)
            return subscription, row, True
        starts = _of_topics(ends, topics)
        if before is not None:
            deliveries.remove(session, before)
            starts |= before.starts
        subscription = Subscription(
            row.filter, row.qos, row.no_local, row.retain_as_published, identifier, starts, topics
        )
        session.subscriptions[row.filter] = subscription
        for partition, end in _of_topics(ends, topics).items():
            session.next_offsets.setdefault(partition, end)
        deliveries.add(session, subscription)
        return subscription, row, before is not None

    async def resubscribe(self, session: Session, caller: Caller) -> None:
        """Subscriptions of a session that goes on; raises KafkaException and PacketFault."""
        gateway = self._gateway
        wanted = {text: gateway.topic_map.topics_for(_covered(text)) for text in session.subscriptions}
        topics = {topic for names in wanted.values() for topic in names}
        if not topics:
            return
        allowed = await gateway.access.allowed(caller, topics, READ)
        ends = await gateway.deliveries.follow(allowed)
        known = {topic for topic, _ in session.next_offsets}
        plain = {name for text in wanted if filters.read_share(text) is None for name in wanted[text]}
        for partition, end in _of_topics(ends, plain).items():
            # A partition that a topic has got meanwhile is new from its beginning.
            session.next_offsets.setdefault(partition, 0 if partition[0] in known else end)
        for partition in [each for each in session.next_offsets if each[0] not in allowed]:
            del session.next_offsets[partition]
        for text, subscription in session.subscriptions.items():
            subscription.topics = tuple(name for name in wanted[text] if name in allowed)
            if filters.read_share(text) is None:
                gateway.deliveries.add(session, subscription)

    async def recheck(self, session: Session, caller: Caller) -> None:
        """Deliver nothing any more that the user may not read any more; raises PacketFault."""
        topics = {topic for row in session.subscriptions.values() for topic in row.topics}
        if not topics:
            return
        allowed = await self._gateway.access.allowed(caller, topics, READ)
        if topics <= allowed:
            return
        for text, row in list(session.subscriptions.items()):
            if set(row.topics) <= allowed:
                continue
            share = filters.read_share(text)
            if share is not None:
                self._shares.leave(session, share)
                row.topics = ()
                continue
            self._gateway.deliveries.remove(session, row)
            row.topics = tuple(topic for topic in row.topics if topic in allowed)
            self._gateway.deliveries.add(session, row)

    async def unsubscribe(self, connection: "Connection", session: Session, packet: Unsubscribe) -> None:
        reasons: list[int] = []
        for text in packet.filters:
            found = session.subscriptions.pop(text, None)
            reasons.append(Reason.SUCCESS if found is not None else Reason.NO_SUBSCRIPTION_EXISTED)
            if found is not None:
                self._gateway.deliveries.remove(session, found)
                if (share := filters.read_share(text)) is not None:
                    self._shares.leave(session, share)
        used = {topic for row in session.subscriptions.values() for topic in row.topics}
        for partition in [each for each in session.next_offsets if each[0] not in used]:
            del session.next_offsets[partition]

        def answer() -> None:
            connection.send(Answers(Kind.UNSUBACK, packet.packet_id, reasons))

        if session.persistent:
            self._gateway.save(session, answer)
        else:
            answer()

    def _send_retained(
        self,
        connection: "Connection",
        session: Session,
        subscription: Subscription,
        row: FilterOptions,
        existed: bool,
    ) -> None:
        if row.filter.startswith(filters.SHARE_PREFIX):
            return
        if row.retain_handling == RETAIN_NEVER or (row.retain_handling == RETAIN_IF_NEW and existed):
            return
        gateway = self._gateway
        for message in gateway.retained.match(row.filter):
            rule = gateway.topic_map.find(message.topic)
            if rule is None or rule.topic not in subscription.topics:
                continue
            delivery = make_delivery(session, message, [subscription], Origin(RETAINED, 0, 0))
            if delivery is None:
                continue
            delivery = delivery._replace(retain=True)
            if delivery.qos:
                session.offer(delivery)
            else:
                connection.send_once(delivery)


def _covered(text: str) -> str:
    """The filter that says which messages a subscription is for: of a shared one, its inner part."""
    share = filters.read_share(text)
    return text if share is None else share.filter


def _of_topics(ends: dict[Partition, int], topics: Collection[str]) -> dict[Partition, int]:
    return {partition: end for partition, end in ends.items() if partition[0] in topics}
