"""The shop around the three workers: orders to work on, a worker that dies and comes back, receipts to count.

A worker takes orders in batches of five and writes a receipt for each. Its first life ends at the worst
moment, in its second batch (`os._exit`, as sudden as kill -9); its second life does the rest. What was lost
and what was repeated is then counted from the receipts that a reader of committed data sees.
"""

import argparse
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ORDERS, BATCH = 20, 5
CRASHED = 9
WAIT_SECONDS = 30


@dataclass(frozen=True)
class Job:
    """Where a worker finds its work, and whether it is to crash."""

    bootstrap: str
    name: str
    crash: bool

    @property
    def orders(self) -> str:
        return f"{self.name}-orders"

    @property
    def receipts(self) -> str:
        return f"{self.name}-receipts"

    def consumer(self) -> Consumer:
        """A member of the worker's group; its instance id lets a restarted worker in at once."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.name,
            "group.instance.id": "worker",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        consumer.subscribe([self.orders])
        return consumer


@dataclass(frozen=True)
class Outcome:
    """What became of the orders."""

    orders: int
    processed: int
    lost: int
    repeated: int


def batches(consumer: Consumer) -> Iterator[list[Message]]:
    """The orders five at a time, until there are no more."""
    batch: list[Message] = []
    while True:
        message = consumer.poll(WAIT_SECONDS)
        if message is None:
            raise TimeoutError(f"no order within {WAIT_SECONDS} s")
        if message.error():
            break  # the end of the partition
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def receipt(order: Message) -> str:
    return f"receipt for {order.value().decode()}"


def run_worker(program: str, work: Callable[[Job], None]) -> None:
    """What every worker's program does: with --job one life of a worker, else the whole demonstration."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--crash", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        work(Job(options.bootstrap, options.job, options.crash))
    else:
        outcome = demonstrate(Path(program), options.bootstrap)
        print(f"{outcome.orders} orders: {outcome.processed} processed, ", end="")
        print(f"{outcome.lost} lost, {outcome.repeated} repeated")


def demonstrate(program: Path, bootstrap: str) -> Outcome:
    """Fill the orders, let the worker crash, start it again, count the receipts."""
    job = Job(bootstrap, f"{program.stem}-{uuid.uuid4().hex[:6]}", crash=True)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(job.orders, 1, 1), NewTopic(job.receipts, 1, 1)]).values():
        future.result(WAIT_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(ORDERS):
        producer.produce(job.orders, f"order {number}")
    if producer.flush(WAIT_SECONDS):
        raise TimeoutError("the orders could not be written")
    command = [sys.executable, str(program), "--bootstrap", bootstrap, "--job", job.name]
    first = subprocess.run([*command, "--crash"], timeout=2 * WAIT_SECONDS, check=False)
    if first.returncode != CRASHED:
        raise RuntimeError(f"{program.name} was to crash and ended with {first.returncode}")
    subprocess.run(command, timeout=2 * WAIT_SECONDS, check=True)
    return count(job)


def count(job: Job) -> Outcome:
    """Compare the receipts that were committed with the orders."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": f"{job.name}-count",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(job.receipts, 0, 0)])
    receipts: Counter[str] = Counter()
    while (message := consumer.poll(WAIT_SECONDS)) is not None and not message.error():
        receipts[message.value().decode()] += 1
    if message is None:
        raise KafkaException("the receipts could not be read to their end")
    consumer.close()
    lost = sum(f"receipt for order {number}" not in receipts for number in range(ORDERS))
    return Outcome(ORDERS, receipts.total(), lost, receipts.total() - len(receipts))
