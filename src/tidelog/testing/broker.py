"""A real broker for a test: in a thread of this process, or in a child process that can be killed.

    with RunningBroker() as broker:
        broker.create_topic("orders", partitions=3)
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The broker listens on a free port of 127.0.0.1 and keeps its data in a temporary folder, which goes with it
unless the caller chose one. A restart keeps port and data. Every wait has a bound; a child process dies with
this one, because it watches the pipe that is its standard input.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tidelog.server.process import BrokerThread

Mode = Literal["thread", "process"]

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
TOPIC_SECONDS_MAX = 10.0
STDERR_TAIL_BYTES = 4000

# What tests want and production does not: no wait before a group's first rebalance, no fixed port.
TEST_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
}


class BrokerNotStarted(RuntimeError):
    """The broker did not become ready; the message says why."""


class RunningBroker:
    """A broker that runs from `start` to `stop`; usable as a context manager."""

    __test__ = False  # the name TestBroker must not make pytest collect it

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        data_directory: Path | None = None,
        mode: Mode = "thread",
    ) -> None:
        if mode not in ("thread", "process"):
            raise ValueError(f"mode is {mode!r}, not 'thread' or 'process'")
        self.mode: Mode = mode
        self.settings = {**TEST_SETTINGS, **(settings or {})}
        self._owns_data = data_directory is None
        self.data_directory = data_directory or Path(tempfile.mkdtemp(prefix="tidelog-test-"))
        self._bootstrap: str | None = None
        self._thread: BrokerThread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    def __repr__(self) -> str:
        state = self._bootstrap if self.running else "stopped"
        return f"<RunningBroker {state} {self.mode} data={self.data_directory}>"

    def __enter__(self) -> "RunningBroker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The address for clients, `127.0.0.1:port`; the same after a restart."""
        if self._bootstrap is None:
            raise RuntimeError("the broker was never started")
        return self._bootstrap

    @property
    def running(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._thread is not None

    @property
    def process_id(self) -> int | None:
        """The child's process id in process mode, else None."""
        return self._process.pid if self._process is not None else None

    def start(self) -> "RunningBroker":
        """Start the broker and return when it serves requests."""
        if self.running:
            raise RuntimeError(f"{self!r} runs already")
        overrides = {**self.settings, "log.dirs": str(self.data_directory)}
        if self._bootstrap is not None:
            overrides["listeners"] = f"PLAINTEXT://{self._bootstrap}"
        try:
            bootstrap = (
                self._start_thread(overrides) if self.mode == "thread" else self._start_process(overrides)
            )
        except BaseException:
            self.close()
            raise
        self._bootstrap = bootstrap
        return self

    def stop(self) -> None:
        """Stop cleanly, as SIGTERM does; the data stays for another `start`."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop()
        if self._process is not None:
            self._process.terminate()
            self._reap(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End the child process with SIGKILL, as a crash would."""
        if self.mode != "process":
            raise RuntimeError("a thread cannot be killed: use RunningBroker(mode='process')")
        if self._process is not None:
            self._process.kill()
            self._reap(STOP_SECONDS_MAX)

    def restart(self) -> None:
        """Stop if it runs, then start on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the data folder if it is our own temporary one."""
        try:
            self.stop()
        finally:
            if self._owns_data:
                shutil.rmtree(self.data_directory, ignore_errors=True)
            if self._stderr is not None:
                self._stderr.close()
                self._stderr = None

    def create_topic(self, name: str, partitions: int = 1, **configs: Any) -> str:
        """Create a topic and return its name; `retention_ms=1000` sets retention.ms."""
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        texts = {
            setting.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
            for setting, value in configs.items()
        }
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=texts)
        futures = admin.create_topics([wanted], request_timeout=TOPIC_SECONDS_MAX)
        futures[name].result(timeout=TOPIC_SECONDS_MAX)
        return name

    def _start_thread(self, overrides: Mapping[str, str]) -> str:
        from tidelog.model.settings import BrokerSettings
        from tidelog.server.process import BrokerThread

        thread = BrokerThread(BrokerSettings.resolve(overrides))
        thread.start()
        self._thread = thread
        return thread.bootstrap

    def _start_process(self, overrides: Mapping[str, str]) -> str:
        # The package may be on sys.path without being installed (a source tree, an editable path).
        package_root = str(Path(__file__).resolve().parents[2])
        python_path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        if self._stderr is None:
            # A file without a name: it cannot fill a pipe nobody reads, and cannot be left behind.
            self._stderr = tempfile.TemporaryFile(prefix="tidelog-test-")  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.testing.child", json.dumps(dict(overrides))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": python_path},
            start_new_session=True,  # Ctrl-C in the terminal is for the tests; they stop the broker
        )
        return self._await_ready(self._process)

    def _await_ready(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        received = b""
        while not received.endswith(b"\n"):
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 4096) if readable else b""
            if not piece:
                why = "it ended" if readable else f"it was not ready within {START_SECONDS_MAX:g} s"
                tail = self._stderr_tail()
                process.kill()
                self._reap(STOP_SECONDS_MAX)
                raise BrokerNotStarted(f"the broker process did not start: {why}\n{tail}".rstrip())
            received += piece
        return str(json.loads(received)["bootstrap"])

    def _stderr_tail(self) -> str:
        if self._stderr is None:
            return ""
        size_bytes = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size_bytes - STDERR_TAIL_BYTES)
        return os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, start).decode(errors="replace")

    def _reap(self, timeout_seconds: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout_seconds)
            raise TimeoutError(
                f"the broker did not stop within {timeout_seconds:g} s and was killed"
            ) from None
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


TestBroker = RunningBroker
