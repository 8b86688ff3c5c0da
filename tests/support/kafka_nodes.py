"""Nodes of Apache Kafka in processes of their own, each broker and controller; they end with this process.

    nodes = KafkaNodes(folder)
    nodes.add(1, {**quorum_settings(1, {1: 9093}), "listeners": "PLAINTEXT://127.0.0.1:9092,…"})
    nodes.launch(1)
    nodes.wait_port(1, 9092)
    nodes.close()

The jars are those of `tests/conformance/oracle` (TIDELOG_ORACLE_HOME), which fetches them from Maven Central.
"""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.child_programs import ROOT

ORACLE = ROOT / "tests" / "conformance" / "oracle"
CLUSTER_ID = "tidelog-oracle-00000000"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
LOG_TAIL_CHARACTERS = 3000
PR_SET_PDEATHSIG = 1


def kafka_libraries() -> Path:
    """The folder of Kafka's jars, fetched when they are not there."""
    found = subprocess.run([ORACLE, "jars"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(found.stdout.strip().splitlines()[-1])


def quorum_settings(number: int, controller_ports: Mapping[int, int]) -> dict[str, str]:
    """What makes a node broker and controller, and a voter among the others."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in controller_ports.items()),
    }


class KafkaNodes:
    """Processes by the numbers of their nodes; settings and logs are in `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        libraries: Path | None = None,
        java_options: Sequence[str] = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC"),
    ) -> None:
        self.folder = folder
        self._classes = ("-cp", f"{libraries or kafka_libraries()}/*")
        self._java_options = tuple(java_options)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def add(self, number: int, settings: Mapping[str, str]) -> None:
        """Write the settings of a node and format its folder."""
        properties = self._properties(number)
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = ("java", "-XX:TieredStopAtLevel=1", *self._classes, "kafka.tools.StorageTool")
        formatting = [*tool, "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run(formatting, check=True, capture_output=True)

    def launch(self, number: int) -> None:
        """Start a node and return at once."""
        with self._log(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(
                ["java", *self._java_options, *self._classes, "kafka.Kafka", self._properties(number)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_DIR": str(self.folder)},
                process_group=0,
                preexec_fn=_end_with_parent,
            )

    def wait_port(self, number: int, port: int) -> None:
        """Return when the node listens there."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or not self.running(number):
                    log = self._log(number).read_text(errors="replace")
                    tail = log[-LOG_TAIL_CHARACTERS:]
                    raise TimeoutError(f"Kafka's node {number} did not start:\n{tail}") from None
                time.sleep(POLL_SECONDS)

    def process_id(self, number: int) -> int:
        """The process of a node that was launched."""
        return self._processes[number].pid

    def running(self, number: int) -> bool:
        process = self._processes.get(number)
        return process is not None and process.poll() is None

    def kill(self, *numbers: int) -> None:
        """End these with SIGKILL, at the same moment."""
        for number in numbers:
            self._processes[number].kill()
        for number in numbers:
            self._processes[number].wait(STOP_SECONDS_MAX)

    def stop(self, number: int) -> None:
        """Stop a node cleanly."""
        self._processes[number].terminate()
        self._processes[number].wait(STOP_SECONDS_MAX)

    def close(self) -> None:
        self.kill(*self._processes)

    def _properties(self, number: int) -> Path:
        return self.folder / f"node-{number}.properties"

    def _log(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
