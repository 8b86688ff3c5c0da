"""A pipeline as a process of its own, as `tidelog pipeline run` starts it, to be killed at any moment.

`run_with_kills` starts it, kills the driver with its JVM at a random moment, and starts it again; the last
run is let end. The state of pipelines is in a folder of the test.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUN_SECONDS_MAX = 400.0
#: a kill comes up to so long after what it waits for
DELAY_SECONDS_MAX = 2.5


def start(definition: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    """Start a pipeline; its file and its output are in `folder`."""
    path = folder / f"{definition['name']}.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(definition))
    environment = {**os.environ, "TIDELOG_PIPELINES": str(folder / "state")}
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(path), "--progress", "0.25"],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )


def kill(process: "subprocess.Popen[str]") -> None:
    """SIGKILL for the driver and Spark's JVM; Python workers notice and end."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def run_to_end(definition: dict[str, Any], folder: Path) -> None:
    """Run until it ends by itself, as it should."""
    process = start(definition, folder)
    try:
        code = process.wait(RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert code == 0, _output(folder)
    assert _status(definition, folder)["state"] == "ended"


def wait_for(definition: dict[str, Any], folder: Path, process: "subprocess.Popen[str]", rows: int) -> None:
    """Until the queries run and have reported so many rows since the start."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while True:
        status = _status(definition, folder)
        mine = status.get("pid") == process.pid and status["state"] == "running"
        if mine and sum(one["rows"] for one in status["progress"]) >= rows:
            return
        assert process.poll() is None, f"it ended too early\n{_output(folder)}"
        assert time.monotonic() < deadline, _output(folder)
        time.sleep(0.05)


def run_with_kills(definition: dict[str, Any], folder: Path, kills: int, seed: int) -> None:
    """Run with `kills` kills, each a random time after its queries have started, then to the end.

    The first may come before anything is written. The others wait for the first rows, so that something
    is done from one kill to the next.
    """
    moments = random.Random(seed)
    for number in range(kills):
        process = start(definition, folder)
        try:
            wait_for(definition, folder, process, rows=min(number, 1))
            time.sleep(moments.uniform(0, DELAY_SECONDS_MAX))
            assert process.poll() is None, f"it ended before it could be killed\n{_output(folder)}"
        finally:
            kill(process)
    run_to_end(definition, folder)


def _status(definition: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "state" / definition["name"] / "status.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _output(folder: Path) -> str:
    return (folder / "output.txt").read_text()[-4000:]
