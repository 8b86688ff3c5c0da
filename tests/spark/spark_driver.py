"""A Spark driver as a process that can be killed in several ways, and a watch that says when.

driver = Driver(command, log)
watch.wait_for(Moment.DECIDED, driver, exactly_once=True)
driver.kill(jvm_alone=True)
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from tidelog.client.client_settings import READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import LATEST, Cluster
from tidelog.client.faults import ClientFault
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.commit_protocol import COMMIT_LOG_TOPIC

#: offsets that a commit takes in the log: the decision, its marker, the done mark
OFFSETS_PER_COMMIT = 3
MOMENT_SECONDS_MAX = 30.0


def settings_of(bootstrap: str, **more: str) -> ClientSettings:
    """A client that sees committed records only, unless told otherwise."""
    named = {name.replace("_", "."): value for name, value in more.items()}
    return ClientSettings.from_options({"bootstrap.servers": bootstrap, **named})


class Moment(Enum):
    """When a driver is killed; the value is how many offsets of a commit are in the log then."""

    ANY = 0
    WRITING = 1
    DECIDED = 2


_SEEN = {Moment.WRITING: "a decision was being written", Moment.DECIDED: "decided, not all ended"}


class Driver:
    """The driver as a process group of its own."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Its exit code; raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def kill(self, *, jvm_alone: bool) -> None:
        """SIGKILL; the group is the driver and its JVM, while Python workers have a group of their own."""
        if jvm_alone:
            kill_one([child for child in descendants(self._process.pid) if "java" in command_of(child)[0]])
            try:
                self._process.wait(10)
                return
            except subprocess.TimeoutExpired:
                pass
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_worker(self) -> bool:
        """SIGKILL of a Python worker that runs tasks, not of one that plans; False when there is none."""
        everybody = descendants(self._process.pid)
        daemons = [child for child in everybody if "pyspark.worker" in command_of(child)]
        return kill_one([worker for daemon in daemons for worker in descendants(daemon)])

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.running:
            self.kill(jvm_alone=False)

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]


def kill_one(process_ids: Sequence[int]) -> bool:
    """SIGKILL one of them; False when none is left to kill."""
    if not process_ids:
        return False
    try:
        os.kill(random.choice(process_ids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def descendants(process_id: int) -> list[int]:
    """The processes that it has started, those that they have started, and so on."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    waiting = [process_id]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def command_of(process_id: int) -> list[str]:
    """Its command line; one empty word when it has ended."""
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return words or [""]


class Watch:
    """Looks at the ends of the commit log and of the output, as often as it can."""

    def __init__(self, bootstrap: str, output: str) -> None:
        patience = {"default_api_timeout_ms": "2000", "request_timeout_ms": "2000"}
        self._cluster = Cluster(settings_of(bootstrap, isolation_level="read_uncommitted", **patience))
        self._output = output
        self._written = 0
        self._places: dict[str, list[TopicPartition]] = {}

    def close(self) -> None:
        self._cluster.close()

    def written(self) -> int:
        """The records in the output, visible or not; what was seen last while brokers are away."""
        self._written = max(self._written, self._end_of(self._output) or 0)
        return self._written

    def wait_for(self, moment: Moment, driver: Driver, exactly_once: bool) -> str:
        """Wait until the commit log looks like the moment, or too long; what was seen, in words."""
        deadline = time.monotonic() + MOMENT_SECONDS_MAX
        while exactly_once and moment is not Moment.ANY and driver.running and time.monotonic() < deadline:
            end = self._end_of(COMMIT_LOG_TOPIC)
            if end is not None and end % OFFSETS_PER_COMMIT == moment.value:
                return _SEEN[moment]
            time.sleep(0.002)
        return "at any time"

    def _end_of(self, topic: str) -> int | None:
        """The sum of the ends of its partitions; None when brokers do not say."""
        try:
            if topic not in self._places:
                found = self._cluster.topics([topic])
                if topic not in found:
                    return None
                partitions = found[topic].partitions
                self._places[topic] = [TopicPartition(topic, one.partition) for one in partitions]
            listed = self._cluster.list_offsets(dict.fromkeys(self._places[topic], LATEST), READ_UNCOMMITTED)
        except ClientFault:
            return None
        return sum(one.offset for one in listed.values())
