"""Shared subscriptions, `$share/NAME/FILTER`: each is a share group of the cluster.

The group is `mqtt/NAME/FILTER`, for two filters of one name are two subscriptions. Every gateway with a
subscriber is a member of it, with a consumer and a thread. A record goes to one of the subscribers here, in
turn; it is accepted when the client acknowledged it (with QoS 0 when it was sent), and released for others
when the client goes first, does not acknowledge within HOLD_SECONDS, or nobody here has room. Records that
the filter does not cover are accepted and passed over.

A group that is new begins at the ends of its topics: at the subscription, not at the first fetch.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from tidelog.client.api_keys import ALTER_SHARE_GROUP_OFFSETS, DESCRIBE_SHARE_GROUP_OFFSETS
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster, CoordinatorKind
from tidelog.client.faults import Refusal
from tidelog.gateways.mqtt import filters
from tidelog.gateways.mqtt.deliveries import Link, make_delivery
from tidelog.gateways.mqtt.messages import Message
from tidelog.gateways.mqtt.session import Partition, Session, Subscription
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
#: shorter than the lock of a record, 30 s by default
HOLD_SECONDS = 20.0
COMMIT_SECONDS_MAX = 10.0
RETRY_SECONDS = 1.0
RECORDS_MAX = 100

ReadMessage = Callable[["Record"], Message | None]


def group_of(share: filters.Share) -> str:
    return f"mqtt/{share.name}/{share.filter}"


def begin_group(settings: ClientSettings, group: str, ends: Mapping[Partition, int]) -> None:
    """Have a group begin here in partitions that are new to it; blocking. Raises ClientFault."""
    with Cluster(settings) as cluster:

        def begin() -> None:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group)
            asked = {"groups": [{"group_id": group, "topics": None}]}
            [found] = link.request(DESCRIBE_SHARE_GROUP_OFFSETS, asked, highest=0).groups
            known = {
                (topic.topic_name, row.partition_index)
                for topic in found.topics
                for row in topic.partitions
                if row.start_offset >= 0
            }
            new: dict[str, list[dict[str, int]]] = {}
            for (topic, number), end in ends.items():
                if (topic, number) not in known:
                    new.setdefault(topic, []).append({"partition_index": number, "start_offset": end})
            if not new:
                return
            rows = [{"topic_name": topic, "partitions": partitions} for topic, partitions in new.items()]
            answer = link.request(ALTER_SHARE_GROUP_OFFSETS, {"group_id": group, "topics": rows}, highest=0)
            # One that has members has begun, or begins now.
            if answer.error_code not in (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP):
                raise Refusal(answer.error_code, f"beginning the share group {group}")

        cluster.persist(begin)


@dataclass(slots=True)
class _Member:
    session: Session
    link: Link
    subscription: Subscription


class _Batch:
    """Records that were acquired together; decided on the loop, acknowledged by the thread."""

    def __init__(self, records: Sequence["Record"]) -> None:
        self.records = records
        self.accepted: list[bool | None] = [None] * len(records)
        self.left = len(records)
        self.done = threading.Event()

    def decide(self, index: int, accepted: bool) -> None:
        if self.accepted[index] is None:
            self.accepted[index] = accepted
            self.left -= 1
            if not self.left:
                self.done.set()


class ShareFeed:
    """One shared subscription at this gateway."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        share: filters.Share,
        topics: Sequence[str],
        read: ReadMessage,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.share = share
        self._read = read
        self._loop = loop
        self._properties = {
            **{name: value for name, value in properties.items() if name != "logger"},
            "group.id": group_of(share),
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": RECORDS_MAX,
            "log_level": 3,
        }
        self._topics = list(topics)
        self._members: dict[Session, _Member] = {}
        self._turn = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqtt-share", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<ShareFeed {group_of(self.share)} members={len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    # On the loop

    def join(self, session: Session, link: Link, subscription: Subscription) -> None:
        self._members[session] = _Member(session, link, subscription)

    def leave(self, session: Session) -> None:
        self._members.pop(session, None)

    def _give(self, batch: _Batch) -> None:
        touched: dict[Session, Link] = {}
        for index, record in enumerate(batch.records):
            message = self._read(record)
            if message is None or not filters.matches(self.share.filter, message.topic):
                batch.decide(index, True)
                continue
            member = self._next_member()
            if member is None:
                batch.decide(index, False)
                continue
            delivery = make_delivery(member.session, message, [member.subscription], None)
            if delivery is None:
                batch.decide(index, True)
            elif delivery.qos == 0:
                member.link.send_once(delivery)
                batch.decide(index, True)
            else:
                member.session.offer(delivery._replace(settle=partial(batch.decide, index)))
                touched[member.session] = member.link
        for link in touched.values():
            link.pump()

    def _next_member(self) -> _Member | None:
        members = list(self._members.values())
        for _ in members:
            self._turn = (self._turn + 1) % len(members)
            if not members[self._turn].session.full:
                return members[self._turn]
        return None

    # In the thread

    def _run(self) -> None:
        consumer = ShareConsumer(self._properties)
        try:
            consumer.subscribe(self._topics)
            while not self._closing.is_set():
                try:
                    self._step(consumer)
                except KafkaException as fault:
                    log.warning("the share group %s: %s", group_of(self.share), fault)
                    self._closing.wait(RETRY_SECONDS)
        finally:
            consumer.close()

    def _step(self, consumer: ShareConsumer) -> None:
        records = list(consumer.poll(POLL_SECONDS))
        good = [record for record in records if record.error() is None]
        if not good:
            return
        batch = _Batch(good)
        self._loop.call_soon_threadsafe(self._give, batch)
        waited = 0.0
        while not batch.done.wait(POLL_SECONDS) and waited < HOLD_SECONDS and not self._closing.is_set():
            waited += POLL_SECONDS
        for record, accepted in zip(good, list(batch.accepted), strict=True):
            consumer.acknowledge(record, AcknowledgeType.ACCEPT if accepted else AcknowledgeType.RELEASE)
        consumer.commit_sync(COMMIT_SECONDS_MAX)
        if not any(batch.accepted):
            # Nobody here had room: let others have them.
            self._closing.wait(POLL_SECONDS)

    def close(self) -> None:
        """Have the thread end; it is not waited for."""
        self._closing.set()


