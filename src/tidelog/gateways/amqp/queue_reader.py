"""One queue as one user reads it: records of the share group, taken as consumers have room, and dealt out.

The records that consumers have not acknowledged, and those that wait here for one, are locked in the share
group; there are never more than consumers asked for with their prefetch counts, and a look-ahead for queues
with priorities. Consumers are served in turn.

- Accepted when acknowledged (at once without acknowledgements), released when requeued. Rejected: to the
  dead letter exchange of the queue where it has one, written there before it is accepted here; else the share
  group rejects it, and may have dead letters of its own.
- A record whose time is over is not delivered, but treated as rejected, when it is this queue's turn to
  deliver it; until brokers do that themselves.
- Priorities (0 to 9 or more) are strict among the records that were taken ahead.
- A share group gives a record up after `DELIVERIES_MAX` deliveries, AMQP never does: shortly before, the
  record is written anew at the end of the queue with the number of its deliveries, and the old one accepted.
  With `x-delivery-limit` it is rejected when it was delivered that often.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tidelog.client.faults import ClientFault
from tidelog.gateways.amqp.definitions import Queue
from tidelog.gateways.amqp.kafka_access import KafkaAccess
from tidelog.gateways.amqp.messages import (
    DELIVERIES_HEADER,
    PRIORITY_HEADER,
    expires_at_ms,
    number_header,
)
from tidelog.gateways.amqp.metrics import Metrics
from tidelog.gateways.amqp.record_writer import RecordWriter
from tidelog.gateways.amqp.share_member import ACCEPT, REJECT, RELEASE, Acquired, ShareMember
from tidelog.records.record import Record

log = logging.getLogger(__name__)

#: what the share groups of queues are set to; Kafka's largest
DELIVERIES_MAX = 10
_RENEWED_FROM = 8
#: records that are locked for one reader at most; a group allows 2,000 in a partition
LOCKED_MAX = 1_500
#: taken ahead for a queue with priorities
LOOK_AHEAD = 200
GET_WAIT_MS, FIRST_GET_WAIT_MS = 100, 500
GET_SECONDS_MAX = 10.0
_REMEMBERED_MAX = 10_000
EXPIRED, REJECTED, DELIVERY_LIMIT = "expired", "rejected", "delivery_limit"

DeadLetters = Callable[[Queue, Record, str, RecordWriter, Callable[["ClientFault | None"], None]], None]
"""Writes a record to where the queue's dead letters go, and says when that is done."""


class Consumer(Protocol):
    """Who gets deliveries."""

    no_ack: bool

    def room(self) -> int:
        """How many more it may have."""

    def deliver(self, delivery: "Delivery") -> None: ...

    def cancelled(self) -> None:
        """The queue is gone, or cannot be read any more."""


class Delivery:
    """A record on its way to a consumer, until something became of it."""

    __slots__ = ("acquired", "deliveries", "generation", "reader", "settled")

    def __init__(self, reader: "QueueReader", acquired: Acquired, deliveries: int, generation: int) -> None:
        self.reader = reader
        self.acquired = acquired
        #: how often it was delivered, with this time, earlier copies included
        self.deliveries = deliveries
        self.generation = generation
        self.settled = False

    @property
    def record(self) -> Record:
        return self.acquired.record

    def sent(self) -> None:
        """The client has it: its body is needed no more, unless it may become a dead letter."""
        if self.reader.queue.dead_letter_exchange is None:
            self.reader.held_bytes -= body_bytes(self.acquired.record)
            self.acquired = self.acquired._replace(record=self.acquired.record._replace(value=None))

    def settle(self, kind: int) -> None:
        """Acknowledged, requeued or rejected; what comes later is passed over."""
        if not self.settled:
            self.settled = True
            self.reader.settle(self, kind)


