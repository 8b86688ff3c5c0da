"""Apache Kafka in processes: three KRaft nodes, each broker and controller, to hold beside Tidelog's brokers.

The jars are those of `tests/conformance/oracle` (TIDELOG_ORACLE_HOME), which fetches them from Maven Central.
`KafkaCluster` has the methods of `tidelog.testing.cluster.RunningCluster` that a kill test needs.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tidelog.testing.ports import ReservedPort

ORACLE = Path(__file__).parents[1] / "conformance" / "oracle"
CLUSTER_ID = "tidelog-oracle-00000000"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
PR_SET_PDEATHSIG = 1
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class KafkaCluster:
    """Nodes 1 to 3 of Apache Kafka with its default timeouts."""

    def __init__(self, nodes: int = 3, settings: dict[str, str] | None = None) -> None:
        found = subprocess.run([ORACLE, "jars"], check=True, capture_output=True, text=True)
        self.libraries = Path(found.stdout.strip())
        self.folder = Path(tempfile.mkdtemp(prefix="kafka-cluster-"))
        self.broker_ids = tuple(range(1, nodes + 1))
        self._ports = {number: ReservedPort() for number in self.broker_ids}
        self._controller_ports = {number: ReservedPort() for number in self.broker_ids}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        voters = ",".join(f"{n}@127.0.0.1:{self._controller_ports[n].port}" for n in self.broker_ids)
        for number in self.broker_ids:
            client, controller = self._ports[number].port, self._controller_ports[number].port
            own = {
                **SETTINGS,
                **(settings or {}),
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
                "log.dirs": str(self.folder / f"node-{number}"),
            }
            text = "".join(f"{name}={value}\n" for name, value in own.items())
            self._properties(number).write_text(text)

    def _properties(self, number: int) -> Path:
        return self.folder / f"node-{number}.properties"

    def __enter__(self) -> "KafkaCluster":
        for number in self.broker_ids:
            properties = str(self._properties(number))
            self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", properties)
            self._launch(number)
        for number in self.broker_ids:
            self._wait_port(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(number) for number in self.broker_ids)

    def address(self, broker_id: int) -> str:
        return f"127.0.0.1:{self._ports[broker_id].port}"

    def running(self, broker_id: int) -> bool:
        process = self._processes.get(broker_id)
        return process is not None and process.poll() is None

    @property
    def responsive_ids(self) -> tuple[int, ...]:
        return tuple(number for number in self.broker_ids if self.running(number))

    def kill(self, broker_id: int) -> None:
        self._processes[broker_id].send_signal(signal.SIGKILL)
        self._processes[broker_id].wait()

    def stop(self, broker_id: int) -> None:
        self._processes[broker_id].terminate()
        self._processes[broker_id].wait(STOP_SECONDS_MAX)

    def start(self, broker_id: int) -> None:
        self._launch(broker_id)
        self._wait_port(broker_id)

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for reserved in (*self._ports.values(), *self._controller_ports.values()):
            reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def tracebacks(self) -> list[str]:
        """Kafka's logs are not for us to judge."""
        return []

    def _run(self, *arguments: str) -> None:
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{self.libraries}/*", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def _launch(self, number: int) -> None:
        command = ["java", "-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-cp", f"{self.libraries}/*"]
        with (self.folder / f"node-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties(number))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_DIR": str(self.folder)},
                process_group=0,
                preexec_fn=_end_with_parent,
            )

    def _wait_port(self, number: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._ports[number].port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or not self.running(number):
                    log = (self.folder / f"node-{number}.log").read_text(errors="replace")
                    raise TimeoutError(f"Kafka's node {number} did not start:\n{log[-3000:]}") from None
                time.sleep(POLL_SECONDS)
