"""A broker in a child process on a real folder: start it, kill it, start it again on the same ports.

The child is that of `tidelog.server.broker_process`. Its log goes to `broker.log` beside the data, across
restarts, so that a test can look for tracebacks in it.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidelog.server import broker_process
from tidelog.testing.ports import ReservedPort

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0


class BrokerDied(Exception):
    """The child ended although nobody killed it."""


class BrokerProcess:
    """A child process that serves one data folder; restartable on the same ports.

    There is a port for each name in `listeners`. `source` is where another version of the package lies.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        log_dirs: list[Path] | None = None,
        listeners: Sequence[str] = ("PLAINTEXT",),
        source: str | None = None,
    ) -> None:
        self.folder = folder
        self.log_dirs = log_dirs if log_dirs is not None else [folder / "data"]
        self.log_path = folder / "broker.log"
        self._reserved = [ReservedPort() for _ in listeners]
        self.ports = {name: one.port for name, one in zip(listeners, self._reserved, strict=True)}
        own = {
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
        }
        self._process = broker_process.BrokerProcess(
            {**(settings or {}), **own},
            log=self.log_path,
            log_level="info",
            command_prefix=() if source is None else ("env", f"PYTHONPATH={source}"),
        )

    @property
    def bootstrap(self) -> str:
        """The address of the first listener."""
        return f"127.0.0.1:{next(iter(self.ports.values()))}"

    @property
    def pid(self) -> int:
        assert self._process.process_id is not None
        return self._process.process_id

    @property
    def running(self) -> bool:
        return self._process.running

    def start(self, *, wait: bool = True) -> None:
        """Start the child; with `wait`, return when it serves."""
        assert not self.running
        if self._process.process_id is not None:
            self._process.reap(STOP_SECONDS_MAX)
        self._process.launch()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> float:
        """Return when the broker serves; the result is how long that took."""
        begun = time.monotonic()
        try:
            self._process.wait_ready(START_SECONDS_MAX)
        except broker_process.BrokerNotStarted as fault:
            raise BrokerDied(str(fault)) from fault
        return time.monotonic() - begun

    def kill(self) -> None:
        """kill -9."""
        self._process.kill(STOP_SECONDS_MAX)

    def stop(self) -> int:
        """Stop cleanly; the exit code."""
        return self._process.stop(STOP_SECONDS_MAX)

    def resident_bytes(self) -> int:
        """The resident memory of the child."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

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

    def close(self) -> None:
        """Kill the child and give the ports back."""
        self.kill()
        for reserved in self._reserved:
            reserved.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PreparedBroker(BrokerProcess, ABC):
    """A broker that runs from the beginning of a `with` on, and has what its user wants to meet there."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make what has to be there."""

    def __enter__(self) -> Self:
        try:
            self.start()
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self
