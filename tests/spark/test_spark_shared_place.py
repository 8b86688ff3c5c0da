"""A shared pipeline on two machines: seen and stopped from the other, and taken over when its own is lost.

The machines are two folders of files on this one. The lost one is a driver that is paused with its JVM in the
middle of its work: it wakes up when another has taken over, and everything is in the output once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ready_runs import received

pytestmark = pytest.mark.timeout(500)
SECONDS_MAX = 200
RECORDS = 30_000


class Machine:
    """Somebody's files; what runs there ends with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.environment = {**os.environ, "TIDELOG_PIPELINES": str(folder)}
        self.process: subprocess.Popen[str] | None = None

    def start(self, path: Path) -> "subprocess.Popen[str]":
        with (self.folder / "output.txt").open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(path), "--progress", "0.5"],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        return self.process

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", "pipeline", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()[-3_000:]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    both = Machine(tmp_path / "north"), Machine(tmp_path / "south")
    yield both
    for one in both:
        one.close()


def wait_until(told: Callable[[], bool], *machines: Machine) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not told():
        assert time.monotonic() < deadline, [one.output() for one in machines]
        time.sleep(0.5)


def test_a_team_sees_stops_and_takes_over(
    bootstrap: str,
    make_topic: Callable[..., str],
    fill: Callable[..., None],
    machines: tuple[Machine, Machine],
    tmp_path: Path,
) -> None:
    north, south = machines
    topic, out = make_topic(2), make_topic(2)
    fill(topic, range(RECORDS), partitions=2)
    name = f"copy-{topic}"
    content = {
        "name": name,
        "bootstrap": bootstrap,
        "shared": True,
        "trigger": "1 second",
        "master": "local[2]",
        "spark": {"spark.driver.memory": "1g"},
        "checkpoint": str(tmp_path / "checkpoint"),
        "sources": {"all": {"topic": topic, "options": {"maxOffsetsPerTrigger": 3_000}}},
        "sinks": [{"topic": out}],
    }
    path = tmp_path / "copy.yaml"
    path.write_text(json.dumps(content))
    at = ("--shared", "--bootstrap", bootstrap)

    def seen() -> dict[str, Any]:
        told = json.loads(south.command("list", "--json", *at))
        return next((one for one in told if one["name"] == name), {})

    def rows() -> int:
        return sum(one["rows"] for one in seen().get("progress", ()))

    north.start(path)
    wait_until(lambda: seen().get("state") == "running" and rows() > 0, north)
    assert "stopped" in south.command("stop", name, *at)
    assert north.process is not None and north.process.wait(60) == 0, north.output()
    assert seen()["state"] == "stopped"

    lost = north.start(path)
    wait_until(lambda: seen().get("state") == "running" and rows() > 0, north)
    os.killpg(lost.pid, signal.SIGSTOP)
    fill(topic, range(RECORDS, RECORDS + 2_000), partitions=2)
    south.start(path)
    wait_until(lambda: "it is taken over" in south.output(), south)
    wait_until(lambda: seen().get("state") == "running" and rows() > 0, south)
    os.killpg(lost.pid, signal.SIGCONT)
    assert lost.wait(SECONDS_MAX) == 1, north.output()
    assert "was taken over" in north.output() or "FencedDriver" in north.output(), north.output()
    wait_until(lambda: len(received(bootstrap, out)) >= RECORDS + 2_000, south)
    assert "stopped" in north.command("stop", name, *at)
    found = Counter(message.value() for message in received(bootstrap, out))
    assert found == Counter(b"%d" % number for number in range(RECORDS + 2_000))
