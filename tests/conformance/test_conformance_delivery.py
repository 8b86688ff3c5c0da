"""The examples in examples/delivery do what docs/delivery.md says: what a crash loses and what it repeats."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "delivery"
RUN_SECONDS_MAX = 100
ORDERS = 20


def run(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *words],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def table(bootstrap: str) -> str:
    """What run.py prints, with the broker under test."""
    return run("run.py", "--bootstrap", bootstrap)


@pytest.fixture(scope="module")
def outcomes(table: str) -> dict[str, list[int]]:
    """Records in, processed, lost, repeated, by worker."""
    lines = table.splitlines()[1:]
    return {" ".join(line.split()[:-4]): [int(figure) for figure in line.split()[-4:]] for line in lines}


def test_at_most_once_loses_and_never_repeats(outcomes: dict[str, list[int]]) -> None:
    records, processed, lost, repeated = outcomes["at most once"]
    assert (records, repeated) == (ORDERS, 0)
    assert lost >= 1 and processed == records - lost


def test_at_least_once_repeats_and_never_loses(outcomes: dict[str, list[int]]) -> None:
    records, processed, lost, repeated = outcomes["at least once"]
    assert (records, lost) == (ORDERS, 0)
    assert repeated >= 1 and processed == records + repeated


def test_exactly_once_neither_loses_nor_repeats(outcomes: dict[str, list[int]]) -> None:
    assert outcomes["exactly once"] == [ORDERS, ORDERS, 0, 0]


def test_one_program_alone(bootstrap: str) -> None:
    printed = run("at_least_once.py", "--bootstrap", bootstrap)
    assert printed == "20 orders: 25 processed, 0 lost, 5 repeated\n"


def test_the_documentation_shows_the_real_output(table: str) -> None:
    assert table in (ROOT / "docs" / "delivery.md").read_text()


def test_the_programs_are_short() -> None:
    for name in ("at_most_once.py", "at_least_once.py", "exactly_once.py"):
        assert len((EXAMPLES / name).read_text().splitlines()) <= 60
