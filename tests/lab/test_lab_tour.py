"""`tidelog lab tour` as a new user has it: a terminal of 100 columns, keys, left with q, gone on with."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tidelog.lab import catalog

COLUMNS = 100
SECONDS_MAX = 90
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *words: str, state: Path) -> None:
        self.descriptor, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm-256color"}
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.cli", *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            start_new_session=True,
        )
        os.close(inner)
        self.text = ""
        self._position = 0

    def wait_for(self, words: str) -> None:
        """Read until the words appear behind what was waited for before."""
        deadline = time.monotonic() + SECONDS_MAX
        while (found := self.text.find(words, self._position)) < 0:
            assert time.monotonic() < deadline, f"no {words!r} in:\n{self.text[self._position :]}"
            readable, _, _ = select.select([self.descriptor], [], [], 1.0)
            if readable:
                try:
                    piece = os.read(self.descriptor, 65536)
                except OSError:  # the other side is closed
                    piece = b""
                assert piece, f"it ended without {words!r}:\n{self.text[self._position :]}"
                self.text += ESCAPES.sub("", piece.decode(errors="replace")).replace("\r\n", "\n")
        self._position = found + len(words)

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def end(self) -> int:
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        finally:
            os.close(self.descriptor)

    @property
    def longest_line(self) -> str:
        return max(self.text.split("\n"), key=len)


@pytest.mark.timeout(300)
def test_a_tour_with_keys(tmp_path: Path) -> None:
    first, second = (catalog.load(name) for name in catalog.names()[:2])
    terminal = Terminal("lab", "tour", state=tmp_path)
    terminal.wait_for(first.title)
    for number, step in enumerate(first.steps, 1):
        terminal.wait_for(f"{number} of {len(first.steps)}  {step.title}")
        terminal.wait_for("press a key to do it")
        terminal.press(" ")
        terminal.wait_for("Observed")
        if number < len(first.steps):
            terminal.wait_for("press a key for the next step")
            terminal.press("\n")
    terminal.wait_for("checks held")
    terminal.wait_for(second.title)
    terminal.wait_for("press a key to do it")
    terminal.press("q")
    terminal.wait_for(f"goes on with {second.name}")
    assert terminal.end() == 0
    assert len(terminal.longest_line) <= COLUMNS, terminal.longest_line

    again = Terminal("lab", "tour", state=tmp_path)
    again.wait_for("1 are done")
    again.wait_for(second.title)
    again.wait_for("press a key to do it")
    again.press("q")
    assert again.end() == 0


@pytest.mark.timeout(120)
def test_control_c_leaves_nothing_behind(tmp_path: Path) -> None:
    terminal = Terminal("lab", "run", "min-insync", state=tmp_path)
    terminal.wait_for("press a key to do it")
    children = _children(terminal.process.pid)
    assert len(children) == 3
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() != 0
    deadline = time.monotonic() + 15
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "brokers outlived the lab"
        time.sleep(0.05)


def _children(process_id: int) -> list[int]:
    tasks = Path(f"/proc/{process_id}/task")
    return [int(word) for task in tasks.iterdir() for word in (task / "children").read_text().split()]
