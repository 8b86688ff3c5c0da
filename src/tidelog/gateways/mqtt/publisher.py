"""Writes records of QoS 0 and 1, and wills and retained messages, with acks=all, and says when they are safe.

librdkafka's producer is polled by a thread; what it reports comes to the event loop in batches.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Producer

from tidelog.gateways.mqtt.messages import Outgoing
from tidelog.gateways.mqtt.session import Partition

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

#: bytes that the cluster has not acknowledged: from here on clients are not read, down to there
OUTSTANDING_BYTES_MAX = 32 << 20
OUTSTANDING_BYTES_LOW = 16 << 20
DELIVERY_TIMEOUT_MS = 120_000
CLOSE_SECONDS_MAX = 5.0
_RECORD_OVERHEAD_BYTES = 200

#: the offset, or -1 and why the record was not written
Done = Callable[[int, KafkaError | None], None]


class Publisher:
    """An idempotent producer with answers on the event loop."""

    def __init__(self, properties: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._producer = Producer(
            {
                "linger.ms": 1,
                "queue.buffering.max.messages": 1_000_000,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                **properties,
                "acks": "all",
                "enable.idempotence": True,
            }
        )
        self.outstanding_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._reports: deque[tuple[Done | None, int, Partition | None, int, KafkaError | None]] = deque()
        #: behind the newest records that were acknowledged
        self.ends: dict[Partition, int] = {}
        self._scheduled = False
        self._closing = False
        self._thread = threading.Thread(target=self._poll, name="mqtt-publisher", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Publisher outstanding={self.outstanding_bytes}>"

    @property
    def busy(self) -> bool:
        """Whether clients should wait with what they publish."""
        return self.outstanding_bytes > OUTSTANDING_BYTES_MAX

    def when_free(self, then: Callable[[], None]) -> None:
        self._waiting.append(then)

    def publish(self, record: Outgoing, done: Done | None = None) -> None:
        """Hand a record over; `done` is called on the loop. Raises BufferError where the queue is full."""
        size = len(record.value or b"") + len(record.key) + _RECORD_OVERHEAD_BYTES
        self._producer.produce(
            record.topic,
            record.value,
            record.key,
            headers=record.headers,
            on_delivery=partial(self._delivered, done, size),
        )
        self.outstanding_bytes += size

    def _delivered(self, done: Done | None, size: int, error: KafkaError | None, record: "Record") -> None:
        """In the polling thread."""
        place = None
        offset, topic, number = record.offset(), record.topic(), record.partition()
        if offset is not None and topic is not None and number is not None:
            place = (topic, number)
        self._reports.append((done, size, place, -1 if offset is None else offset, error))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._scheduled = False  # before the queue is emptied: what comes later schedules anew
        reports = self._reports
        while reports:
            done, size, place, offset, error = reports.popleft()
            self.outstanding_bytes -= size
            if place is not None and error is None and offset >= self.ends.get(place, 0):
                self.ends[place] = offset + 1
            if done is not None:
                done(offset, error)
            elif error is not None:
                log.warning("a message of QoS 0 was not written: %s", error.str())
        if self._waiting and self.outstanding_bytes < OUTSTANDING_BYTES_LOW:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()

    def _poll(self) -> None:
        while not self._closing:
            self._producer.poll(0.1)

    def close(self) -> None:
        """Wait a little for what is under way; blocking."""
        self._producer.flush(CLOSE_SECONDS_MAX)
        self._closing = True
        self._thread.join(CLOSE_SECONDS_MAX)
