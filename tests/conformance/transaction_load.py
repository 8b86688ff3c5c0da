"""Transactions one after the other with librdkafka, several batches in flight, and what was written is read.

    python -m tests.conformance.transaction_load <bootstrap> <topic> <partitions> <id prefix> <shapes> <count>

prints name=value lines; the shapes, with commas between them, and the lines are those of
java/TransactionLoad.java. `run` has either of the two do its work.
"""

import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.child_programs import environment, program

HERE = Path(__file__).resolve().parent
JAVA_SOURCE = HERE / "java" / "TransactionLoad.java"
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SHAPES = ("in-flight", "commit-abort", "steady")
CLIENTS = ("java", "librdkafka")
RECORDS = 40
STEADY_RECORDS = 10
WARM_UP = 20
DEADLINE_SECONDS = 60.0
READ_SECONDS_MAX = 20.0


def run(
    client: str, bootstrap: str, topic: str, partitions: int, prefix: str, shapes: str, count: int
) -> tuple[dict[str, float], str]:
    """Run one of the programmes in a process of its own; return what it counted, and its complaints."""
    if client == "java":
        from tests.conformance.drivers.contract import require_program
        from tests.conformance.drivers.java import jars

        command = [require_program("java"), *JAVA_OPTIONS, "-cp", f"{jars()}/*", str(JAVA_SOURCE)]
    else:
        command = program("tests.conformance.transaction_load")
    arguments = [bootstrap, topic, str(partitions), prefix, shapes, str(count)]
    timeout = 100 + 4 * count
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment(),
    )
    complaints = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("SLF4J"))
    if done.returncode:
        raise AssertionError(f"{client} {shapes} ended with {done.returncode}: {complaints[-3000:]}")
    pairs = (line.split("=", 1) for line in done.stdout.splitlines())
    return {name: float(value) for name, value in pairs}, complaints


class Programme:
    """What is written, and what read_committed consumers must see of it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.prefix = prefix
        self.failures = 0
        self.committed: dict[str, list[list[str]]] = {}

    def producer(self, transactional_id: str) -> Producer:
        made = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "max.in.flight.requests.per.connection": 5,
            }
        )
        made.init_transactions(DEADLINE_SECONDS)
        return made

    def transaction(self, producer: Producer, name: str, records: int, *, commit: bool) -> None:
        values: list[list[str]] = [[] for _ in range(self.partitions)]
        producer.begin_transaction()
        for number in range(records):
            partition = number % self.partitions
            value = f"{name}/{partition}/{number}"
            values[partition].append(value)
            producer.produce(self.topic, value, partition=partition)
            producer.poll(0)
        if commit:
            producer.commit_transaction(DEADLINE_SECONDS)
            self.committed[name] = values
        else:
            producer.abort_transaction(DEADLINE_SECONDS)

    def failed(self, name: str, failure: KafkaException) -> None:
        self.failures += 1
        print(f"{name}: {failure}", file=sys.stderr)

    def in_flight(self, count: int) -> None:
        for number in range(count):
            name = f"{self.prefix}-in-flight-{number}"
            try:
                self.transaction(self.producer(name), name, RECORDS, commit=number % 4 != 3)
            except KafkaException as failure:
                self.failed(name, failure)

    def commit_abort(self, count: int) -> None:
        producer: Producer | None = None
        for number in range(count):
            name = f"{self.prefix}-{number}"
            try:
                producer = producer or self.producer(self.prefix)
                self.transaction(producer, f"{name}-commit", 1 + number % 7, commit=True)
                self.transaction(producer, f"{name}-abort", 1 + number % 5, commit=False)
            except KafkaException as failure:
                self.failed(name, failure)
                producer = None

    def steady(self, count: int) -> None:
        producer = self.producer(self.prefix)
        for number in range(WARM_UP):
            self.transaction(producer, f"{self.prefix}-warm-{number}", STEADY_RECORDS, commit=True)
        took_ms: list[float] = []
        began = time.monotonic()
        for number in range(count):
            start = time.monotonic()
            self.transaction(producer, f"{self.prefix}-{number}", STEADY_RECORDS, commit=True)
            took_ms.append((time.monotonic() - start) * 1000)
        seconds = time.monotonic() - began
        took_ms.sort()
        print(f"median_ms={took_ms[count // 2]:.2f}")
        print(f"p99_ms={took_ms[count * 99 // 100]:.2f}")
        print(f"per_second={count / seconds:.1f}")

    def wrong(self) -> int:
        """How many transactions are missing, torn, out of order, or should not be seen."""
        seen: dict[str, list[list[str]]] = {}
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.prefix,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(self.partitions)])
        wanted = sum(len(values) for each in self.committed.values() for values in each)
        found = quiet = 0
        deadline = time.monotonic() + READ_SECONDS_MAX
        while time.monotonic() < deadline and (found < wanted or quiet < 2):
            messages = consumer.consume(1_000, timeout=0.2)
            quiet = 0 if messages else quiet + 1
            for message in messages:
                if message.error():
                    continue
                value = message.value().decode()  # type: ignore[union-attr]
                name = value.split("/")[0]
                if name.startswith(self.prefix):
                    found += 1
                    rows = seen.setdefault(name, [[] for _ in range(self.partitions)])
                    rows[message.partition()].append(value)  # type: ignore[index]
        consumer.close()
        names = {name for name in {*seen, *self.committed} if seen.get(name) != self.committed.get(name)}
        for name in sorted(names):
            print(f"{name}: expected {self.committed.get(name)}, found {seen.get(name)}", file=sys.stderr)
        return len(names)


def main(bootstrap: str, topic: str, partitions: str, prefix: str, shapes: str, count: str) -> None:
    programme = Programme(bootstrap, topic, int(partitions), prefix)
    known = dict(zip(SHAPES, (programme.in_flight, programme.commit_abort, programme.steady), strict=True))
    for shape in shapes.split(","):
        known[shape](int(count))
    print(f"failures={programme.failures}")
    print(f"wrong={programme.wrong()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
