"""A real broker for a test: in a thread of this process, or in a child process that can be killed.

    with RunningBroker() as broker:
        broker.create_topic("orders", partitions=3)
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The broker listens on a free port of 127.0.0.1 and keeps its data in a temporary folder, which goes with it
unless the caller chose one. A restart keeps port and data. Every wait has a bound; a child process dies with
this one, because it watches the pipe that is its standard input.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

from tidelog.server.broker_process import BrokerNotStarted, BrokerProcess

if TYPE_CHECKING:
    from tidelog.server.process import BrokerThread

Mode = Literal["thread", "process"]

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0
TOPIC_SECONDS_MAX = 10.0

# What tests want and production does not: no wait before a group's first rebalance, no fixed port.
TEST_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
}


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
        self._process: BrokerProcess | None = None
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
            return self._process.running
        return self._thread is not None

    @property
    def process_id(self) -> int | None:
        """The child's process id in process mode, else None."""
        return self._process.process_id if self._process is not None else None

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
            process, self._process = self._process, None
            process.stop(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End the child process with SIGKILL, as a crash would."""
        if self.mode != "process":
            raise RuntimeError("a thread cannot be killed: use RunningBroker(mode='process')")
        if self._process is not None:
            self._process.kill(STOP_SECONDS_MAX)
            self._process = None

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
        if self._stderr is None:
            # A file without a name: it cannot fill a pipe nobody reads, and cannot be left behind.
            self._stderr = tempfile.TemporaryFile(prefix="tidelog-test-")  # noqa: SIM115 (closed by close)
        if self._process is not None and self._process.process_id is not None:
            self._process.reap(STOP_SECONDS_MAX)
        self._process = BrokerProcess(overrides, log=self._stderr)
        self._process.launch()
        return self._process.wait_ready(START_SECONDS_MAX).bootstrap


TestBroker = RunningBroker

__all__ = ["BrokerNotStarted", "RunningBroker", "TestBroker"]