class QueueReader:
    """Reads one queue as one user."""

    def __init__(
        self,
        access: KafkaAccess,
        writer: RecordWriter,
        queue: Queue,
        dead_letters: DeadLetters,
        metrics: Metrics,
        held_bytes_max: int,
    ) -> None:
        self.access = access
        self.writer = writer
        self.queue = queue
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._held_bytes_max = held_bytes_max
        self.member = ShareMember(access, queue.group, queue.topic, self)
        self.consumers: deque[Consumer] = deque()
        self.getters: deque[asyncio.Future[Delivery]] = deque()
        #: by priority, then in order of arrival
        self._ahead: list[tuple[int, int, Delivery]] = []
        self._arrivals = itertools.count()
        self._out = 0
        #: bodies of the records that are here
        self.held_bytes = 0
        self._generations: dict[int, int] = {}
        #: by partition and offset, how many deliveries nobody saw
        self._unseen: dict[tuple[int, int], int] = {}
        self.idle_since = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<QueueReader {self.queue.name} consumers={len(self.consumers)} out={self._out}>"

    def __len__(self) -> int:
        return len(self._ahead)

    @property
    def locked(self) -> int:
        """Records that are locked here: with consumers, or waiting for one."""
        return self._out + len(self._ahead)

    async def open(self) -> None:
        """Join the share group; raises what the cluster refuses."""
        await self.member.join()
        self._watch = asyncio.get_running_loop().create_task(self._watch_member())

    async def close(self) -> None:
        self._release_ahead()
        self.member.flush()
        if self._watch is not None:
            self._watch.cancel()
        await self.member.leave()

    async def _watch_member(self) -> None:
        """When the member cannot go on, its consumers are told."""
        while self.member.fault is None:
            await self.member.progress.wait()
        log.warning("queue %s cannot be read: %s", self.queue.name, self.member.fault)
        self.gone()

    def gone(self) -> None:
        """Nobody can read the queue here any more."""
        for consumer in [*self.consumers]:
            consumer.cancelled()
        self.consumers.clear()

    # Consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.woken()

    def remove(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        self._rest()

    def _rest(self) -> None:
        if not self.consumers and not self.getters:
            self.idle_since = time.monotonic()
            self._release_ahead()

    def woken(self) -> None:
        """A consumer has room, or there is another one."""
        self._deal()
        if self.room() > 0:
            self.member.wake()

    async def get(self) -> Delivery | None:
        """One record, if there is one now."""
        future: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self.getters.append(future)
        begun = self.member.waited_fetches
        self.woken()
        try:
            async with asyncio.timeout(GET_SECONDS_MAX):
                while not future.done():
                    if any(consumer.room() > 0 for consumer in self.consumers) and not self._ahead:
                        break  # who waits for records already has what there is
                    if self.member.waited_fetches > begun or self.member.fault is not None:
                        break
                    progress = asyncio.ensure_future(self.member.progress.wait())
                    try:
                        await asyncio.wait((future, progress), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        progress.cancel()
        except TimeoutError:
            pass
        finally:
            if not future.done():
                future.cancel()
            if future in self.getters:
                self.getters.remove(future)
            self._rest()
        return None if future.cancelled() else future.result()

    async def progressed(self, seconds: float) -> None:
        """Wait until something was fetched, not longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.member.progress.wait()

    # What the member asks and tells

    def room(self) -> int:
        wanted = sum(consumer.room() for consumer in self.consumers) + len(self.getters)
        if wanted and self.queue.priorities:
            wanted += LOOK_AHEAD
        if self.held_bytes > self._held_bytes_max:
            return 0
        return min(wanted - len(self._ahead), LOCKED_MAX - self.locked)

    def wait_ms(self) -> int | None:
        if not self.getters:
            return None
        return GET_WAIT_MS if self.member.waited_fetches else FIRST_GET_WAIT_MS

    def acquired(self, records: list[Acquired]) -> None:
        now_ms = int(time.time() * 1000)
        for each in records:
            carried = number_header(each.record, DELIVERIES_HEADER) or 0
            unseen = self._unseen.pop((each.partition, each.record.offset), 0)
            deliveries = max(1, carried + each.delivery_count - unseen)
            delivery = Delivery(self, each, deliveries, self._generations.get(each.partition, 0))
            self.held_bytes += body_bytes(each.record)
            limit = self.queue.delivery_limit
            expires_ms = expires_at_ms(each.record, self.queue.ttl_ms)
            if expires_ms is not None and expires_ms <= now_ms:
                self._discard(delivery, EXPIRED)
            elif limit is not None and deliveries > limit + 1:
                self._discard(delivery, DELIVERY_LIMIT)
            elif each.delivery_count >= _RENEWED_FROM:
                self._renew(delivery)
            else:
                heapq.heappush(self._ahead, (-self._priority(each.record), next(self._arrivals), delivery))
        self._deal()
        if not self.consumers and not self.getters:
            self._release_ahead()

    def lost(self, partitions: Iterable[int]) -> None:
        gone = set(partitions)
        for partition in gone:
            self._generations[partition] = self._generations.get(partition, 0) + 1
        for _, _, delivery in self._ahead:
            if delivery.acquired.partition in gone:
                self.held_bytes -= body_bytes(delivery.record)
        self._ahead = [row for row in self._ahead if row[2].acquired.partition not in gone]
        heapq.heapify(self._ahead)

    def _priority(self, record: Record) -> int:
        if not self.queue.priorities:
            return 0
        return min(number_header(record, PRIORITY_HEADER) or 0, self.queue.priorities)

    # Dealing out

    def _deal(self) -> None:
        now_ms = 0
        while self._ahead:
            taker: Consumer | asyncio.Future[Delivery]
            while self.getters and self.getters[0].done():
                self.getters.popleft()
            if self.getters:
                taker = self.getters.popleft()
            else:
                consumer = self._next_consumer()
                if consumer is None:
                    return
                taker = consumer
            delivery = heapq.heappop(self._ahead)[2]
            expires_ms = expires_at_ms(delivery.record, self.queue.ttl_ms)
            if expires_ms is not None:
                now_ms = now_ms or int(time.time() * 1000)
                if expires_ms <= now_ms:
                    self._discard(delivery, EXPIRED)
                    if isinstance(taker, asyncio.Future):
                        self.getters.appendleft(taker)
                    continue
            self._out += 1
            if isinstance(taker, asyncio.Future):
                taker.set_result(delivery)
            else:
                taker.deliver(delivery)

    def _next_consumer(self) -> Consumer | None:
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.room() > 0:
                return consumer
        return None

    def _release_ahead(self) -> None:
        """What no consumer saw goes back, and is not counted as delivered."""
        for _, _, delivery in self._ahead:
            self._give_back(delivery)
        self._ahead = []

    def _give_back(self, delivery: Delivery) -> None:
        acquired = delivery.acquired
        self.held_bytes -= body_bytes(acquired.record)
        place = (acquired.partition, acquired.record.offset)
        if len(self._unseen) < _REMEMBERED_MAX:
            carried = number_header(acquired.record, DELIVERIES_HEADER) or 0
            self._unseen[place] = acquired.delivery_count + carried - delivery.deliveries + 1
        self.member.acknowledge(*place, RELEASE)

    def unseen(self, delivery: Delivery) -> None:
        """Dealt out, but to nobody: it goes back, and is not counted."""
        self._out -= 1
        delivery.settled = True
        self._give_back(delivery)

    # What became of a record

    def settle(self, delivery: Delivery, kind: int) -> None:
        self._out -= 1
        partition, record, _ = delivery.acquired
        if kind != REJECT:
            self.held_bytes -= body_bytes(record)
        if delivery.generation != self._generations.get(partition, 0) and kind != ACCEPT:
            if kind == REJECT:
                self.held_bytes -= body_bytes(record)
            return  # somebody else has it by now
        if kind == REJECT:
            self._discard(delivery, REJECTED)
        else:
            self.member.acknowledge(partition, record.offset, kind)
        self.woken()

    def _discard(self, delivery: Delivery, reason: str) -> None:
        """To the dead letters, then away."""
        partition, record, _ = delivery.acquired
        self.held_bytes -= body_bytes(record)
        self._metrics.expired += reason == EXPIRED
        if self.queue.dead_letter_exchange is None:
            # Rejected is what a share group may have dead letters of its own for.
            self.member.acknowledge(partition, record.offset, ACCEPT if reason == EXPIRED else REJECT)
            return

        def written(fault: ClientFault | None) -> None:
            if fault is not None:
                log.warning("a dead letter of queue %s was not written: %s", self.queue.name, fault)
            self.member.acknowledge(partition, record.offset, ACCEPT if fault is None else RELEASE)

        self._dead_letters(self.queue, record, reason, self.writer, written)

    def _renew(self, delivery: Delivery) -> None:
        """Write the record anew before the share group gives it up."""
        partition, record, _ = delivery.acquired
        self.held_bytes -= body_bytes(record)
        headers = tuple(row for row in record.headers if row[0] != DELIVERIES_HEADER)
        count = (DELIVERIES_HEADER, b"%d" % (delivery.deliveries - 1))

        def written(result: ClientFault | int) -> None:
            kind = RELEASE if isinstance(result, ClientFault) else ACCEPT
            self.member.acknowledge(partition, record.offset, kind)

        self.writer.write(self.queue.topic, record._replace(headers=(*headers, count)), written)


def body_bytes(record: Record) -> int:
    return len(record.value or b"")
