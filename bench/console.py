"""What the console costs: how fast its pages answer on a large cluster, its memory, and what live tails cost.

    python -m bench.console [--topics 1000] [--partitions 10] [--groups 500] [--requests 40] [--tails 20]

Pages: a broker with many topics and groups and a console, each in a process of its own; every page is asked
for in turn, after the console has looked at the whole cluster once. Printed are the time until the whole page
has arrived (median, 99th percentile, worst) and the console's resident memory before and after.

Live tails: a producer writes to one topic as fast as acks=all lets it, for a few seconds without tails, then
with tails that all look at the whole topic (they share a feed), then with tails that look at a partition each
(they share less), in turn; the medians are compared. Every tail must have shown records. A ratio of 1.00
means that tails cost the producer nothing.
On a machine with few cores, tails and producer share them, and the console's own work is in the figure. The
control compares rounds without tails with each other: how far it is from 1 is what this run cannot tell
apart. Beside it stands what other work on the machine does not disturb: the broker's processor time for a
million records, and how much of a core the console takes. Nothing is asserted.
"""

import argparse
import http.client
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.model.identifiers import TopicPartition
from tidelog.testing.broker import RunningBroker

PAGES = (
    "/",
    "/topics",
    "/topics?search=topic-05&sort=rate&order=desc",
    "/topics/topic-0500",
    "/topics/topic-0500/settings",
    "/topics/topic-0500/records",
    "/groups",
    "/groups?sort=state",
    "/group?id=group-0250",
    "/pipelines",
    "/brokers",
    "/brokers/0",
    "/transactions",
    "/access",
    "/events",
    "/api/cluster",
    "/api/topics",
    "/api/groups",
)
RECORD = b"x" * 200


