"""Commands started where SIGINT is ignored, as by `nohup … &` in a script, stop on it all the same."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child_programs import ROOT
from tidelog.testing import RunningBroker

SECONDS_MAX = 60
#: runs what follows with SIGINT ignored
IGNORING = (
    sys.executable,
    "-c",
    "import os, sys, signal as s; s.signal(s.SIGINT, s.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])",
)


def test_a_command_stops_on_sigint() -> None:
    with RunningBroker() as broker:
        broker.create_topic("lines")
        command = (sys.executable, "-m", "tidelog.cli")
        produce = (*command, "produce", "lines", "--bootstrap", broker.bootstrap)
        subprocess.run(produce, input=b"one\n", check=True, timeout=SECONDS_MAX, stdout=subprocess.DEVNULL)
        consume = (*command, "consume", "lines", "--follow", "--bootstrap", broker.bootstrap)
        child = subprocess.Popen([*IGNORING, *consume], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "one\n"
            child.send_signal(signal.SIGINT)
            assert child.wait(SECONDS_MAX) == 0
        finally:
            child.kill()
            child.wait()
            child.stdout.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("brokers", ["1", "3"])
def test_tidelog_up_stops_on_sigint(tmp_path: Path, brokers: str) -> None:
    command = (sys.executable, "-m", "tidelog.cli", "up", "--port", "0", "--data", str(tmp_path))
    child = subprocess.Popen([*IGNORING, *command, "--brokers", brokers], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if "Ctrl-C stops" in line:
                break
        child.send_signal(signal.SIGINT)
        assert child.wait(SECONDS_MAX) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]


def test_the_suite_gives_its_children_the_default(tmp_path: Path) -> None:
    """`nohup make test &`: an example that is stopped as Ctrl-C does ends."""
    (tmp_path / "test_inner.py").write_text(
        "import signal\n"
        "from pathlib import Path\n"
        "from tests.conformance.example_runs import Started\n"
        "def test_stop():\n"
        f"    started = Started('sleep 30', Path({str(tmp_path)!r}), {{}})\n"
        "    assert started.stop() == -signal.SIGINT\n"
    )
    command = [*IGNORING, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-n0", "--confcutdir", str(ROOT), "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
