"""Delay many records for random times, kill leaders and everything, and look at each that was delivered.

    delays_long.py [--records N] [--spread SECONDS] [--kills N] [--size BYTES] [--seed N] [--keep FOLDER]

Three brokers with three replicas. N records with due times at random over `spread` seconds are produced to
a delay topic of three partitions. While they become due leaders of partitions are killed with SIGKILL, one
after the other; at last all brokers are killed at once and started again. A read_committed reader of the
target notes each record with the time of its arrival.

In the end every record must be there once, with its key, value and headers, none before it was due, and each
partition in the order of due times, then offsets. Said besides: lateness (of all, and of those that were due
while no broker was away), the largest memory of a broker, and the load of the machine. What of the lateness
is the machine's is said by a transactional client that runs beside: ten times a second it writes one record
in a transaction of its own, which the same reader reads; a forwarded record cannot be quicker than that is
from its beginning to its arrival. Exit code 0: all of that holds.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tidelog.testing.cluster import RunningCluster

DELAYED, TARGET, BESIDE = "later", "orders", "beside"
PARTITIONS = 3
#: nothing is due before all is produced, so that all of it is in order
LEAD_SECONDS_MIN = 5.0
PRODUCED_PER_SECOND_AT_LEAST = 4_000
AWAY_SECONDS = 5.0
#: after a broker is back, until it is in sync
SETTLING_SECONDS = 10.0
#: what was due so long before a broker died may be under way then
UNDER_WAY_SECONDS = 2.0
PATIENCE_SECONDS = 300.0


class Delivered(NamedTuple):
    """A record as the reader saw it."""

    number: int
    partition: int
    arrived_ms: int
    intact: bool


class Reader(threading.Thread):
    """Reads the target from its beginning, over every failure."""

    def __init__(self, bootstrap: str, records: int, value: bytes) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        self._value = value
        self.wanted = records
        self.delivered: list[Delivered] = []
        #: when the transaction of the other client began, and how long it took to its arrival here
        self.beside: list[tuple[int, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        places = [TopicPartition(TARGET, index, 0) for index in range(PARTITIONS)]
        self._consumer.assign([*places, TopicPartition(BESIDE, 0, 0)])
        while not self.over.is_set():
            for message in self._consumer.consume(2_000, timeout=0.02):
                if message.error() is None:
                    self._note(message, int(time.time() * 1_000))
        self._consumer.close()

    def _note(self, message: Any, now_ms: int) -> None:
        if message.topic() == BESIDE:
            began_ms = int(message.value())
            self.beside.append((began_ms, now_ms - began_ms))
            return
        headers = dict(message.headers() or [])
        number = int(message.value().partition(b":")[0])
        intact = (
            message.key() == b"k%d" % number
            and message.value() == b"%d:" % number + self._value
            and set(headers) == {"tidelog-deliver-at", "trace"}
            and headers["trace"] == b"%d" % number
        )
        self.delivered.append(Delivered(number, message.partition(), now_ms, intact))


class Beside(threading.Thread):
    """A transactional client with one record at a time; after a failure it begins anew."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._settings = {"bootstrap.servers": bootstrap, "transactional.id": BESIDE, "log_level": 0}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            producer = Producer(self._settings)
            try:
                producer.init_transactions(30)
                while not self.over.wait(0.1):
                    producer.begin_transaction()
                    producer.produce(BESIDE, str(int(time.time() * 1_000)))
                    producer.commit_transaction(30)
            except KafkaException:
                continue


