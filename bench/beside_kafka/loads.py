"""One load of one client against one system: what the client says, and what the brokers computed meanwhile.

A load is a program that prints name=value lines; `began=1` and `ended=1` are the bounds of what it measures,
and the processor time of the system is read at both.
"""

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.beside_kafka.systems import System, cpu_seconds
from tests.conformance.drivers.contract import require_program
from tests.conformance.drivers.java import jars
from tests.support.child_programs import ROOT

JAVA_LOAD = ROOT / "bench" / "java" / "KafkaLoad.java"
#: the client is not what is measured: it has the compilers and the memory that it wants
JAVA_OPTIONS = ("-Xmx1G", "-XX:+UseParallelGC")
LOAD_SECONDS_MAX = 150.0


class LoadFailed(Exception):
    """A client did not do its part."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run of one load showed."""

    per_second: float
    records: int
    megabytes: float
    #: requests that the client sent, where it counts them
    requests: int
    cpu_seconds: float
    latencies_ms: Mapping[str, float]

    @property
    def cpu_per_gigabyte(self) -> float | None:
        return None if self.megabytes < 1 else self.cpu_seconds / self.megabytes * 1_000

    @property
    def cpu_per_million_requests(self) -> float | None:
        return None if self.requests < 100 else self.cpu_seconds / self.requests * 1e6


def java_program(*arguments: str, connection: Mapping[str, str] | None = None) -> list[str]:
    """The command of a load of the Java client; `connection` are its settings besides the addresses."""
    options = [f"-Dclient.{name}={value}" for name, value in (connection or {}).items()]
    return [
        require_program("java"),
        *JAVA_OPTIONS,
        *options,
        "-cp",
        f"{jars()}/*",
        str(JAVA_LOAD),
        *arguments,
    ]


def python_program(*arguments: str) -> list[str]:
    """The command of a load of one of the Python clients."""
    return [sys.executable, "-m", "bench.beside_kafka.python_load", *arguments]


def run_load(system: System, command: Sequence[str]) -> Seen:
    """Run a load to its end; raises LoadFailed if it failed, or lost anything."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    watchdog = threading.Timer(LOAD_SECONDS_MAX, process.kill)
    watchdog.start()
    complaints: list[str] = []
    output, errors = process.stdout, process.stderr
    assert output is not None and errors is not None
    listening = threading.Thread(target=lambda: complaints.append(errors.read()), daemon=True)
    listening.start()
    said: dict[str, float] = {}
    cpu_at: dict[str, float] = {}
    try:
        for line in output:
            name, _, value = line.strip().partition("=")
            if name in ("began", "ended"):
                cpu_at[name] = cpu_seconds(system)
            elif value:
                said[name] = float(value)
        process.wait()
        listening.join()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    shown = " ".join(command[-7:])
    if process.returncode or "per_second" not in said or cpu_at.keys() != {"began", "ended"}:
        raise LoadFailed(f"{shown} against {system.name}: {''.join(complaints)[-2000:]}")
    if said.get("failed"):
        raise LoadFailed(f"{shown} against {system.name}: {said['failed']:.0f} records failed")
    return Seen(
        said["per_second"],
        int(said["records"]),
        said.get("bytes", 0.0) / 1e6,
        int(said.get("requests", 0)),
        cpu_at["ended"] - cpu_at["began"],
        {name: value for name, value in said.items() if name.endswith("_ms")},
    )
