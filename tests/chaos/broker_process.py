"""A broker in a child process on a real folder: start it, kill it, start it again on the same port.

Run as a program this file is the child: `broker_process.py DATA PORT [name=value]…` serves until it is
killed and prints one line when it is ready. Imported, `BrokerProcess` starts and ends such children. The
child's log goes to `broker.log` beside the data, across restarts, so that a test can look for tracebacks in
it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import tidelog

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
READY = "ready "
#: where the test itself imports Tidelog from
SOURCE = Path(tidelog.__file__).resolve().parents[1]


class BrokerDied(Exception):
    """The child ended although nobody killed it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """A child process that serves one data folder; restartable on the same port."""

    def __init__(
        self, folder: Path, settings: dict[str, str] | None = None, *, log_dirs: list[Path] | None = None
    ) -> None:
        self.folder = folder
        self.log_dirs = log_dirs if log_dirs is not None else [folder / "data"]
        self.settings = settings or {}
        self.port = free_port()
        self.log_path = folder / "broker.log"
        self._child: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the child; with `wait`, return when it serves."""
        assert not self.running
        self.close_pipe()
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, __file__, ",".join(map(str, self.log_dirs)), str(self.port)]
        command += [f"{name}={value}" for name, value in self.settings.items()]
        with self.log_path.open("a") as log:
            self._child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> float:
        """Return when the broker serves; the result is how long that took."""
        assert self._child is not None and self._child.stdout is not None
        begun = time.monotonic()
        watchdog = _Watchdog(self._child, START_SECONDS_MAX)
        try:
            line = self._child.stdout.readline()
        finally:
            watchdog.stop()
        if not line.startswith(READY):
            raise BrokerDied(f"no ready line but {line!r}; the log ends:\n{self.log_tail()}")
        return time.monotonic() - begun

    def kill(self) -> None:
        """kill -9."""
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGKILL)
        self._child.wait(STOP_SECONDS_MAX)

    def stop(self) -> int:
        """Stop cleanly; the exit code."""
        assert self._child is not None
        self._child.terminate()
        return self._child.wait(STOP_SECONDS_MAX)

    def resident_bytes(self) -> int:
        """The resident memory of the child."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-40:])

    def tracebacks(self) -> list[str]:
        """Every traceback in the log, with its last line."""
        found = []
        for piece in self.log_text().split("Traceback (most recent call last):")[1:]:
            lines = piece.strip("\n").splitlines()
            end = next(
                (i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines) - 1
            )
            found.append("\n".join(lines[: end + 1]))
        return found

    def close_pipe(self) -> None:
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()

    def __enter__(self) -> "BrokerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()
        self.close_pipe()


class _Watchdog:
    """Kills a child that takes too long, so that reading its pipe ends."""

    def __init__(self, child: "subprocess.Popen[str]", seconds: float) -> None:
        import threading

        self._timer = threading.Timer(seconds, child.kill)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()


def main(arguments: list[str]) -> int:
    import ctypes
    import logging

    # The child must not outlive a test that is killed itself.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from tidelog.model.settings import BrokerSettings
    from tidelog.server.process import serve

    values = dict(argument.split("=", 1) for argument in arguments[2:])
    values["log.dirs"] = arguments[0]
    values["listeners"] = f"PLAINTEXT://127.0.0.1:{arguments[1]}"
    return serve(
        BrokerSettings.resolve(values), on_ready=lambda info: print(READY + info.bootstrap, flush=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
