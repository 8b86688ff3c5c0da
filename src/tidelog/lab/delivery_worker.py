"""A worker that turns orders into receipts, in a process of its own that may die.

It is run as `python -m tidelog.lab.delivery_worker`; standard input has a JSON object (see `Job`). The worker
takes orders in batches, writes a receipt for each and commits, in the order that `mode` says, until it has
read to the end. With `crash` it dies by SIGKILL in its second batch, at the worst moment that its mode has.
The parent bounds its life.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tidelog.lab.clients import client_config
from tidelog.lab.to_the_end import to_the_end

AT_MOST_ONCE = "at most once"
AT_LEAST_ONCE = "at least once"
EXACTLY_ONCE = "exactly once"
BATCH = 5
WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do; `name` is its group, its transactional id, and its name over restarts."""

    bootstrap: str
    mode: str
    name: str
    orders: str
    receipts: str
    crash: bool

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def batches(consumer: Consumer) -> Iterator[list[Message]]:
    """The orders, five at a time, up to the end of the partition."""
    batch: list[Message] = []
    for message in to_the_end(consumer, timeout_seconds=WAIT_SECONDS):
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class Worker:
    """One life of a worker."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._consumer = Consumer(
            client_config(
                job.bootstrap,
                {
                    "group_id": job.name,
                    "group_instance_id": job.name,
                    "auto_offset_reset": "earliest",
                    "enable_auto_commit": False,
                    "enable_partition_eof": True,
                    "session_timeout_ms": 3_000,
                    "heartbeat_interval_ms": 500,
                },
            )
        )
        transactional = {"transactional_id": job.name} if job.mode == EXACTLY_ONCE else {}
        self._producer = Producer(client_config(job.bootstrap, dict(transactional)))

    def run(self) -> None:
        """Work until there is nothing left."""
        if self._job.mode == EXACTLY_ONCE:
            self._producer.init_transactions(WAIT_SECONDS)  # ends whatever a former life left open
        self._consumer.subscribe([self._job.orders])
        work = {
            AT_MOST_ONCE: self._at_most_once,
            AT_LEAST_ONCE: self._at_least_once,
            EXACTLY_ONCE: self._exactly_once,
        }[self._job.mode]
        for number, orders in enumerate(batches(self._consumer)):
            work(orders, number == 1 and self._job.crash)
        self._consumer.close()

    def _at_most_once(self, orders: list[Message], crash: bool) -> None:
        self._commit(orders)
        _die_if(crash)
        self._write(orders)

    def _at_least_once(self, orders: list[Message], crash: bool) -> None:
        self._write(orders)
        _die_if(crash)
        self._commit(orders)

    def _exactly_once(self, orders: list[Message], crash: bool) -> None:
        self._producer.begin_transaction()
        self._write(orders)
        last = orders[-1]
        behind = TopicPartition(self._job.orders, last.partition() or 0, (last.offset() or 0) + 1)
        self._producer.send_offsets_to_transaction([behind], self._consumer.consumer_group_metadata())
        _die_if(crash)
        self._producer.commit_transaction(WAIT_SECONDS)

    def _write(self, orders: list[Message]) -> None:
        for order in orders:
            value = order.value()
            assert isinstance(value, bytes)
            self._producer.produce(self._job.receipts, b"receipt for " + value)
        self._producer.flush(WAIT_SECONDS)

    def _commit(self, orders: list[Message]) -> None:
        self._consumer.commit(message=orders[-1], asynchronous=False)


def _die_if(crash: bool) -> None:
    if crash:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Worker(Job(**json.loads(sys.stdin.readline()))).run()
