"""Every scenario runs unattended through the command line, as a person would run it, and its checks hold."""

import json
import subprocess
import sys
import time

import pytest

from tidelog.lab import catalog
from tidelog.lab.requirements import missing

SECONDS_MAX = 180
TOGETHER_SECONDS_MAX = 12 * 60

#: seconds by scenario, as they come
TIMES: dict[str, float] = {}


@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize("name", catalog.names())
def test_scenario_holds(name: str) -> None:
    if advice := missing(catalog.load(name)):
        pytest.skip("; ".join(advice))
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", "lab", "run", name, "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    TIMES[name] = time.monotonic() - began
    print(f"{name}: {TIMES[name]:.1f} s")
    assert run.stdout, run.stderr
    [result] = json.loads(run.stdout)
    assert result["outcome"] == "held", [step["faults"] for step in result["steps"]]
    assert run.returncode == 0
    assert len(result["steps"]) == len(catalog.load(name).steps)


def test_together_they_are_quick() -> None:
    """Not a measurement: twelve minutes is what a person's patience and CI allow for all of them."""
    for name, seconds in TIMES.items():
        print(f"{name:<28} {seconds:6.1f} s")
    print(f"{'together':<28} {sum(TIMES.values()):6.1f} s")
    assert TIMES, "run the whole file"
    assert sum(TIMES.values()) < TOGETHER_SECONDS_MAX