class Shares:
    """The shared subscriptions of a gateway."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        settings: ClientSettings,
        read: ReadMessage,
        loop: asyncio.AbstractEventLoop,
        executor: ThreadPoolExecutor,
    ) -> None:
        self._properties = properties
        self._settings = settings
        self._read = read
        self._loop = loop
        self._executor = executor
        self._feeds: dict[tuple[filters.Share, tuple[str, ...]], ShareFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    async def begin(self, share: filters.Share, ends: Mapping[Partition, int]) -> None:
        """Have the share group begin here where it is new; raises ClientFault."""
        begin = partial(begin_group, self._settings, group_of(share), ends)
        await self._loop.run_in_executor(self._executor, begin)

    def join(self, share: filters.Share, session: Session, link: Link, subscription: Subscription) -> None:
        """A subscriber; the Kafka topics are those that its user may read."""
        key = (share, subscription.topics)
        feed = self._feeds.get(key)
        if feed is None:
            feed = ShareFeed(self._properties, share, subscription.topics, self._read, self._loop)
            self._feeds[key] = feed
        feed.join(session, link, subscription)

    def leave(self, session: Session, share: filters.Share | None = None) -> None:
        """A session without its connection, or without one of its subscriptions."""
        for key, feed in list(self._feeds.items()):
            if share is None or key[0] == share:
                feed.leave(session)
                if not len(feed):
                    del self._feeds[key]
                    feed.close()

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds = {}
