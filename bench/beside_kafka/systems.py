"""The two systems that are measured: brokers of Tidelog, nodes of Apache Kafka, with the same settings.

Both have their own defaults but for what the table needs: as many replicas as brokers, `min.insync.replicas`
of a majority, no wait before a group's first rebalance. Kafka's heap and collector are those of its start
script (1 GiB, G1). Processor time is read from /proc, of all processes of a system together.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from tests.support.kafka_nodes import KafkaNodes, quorum_settings
from tidelog.testing.cluster import RunningCluster
from tidelog.testing.ports import ReservedPort

TIDELOG, KAFKA = "Tidelog", "Kafka"
#: what Kafka's start script gives a server
KAFKA_JAVA_OPTIONS = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
READY_SECONDS_MAX = 60.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Settings = Mapping[str, str]


class System(Protocol):
    """One of the two, running."""

    name: str
    bootstrap: str

    def process_ids(self) -> Iterable[int]:
        """The processes that serve."""

    def kill(self) -> None:
        """End them with SIGKILL."""

    def launch(self) -> None:
        """Start them again, with the same data, and return at once."""

    def close(self) -> None:
        """End them and delete what they wrote."""


def cpu_seconds(system: System) -> float:
    """What its processes have computed so far."""
    ticks = 0
    for process_id in system.process_ids():
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def resident_bytes(system: System) -> int:
    """The memory that its processes have."""
    return sum(
        int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * _PAGE_BYTES
        for process_id in system.process_ids()
    )


def shared_settings(brokers: int) -> dict[str, str]:
    """What differs from the defaults of both."""
    replicas = str(min(brokers, 3))
    least = "2" if brokers > 1 else "1"
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": least,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": least,
        "group.initial.rebalance.delay.ms": "0",
    }


class TidelogSystem:
    """Brokers of Tidelog, over the embedded store."""

    name = TIDELOG

    def __init__(self, brokers: int, settings: Settings) -> None:
        self._cluster = RunningCluster(brokers, {**shared_settings(brokers), **settings}, log_level="warning")
        self._cluster.start()
        self.bootstrap = self._cluster.bootstrap

    def process_ids(self) -> list[int]:
        found = [self._cluster.process_id(number) for number in self._cluster.broker_ids]
        return [each for each in found if each is not None]

    def kill(self) -> None:
        self._cluster.kill()

    def launch(self) -> None:
        self._cluster.start()

    def close(self) -> None:
        self._cluster.close()


class KafkaSystem:
    """Nodes of Apache Kafka in KRaft mode, each broker and controller."""

    name = KAFKA

    def __init__(self, brokers: int, settings: Settings) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
        self._numbers = tuple(range(1, brokers + 1))
        self._ports = {number: ReservedPort() for number in self._numbers}
        self._controller_ports = {number: ReservedPort() for number in self._numbers}
        self._nodes = KafkaNodes(self._folder, java_options=KAFKA_JAVA_OPTIONS)
        self.bootstrap = ",".join(f"127.0.0.1:{one.port}" for one in self._ports.values())
        try:
            for number in self._numbers:
                self._nodes.add(number, self._settings_of(number, brokers, settings))
                self._nodes.launch(number)
            for number in self._numbers:
                self._nodes.wait_port(number, self._ports[number].port)
        except BaseException:
            self.close()
            raise

    def _settings_of(self, number: int, brokers: int, settings: Settings) -> dict[str, str]:
        client, controller = self._ports[number].port, self._controller_ports[number].port
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **shared_settings(brokers),
            **settings,
            **quorum_settings(number, {n: one.port for n, one in self._controller_ports.items()}),
            "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
            "log.dirs": str(self._folder / f"node-{number}"),
        }

    def process_ids(self) -> list[int]:
        return [self._nodes.process_id(number) for number in self._numbers if self._nodes.running(number)]

    def kill(self) -> None:
        self._nodes.kill(*self._numbers)

    def launch(self) -> None:
        for number in self._numbers:
            self._nodes.launch(number)

    def close(self) -> None:
        self._nodes.close()
        for reserved in (*self._ports.values(), *self._controller_ports.values()):
            reserved.close()
        shutil.rmtree(self._folder, ignore_errors=True)


MAKERS: dict[str, Callable[[int, Settings], System]] = {TIDELOG: TidelogSystem, KAFKA: KafkaSystem}


def wait_answer(system: System) -> None:
    """Return when something listens at all addresses of a system."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    for address in system.bootstrap.split(","):
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
