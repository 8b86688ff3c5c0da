"""Real clients with default settings ride through failovers: the leader of what they write to dies twice.

Nothing that was acknowledged may be missing, and a client goes on by itself: no send fails, the reader gets
everything, in order. What they saw goes through the same checkers as the long chaos run.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.history import (
    ACKNOWLEDGED,
    NO_OFFSET,
    UNKNOWN,
    Assigned,
    Event,
    Follows,
    Poll,
    Send,
    collect,
)
from tests.chaos.history_checks import check
from tests.conformance.drivers.contract import require_program
from tests.conformance.drivers.java import jars
from tests.support.child_programs import environment, program
from tidelog.testing.cluster import RunningCluster

SECONDS = 16.0
ALL_SECONDS_MAX = 110.0
KILLS = 2
PARTITIONS = 3
FOLDER = Path(__file__).parent
#: whether a client is idempotent unless told otherwise: then nothing may appear twice either
IDEMPOTENT = {"confluent-kafka": False, "kafka-python": True, "java": True}
#: the others ride in `make slow-test`
RIDE_IN_EVERY_RUN = {"confluent-kafka"}

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    settings = {"offsets.topic.num.partitions": "3", "auto.create.topics.enable": "false"}
    with RunningCluster(3, settings) as running:
        yield running


def command_of(client: str) -> list[str]:
    if client != "java":
        return [*program("tests.chaos.failover_client"), client]
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]
    return [require_program("java"), *options, str(FOLDER / "java" / "Failover.java")]


class Rider:
    """A client process; its lines come as they are said, with the time."""

    def __init__(self, client: str, cluster: RunningCluster, topic: str) -> None:
        self.client, self.topic = client, topic
        self.lines: list[tuple[float, str]] = []
        # A file: nobody reads it meanwhile, and a pipe could fill.
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self.process = subprocess.Popen(
            [*command_of(client), cluster.bootstrap, topic, f"{topic}-group", str(SECONDS)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(),
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def wait_for(self, word: str, since: float, seconds: float) -> None:
        """Until it has said a word after a moment."""
        deadline = time.monotonic() + seconds
        while not any(at > since and line.startswith(word) for at, line in list(self.lines)):
            assert self.process.poll() is None, f"{self.client} ended"
            assert time.monotonic() < deadline, f"{self.client} did not say {word} for {seconds:g} s"
            time.sleep(0.02)

    def finish(self) -> str:
        """Its standard error, when it has ended by itself."""
        self.process.wait(ALL_SECONDS_MAX)
        self.thread.join(5)
        self.errors.seek(0)
        return self.errors.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def events(self) -> Iterator[Event]:
        """What it said, as a history."""
        got: list[tuple[int, int, str]] = []
        yield Follows("riders", self.topic)
        for at, line in self.lines:
            word, *rest = line.split(" ", 3)
            if word in ("sent", "failed"):
                number, partition = int(rest[0]), int(rest[1])
                outcome = ACKNOWLEDGED if word == "sent" else UNKNOWN
                offset = int(rest[2]) if word == "sent" else NO_OFFSET
                value = f"client/{number}"
                yield Send(
                    "client",
                    number,
                    self.topic,
                    partition,
                    value,
                    outcome,
                    offset,
                    at,
                    at,
                    idempotent=IDEMPOTENT[self.client],
                )
            elif word == "assigned":
                yield Assigned("reader", at, ())
            elif word == "read":
                got.append((int(rest[0]), int(rest[1]), rest[2]))
                record = ((int(rest[1]), rest[2]),)
                yield Poll("reader", "riders", self.topic, int(rest[0]), record, at)
        for partition in range(PARTITIONS):
            final = {offset: value for place, offset, value in got if place == partition}
            records = tuple(sorted(final.items()))
            yield Poll("final", "", self.topic, partition, records, 1e12, final=True)


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(client, marks=[] if client in RIDE_IN_EVERY_RUN else pytest.mark.slow)
        for client in IDEMPOTENT
    ],
)
def test_a_client_rides_through_failovers(cluster: RunningCluster, client: str) -> None:
    cluster.wait_in_sync()
    topic = cluster.create_topic(f"ridden-by-{client}", PARTITIONS, min_insync_replicas=2)
    rider = Rider(client, cluster, topic)
    try:
        rider.wait_for("sent", 0.0, 30)
        rider.wait_for("read", 0.0, 30)
        for _ in range(KILLS):
            leader = cluster.leader(topic, 0)
            killed = time.monotonic()
            cluster.kill(leader)
            rider.wait_for("sent", killed + 1.0, 30)
            rider.wait_for("read", killed + 1.0, 30)
            cluster.start(leader)
            cluster.wait_in_sync()
        error = rider.finish()
    finally:
        rider.close()
    assert rider.lines[-1][1] == "done", error
    assert [line for _, line in rider.lines if line.startswith("failed")] == []
    history = collect(rider.events())
    assert len(history.sends) > 100
    assert check(history) == {}
