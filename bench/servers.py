"""Child processes of a benchmark run: floors, broker, load generator; and a peer that already runs.

Servers are pinned to the first allowed CPU and the load generator to the last, when there are at least two,
so that neither takes the other's time. Every child is started through `Children`, which ends all of them,
also on Ctrl-C. C programs are compiled once per run into the run's own folder.
"""

import compileall
import json
import operator
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_messages import AnswerShape, ControlClient, WireError

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
ALLOWED_CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, LOAD_CPU = ALLOWED_CPUS[0], ALLOWED_CPUS[-1]
PINNED = len(ALLOWED_CPUS) >= 2
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 15.0
#: a server rests when it used less than a tick of CPU for so long
REST_SECONDS = 0.1
REST_TIMEOUT_SECONDS = 10.0
#: servers have settled when each used only so many ticks of CPU (10 ms) in so long
SETTLE_TICKS = 2
SETTLE_SECONDS = 3.0
SETTLE_TIMEOUT_SECONDS = 90.0


class BenchFailure(Exception):
    """A child did not do its part; the message says which and shows the end of its output."""


@contextmanager
def pinned_to(cpu: int | None) -> Iterator[None]:
    """Children started inside inherit the CPU (None: any); this process gets its own set back."""
    if not PINNED or cpu is None:
        yield
        return
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, ALLOWED_CPUS)


@dataclass(frozen=True, slots=True)
class Programs:
    """Command lines of the floor and the load generator, compiled where a C compiler exists."""

    floor: tuple[str, ...]
    python_floor: tuple[str, ...]
    load: tuple[str, ...]
    compiled: bool

    @classmethod
    def build(cls, directory: Path) -> "Programs":
        python_floor = (sys.executable, str(HERE / "floor.py"))
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            return cls(python_floor, python_floor, (sys.executable, str(HERE / "load.py")), False)
        for name in ("floor", "load"):
            target = directory / name
            subprocess.run([compiler, "-O2", "-o", str(target), str(HERE / f"{name}.c")], check=True)
        return cls((str(directory / "floor"),), python_floor, (str(directory / "load"),), True)