class Run:
    """One run against one cluster."""

    def __init__(self, options: argparse.Namespace, cluster: RunningCluster) -> None:
        self.options = options
        self.cluster = cluster
        self.random = random.Random(options.seed)
        self.due_ms: list[int] = []
        self.offsets: dict[int, int] = {}
        self.away: list[tuple[float, float]] = []
        self.memory_kb = 0
        self.loads: list[float] = []

    def produce(self) -> float:
        """All records; returns how many seconds that took."""
        options = self.options
        lead_seconds = LEAD_SECONDS_MIN + options.records / PRODUCED_PER_SECOND_AT_LEAST
        first_ms = int((time.time() + lead_seconds) * 1_000)
        spread_ms = options.spread * 1_000
        self.due_ms = [first_ms + self.random.randrange(spread_ms) for _ in range(options.records)]
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": 100_000,
                "log_level": 0,
            }
        )
        value, refused = b"x" * options.size, []

        def reported(error: Any, message: Any, number: int) -> None:
            if error is not None:
                refused.append(error)
            else:
                self.offsets[number] = message.offset()

        began = time.monotonic()
        for number, due_ms in enumerate(self.due_ms):
            headers: dict[str, str | bytes | None] = {
                "tidelog-deliver-at": str(due_ms),
                "trace": str(number),
            }
            report = partial(reported, number=number)
            row = (DELAYED, b"%d:" % number + value, b"k%d" % number, number % PARTITIONS)
            while True:
                try:
                    producer.produce(*row, headers=headers, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0 and not refused, refused[:3]
        took = time.monotonic() - began
        assert time.time() * 1_000 < first_ms, "it took too long to produce: something was due meanwhile"
        return took

    def watch_memory(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            for broker_id in (1, 2, 3):
                process_id = self.cluster.process_id(broker_id)
                try:
                    text = Path(f"/proc/{process_id}/status").read_text()
                except OSError:
                    continue
                rows = [row for row in text.splitlines() if row.startswith("VmRSS")]
                self.memory_kb = max(self.memory_kb, *(int(row.split()[1]) for row in rows), 0)

    def fail(self) -> None:
        """Kill leaders while records become due, and everything at last."""
        start, end = min(self.due_ms) / 1_000, max(self.due_ms) / 1_000
        steps = self.options.kills + 1
        for step in range(1, steps + 1):
            self.loads.append(os.getloadavg()[0])
            time.sleep(max(0.0, start + (end - start) * step / (steps + 1) - time.time()))
            began = time.time()
            if step < steps:
                victim = self.cluster.leader(DELAYED, step % PARTITIONS)
                print(f"killing broker {victim}, which leads {DELAYED}-{step % PARTITIONS}", flush=True)
                self.cluster.kill(victim)
                time.sleep(AWAY_SECONDS)
                self.cluster.start(victim, within_seconds=PATIENCE_SECONDS)
            else:
                print("killing all brokers", flush=True)
                self.cluster.kill()
                self.cluster.start(within_seconds=PATIENCE_SECONDS)
            self.cluster.wait_in_sync(timeout_seconds=PATIENCE_SECONDS)
            self.away.append((began - UNDER_WAY_SECONDS, time.time() + SETTLING_SECONDS))

    def wait_for(self, reader: Reader) -> None:
        """Until all has come, or nothing has for a long time although it is due."""
        seen, since = -1, time.time()
        while len(reader.delivered) < self.options.records and time.time() < since + PATIENCE_SECONDS:
            if len(reader.delivered) > seen:
                seen, since = len(reader.delivered), max(time.time(), min(self.due_ms) / 1_000)
            time.sleep(0.2)

    def check(self, delivered: list[Delivered]) -> list[str]:
        """What does not hold."""
        faults = []
        numbers = [each.number for each in delivered]
        if len(numbers) != len(set(numbers)):
            faults.append(f"{len(numbers) - len(set(numbers))} records came more than once")
        if missing := len(self.due_ms) - len(set(numbers)):
            faults.append(f"{missing} records did not come")
        if early := sum(each.arrived_ms < self.due_ms[each.number] for each in delivered):
            faults.append(f"{early} records came early")
        if broken := sum(not each.intact for each in delivered):
            faults.append(f"{broken} records are not what was sent")
        for partition in range(PARTITIONS):
            order = [
                (self.due_ms[each.number], self.offsets[each.number])
                for each in delivered
                if each.partition == partition
            ]
            if order != sorted(order):
                faults.append(f"partition {partition} is not in order")
        return faults

    def lateness(self, delivered: list[Delivered]) -> tuple[list[int], list[int]]:
        """In milliseconds, ascending: of all, and of those that were due while all was well."""
        every = sorted(each.arrived_ms - self.due_ms[each.number] for each in delivered)
        well = sorted(
            each.arrived_ms - self.due_ms[each.number]
            for each in delivered
            if self.is_well(self.due_ms[each.number])
        )
        return every, well

    def is_well(self, at_ms: int) -> bool:
        """Whether all brokers were there at a time."""
        return not any(start <= at_ms / 1_000 <= end for start, end in self.away)


def percentile(ascending: list[int], part: float) -> int:
    return ascending[min(len(ascending) - 1, int(len(ascending) * part))] if ascending else -1


def run(options: argparse.Namespace) -> int:
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    settings = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}
    with RunningCluster(3, settings, data_directory=options.keep) as cluster:
        cluster.create_topic(TARGET, partitions=PARTITIONS)
        cluster.create_topic(BESIDE)
        cluster.create_topic(DELAYED, partitions=PARTITIONS, tidelog_delay_target=TARGET)
        current = Run(options, cluster)
        reader = Reader(cluster.bootstrap, options.records, b"x" * options.size)
        reader.start()
        beside = Beside(cluster.bootstrap)
        beside.start()
        over = threading.Event()
        threading.Thread(target=current.watch_memory, args=(over,), daemon=True).start()
        took = current.produce()
        print(f"produced {options.records} records in {took:.1f} s", flush=True)
        current.fail()
        current.wait_for(reader)
        time.sleep(2.0)  # something may come a second time
        over.set()
        beside.over.set()
        beside.join(60)
        reader.over.set()
        reader.join(30)
        delivered = list(reader.delivered)
        faults = current.check(delivered)
        every, well = current.lateness(delivered)
        first_ms = min(current.due_ms)
        others = sorted(
            took_ms for at_ms, took_ms in reader.beside if at_ms >= first_ms and current.is_well(at_ms)
        )
        print(f"delivered {len(delivered)} of {options.records}")
        lines = (
            ("all", every),
            ("while all was well", well),
            ("the other client, while all was well", others),
        )
        for name, ascending in lines:
            figures = [percentile(ascending, part) for part in (0.5, 0.99, 0.999)]
            print(f"late, {name} ({len(ascending)}): p50, p99, p99.9 = {figures} ms")
        print(f"largest broker: {current.memory_kb / 1024:.0f} MB")
        print(f"load of the machine: {', '.join(f'{each:.1f}' for each in current.loads)}")
        for fault in faults:
            print(f"FAULT: {fault}")
        return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--spread", type=int, default=600, help="seconds over which they are due")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    # So that a run that is told to end closes what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
