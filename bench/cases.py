"""What is measured: produce and fetch against the floors, scale, memory and start-up.

A case starts its servers, then measures them in turn for several rounds, forwards and backwards alternately,
so that a noisy neighbour hits all of them alike. Values are medians over the rounds; a ratio is the median of
the ratios inside each round. Data is deleted as soon as a case is done with it.
"""

import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.kafka_messages import (
    AnswerShape,
    batch_of_size,
    canned_fetch_head,
    canned_produce_answer,
    fetch_request,
    fetch_shape,
    produce_request,
    produce_shape,
)
from bench.servers import BenchFailure, Children, Load, Measurement, Server, run_load

KIB, MIB = 1024, 1024 * 1024
BATCHES = {"1 KB": (KIB, 100), "16 KB": (16 * KIB, 1000), "100 KB": (100 * KIB, 1000), "1 MB": (MIB, 1000)}
"""Batch size and value size. The largest is just under Kafka's default max.message.bytes of 1,048,588."""
FETCH_BATCH_BYTES = 16 * KIB
FETCH_LOG_BYTES = 64 * MIB
FLOOR, FRAMED, PYTHON, BROKER = "floor", "framed", "python", "tidelog"
TOPIC = "bench-0000"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often; `--short` trades precision for time."""

    rounds: int
    duration_ms: int
    warmup_ms: int
    max_bytes: int
    partition_steps: tuple[int, ...]
    connection_steps: tuple[int, ...]
    start_count: int

    def with_rounds(self, rounds: int) -> "Effort":
        return replace(self, rounds=rounds)


FULL = Effort(7, 1000, 400, 768 * MIB, (1, 10, 100, 500, 2000), (1, 8, 64, 250, 500), 15)
SHORT = Effort(3, 400, 200, 384 * MIB, (1, 2000), (1, 500), 5)


@dataclass(slots=True)
class Row:
    """One line of the report: a load, and what each server did under it, round by round."""

    name: str
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)

    def median(self, server: str, value: Callable[[Measurement], float]) -> float:
        return statistics.median(value(one) for one in self.rounds[server])

    def ratio(self, server: str, base: str, value: Callable[[Measurement], float]) -> float:
        """The median over the rounds of server / base, both taken in the same round."""
        pairs = zip(self.rounds[server], self.rounds[base], strict=True)
        return statistics.median(value(ours) / value(theirs) for ours, theirs in pairs)

    def ratio_range(
        self, server: str, base: str, value: Callable[[Measurement], float]
    ) -> tuple[float, float]:
        ratios = [value(a) / value(b) for a, b in zip(self.rounds[server], self.rounds[base], strict=True)]
        return min(ratios), max(ratios)


@dataclass(slots=True)
class Bench:
    """One run: its children, its effort, which brokers to measure, and what it says while it works."""

    children: Children
    effort: Effort
    with_broker: bool
    peer: Server | None
    say: Callable[[str], None]
    acks: int = -1

    def work_file(self, name: str, content: bytes) -> Path:
        path = self.children.directory / name
        path.write_bytes(content)
        return path

    def appended_file(self, name: str, piece: bytes, count: int) -> Path:
        """A file that grew by appends, as a log does.

        The kernel caches a file that is written at once in larger pieces, which are cheaper to send.
        """
        path = self.children.directory / name
        with path.open("wb", buffering=0) as file:
            for _ in range(count):
                file.write(piece)
        return path

    def brokers(self) -> dict[str, Server]:
        servers: dict[str, Server] = {}
        if self.with_broker:
            servers[BROKER] = self.children.start_broker()[0]
        if self.peer is not None:
            servers[self.peer.name] = self.peer
        return servers

    def measure(self, row: Row, servers: dict[str, Server], loads: dict[str, Load], index: int) -> None:
        order = list(servers) if index % 2 == 0 else list(servers)[::-1]
        for name in order:
            check = name not in (FLOOR, FRAMED, PYTHON)
            self.children.rest()
            measurement = run_load(self.children.programs, servers[name], loads[name], check=check)
            row.rounds.setdefault(name, []).append(measurement)

    def touch_memory(self) -> None:
        """Writes and deletes as much as a case keeps in the page cache at once.

        A virtual machine gets its memory from the host page by page, on first touch: the first writer of a
        page is ten times slower than the next one. Without this, whoever is measured first pays for all.
        """
        path = self.children.directory / "touched"
        block = bytes(MIB)
        with path.open("wb", buffering=0) as file:
            for _ in range(3 * self.effort.max_bytes // MIB):
                file.write(block)
        path.unlink()

    def load(
        self, requests: Path, connections: int, depth: int, response_bytes: int, shape: AnswerShape
    ) -> Load:
        effort = self.effort
        return Load(
            requests,
            connections,
            depth,
            response_bytes,
            shape,
            effort.duration_ms,
            effort.warmup_ms,
            effort.max_bytes,
        )

    def finish(self, servers: dict[str, Server]) -> None:
        self.children.release(*(server for server in servers.values() if server is not self.peer))
        for path in self.children.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


# --- produce ----------------------------------------------------------------------------------------------


def produce_row(bench: Bench, batch_name: str, connections: int, depth: int) -> Row:
    bench.touch_memory()
    batch_bytes, value_bytes = BATCHES[batch_name]
    batch, _ = batch_of_size(batch_bytes, value_bytes, int(time.time() * 1000))
    kind = "latency" if depth == 1 else "produce"
    row = Row(f"{kind}: produce {batch_name}, {connections} × {depth}")
    requests = bench.work_file("requests", produce_request(TOPIC, 0, batch, bench.acks))
    shape = produce_shape(TOPIC)
    response = canned_produce_answer(TOPIC)
    servers = bench.brokers()
    response_bytes = {name: probe_produce(server, requests, shape) for name, server in servers.items()}
    for name, python, framed in ((FLOOR, False, False), (FRAMED, False, True), (PYTHON, True, False)):
        if name == FLOOR or bench.children.programs.compiled:
            servers[name] = bench.children.start_floor(response, python=python, framed=framed)
            response_bytes[name] = len(response)
    loads = {name: bench.load(requests, connections, depth, response_bytes[name], shape) for name in servers}
    for index in range(bench.effort.rounds):
        bench.measure(row, servers, loads, index)
        for name in servers.keys() - {FLOOR, FRAMED, PYTHON}:
            renew_topic(servers[name], requests, shape)
    delete_peer_topic(bench)
    bench.finish(servers)
    return row


def probe_produce(server: Server, requests: Path, shape: AnswerShape) -> int:
    """Makes the topic, sends one request of the load and returns the size of its answer."""
    with server.control() as control:
        control.create_topic(TOPIC, 1, {"file.delete.delay.ms": "0"})
        return len(control.probe(requests.read_bytes(), shape))


def renew_topic(server: Server, requests: Path, shape: AnswerShape) -> None:
    """Throws the data of a round away: disk use stays bounded and no round pays for an earlier one."""
    with server.control() as control:
        control.delete_topic(TOPIC)
    time.sleep(0.1)
    probe_produce(server, requests, shape)


def delete_peer_topic(bench: Bench) -> None:
    if bench.peer is not None:
        with bench.peer.control() as control:
            control.delete_topic(TOPIC)


# --- fetch ------------------------------------------------------------------------------------------------


def fetch_row(bench: Bench, body_name: str, body_bytes: int, connections: int, depth: int) -> Row:
    kind = "latency" if depth == 1 else "fetch"
    row = Row(f"{kind}: fetch {body_name}, {connections} × {depth}")
    bench.touch_memory()
    batch, record_count = batch_of_size(FETCH_BATCH_BYTES, 1000, int(time.time() * 1000))
    batch_count = FETCH_LOG_BYTES // FETCH_BATCH_BYTES
    step = body_bytes // FETCH_BATCH_BYTES
    frames = [
        fetch_request(TOPIC, 0, position * record_count, body_bytes)
        for position in range(0, batch_count, step)
    ]
    requests = bench.work_file("requests", b"".join(frames))
    shape = fetch_shape(TOPIC)
    response = canned_fetch_head(TOPIC, body_bytes)
    body_file = bench.appended_file("body", batch, batch_count)
    servers = bench.brokers()
    response_bytes = {}
    for name, server in servers.items():
        fill_log(server, batch, batch_count, bench.acks)
        response_bytes[name] = probe_fetch(server, frames[0], shape, batch, body_bytes)
    for name, python in ((FLOOR, False), (PYTHON, True)):
        if name == FLOOR or bench.children.programs.compiled:
            servers[name] = bench.children.start_floor(
                response, python=python, body_file=body_file, body_bytes=body_bytes
            )
            response_bytes[name] = len(response) + body_bytes
    loads = {name: bench.load(requests, connections, depth, response_bytes[name], shape) for name in servers}
    # Fetching writes nothing, so only time bounds it.
    loads = {name: replace(load, max_bytes=0) for name, load in loads.items()}
    for index in range(bench.effort.rounds):
        bench.measure(row, servers, loads, index)
    delete_peer_topic(bench)
    bench.finish(servers)
    return row


def fill_log(server: Server, batch: bytes, batch_count: int, acks: int) -> None:
    request = produce_request(TOPIC, 0, batch, acks)
    shape = produce_shape(TOPIC)
    with server.control() as control:
        control.create_topic(TOPIC, 1, {"file.delete.delay.ms": "0"})
        for _ in range(batch_count):
            control.probe(request, shape)


def probe_fetch(server: Server, request: bytes, shape: AnswerShape, batch: bytes, body_bytes: int) -> int:
    """Checks one answer byte for byte (everything but base offset and leader epoch) and returns its size."""
    with server.control() as control:
        answer = control.probe(request, shape)
    unchanged = batch[16:]
    if answer.count(unchanged) != body_bytes // len(batch):
        raise BenchFailure(
            f"{server!r}: a Fetch answer of {len(answer)} bytes does not hold the batches produced"
        )
    return len(answer)


# --- scale ------------------------------------------------------------------------------------------------


def partition_rows(bench: Bench) -> list[Row]:
    """The same load over 1 … N partitions, one broker each; and over one partition while N exist.

    With five requests in flight a broker writes those of one partition that come together with one call; with
    one in flight each is served alone, so only what the number of partitions costs makes a difference.
    """
    bench.touch_memory()
    batch, _ = batch_of_size(*BATCHES["1 KB"], int(time.time() * 1000))
    shape = produce_shape(TOPIC)
    single = bench.work_file("requests-one", produce_request(TOPIC, 0, batch, bench.acks))
    plan: list[tuple[Row, str, Server, Load]] = []
    started: dict[str, Server] = {}
    steps = bench.effort.partition_steps
    response = canned_produce_answer(TOPIC)
    for count in steps:
        frames = (produce_request(TOPIC, partition, batch, bench.acks) for partition in range(count))
        requests = bench.work_file(f"requests-{count}", b"".join(frames))
        servers = {}
        sizes = {}
        if bench.with_broker:
            servers[BROKER] = server = bench.children.start_broker()[0]
            with server.control() as control:
                control.create_topic(TOPIC, count)
                sizes[BROKER] = len(control.probe(single.read_bytes(), shape))
        if bench.children.programs.compiled:
            servers[FRAMED] = bench.children.start_floor(response, framed=True, files=count)
            sizes[FRAMED] = len(response)
        for depth in (5, 1):
            row = Row(f"partitions: {count}" if depth == 5 else f"partitions: {count}, one in flight")
            plan += [
                (row, name, server, bench.load(requests, 8, depth, sizes[name], shape))
                for name, server in servers.items()
            ]
        if count == steps[-1] and bench.with_broker:
            load = bench.load(single, 8, 5, sizes[BROKER], shape)
            plan.append((Row(f"partitions: 1 of {count}"), BROKER, servers[BROKER], load))
        started |= {f"{name}-{count}": server for name, server in servers.items()}
    for _, _, server, load in plan:
        run_load(bench.children.programs, server, load, check=False)
    bench.children.settle()
    run_plan(bench, plan)
    bench.finish(started)
    return sorted(unique_rows(plan), key=lambda row: row.name.endswith("in flight"))


def connection_rows(bench: Bench) -> list[Row]:
    """The same requests, 5 in flight each, over 1 … N connections to one broker."""
    bench.touch_memory()
    batch, _ = batch_of_size(*BATCHES["1 KB"], int(time.time() * 1000))
    shape = produce_shape(TOPIC)
    response = canned_produce_answer(TOPIC)
    requests = bench.work_file("requests", produce_request(TOPIC, 0, batch, bench.acks))
    servers = bench.brokers()
    sizes = {name: probe_produce(server, requests, shape) for name, server in servers.items()}
    servers[FLOOR] = bench.children.start_floor(response)
    sizes[FLOOR] = len(response)
    plan = []
    for count in bench.effort.connection_steps:
        row = Row(f"connections: {count}")
        plan += [
            (row, name, server, bench.load(requests, count, 5, sizes[name], shape))
            for name, server in servers.items()
        ]
    run_plan(bench, plan)
    delete_peer_topic(bench)
    bench.finish(servers)
    return unique_rows(plan)


def run_plan(bench: Bench, plan: list[tuple[Row, str, Server, Load]]) -> None:
    for index in range(bench.effort.rounds):
        for row, name, server, load in plan if index % 2 == 0 else plan[::-1]:
            bench.measure(row, {name: server}, {name: load}, index)


def unique_rows(plan: list[tuple[Row, str, Server, Load]]) -> list[Row]:
    return list({row.name: row for row, *_ in plan}.values())


# --- memory and start-up ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Footprint:
    """Idle memory and start-up times of the broker."""

    resident_bytes: int
    resident_bytes_after_restart: int
    start_seconds: list[float]
    start_seconds_with_partitions: list[float]


def footprint(bench: Bench, partitions: int = 100) -> Footprint:
    children = bench.children
    data = children.new_directory("data")
    batch, _ = batch_of_size(*BATCHES["1 KB"], int(time.time() * 1000))
    server = children.start_broker(data)[0]
    with server.control() as control:
        control.create_topic(TOPIC, partitions)
        for partition in range(partitions):
            control.probe(produce_request(TOPIC, partition, batch), produce_shape(TOPIC))
    time.sleep(1.0)
    resident = server.resident_bytes()
    children.release(server)
    restarted = []
    after_restart = 0
    for _ in range(bench.effort.start_count):
        server, seconds = children.start_broker(data, pin=False)
        restarted.append(seconds)
        time.sleep(0.3)
        after_restart = max(after_restart, server.resident_bytes())
        children.release(server)
    fresh = []
    for _ in range(bench.effort.start_count):
        empty = children.new_directory("data")
        server, seconds = children.start_broker(empty, pin=False)
        fresh.append(seconds)
        children.release(server)
        shutil.rmtree(empty)
    shutil.rmtree(data)
    return Footprint(resident, after_restart, fresh, restarted)
