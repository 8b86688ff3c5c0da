"""An instance of the schema registry in a process of its own, which a test can kill.

with RegistryProcess(bootstrap) as registry:
    SchemaRegistryClient({"url": registry.url})
"""

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.support.child_programs import environment, program

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0


class RegistryProcess:
    """Runs from `start` to `close`; a restart keeps the port."""

    def __init__(
        self, bootstrap: str, client: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        properties = [part for name, value in (client or {}).items() for part in ("-X", f"{name}={value}")]
        self._command = [*program("tidelog.cli"), "registry", "--bootstrap", bootstrap, *properties, *options]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self._log = tempfile.TemporaryFile(prefix="tidelog-registry-")  # noqa: SIM115 (closed by close)

    def __repr__(self) -> str:
        return f"<RegistryProcess {self.url}>"

    def __enter__(self) -> "RegistryProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> "RegistryProcess":
        """Start it and return when it listens."""
        self.launch()
        self.await_ready()
        return self

    def launch(self) -> None:
        """Start it and return at once; a port that it had is taken again."""
        port = self.url.rpartition(":")[2] or "0"
        self._process = subprocess.Popen(
            [*self._command, "--port", port, "--log-level", "info", "--exit-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
        )

    def await_ready(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not select.select([self._process.stdout], [], [], 0.1)[0]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the registry did not start:\n{self.log()}")
        line = self._process.stdout.readline()
        if " at " not in line:
            raise AssertionError(f"the registry did not start: {line}\n{self.log()}")
        self.url = line.rpartition(" at ")[2].strip()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End it in good order."""
        self.signal(signal.SIGTERM)
        self._wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def log(self) -> str:
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
