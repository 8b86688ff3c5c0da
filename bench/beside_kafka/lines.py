"""The lines of the table: for each, how many brokers, which topic, and what a client does.

A line is a value; `measure` runs it once against one system. Topics are made anew for every run, and deleted
after it, so that no run pays for another's data.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.beside_kafka.loads import Seen, java_program, python_program, run_load
from bench.beside_kafka.systems import System, cpu_seconds, resident_bytes, wait_answer

WARM_UP_SECONDS, SECONDS = 3, 6
CONSUMED_BYTES = 600_000_000
SHARED_BYTES = 150_000_000
SHARE_MEMBERS = 4
TOPIC_SECONDS_MAX = 60.0

Measure = Callable[["Line", System, str], Seen]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    title: str
    measure: Measure
    brokers: int = 1
    partitions: int = 1
    size: int = 1_000
    codec: str = "none"
    topic_settings: dict[str, str] = field(default_factory=dict)
    #: what of `Seen` the ratio is taken of; where less is better, it is Kafka's by ours
    what: str = "per_second"
    less_is_better: bool = False
    client: str = "java"


def create_topic(system: System, name: str, partitions: int, settings: dict[str, str]) -> None:
    """Make a topic with as many replicas as the system has by default, and wait until it leads."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    deadline = time.monotonic() + TOPIC_SECONDS_MAX
    while True:
        try:
            wanted = NewTopic(name, partitions, -1, config=settings)
            admin.create_topics([wanted], operation_timeout=20)[name].result(30)
            break
        except Exception:
            # Nodes that have just started are not all registered yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    while time.monotonic() < deadline:
        listed = admin.list_topics(name, timeout=10).topics[name]
        if len(listed.partitions) == partitions and all(p.leader >= 0 for p in listed.partitions.values()):
            return
        time.sleep(0.1)


