"""The parent's side of a broker in a child process: start it, hear that it is ready, signal it, reap it.

`launch` returns at once, so that several brokers start side by side; `wait_ready` waits with a bound. The
child is in a process group of its own: Ctrl-C in the terminal reaches the parent alone. It does not outlive
the parent: it watches the pipe that is its standard input, and stops cleanly when that ends; one that was
stopped by SIGSTOP is continued by the kernel when the parent dies, and then sees it (see `child_broker`).
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

LOG_TAIL_BYTES = 4000


_lasting_threads: dict[int, ThreadPoolExecutor] = {}


def in_lasting_thread(start: "Callable[[], subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes]":
    """Start a child from a thread that ends with the process: to the kernel, that thread is the parent.

    Brokers may be started from threads that end long before the process does.
    """
    process_id = os.getpid()  # threads do not come along through a fork
    if process_id not in _lasting_threads:
        _lasting_threads[process_id] = ThreadPoolExecutor(1, "tidelog-parent")
    return _lasting_threads[process_id].submit(start).result()


class BrokerNotStarted(RuntimeError):
    """The broker did not become ready; the message says why."""


class Ready(NamedTuple):
    """What a broker says about itself when it is ready."""

    bootstrap: str
    node_id: int
    cluster_id: str


class BrokerProcess:
    """One broker in a child process, from `launch` until it ended; it can be launched again."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        log: "Path | IO[bytes]",
        log_level: str = "warning",
        log_format: str = "text",
        command_prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = dict(settings)
        self.broker_id = int(self.settings.get("node.id", "1"))
        self.log = log
        self.log_level = log_level
        self.log_format = log_format
        self.command_prefix = tuple(command_prefix)
        self.environment = dict(environment or {})
        self.ready: Ready | None = None
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def __repr__(self) -> str:
        state = f"pid={self.process_id}" if self.running else f"exit={self.exit_code}"
        return f"<BrokerProcess {self.broker_id} {state}>"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def ready_descriptor(self) -> int:
        """Readable when the ready line or the end of the child is to be noticed by `poll_ready`."""
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout.fileno()

    def launch(self) -> None:
        """Start the child and return at once."""
        assert self._process is None, f"{self!r} was not reaped"
        # The package may be on sys.path without being installed (a source tree, an editable path).
        package_root = str(Path(__file__).resolve().parents[2])
        python_path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH"))))
        command = [*self.command_prefix, sys.executable, "-m", "tidelog.server.child_broker"]
        self.ready = self.exit_code = None
        self._received = b""
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(self.log.open("ab")) if isinstance(self.log, Path) else self.log

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [*command, str(self.broker_id)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self.environment, "PYTHONPATH": python_path},
                    process_group=0,
                )

            self._process = in_lasting_thread(start)
        instructions = {
            "settings": self.settings,
            "log_level": self.log_level,
            "log_format": self.log_format,
        }
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended already: wait_ready says so
            self._process.stdin.write(json.dumps(instructions).encode() + b"\n")
            self._process.stdin.flush()

    def poll_ready(self) -> Ready | None:
        """Read what the child said; raise if it ended instead. None: the line is not whole yet."""
        piece = os.read(self.ready_descriptor, 4096)
        if not piece:
            raise BrokerNotStarted(
                f"broker {self.broker_id} did not start: it ended\n{self.log_tail()}".rstrip()
            )
        self._received += piece
        if not self._received.endswith(b"\n"):
            return None
        fields = json.loads(self._received)
        self.ready = Ready(str(fields["bootstrap"]), int(fields["node_id"]), str(fields["cluster_id"]))
        return self.ready

    def wait_ready(self, timeout_seconds: float) -> Ready:
        """Return when the broker serves; a child that fails or is late is killed and reaped."""
        deadline = time.monotonic() + timeout_seconds
        while self.ready is None:
            remaining_seconds = max(0.0, deadline - time.monotonic())
            # Not select(): a test that has many files open has descriptors beyond what it knows.
            readable = select.poll()
            readable.register(self.ready_descriptor, select.POLLIN)
            try:
                if not readable.poll(remaining_seconds * 1000):
                    raise BrokerNotStarted(
                        f"broker {self.broker_id} did not start: it was not ready within "
                        f"{timeout_seconds:g} s\n{self.log_tail()}".rstrip()
                    )
                self.poll_ready()
            except BrokerNotStarted:
                self.kill(timeout_seconds=10.0)
                raise
        return self.ready

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if it is still there."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, timeout_seconds: float) -> int:
        """Stop it as SIGTERM does and return its exit code; one that takes too long is killed."""
        if self._process is None:
            return 0 if self.exit_code is None else self.exit_code
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process takes the signal when it goes on
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill(timeout_seconds=10.0)
            raise TimeoutError(
                f"broker {self.broker_id} did not stop within {timeout_seconds:g} s and was killed"
            ) from None
        return self.reap(0)

    def kill(self, timeout_seconds: float) -> None:
        """End it with SIGKILL and reap it, if it was launched."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self.reap(timeout_seconds)

    def reap(self, timeout_seconds: float) -> int:
        """Wait for the end, which must be near, and give back what it held; the exit code."""
        if self._process is not None:
            self.exit_code = self._process.wait(timeout_seconds)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            self._process = None
        assert self.exit_code is not None, "it was never launched"
        return self.exit_code

    def log_tail(self, size_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of the child's log."""
        with contextlib.ExitStack() as stack:
            if isinstance(self.log, Path):
                if not self.log.exists():
                    return ""
                file: IO[bytes] = stack.enter_context(self.log.open("rb"))
            else:
                file = self.log
            start = max(0, os.fstat(file.fileno()).st_size - size_bytes)
            return os.pread(file.fileno(), size_bytes, start).decode(errors="replace")
