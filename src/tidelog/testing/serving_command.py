"""A command of ours that serves in the foreground, as a process that can be killed and started again.

    with ServingCommand(("gateway", "mqtt"), broker.bootstrap, options=("--topic", "sensors")) as gateway:
        client.connect("127.0.0.1", gateway.port)

A restart takes the same port. The process ends when this one does, however that ends.
"""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
_ADDRESS = re.compile(r"(\w+)://[^ ,]*:(\d+)")


class NotServing(RuntimeError):
    """The command ended, or said nothing in time; with what it had to say."""


class ServingCommand:
    """`tidelog <words> --bootstrap …` from `start` to `close`; it says where it is when it listens."""

    def __init__(
        self,
        words: Sequence[str],
        bootstrap: str,
        *,
        client: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`client` is how it reaches the cluster (librdkafka's properties)."""
        properties = [part for name, value in (client or {}).items() for part in ("-X", f"{name}={value}")]
        self._words = tuple(words)
        self._command = [sys.executable, "-m", "tidelog.cli", *words, "--bootstrap", bootstrap]
        self._command += [*properties, *options]
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[str] | None = None
        #: the port of each scheme, such as mqtt or https, in the order in which they are said
        self.ports: dict[str, int] = {}
        #: the first of them
        self.port = 0
        self._log = tempfile.TemporaryFile(prefix="tidelog-serving-")  # noqa: SIM115 (closed by close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(self._words)} port={self.port}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def process_id(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it and return when it listens; raises NotServing."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start it and return at once."""
        assert self._process is None, "it runs already"
        self._process = subprocess.Popen(
            [*self._command, "--port", str(self.port), "--log-level", "info", "--exit-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
            # Ctrl-C is for whoever started it.
            start_new_session=True,
        )

    def await_ready(self) -> None:
        """Return when it listens; raises NotServing."""
        assert self._process is not None and self._process.stdout is not None, "it was not started"
        deadline = time.monotonic() + START_SECONDS_MAX
        while not select.select([self._process.stdout], [], [], 0.1)[0]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotServing(f"{self!r} did not start:\n{self.log()}")
        line = self._process.stdout.readline()
        self.ports = {scheme: int(port) for scheme, port in _ADDRESS.findall(line)}
        if not self.ports:
            raise NotServing(f"{self!r} did not start: {line}\n{self.log()}")
        self.port = next(iter(self.ports.values()))

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End it in good order."""
        self.signal(signal.SIGTERM)
        self._wait()

    def signal(self, number: int) -> None:
        os.kill(self.process_id, number)

    def log(self) -> str:
        """What it wrote to standard error, in all its lives."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._wait()
        self._log.close()

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(STOP_SECONDS_MAX)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None
