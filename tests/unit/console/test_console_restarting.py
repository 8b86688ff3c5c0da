"""A console that crashes is started again; one that ends by itself is not."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, pathlib, signal, sys
from tidelog.console import restarting
restarting.PAUSE_SECONDS = 0
runs = pathlib.Path(sys.argv[1])
crashes, end = int(sys.argv[2]), sys.argv[3]
def run():
    with runs.open("a") as out: out.write("x")
    if len(runs.read_text()) <= crashes: os.kill(os.getpid(), signal.SIGABRT)
    if end == "exit": os._exit(3)
    if end == "term":
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
sys.exit(restarting.run_restarted(run))
"""


def outcome(folder: Path, crashes: int, end: str) -> tuple[int, int]:
    runs = folder / "runs"
    command = [sys.executable, "-c", PROGRAM, str(runs), str(crashes), end]
    done = subprocess.run(command, timeout=60, capture_output=True, check=False)
    return done.returncode, len(runs.read_text())


def test_it_is_started_again_after_a_crash(tmp_path: Path) -> None:
    assert outcome(tmp_path, 2, "return") == (0, 3)


def test_another_end_is_passed_on(tmp_path: Path) -> None:
    assert outcome(tmp_path, 0, "exit") == (3, 1)


def test_a_signal_goes_to_the_child(tmp_path: Path) -> None:
    assert outcome(tmp_path, 0, "term") == (128 + 15, 1)


def test_crashes_without_end_are_given_up(tmp_path: Path) -> None:
    assert outcome(tmp_path, 99, "return") == (128 + 6, 5)
