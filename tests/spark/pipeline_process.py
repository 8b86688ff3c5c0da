"""A pipeline as a process of its own, as `tidelog pipeline run` starts it, to be killed at any moment.

`run_with_kills` starts it, kills the driver with everything that it started at a random moment, and starts
it again; the last run is let end. The state of pipelines is in a folder of the test.
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


def start(definition: dict[str, Any], folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a pipeline; its file and its output are in `folder`."""
    path = folder / f"{definition['name']}.yaml"
    # JSON is YAML.
    path.write_text(json.dumps(definition))
    environment = {**os.environ, "TIDELOG_PIPELINES": str(folder / "state")}
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(path), "--progress", "1", *more],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )


def kill(process: "subprocess.Popen[str]") -> None:
    """SIGKILL for the driver, Spark's JVM and the Python workers."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def run_to_end(definition: dict[str, Any], folder: Path, *more: str) -> str:
    """Run until it ends by itself; returns what it printed."""
    process = start(definition, folder, *more)
    try:
        code = process.wait(RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    text = (folder / "output.txt").read_text()
    assert code == 0, text[-4000:]
    return text


def rows_reported(definition: dict[str, Any], folder: Path) -> int:
    """How many rows the pipeline has reported since its start; 0 before that."""
    path = folder / "state" / definition["name"] / "status.json"
    if not path.exists():
        return 0
    return sum(one["rows"] for one in json.loads(path.read_text())["progress"])


def run_with_kills(definition: dict[str, Any], folder: Path, kills: int, seed: int) -> int:
    """Run with `kills` kills, each a random time after the first reported rows, then to the end.

    Returns how many of them hit a pipeline that was at work.
    """
    moments = random.Random(seed)
    hits = 0
    for _ in range(kills):
        (folder / "state" / definition["name"] / "status.json").unlink(missing_ok=True)
        process = start(definition, folder)
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while process.poll() is None and not rows_reported(definition, folder):
            assert time.monotonic() < deadline, (folder / "output.txt").read_text()[-4000:]
            time.sleep(0.1)
        time.sleep(moments.uniform(0, 3))
        if process.poll() is None:
            hits += 1
            kill(process)
    run_to_end(definition, folder)
    return hits
