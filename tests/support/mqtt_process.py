"""An MQTT gateway in a process of its own, which a test can kill.

with MqttProcess(bootstrap) as gateway:
    client.connect("127.0.0.1", gateway.port)
"""

import os
import re
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


class MqttProcess:
    """Runs from `start` to `close`; a restart keeps port and name."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        name: str = "one",
    ) -> None:
        properties = [part for key, value in (client or {}).items() for part in ("-X", f"{key}={value}")]
        self.name = name
        self._command = [
            *program("tidelog.cli"),
            *("gateway", "mqtt", "--bootstrap", bootstrap, "--name", name),
            *properties,
            *options,
        ]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        #: by scheme: mqtt or mqtts, ws or wss, http
        self.ports: dict[str, int] = {}
        self._log = tempfile.TemporaryFile(prefix="tidelog-mqtt-")  # noqa: SIM115 (closed by close)

    def __repr__(self) -> str:
        return f"<MqttProcess {self.port}>"

    def __enter__(self) -> "MqttProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "MqttProcess":
        """Start it and return when it listens; a port that it had is taken again."""
        self._process = subprocess.Popen(
            [*self._command, "--port", str(self.port), "--log-level", "info", "--exit-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
        )
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while not select.select([self._process.stdout], [], [], 0.1)[0]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the gateway did not start:\n{self.log()}")
        line = self._process.stdout.readline()
        self.ports = {scheme: int(port) for scheme, port in re.findall(r"(\w+)://[^ ,]*:(\d+)", line)}
        if not self.ports:
            raise AssertionError(f"the gateway did not start: {line}\n{self.log()}")
        self.port = self.ports.get("mqtt") or self.ports["mqtts"]
        return self

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
