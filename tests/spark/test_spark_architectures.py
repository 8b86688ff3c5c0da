"""The examples of kappa and lambda, run as a reader would."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(SECONDS_MAX + 30)


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "run.py")],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kappa() -> None:
    output = run("kappa")
    assert "readers are switched to v2" in output
    assert "totals-v2 is served and right" in output
    assert "v1 had 0 totals wrong" not in output


def test_lambda() -> None:
    assert "the speed layer alone lacks 200 orders" in run("lambda")
