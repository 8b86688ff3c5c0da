"""The cheat sheets of docs/lab do what they say: every block is run, its output compared.

Console lines run in bash, Python and Java blocks as programs. What follows `<!-- secured -->` runs on a
broker made by `tidelog up --secure`, as its administrator, until `<!-- plain -->`. kcat and Java are not part
of the install: without them the test is skipped by name, or fails where CI=true.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tidelog.testing.broker import RunningBroker

PAGE = Path(__file__).parent.parent.parent / "docs" / "lab" / "cheat-sheets.md"
RUN_SECONDS = 60
TIDELOG = shlex.join([sys.executable, "-m", "tidelog.cli"])
JAVA_JARS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidelog" / "kafka-clients-4.3.1"
"""Where tests/conformance keeps the jars that it fetched."""


class Block(NamedTuple):
    language: str
    text: str
    secured: bool


class Command(NamedTuple):
    line: str
    expected: list[str]


def blocks() -> list[Block]:
    """The fenced blocks of the page, in order."""
    found: list[Block] = []
    secured = False
    pattern = re.compile(r"<!-- (secured|plain) -->|^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for match in pattern.finditer(PAGE.read_text(encoding="utf-8")):
        if match[1]:
            secured = match[1] == "secured"
        else:
            found.append(Block(match[2], match[3], secured))
    return found


def commands_of(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif line.strip():
            found[-1].expected.append(line)
    return found


def run_command(command: Command, folder: Path, environment: dict[str, str]) -> None:
    line = re.sub(r"\btidelog (?=[a-z]+ )", f"{TIDELOG} ", command.line)
    line = line.replace("localhost:9092", environment["TIDELOG_BOOTSTRAP"])
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    told = (command.line, done.stdout, done.stderr)
    assert done.returncode == 0, told
    for expected in command.expected:
        assert expected in done.stdout, told


def missing(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with RunningBroker(mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of an administrator of a broker of `tidelog up --secure`."""
    data = tmp_path / "data"
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog.cli", "up", "--secure", "--port", "0", "--data", str(data), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["event"] == "ready", ready
        yield {
            "TIDELOG_BOOTSTRAP": ready["bootstrap"],
            "TIDELOG_CLIENT_CONFIG": str(data / "security" / "client.properties"),
        }
    finally:
        process.terminate()
        process.wait(RUN_SECONDS)


@pytest.mark.timeout(300)
def test_lines_and_programs_of_the_sheets(plain: str, tmp_path: Path) -> None:
    """Together, because later lines read what earlier ones wrote."""
    if shutil.which("kcat") is None:
        missing("kcat is missing (tests/conformance/setup)")
    count = 0
    for block in blocks():
        if block.language == "console" and not block.secured:
            for command in commands_of(block):
                run_command(command, tmp_path, {"TIDELOG_BOOTSTRAP": plain})
                count += 1
        elif block.language == "python":
            program = tmp_path / f"sheet_{count}.py"
            program.write_text(block.text.replace("localhost:9092", plain))
            run_command(Command(f"{sys.executable} {program}", []), tmp_path, {"TIDELOG_BOOTSTRAP": plain})
            count += 1
    assert count >= 45


def test_the_java_program(plain: str, tmp_path: Path) -> None:
    if shutil.which("java") is None or not JAVA_JARS.exists():
        missing(
            "Java and the jars of kafka-clients are missing (tests/conformance/drivers/java.py fetches them)"
        )
    orders = "".join(f"ann:{number}\\n" for number in range(10))
    run_command(
        Command(f"printf '{orders}' | tidelog produce orders -K :", []),
        tmp_path,
        {"TIDELOG_BOOTSTRAP": plain},
    )
    programs = [block for block in blocks() if block.language == "java"]
    assert len(programs) == 1
    source = tmp_path / "Sheet.java"
    source.write_text(programs[0].text.replace("localhost:9092", plain))
    command = Command(f"java -cp '{JAVA_JARS}/*' {source}", ["stored at offset", "records or more"])
    run_command(command, tmp_path, {"TIDELOG_BOOTSTRAP": plain})


def test_lines_about_access(secured: dict[str, str], tmp_path: Path) -> None:
    commands = [
        command
        for block in blocks()
        if block.secured and block.language == "console"
        for command in commands_of(block)
    ]
    assert len(commands) >= 10
    for command in commands:
        run_command(command, tmp_path, secured)
