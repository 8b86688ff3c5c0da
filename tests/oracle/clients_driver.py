"""The processes that hold the clients: one for each client and system, for many sessions side by side.

A driver ends when its standard input does, so none outlives this process.
"""

import contextlib
import hashlib
import itertools
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.oracle.clients_session import Json
from tests.oracle.systems import System
from tests.support.child_programs import environment, program
from tests.support.kafka_nodes import kafka_libraries

TESTS = Path(__file__).parents[1]
JAVA_SOURCES = TESTS / "conformance" / "java" / "sessions"
JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CLIENTS = ("java", "librdkafka")
COMPILE_SECONDS_MAX = 120
#: the outcome of an operation that did not come back
HUNG = {"error": "(no answer in time)"}
GONE = {"error": "(the driver ended)"}


def java_classes() -> Path:
    """The folder of the Java driver's classes, compiled when its sources are new."""
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog"
    folder = cache / f"client-sessions-{digest}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="client-sessions-", dir=cache))
        command = ["javac", "-nowarn", "-cp", f"{kafka_libraries()}/*", "-d", str(made), *map(str, sources)]
        subprocess.run(command, check=True, timeout=COMPILE_SECONDS_MAX, stderr=subprocess.DEVNULL)
        # Another process may have been quicker.
        with contextlib.suppress(OSError):
            made.rename(folder)
    return folder


class Driver:
    """One client's process on one system."""

    def __init__(self, client: str, system: System) -> None:
        plain = ",".join(f"127.0.0.1:{pair[0]}" for pair in system.ports.values())
        login = ",".join(f"127.0.0.1:{pair[1]}" for pair in system.ports.values())
        if client == "java":
            command = [
                "java",
                *JAVA_OPTIONS,
                "-cp",
                f"{java_classes()}:{kafka_libraries()}/*",
                "ClientSessions",
            ]
        else:
            command = program("tests.oracle.clients_librdkafka")
        self.log = tempfile.TemporaryFile(prefix="oracle-client-")  # noqa: SIM115 (closed by close)
        self._process = subprocess.Popen(
            [*command, plain, login],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment(),
            process_group=0,
        )
        self._ids = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Json]] = {}
        self._writing = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"], None)
            if waiting is not None:
                waiting.put(answer)
        for waiting in list(self._waiting.values()):
            waiting.put({"outcome": GONE, "seconds": 0.0})

    def ask(self, session: str, operation: str, fields: Json, seconds_max: float) -> tuple[Json, float]:
        """What came of an operation, and how long it took."""
        answers: queue.SimpleQueue[Json] = queue.SimpleQueue()
        assert self._process.stdin is not None
        with self._writing:
            number = next(self._ids)
            self._waiting[number] = answers
            line = {"id": number, "session": session, "operation": operation, "fields": fields}
            try:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return GONE, 0.0
        try:
            answer = answers.get(timeout=seconds_max)
        except queue.Empty:
            self._waiting.pop(number, None)
            return HUNG, seconds_max
        return answer["outcome"], answer["seconds"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.log.close()


@contextlib.contextmanager
def driver(client: str, system: System) -> Iterator[Driver]:
    made = Driver(client, system)
    try:
        yield made
    finally:
        made.close()