class Server:
    """A process that listens on the loop-back interface."""

    def __init__(self, name: str, process: subprocess.Popen[str] | None, host: str, port: int) -> None:
        self.name = name
        self.process = process
        self.host = host
        self.port = port

    def __repr__(self) -> str:
        return f"<Server {self.name} {self.host}:{self.port} pid={self.pid}>"

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def control(self) -> ControlClient:
        return ControlClient(self.host, self.port)

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BenchFailure(f"{self.name} has no VmRSS: it is gone")

    def cpu_ticks(self) -> int:
        """CPU time that all threads of the process have used; 0 for a peer, which is not ours to look at."""
        if not self.pid:
            return 0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Children:
    """Starts every child of a run and ends those that still live when the run ends."""

    def __init__(self, directory: Path, broker_command: list[str]) -> None:
        self.directory = directory
        self.broker_command = broker_command
        self.programs = Programs.build(directory)
        # As an installed package is, even where the environment forbids Python to keep what it compiled.
        compileall.compile_dir(SOURCE, quiet=1)
        self._servers: list[Server] = []
        self._count = 0

    def close(self) -> None:
        for server in self._servers:
            server.stop()
        self._servers.clear()

    def rest(self) -> None:
        """Waits until no server has anything left to do, such as freeing the space of what it was sent.

        They share a CPU: whoever is measured next would pay for it.
        """
        deadline = time.monotonic() + REST_TIMEOUT_SECONDS
        ticks = -1
        while time.monotonic() < deadline:
            seen = sum(server.cpu_ticks() for server in self._servers)
            if seen == ticks:
                return
            ticks = seen
            time.sleep(REST_SECONDS)

    def settle(self) -> None:
        """Waits until the servers have done what new partitions cost once, some of them every second.

        That is: names made durable, index files made.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            before = [server.cpu_ticks() for server in self._servers]
            time.sleep(SETTLE_SECONDS)
            after = [server.cpu_ticks() for server in self._servers]
            if max(map(operator.sub, after, before)) <= SETTLE_TICKS:
                return

    def new_directory(self, name: str) -> Path:
        self._count += 1
        directory = self.directory / f"{name}-{self._count}"
        directory.mkdir()
        return directory

    def release(self, *servers: Server) -> None:
        for server in servers:
            server.stop()
            if server in self._servers:
                self._servers.remove(server)

    def start_floor(
        self,
        response: bytes,
        *,
        python: bool = False,
        framed: bool = False,
        files: int = 1,
        body_file: Path | None = None,
        body_bytes: int = 0,
    ) -> Server:
        directory = self.new_directory("floor")
        response_path = directory / "response"
        response_path.write_bytes(response)
        command = list(self.programs.python_floor if python else self.programs.floor)
        command += ["--directory", str(directory), "--response", str(response_path)]
        if body_file is not None:
            command += ["--body-file", str(body_file), "--body-bytes", str(body_bytes)]
        if framed:
            command += ["--framed", "--files", str(files)]
        with pinned_to(SERVER_CPU):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) != 2:
            process.wait()
            raise BenchFailure(f"the floor did not start: {' '.join(command)}")
        name = "python sink" if python else f"framed floor, {files} files" if framed else "floor"
        server = Server(name, process, "127.0.0.1", int(words[1]))
        self._servers.append(server)
        return server

    def start_broker(self, data: Path | None = None, *, pin: bool = True) -> tuple[Server, float]:
        """A broker that has answered ApiVersions, and the seconds from exec to that answer."""
        data = data or self.new_directory("data")
        port = free_port()
        log_path = self.directory / f"broker-{port}.txt"
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        command = [*self.broker_command, "up", "--port", str(port), "--data", str(data)]
        with log_path.open("w") as log, pinned_to(SERVER_CPU if pin else None):
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, text=True)
        server = Server("tidelog", process, "127.0.0.1", port)
        self._servers.append(server)
        while True:
            try:
                with server.control() as control:
                    control.api_versions()
                return server, time.perf_counter() - start
            except (ConnectionError, WireError):
                if process.poll() is not None or time.perf_counter() - start > START_TIMEOUT_SECONDS:
                    tail = log_path.read_text()[-2000:]
                    raise BenchFailure(f"{' '.join(command)} does not serve\n{tail}") from None
                time.sleep(0.001)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of the load generator saw of one server."""

    requests_per_second: float
    megabytes_per_second: float
    p50_us: float
    p99_us: float
    load_cpu_share: float
    server_cpu_share: float
    server_us_per_request: float
    lost_share: float
    """Share of the time in which server or generator were ready to run and others had their CPU."""

    @property
    def wall_us_per_request(self) -> float:
        return 1e6 / self.requests_per_second


@dataclass(frozen=True, slots=True)
class Load:
    """One load: which frames, over how many connections, how deep, and for how long."""

    requests: Path
    connections: int
    depth: int
    response_bytes: int
    shape: AnswerShape
    duration_ms: int
    warmup_ms: int
    max_bytes: int


def run_load(programs: Programs, server: Server, load: Load, *, check: bool) -> Measurement:
    command = [*programs.load, "--host", server.host, "--port", str(server.port)]
    command += ["--requests", str(load.requests), "--connections", str(load.connections)]
    command += ["--depth", str(load.depth), "--response-bytes", str(load.response_bytes)]
    command += ["--duration-ms", str(load.duration_ms), "--warmup-ms", str(load.warmup_ms)]
    command += ["--max-bytes", str(load.max_bytes), "--server-pid", str(server.pid)]
    if check:
        command += ["--error-at", str(load.shape.error_at), "--offset-at", str(load.shape.offset_at)]
    else:
        command += ["--no-check"]
    with pinned_to(LOAD_CPU):
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if done.returncode != 0:
        raise BenchFailure(f"load against {server!r} failed: {done.stderr.strip()}")
    seen = json.loads(done.stdout)
    seconds = seen["seconds"]
    requests = max(seen["requests"], 1)
    server_cpu = seen["server_cpu_seconds"]
    return Measurement(
        requests_per_second=requests / seconds,
        megabytes_per_second=(seen["sent_bytes"] + seen["received_bytes"]) / seconds / 1e6,
        p50_us=seen["p50_us"],
        p99_us=seen["p99_us"],
        load_cpu_share=seen["load_cpu_seconds"] / seconds,
        server_cpu_share=server_cpu / seconds if server_cpu >= 0 else float("nan"),
        server_us_per_request=server_cpu * 1e6 / requests if server_cpu >= 0 else float("nan"),
        lost_share=(max(seen["load_wait_seconds"], 0.0) + max(seen["server_wait_seconds"], 0.0)) / seconds,
    )
