"""`tidelog up --brokers 3` as a person meets it: ready, death and return, rolling restart, moves, Ctrl-C."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tidelog.testing.ports import ReservedPort

DEADLINE_SECONDS = 60.0
RECORDS = 3_000
TOPIC = "orders"


class UpCluster:
    """The command under test, with its events."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidelog.cli",
                "up",
                "--brokers",
                "3",
                "--port",
                "0",
                "--json",
                "--data",
                str(data),
                "--racks",
                "a,b,c",
                "--set",
                "group.initial.rebalance.delay.ms=0",
            ],
            stdout=subprocess.PIPE,
        )
        self._received = b""
        self.ready = self.wait_event("cluster_ready")
        self.bootstrap: str = self.ready["bootstrap"]

    def wait_event(self, kind: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        assert self.process.stdout is not None
        while True:
            while b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                event: dict[str, Any] = json.loads(line)
                if event["event"] == kind:
                    return event
            readable, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 65536) if readable else b""
            assert piece, f"no event {kind!r}"
            self._received += piece

    def command(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", *words],
            env={**os.environ, "TIDELOG_BOOTSTRAP": self.bootstrap},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def process_ids(self) -> list[int]:
        state = json.loads((self.data / "cluster.json").read_text())
        return [broker["pid"] for broker in state["brokers"]]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpCluster]:
    started = UpCluster(tmp_path / "data")
    yield started
    started.close()


def produce(bootstrap: str, values: range, disturb: Any = lambda: None) -> None:
    """Send every value with acks=all, doing something else half way."""
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for value in values:
        if value == values[len(values) // 2]:
            disturb()
        while True:
            try:
                producer.produce(
                    TOPIC,
                    str(value).encode(),
                    on_delivery=lambda error, _: error and refused.append(error),  # type: ignore[arg-type, func-returns-value]
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(DEADLINE_SECONDS) == 0 and not refused


def consumed(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + DEADLINE_SECONDS
    values: list[int] = []
    while len(values) < count and time.monotonic() < deadline:
        values += [int(message.value()) for message in consumer.consume(500, 0.5) if message.error() is None]  # type: ignore[arg-type]
    consumer.close()
    return sorted(values)


@pytest.mark.timeout(300)  # a dozen commands, each a process of its own
def test_a_cluster_lives_through_kill_roll_and_moves(cluster: UpCluster) -> None:
    assert len(cluster.ready["brokers"]) == 3 and cluster.bootstrap.count(",") == 2
    cluster.command("topic", "create", TOPIC, "--partitions", "6")
    status = json.loads(cluster.command("cluster", "status", "--json", "--wait", "30", "--partitions"))
    assert all(len(item["isr"]) == 3 for item in status["partitions_shown"]) and status["brokers_alive"] == 3

    produce(cluster.bootstrap, range(RECORDS), lambda: os.kill(cluster.process_ids()[1], signal.SIGKILL))
    assert cluster.wait_event("died")["broker"] == 2
    assert cluster.wait_event("ready")["broker"] == 2
    cluster.command("cluster", "status", "--wait", "60")

    before = cluster.process_ids()
    cluster.command("cluster", "roll", "--data", str(cluster.data))
    cluster.wait_event("rolled")
    assert not set(before) & set(cluster.process_ids())
    assert consumed(cluster.bootstrap, RECORDS) == list(range(RECORDS))

    cluster.command("cluster", "elect")
    cluster.command("cluster", "move", TOPIC, "0", "--leader", "2", "--execute")
    cluster.command("cluster", "reassign", "--all-topics", "--replication-factor", "2", "--execute")
    cluster.command("cluster", "decommission", "3", "--execute", "--throttle", "50000000")
    rows = json.loads(cluster.command("cluster", "brokers", "--json"))
    assert [row["replicas"] == 0 for row in rows] == [False, False, True]
    os.kill(cluster.process_ids()[2], signal.SIGTERM)
    assert cluster.wait_event("stopped")["broker"] == 3
    cluster.command("cluster", "status", "--check", code=1)
    cluster.command("cluster", "decommission", "3", "--execute")
    cluster.command("cluster", "status", "--check")

    cluster.process.send_signal(signal.SIGINT)
    cluster.wait_event("cluster_stopped")
    assert cluster.process.wait(DEADLINE_SECONDS) == 0


def test_brokers_of_their_own_meet_in_one_store(tmp_path: Path) -> None:
    reserved = [ReservedPort(), ReservedPort()]
    brokers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidelog.cli",
                "broker",
                "--id",
                str(number),
                "--json",
                "--rack",
                "r",
                "--coordination",
                str(tmp_path / "store.sqlite"),
                "--data",
                str(tmp_path / str(number)),
                "--listeners",
                f"PLAINTEXT://127.0.0.1:{port.port}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for number, port in enumerate(reserved, 1)
    ]
    try:
        for broker in brokers:
            assert broker.stdout is not None
            readable, _, _ = select.select([broker.stdout], [], [], DEADLINE_SECONDS)
            assert readable and json.loads(broker.stdout.readline())["event"] == "ready"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tidelog.cli",
                "cluster",
                "status",
                "--json",
                "--wait",
                "30",
                "--bootstrap",
                f"127.0.0.1:{reserved[1].port}",
            ],
            capture_output=True,
            timeout=DEADLINE_SECONDS,
        )
        assert json.loads(done.stdout)["brokers_alive"] == 2
        for broker in brokers:
            broker.terminate()
            assert broker.wait(DEADLINE_SECONDS) == 0
    finally:
        for broker in brokers:
            broker.kill()
            broker.wait(DEADLINE_SECONDS)
            assert broker.stdout is not None
            broker.stdout.close()
        for port in reserved:
            port.close()
