"""Reads the log for one session that was away or slow, until it is where the feed is.

A few threads with a consumer each. A batch is handed to the event loop, which says whether to go on; a
session whose client is slow gives its thread back and comes again.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tidelog.gateways.mqtt.feed import consumer_properties, place
from tidelog.gateways.mqtt.session import Partition

if TYPE_CHECKING:
    from confluent_kafka import Message as Record

log = logging.getLogger(__name__)

READERS = 3
BATCH_RECORDS_MAX = 200
POLL_SECONDS = 0.2
ANSWER_SECONDS_MAX = 30.0

#: records, and the ends of partitions that were reached; True to go on
Deliver = Callable[[list["Record"], dict[Partition, int]], bool]


class Job(NamedTuple):
    """What is to be read."""

    starts: dict[Partition, int]
    deliver: Deliver


class CatchUp:
    """The readers of a gateway; they begin with the first job."""

    def __init__(self, properties: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self._properties = consumer_properties(properties, **{"enable.partition.eof": True})
        self._loop = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self.jobs = 0

    def __repr__(self) -> str:
        return f"<CatchUp readers={len(self._threads)} waiting={self._jobs.qsize()}>"

    def read(self, starts: dict[Partition, int], deliver: Deliver) -> None:
        self.jobs += 1
        self._jobs.put(Job(starts, deliver))
        if len(self._threads) < READERS:
            thread = threading.Thread(target=self._run, name="mqtt-catch-up", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._properties)
        try:
            while (job := self._jobs.get()) is not None and not self._closing:
                try:
                    self._read(consumer, job)
                except (KafkaException, RuntimeError, CancelledError, TimeoutError) as fault:
                    if not self._closing:
                        log.warning("reading for a session failed: %s", fault)
                        self._ask(job, [], {})
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, job: Job) -> None:
        consumer.assign(
            [TopicPartition(topic, number, start) for (topic, number), start in job.starts.items()]
        )
        try:
            while not self._closing:
                first = consumer.poll(POLL_SECONDS)
                batch = [] if first is None else [first, *consumer.consume(BATCH_RECORDS_MAX - 1, 0)]
                records: list[Record] = []
                ends: dict[Partition, int] = {}
                for record in batch:
                    error = record.error()
                    if error is None:
                        records.append(record)
                        # An end that was told before is none any more.
                        ends.pop(place(record)[0], None)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        partition, end = place(record)
                        ends[partition] = end
                    else:
                        log.warning("reading %s: %s", record.topic() or "the cluster", error.str())
                if not self._ask(job, records, ends):
                    return
        finally:
            consumer.unassign()

    def _ask(self, job: Job, records: list["Record"], ends: dict[Partition, int]) -> bool:
        async def deliver() -> bool:
            return job.deliver(records, ends)

        return asyncio.run_coroutine_threadsafe(deliver(), self._loop).result(ANSWER_SECONDS_MAX)

    def close(self) -> None:
        self._closing = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(5)
