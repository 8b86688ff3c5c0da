"""New records of the Kafka topics that somebody subscribed to: read once, for all sessions that keep up.

A consumer without a group, polled by a thread, which hands batches to the event loop; at most BATCHES_MAX
are on the way. `positions` is how far the loop has come.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from tidelog.gateways.mqtt.session import Partition

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 500
BATCHES_MAX = 4
POLL_SECONDS = 0.1
ASK_SECONDS_MAX = 10.0

Arrived = Callable[[list["Record"]], None]


class TopicEnds:
    """Where partitions end; questions that come together are asked together."""

    def __init__(self, properties: Mapping[str, Any], executor: ThreadPoolExecutor) -> None:
        self._admin = AdminClient(dict(properties))
        self._executor = executor
        self._partitions: dict[str, int] = {}
        self._wanted: set[str] = set()
        self._next: asyncio.Future[dict[Partition, int]] | None = None

    async def ask(self, topics: Iterable[str]) -> dict[Partition, int]:
        """The ends of all partitions, as they are at some time after the call; raises KafkaException."""
        wanted = set(topics)
        self._wanted |= wanted
        if self._next is None:
            self._next = asyncio.ensure_future(self._ask_all(self._running))
            self._running = self._next
        found = await asyncio.shield(self._next)
        return {partition: end for partition, end in found.items() if partition[0] in wanted}

    _running: "asyncio.Future[dict[Partition, int]] | None" = None

    async def _ask_all(self, before: "asyncio.Future[dict[Partition, int]] | None") -> dict[Partition, int]:
        if before is not None and not before.done():
            await asyncio.wait([before])
        wanted, self._wanted, self._next = self._wanted, set(), None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._ends, wanted)

    def _ends(self, topics: set[str]) -> dict[Partition, int]:
        unknown = topics - self._partitions.keys()
        if unknown:
            self.refresh(unknown)
        asked = {
            TopicPartition(topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for topic in topics
            for partition in range(self._partitions[topic])
        }
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_SECONDS_MAX
        )
        return {(key.topic, key.partition): future.result().offset for key, future in futures.items()}

    async def refresh_counts(self, topics: Iterable[str]) -> None:
        """Ask anew how many partitions topics have; raises KafkaException."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self.refresh, set(topics))

    def refresh(self, topics: Iterable[str]) -> None:
        """The same, blocking."""
        known = self._admin.list_topics(timeout=ASK_SECONDS_MAX).topics
        for topic in topics:
            found = known.get(topic)
            if found is None or not found.partitions:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            self._partitions[topic] = len(found.partitions)


class Feed:
    """The consumer of a gateway."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        ends: TopicEnds,
        arrived: Arrived,
        acknowledged: Mapping[Partition, int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.positions: dict[Partition, int] = {}
        self._ends = ends
        self._arrived = arrived
        #: behind what this gateway itself has written
        self._acknowledged = acknowledged
        self._followed: set[str] = set()
        self._loop = loop
        self._consumer = Consumer(consumer_properties(properties))
        self._new: queue.SimpleQueue[list[TopicPartition]] = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(BATCHES_MAX)
        self._closing = False
        self._thread = threading.Thread(target=self._poll, name="mqtt-feed", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Feed partitions={len(self.positions)}>"

    async def follow(self, topics: Iterable[str]) -> dict[Partition, int]:
        """Have these topics read from now on; where that begins. Raises KafkaException.

        Of topics that are read already nobody is asked: what was acknowledged to a client of this gateway is
        before, what another gateway wrote a moment ago may come after.
        """
        wanted = set(topics)
        known = {
            partition: max(position, self._acknowledged.get(partition, 0))
            for partition, position in self.positions.items()
            if partition[0] in wanted and partition[0] in self._followed
        }
        if wanted <= self._followed:
            return known
        ends = known | await self._ends.ask(wanted - self._followed)
        self._followed |= wanted
        new = [partition for partition in ends if partition not in self.positions]
        for partition in new:
            self.positions[partition] = ends[partition]
        if new:
            self._new.put([TopicPartition(topic, number, ends[topic, number]) for topic, number in new])
        return ends

    async def refresh(self) -> list[Partition]:
        """Partitions that topics have got meanwhile, which are read from their beginning."""
        if not self._followed:
            return []
        await self._ends.refresh_counts(self._followed)
        ends = await self._ends.ask(self._followed)
        new = [partition for partition in ends if partition not in self.positions]
        for partition in new:
            self.positions[partition] = 0
        if new:
            self._new.put([TopicPartition(topic, number, 0) for topic, number in new])
        return new

    def _poll(self) -> None:
        while not self._closing:
            # Here, for it waits for the consumer: on the loop it would hold up everybody.
            while not self._new.empty():
                self._consumer.incremental_assign(self._new.get())
            first = self._consumer.poll(POLL_SECONDS)
            if first is None:
                continue
            batch = [first, *self._consumer.consume(BATCH_RECORDS_MAX - 1, 0)]
            good = [record for record in batch if record.error() is None]
            for record in batch:
                if (error := record.error()) is not None:
                    log.warning("reading %s: %s", record.topic() or "the cluster", error.str())
            while good and not self._room.acquire(timeout=POLL_SECONDS):
                if self._closing:
                    return
            if good:
                self._loop.call_soon_threadsafe(self._take, good)

    def _take(self, batch: list["Record"]) -> None:
        try:
            self._arrived(batch)
        finally:
            self._room.release()

    def close(self) -> None:
        self._closing = True
        self._thread.join(5)
        self._consumer.close()


def place(record: "Record") -> tuple[Partition, int]:
    """Where a record is; every one that was read has a place."""
    topic, number, offset = record.topic(), record.partition(), record.offset()
    assert topic is not None and number is not None and offset is not None
    return (topic, number), offset


def consumer_properties(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Those of a consumer that is assigned its partitions and commits nothing."""
    return {
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 500,
        **properties,
        "group.id": "tidelog-mqtt",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        **more,
    }