def wait_for_logs(system: System, partitions: Sequence[TopicPartition]) -> None:
    """Wait until the leader of each of these partitions can say where its log ends."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    deadline = time.monotonic() + TOPIC_SECONDS_MAX
    waiting = set(partitions)
    while waiting:
        assert time.monotonic() < deadline, f"{len(waiting)} partitions do not answer"
        asked = admin.list_offsets(dict.fromkeys(waiting, OffsetSpec.latest()), request_timeout=30)
        waiting = {each for each, answer in asked.items() if answer.exception() is not None}
        if waiting:
            time.sleep(0.05)


def delete_topic(system: System, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(30)


def run_line(line: Line, system: System) -> Seen:
    """One run of a line: a topic, the load, the topic gone."""
    topic = f"bench-{os.urandom(4).hex()}"
    create_topic(system, topic, line.partitions, line.topic_settings)
    try:
        return line.measure(line, system, topic)
    finally:
        delete_topic(system, topic)


# -- what clients do


def produce(line: Line, system: System, topic: str) -> Seen:
    if line.client != "java":
        program = python_program(
            system.bootstrap, line.client, topic, str(line.size), str(WARM_UP_SECONDS), str(SECONDS)
        )
    else:
        program = java_program(
            system.bootstrap, "produce", topic, str(line.size), line.codec, str(WARM_UP_SECONDS), str(SECONDS)
        )
    return run_load(system, program)


def produce_keyed(line: Line, system: System, topic: str) -> Seen:
    arguments = (str(line.size), "100000", str(WARM_UP_SECONDS), str(SECONDS))
    return run_load(system, java_program(system.bootstrap, "keyed", topic, *arguments))


def fill(system: System, topic: str, partitions: int, size: int, total: int = CONSUMED_BYTES) -> int:
    """Produce what a consumer is to read; how many records that is."""
    from confluent_kafka import Producer

    client = Producer(
        {"bootstrap.servers": system.bootstrap, "linger.ms": 20, "batch.size": 1_000_000, "log_level": 0}
    )
    payload = os.urandom(size)
    count = total // size
    for number in range(count):
        while True:
            try:
                client.produce(topic, payload, partition=number // 1_000 % partitions)
                break
            except BufferError:
                client.poll(0.05)
    assert client.flush(60) == 0
    return count


def consume(line: Line, system: System, topic: str) -> Seen:
    count = fill(system, topic, line.partitions, line.size)
    group = topic if line.client == "group" else "-"
    arguments = (str(line.partitions), group, str(count))
    return run_load(system, java_program(system.bootstrap, "consume", topic, *arguments))


def share(line: Line, system: System, topic: str) -> Seen:
    """A share group reads what is there; no record may come to its members twice."""
    count = fill(system, topic, line.partitions, line.size, SHARED_BYTES)
    return run_load(system, java_program(system.bootstrap, "share", topic, str(SHARE_MEMBERS), str(count)))


def latency(rate: int) -> Measure:
    def measure(line: Line, system: System, topic: str) -> Seen:
        arguments = (str(line.size), str(rate), str(WARM_UP_SECONDS), str(2 * SECONDS))
        return run_load(system, java_program(system.bootstrap, "latency", topic, *arguments))

    return measure


def commits(line: Line, system: System, topic: str) -> Seen:
    arguments = ("20", str(line.partitions), str(WARM_UP_SECONDS), str(SECONDS))
    return run_load(system, java_program(system.bootstrap, "commits", topic, *arguments))


def transactions(line: Line, system: System, topic: str) -> Seen:
    from tests.conformance.transaction_load import run

    before = cpu_seconds(system)
    said, complaints = run(line.client, system.bootstrap, topic, line.partitions, topic, "steady", 150)
    assert not float(said["failures"]) and not float(said["wrong"]), complaints[-2000:]
    latencies = {"p50_ms": float(said["median_ms"]), "p99_ms": float(said["p99_ms"])}
    # Warm-up and reading back are in the processor time: the same on both sides.
    return Seen(float(said["per_second"]), 1_500, 0.0, 0, cpu_seconds(system) - before, latencies)


def create_partitions(line: Line, system: System, topic: str) -> Seen:
    """A topic of many partitions, from the request until each of them answers: a broker may say that it leads
    partitions whose logs it has yet to make.
    """
    name = f"{topic}-many"
    before, began = cpu_seconds(system), time.monotonic()
    create_topic(system, name, 2_000, {})
    wait_for_logs(system, [TopicPartition(name, index) for index in range(2_000)])
    took = time.monotonic() - began
    used = cpu_seconds(system) - before
    delete_topic(system, name)
    time.sleep(3)
    return Seen(1 / took, 2_000, 0.0, 0, used, {"took_ms": took * 1_000})


def restart(line: Line, system: System, topic: str) -> Seen:
    """From the start behind kill -9, with data in many partitions, to the first acknowledgement."""
    from confluent_kafka import Producer

    count = fill(system, topic, line.partitions, line.size)
    time.sleep(1)
    system.kill()
    began = time.monotonic()
    system.launch()
    wait_answer(system)
    client = Producer(
        {"bootstrap.servers": system.bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}
    )
    answers: list[object] = []
    client.produce(topic, b"first", partition=0, on_delivery=lambda fault, message: answers.append(fault))
    while not answers and time.monotonic() - began < TOPIC_SECONDS_MAX:
        client.poll(0.01)
    took = time.monotonic() - began
    assert answers == [None], answers
    return Seen(1 / took, count, 0.0, 0, cpu_seconds(system), {"took_ms": took * 1_000})


def memory(line: Line, system: System, topic: str) -> Seen:
    """What the processes hold while nothing happens."""
    time.sleep(5)
    resident = resident_bytes(system) / 1e6
    return Seen(1.0, 0, 0.0, 0, 0.0, {"resident_megabytes": resident})


def lines() -> Iterator[Line]:
    """All lines, those of one broker first."""
    for size in (100, 1_000):
        for partitions in (1, 6, 100):
            for codec in ("none", "lz4"):
                title = f"produce {size} B, {partitions} partition{'s' * (partitions > 1)}, {codec}"
                yield Line(title, produce, 1, partitions, size, codec)
    for client in ("librdkafka", "aiokafka"):
        yield Line(f"produce 1000 B, 6 partitions, {client}", produce, 1, 6, client=client)
    compacted = {"cleanup.policy": "compact"}
    yield Line("produce 100 B with keys, compacted", produce_keyed, 1, 6, 100, topic_settings=compacted)
    yield Line("consume 1000 B, 6 partitions", consume, 1, 6)
    yield Line("consume 1000 B, 6 partitions, in a group", consume, 1, 6, client="group")
    for size in (100, 1_000):
        yield Line(f"share group, {SHARE_MEMBERS} members, {size} B, 2 partitions", share, 1, 2, size)
    yield Line("20 groups commit 10 offsets, in turn", commits, 1, 10)
    for client in ("java", "librdkafka"):
        yield Line(f"transactions, {client}", transactions, 1, 6, client=client)
    late = {"what": "p99_ms", "less_is_better": True}
    for rate in (1_000, 10_000):
        yield Line(f"end to end p99 at {rate}/s", latency(rate), 1, 6, **late)  # type: ignore[arg-type]
    took = {"what": "took_ms", "less_is_better": True}
    yield Line("create 2,000 partitions", create_partitions, 1, **took)  # type: ignore[arg-type]
    yield Line("first record behind kill -9, 2,000 partitions", restart, 1, 2_000, **took)  # type: ignore[arg-type]
    held = {"what": "resident_megabytes", "less_is_better": True}
    yield Line("memory, idle", memory, 1, 1, **held)  # type: ignore[arg-type]
    for size, partitions, codec in (
        (100, 1, "none"), (100, 6, "none"), (1_000, 1, "none"), (1_000, 6, "none"), (1_000, 6, "lz4"),
        (1_000, 100, "none"),
    ):  # fmt: skip
        title = f"produce {size} B, {partitions} partition{'s' * (partitions > 1)}, {codec}, RF 3"
        yield Line(title, produce, 3, partitions, size, codec)
    yield Line("consume 1000 B, 6 partitions, RF 3", consume, 3, 6)
    yield Line(f"share group, {SHARE_MEMBERS} members, 100 B, 2 partitions, RF 3", share, 3, 2, 100)
    for client in ("java", "librdkafka"):
        yield Line(f"transactions, {client}, RF 3", transactions, 3, 6, client=client)
    yield Line("20 groups commit 10 offsets, in turn, RF 3", commits, 3, 10)
    yield Line("end to end p99 at 1000/s, RF 3", latency(1_000), 3, 6, **late)  # type: ignore[arg-type]
