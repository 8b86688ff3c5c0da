"""SUBSCRIBE and UNSUBSCRIBE: rights, where a subscription begins, and what is retained."""

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tidelog.gateways.mqtt import filters
from tidelog.gateways.mqtt.access import READ, Caller
from tidelog.gateways.mqtt.deliveries import make_delivery
from tidelog.gateways.mqtt.faults import PacketFault, Reason
from tidelog.gateways.mqtt.messages import Origin
from tidelog.gateways.mqtt.packets import V5, Answers, FilterOptions, Subscribe, Unsubscribe
from tidelog.gateways.mqtt.properties import Kind, Property
from tidelog.gateways.mqtt.session import RETAINED, Session, Subscription

if TYPE_CHECKING:
    from tidelog.gateways.mqtt.connection import Connection
    from tidelog.gateways.mqtt.gateway import Gateway

log = logging.getLogger(__name__)

_REFUSED = Reason.UNSPECIFIED_ERROR
RETAIN_IF_NEW = 1
RETAIN_NEVER = 2


class Subscribing:
    """What clients ask to be told of."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    async def subscribe(self, connection: "Connection", session: Session, packet: Subscribe) -> None:
        gateway = self._gateway
        identifier = packet.properties.get(Property.SUBSCRIPTION_ID, 0)
        wanted = {
            row.filter: gateway.topic_map.topics_for(row.filter)
            for row in packet.filters
            if self._fault(row) is None
        }
        topics = {topic for names in wanted.values() for topic in names}
        allowed = await gateway.access.allowed(connection.caller, topics, READ) if topics else set()
        try:
            ends = await gateway.deliveries.follow(allowed)
        except KafkaException as fault:
            raise PacketFault(Reason.SERVER_UNAVAILABLE, "the cluster does not answer") from fault
        if connection.closed:
            return
        reasons: list[int] = []
        new: list[tuple[Subscription, FilterOptions, bool]] = []
        for row in packet.filters:
            reason = self._fault(row)
            if reason is None:
                names = wanted[row.filter]
                granted = tuple(name for name in names if name in allowed)
                if names and not granted:
                    reason = Reason.NOT_AUTHORIZED
                elif len(session.subscriptions) >= gateway.limits.subscriptions and (
                    row.filter not in session.subscriptions
                ):
                    reason = Reason.QUOTA_EXCEEDED
                else:
                    new.append(self._add(session, row, identifier, granted, ends))
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

    def _fault(self, row: FilterOptions) -> Reason | None:
        try:
            share = filters.read_share(row.filter)
        except ValueError:
            return Reason.TOPIC_FILTER_INVALID
        if share is not None:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        return None if filters.filter_fault(row.filter) is None else Reason.TOPIC_FILTER_INVALID

    def _add(
        self,
        session: Session,
        row: FilterOptions,
        identifier: int,
        topics: tuple[str, ...],
        ends: dict[tuple[str, int], int],
    ) -> tuple[Subscription, FilterOptions, bool]:
        deliveries = self._gateway.deliveries
        before = session.subscriptions.get(row.filter)
        starts = {partition: end for partition, end in ends.items() if partition[0] in topics}
        if before is not None:
            deliveries.remove(session, before)
            starts |= before.starts
        subscription = Subscription(
            row.filter, row.qos, row.no_local, row.retain_as_published, identifier, starts, topics
        )
        session.subscriptions[row.filter] = subscription
        for partition, end in ends.items():
            if partition[0] in topics:
                session.next_offsets.setdefault(partition, end)
        deliveries.add(session, subscription)
        return subscription, row, before is not None

    async def resubscribe(self, session: Session, caller: Caller) -> None:
        """Subscriptions of a session that goes on; raises KafkaException and PacketFault."""
        gateway = self._gateway
        wanted = {text: gateway.topic_map.topics_for(text) for text in session.subscriptions}
        topics = {topic for names in wanted.values() for topic in names}
        if not topics:
            return
        allowed = await gateway.access.allowed(caller, topics, READ)
        ends = await gateway.deliveries.follow(allowed)
        known = {topic for topic, _ in session.next_offsets}
        for partition, end in ends.items():
            # A partition that a topic has got meanwhile is new from its beginning.
            session.next_offsets.setdefault(partition, 0 if partition[0] in known else end)
        for partition in [each for each in session.next_offsets if each[0] not in allowed]:
            del session.next_offsets[partition]
        for text, subscription in session.subscriptions.items():
            subscription.topics = tuple(name for name in wanted[text] if name in allowed)
            gateway.deliveries.add(session, subscription)

    async def unsubscribe(self, connection: "Connection", session: Session, packet: Unsubscribe) -> None:
        reasons: list[int] = []
        for text in packet.filters:
            found = session.subscriptions.pop(text, None)
            reasons.append(Reason.SUCCESS if found is not None else Reason.NO_SUBSCRIPTION_EXISTED)
            if found is not None:
                self._gateway.deliveries.remove(session, found)
        used = {topic for row in session.subscriptions.values() for topic in row.topics}
        for partition in [each for each in session.next_offsets if each[0] not in used]:
            del session.next_offsets[partition]

        def answer() -> None:
            connection.send(Answers(Kind.UNSUBACK, packet.packet_id, reasons))

        if session.persistent:
            self._gateway.save(session, answer)
        else:
            answer()

    def left(self, session: Session) -> None:
        """A session lost its connection."""

    def _send_retained(
        self,
        connection: "Connection",
        session: Session,
        subscription: Subscription,
        row: FilterOptions,
        existed: bool,
    ) -> None:
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
