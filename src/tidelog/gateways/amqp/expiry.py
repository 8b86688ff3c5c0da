"""Messages whose time is over in queues that nobody reads: they go to the dead letter exchange all the same.

That is how delays are made with queues: a time to live, no consumers, and a dead letter exchange. The gateway
looks at the first records of such a queue as an ordinary consumer would, which locks nothing; when the first
is over it takes as many as are over in a row, as a member of the share group. Like RabbitMQ it looks at the
head only: a message behind one that lives longer waits for it.

All of it as the gateway's own user, who needs Read on topic and group, and Write where the letters go.
"""

import logging
import time

from tidelog.client.faults import ClientFault
from tidelog.gateways.amqp.definitions import Queue
from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.kafka_access import fetch
from tidelog.gateways.amqp.messages import expires_at_ms
from tidelog.gateways.amqp.queue_reader import Delivery
from tidelog.records.batch import iterate_headers
from tidelog.records.record import Record, iterate_records

log = logging.getLogger(__name__)

#: queues that are looked at in one round, and how much of each
QUEUES_MAX = 50
_HEAD_BYTES = 64 << 10
_TAKEN_MAX = 500
#: an empty queue is looked at again after this
_EMPTY_SECONDS = 1.0
_LATEST_SECONDS = 60.0
_TAKE_SECONDS_MAX = 5.0


class _Sweeper:
    """A consumer that only makes room: what is over never reaches it, and the rest it gives back."""

    no_ack = False

    def __init__(self, count: int) -> None:
        self.left = count

    def room(self) -> int:
        return self.left

    def deliver(self, delivery: Delivery) -> None:
        self.left = 0
        delivery.reader.unseen(delivery)

    def cancelled(self) -> None:
        self.left = 0


class Expiry:
    """Looks at queues in turn."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: when a queue is worth another look
        self._due: dict[str, float] = {}
        self._told: set[str] = set()

    async def look(self) -> None:
        """One round."""
        gateway, now = self._gateway, time.monotonic()
        queues = gateway.definitions.queues
        self._due = {name: at for name, at in self._due.items() if name in queues}
        waiting = [
            queue
            for queue in queues.values()
            if queue.dead_letter_exchange is not None
            and self._due.get(queue.name, 0.0) <= now
            and not gateway.consumers_of(queue.name)
        ]
        for queue in waiting[:QUEUES_MAX]:
            # Those that were not looked at in this round come first in the next.
            self._due[queue.name] = now + _EMPTY_SECONDS
            try:
                await self._look_at(queue)
            except (ClientFault, TimeoutError) as fault:
                self._due[queue.name] = now + _LATEST_SECONDS
                if queue.name not in self._told:
                    self._told.add(queue.name)
                    log.warning("queue %s is not looked at for expired messages: %s", queue.name, fault)

    async def _look_at(self, queue: Queue) -> None:
        now_ms = int(time.time() * 1000)
        over, next_ms = 0, None
        for partition, offset in (await self._starts(queue)).items():
            for record in await self._head(queue.topic, partition, offset):
                expires_ms = expires_at_ms(record, queue.ttl_ms)
                if expires_ms is None:
                    break
                if expires_ms > now_ms:
                    next_ms = min(next_ms or expires_ms, expires_ms)
                    break
                over += 1
        if over:
            await self._take(queue, min(over, _TAKEN_MAX))
        elif next_ms is not None:
            seconds = min((next_ms - now_ms) / 1000, _LATEST_SECONDS)
            self._due[queue.name] = time.monotonic() + seconds

    async def _starts(self, queue: Queue) -> dict[int, int]:
        """Where the group begins to read; partitions that have nothing for it are left out."""
        access = self._gateway.own.access
        offsets = await access.share_offsets(queue.group, queue.topic)
        if offsets is not None:
            return {partition: start for partition, (start, lag) in offsets.items() if lag}
        count = len((await access.topic(queue.topic)).leaders)
        return {each: await access.list_offset(queue.topic, each, -2) for each in range(count)}

    async def _head(self, topic: str, partition: int, offset: int) -> list[Record]:
        access = self._gateway.own.access
        link = await access.link_to(await access.leader_of(topic, partition))
        found = await fetch(link, topic, partition, offset, wait_ms=0, bytes_max=_HEAD_BYTES)
        records: list[Record] = []
        for position, header in iterate_headers(found.records):
            if not header.control:
                batch = found.records[position : position + header.size_bytes]
                records += [each for each in iterate_records(batch, header) if each.offset >= offset]
        return records

    async def _take(self, queue: Queue, count: int) -> None:
        """Have the reader of the queue meet so many records; it knows what to do with those that are over."""
        reader = await self._gateway.own.reader(queue)
        before = self._gateway.metrics.expired
        sweeper = _Sweeper(count)
        reader.add(sweeper)
        deadline = time.monotonic() + _TAKE_SECONDS_MAX
        try:
            while sweeper.left and time.monotonic() < deadline:
                await reader.progressed(0.1)
                sweeper.left = min(sweeper.left, count - (self._gateway.metrics.expired - before))
        finally:
            reader.remove(sweeper)
        self._due[queue.name] = 0.0
