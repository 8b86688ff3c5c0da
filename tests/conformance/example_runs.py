"""How an example of the docs is run as a person would run it, and how its output is compared with the page.

Numbers, addresses, times, ids and paths differ from run to run; `shape` leaves them out. A line of the page
must be there in shape, in the page's order; other lines are faults unless the page leaves some out (`…`).
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS_MAX = 100
READ_BYTES = 65536
LEFT_OUT = "…"

_SHAPES = (
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r" --bootstrap \S+", ""),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+\d\d:\d\d)", "TIME"),
    (r"(?:localhost|\d{1,3}(?:\.\d{1,3}){3}):\d+", "ADDRESS"),
    (r"ADDRESS(?:, ?ADDRESS)*", "ADDRESS"),
    (r"(?<![\w:/])~?(?:/|[\w.-]+/)[\w./=+-]*", "PATH"),
    (r"(?<![\w-])[\w-]{22}(?![\w-])", "ID"),
    (r"\d+(?:\.\d+)? (?:B|KiB|MiB|GiB)\b", "SIZE"),
    (r"\d+(?:\.\d+)?", "N"),
    (r"N(?:,N)+", "N"),
    (r"\s+", " "),
)


def shape(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, word in _SHAPES:
        line = re.sub(pattern, word, line)
    return line.strip()


def differences(expected: tuple[str, ...], shown: str) -> str:
    """What the page shows and the command did not, or the other way round; empty if they agree."""
    wanted = [shape(line) for line in expected if line.strip()]
    lines = [shape(line) for line in shown.splitlines() if line.strip()]
    position = 0
    for want in wanted:
        if want == LEFT_OUT:
            continue
        if want not in lines[position:]:
            return f"the page shows {want!r}, the command did not (or earlier):\n{shown}"
        position = lines.index(want, position)
    extra = [line for line in lines if line not in wanted]
    if extra and LEFT_OUT not in wanted:
        return f"the page does not show {extra[0]!r}:\n{shown}"
    return ""


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


def environment(changes: dict[str, str]) -> dict[str, str]:
    """Ours with the command on the path and nobody's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "COLUMNS": "200", **changes}


def run(command: str, folder: Path, variables: dict[str, str], stdin: str = "") -> Outcome:
    """Run a command line to its end."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment(variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def run_on_terminal(command: str, folder: Path, variables: dict[str, str], keys: str) -> Outcome:
    """Run a command line whose standard input is a terminal, on which `keys` are typed."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, keys.encode())
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=environment(variables),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return Outcome(done.returncode, done.stdout, done.stderr)


class Started:
    """A command line that runs until it is told to stop; `text` is all that it has printed."""

    def __init__(self, command: str, folder: Path, variables: dict[str, str]) -> None:
        self.text = ""
        self._process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"exec {command}" if _simple(command) else command],
            cwd=folder,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, pattern: str) -> str:
        """Return what it printed once that matches; fails if it ends or takes too long."""
        deadline = time.monotonic() + SECONDS_MAX
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"not ready ({pattern}): {self.text}"
            assert self._read(0.2), f"it ended ({self._process.wait(SECONDS_MAX)}): {self.text}"
        return self.text

    def _read(self, seconds: float) -> bool:
        """Read what is there; False at the end."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not readable:
            return True
        piece = os.read(self._process.stdout.fileno(), READ_BYTES)
        self.text += piece.decode(errors="replace")
        return bool(piece)

    def stop(self) -> int:
        """Ctrl-C, as a terminal sends it; the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        deadline = time.monotonic() + SECONDS_MAX
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it does not stop: {self.text}"
        return self._process.wait(SECONDS_MAX)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _simple(command: str) -> bool:
    return not re.search(r"[|&;]", command) and "=" not in command.split()[0]
