"""The gateways' own topics, as they are now: sessions and retained messages, read from their beginning on.

Both are compacted and have one partition, so that all gateways see changes in one order.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.gateways.mqtt.feed import consumer_properties, place

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

LOAD_SECONDS_MAX = 120.0
CREATE_SECONDS_MAX = 20.0
BATCH_RECORDS_MAX = 1_000
POLL_SECONDS = 0.2
COMPACTED = {"cleanup.policy": "compact"}


def create_topics(
    properties: Mapping[str, Any], names: Mapping[str, Mapping[str, str]], replication_factor: int
) -> None:
    """Make topics that are missing: `names` says their settings. Raises KafkaException."""
    admin = AdminClient(dict(properties))
    known = admin.list_topics(timeout=CREATE_SECONDS_MAX).topics
    wanted = [
        NewTopic(
            name,
            num_partitions=1 if settings else -1,
            replication_factor=replication_factor,
            config=dict(settings),
        )
        for name, settings in names.items()
        if name not in known
    ]
    if not wanted:
        return
    for future in admin.create_topics(wanted, operation_timeout=CREATE_SECONDS_MAX).values():
        try:
            future.result()
        except KafkaException as fault:
            if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


class StateLog:
    """Follows the two topics; `apply` gets each record on the loop, once the beginning is read."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: tuple[str, ...],
        apply: Callable[["Record"], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._topics = topics
        self._apply = apply
        self._loop = loop
        self._consumer = Consumer(consumer_properties(properties, **{"enable.partition.eof": True}))
        self._closing = False
        self._thread = threading.Thread(target=self._poll, name="mqtt-state", daemon=True)
        #: by topic: the offset behind the newest record that was applied
        self.positions: dict[str, int] = {}
        self._waiting: list[tuple[dict[str, int], asyncio.Future[None]]] = []

    def load(self) -> None:
        """Apply all that is there now; blocking. Raises KafkaException."""
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in self._topics])
        deadline = time.monotonic() + LOAD_SECONDS_MAX
        unread = set(self._topics)
        while unread:
            for record in self._consumer.consume(BATCH_RECORDS_MAX, POLL_SECONDS):
                error = record.error()
                if error is None:
                    self._apply(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    (topic, _), end = place(record)
                    unread.discard(topic)
                    self.positions[topic] = end
                else:
                    raise KafkaException(error)
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def follow(self) -> None:
        self._thread.start()

    def _poll(self) -> None:
        while not self._closing:
            first = self._consumer.poll(POLL_SECONDS)
            if first is not None:
                batch = [first, *self._consumer.consume(BATCH_RECORDS_MAX, 0)]
                self._loop.call_soon_threadsafe(self._take, batch)

    def _take(self, batch: list["Record"]) -> None:
        for record in batch:
            error = record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                log.warning("reading %s: %s", record.topic() or "the cluster", error.str())
                continue
            (topic, _), offset = place(record)
            if error is None:
                self._apply(record)
                offset += 1
            self.positions[topic] = offset
        if self._waiting:
            self._look()

    async def reach(self, ends: dict[str, int]) -> None:
        """Until all before these offsets is applied."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((ends, future))
        self._look()
        await future

    def _look(self) -> None:
        left = []
        for ends, future in self._waiting:
            if all(self.positions.get(topic, 0) >= end for topic, end in ends.items()):
                if not future.done():
                    future.set_result(None)
            elif not future.done():
                left.append((ends, future))
        self._waiting = left

    def close(self) -> None:
        self._closing = True
        if self._thread.ident is not None:
            self._thread.join(5)
        self._consumer.close()