def make_topics(bootstrap: str, topics: int, partitions: int) -> list[str]:
    names = [f"topic-{number:04d}" for number in range(topics)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for start in range(0, topics, 100):
        wanted = [NewTopic(name, partitions, 1) for name in names[start : start + 100]]
        for future in admin.create_topics(wanted, request_timeout=120).values():
            future.result(120)
    return names


def fill(bootstrap: str, names: list[str], partitions: int, groups: int) -> None:
    """Some records in every topic, and groups that have committed three topics each."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for name in names:
        for number in range(5):
            producer.produce(name, f"{name}-{number}")
        producer.poll(0)
    producer.flush(120)
    with Cluster(ClientSettings.from_options({"bootstrap.servers": bootstrap})) as cluster:
        for number in range(groups):
            read = [names[(number * 3 + step) % len(names)] for step in range(3)]
            offsets = {TopicPartition(name, index): 0 for name in read for index in range(partitions)}
            cluster.commit_offsets(f"group-{number:04d}", offsets)


class ConsoleProcess:
    """`tidelog console` as people run it."""

    def __init__(self, bootstrap: str) -> None:
        command = [sys.executable, "-m", "tidelog.cli", "console", "--bootstrap", bootstrap, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = re.search(r"http://\S+", self._process.stdout.readline())
        assert found is not None, "the console did not start"
        address = urlsplit(found[0])
        assert address.hostname is not None and address.port is not None
        self.host, self.port = address.hostname, address.port

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    @property
    def process_id(self) -> int:
        """Of the console itself: a child of the process that watches over it."""
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return int(children[0]) if children else parent

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process_id}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def get(self, path: str) -> tuple[float, int]:
        """Milliseconds until the page is there, and its size."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        spent = (time.perf_counter() - began) * 1000
        connection.close()
        assert answer.status == 200, (path, answer.status)
        return spent, len(body)


def measure_pages(console: ConsoleProcess, requests: int) -> None:
    began = time.perf_counter()
    console.get("/")
    print(f"first page, with the first look at the cluster: {time.perf_counter() - began:.1f} s")
    time.sleep(20)
    print(f"resident memory before: {console.resident_mib():.0f} MiB")
    times: dict[str, list[float]] = {page: [] for page in PAGES}
    sizes: dict[str, int] = {}
    for _ in range(requests):
        for page in PAGES:
            spent, sizes[page] = console.get(page)
            times[page].append(spent)
    print(f"{'page':48} {'p50 ms':>8} {'p99 ms':>8} {'worst':>8} {'KiB':>7}")
    for page in PAGES:
        ordered = sorted(times[page])
        high = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
        print(
            f"{page:48} {statistics.median(ordered):8.1f} {high:8.1f} {ordered[-1]:8.1f}"
            f" {sizes[page] / 1024:7.0f}"
        )
    print(f"resident memory after:  {console.resident_mib():.0f} MiB")


@contextmanager
def live_tails(console: ConsoleProcess, count: int, topic: str, partitions: int) -> Iterator[list[int]]:
    """That many browsers that look at a live tail; how often each was shown records.

    With `partitions` above 0 each looks at one of so many partitions, else at all of them.
    """
    seen = [0] * count
    sockets: list[socket.socket] = []
    stop = threading.Event()

    def read(number: int, answer: http.client.HTTPResponse) -> None:
        while not stop.is_set() and (line := answer.readline()):
            seen[number] += line.startswith(b"event: records")

    for number in range(count):
        connection = http.client.HTTPConnection(console.host, console.port, timeout=60)
        connection.connect()
        # The answer takes the socket over, so that closing the connection would leave it open.
        sockets.append(connection.sock)
        query = f"?partition={number % partitions}" if partitions else ""
        connection.request("GET", f"/topics/{topic}/tail{query}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        threading.Thread(target=read, args=(number, answer), daemon=True).start()
    time.sleep(1.5)
    try:
        yield seen
    finally:
        stop.set()
        for one in sockets:
            one.shutdown(socket.SHUT_RDWR)
        time.sleep(1.0)


def produced_per_second(bootstrap: str, topic: str, seconds: float) -> float:
    command = [
        sys.executable,
        "-m",
        "bench.console",
        "--produce",
        topic,
        "--bootstrap",
        bootstrap,
        "--seconds",
        str(seconds),
    ]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def produce(bootstrap: str, topic: str, seconds: float) -> None:
    """A producer in a process of its own: prints the records per second that were acknowledged."""
    properties = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5}
    producer = Producer({**properties, "queue.buffering.max.messages": 20_000})
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        try:
            producer.produce(topic, RECORD, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
    producer.flush(30)
    print(acknowledged / (time.perf_counter() - began))


def processor_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Costs:
    """Processor time of broker and console over rounds of one kind."""

    def __init__(self, broker_id: int, console_id: int) -> None:
        self._ids = (broker_id, console_id)
        self.broker_seconds = self.console_seconds = self.passed_seconds = self.records = 0.0

    def round(self, bootstrap: str, topic: str, seconds: float) -> float:
        before = [processor_seconds(one) for one in self._ids]
        began = time.perf_counter()
        rate = produced_per_second(bootstrap, topic, seconds)
        passed = time.perf_counter() - began
        broker, console = (processor_seconds(one) - old for one, old in zip(self._ids, before, strict=True))
        self.broker_seconds += broker
        self.console_seconds += console
        self.passed_seconds += passed
        self.records += rate * seconds
        return rate

    @property
    def broker_seconds_per_million(self) -> float:
        return self.broker_seconds / self.records * 1e6

    @property
    def console_cores(self) -> float:
        return self.console_seconds / self.passed_seconds


def measure_tails(console: ConsoleProcess, broker: RunningBroker, given: argparse.Namespace) -> None:
    topic = "topic-0000"
    bootstrap = broker.bootstrap
    assert broker.process_id is not None
    kinds = ("alone", "one feed", "many feeds")
    costs = {kind: Costs(broker.process_id, console.process_id) for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    shown: dict[str, list[int]] = {kind: [] for kind in kinds}
    produced_per_second(bootstrap, topic, 1.0)
    for number in range(given.rounds):
        rates["alone"].append(costs["alone"].round(bootstrap, topic, given.seconds))
        for kind, partitions in (("one feed", 0), ("many feeds", given.partitions)):
            with live_tails(console, given.tails, topic, partitions) as seen:
                rates[kind].append(costs[kind].round(bootstrap, topic, given.seconds))
                assert all(seen), f"round {number}, {kind}: a tail showed no records: {seen}"
                shown[kind] += seen
    alone = statistics.median(rates["alone"])
    print(f"{given.tails} live tails     records/s    ratio  broker s/million  console cores  times shown")
    for kind in kinds:
        print(
            f"{kind:15} {statistics.median(rates[kind]):12,.0f} {statistics.median(rates[kind]) / alone:8.3f}"
            f" {costs[kind].broker_seconds_per_million:17.2f} {costs[kind].console_cores:14.2f}"
            f" {statistics.median(shown[kind] or [0]):12.0f}"
        )
    halves = statistics.median(rates["alone"][::2]) / statistics.median(rates["alone"][1::2])
    print(f"control (alone/alone): {halves:.3f}")
    print(f"resident memory:       {console.resident_mib():.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tails", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.produce:
        produce(given.bootstrap, given.produce, given.seconds)
        return
    with RunningBroker({"node.id": "0"}, mode="process") as broker:
        began = time.perf_counter()
        names = make_topics(broker.bootstrap, given.topics, given.partitions)
        fill(broker.bootstrap, names, given.partitions, given.groups)
        print(
            f"{given.topics} topics of {given.partitions} partitions, {given.groups} groups"
            f" ({time.perf_counter() - began:.0f} s to make)"
        )
        console = ConsoleProcess(broker.bootstrap)
        try:
            if given.requests:
                measure_pages(console, given.requests)
            if given.tails:
                measure_tails(console, broker, given)
        finally:
            console.close()


if __name__ == "__main__":
    main()
