"""What the commands answer to mistakes, and what starting them costs."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import COMMANDS, tidelog

NOWHERE = "127.0.0.1:1"


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(tidelog, list(arguments), input=stdin)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0 and "Usage:" in result.output


@pytest.mark.parametrize(
    "words",
    [
        "topic list",
        "topic create t",
        "topic describe t",
        "produce t",
        "consume t",
        "offsets t",
        "group list",
        "group lag g",
        "config describe topic t",
        "cluster status",
        "bench consume t",
    ],
)
def test_no_broker_is_one_clear_error(words: str) -> None:
    result = run(*words.split(), "--bootstrap", NOWHERE)
    assert result.exit_code == 1
    assert "no broker at 127.0.0.1:1: connection refused" in result.output
    assert "tidelog up" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["consume", "t", "-f", "%q"], "is not a field"),
        (["consume", "t", "--from", "soon"], "is not a position"),
        (["consume", "t", "--group", "g", "--from", "5"], "reset-offsets"),
        (["consume", "t", "--group", "g", "-p", "0"], "--partition"),
        (["produce", "t", "-D", ""], "cannot be empty"),
        (["produce", "t", "-H", "=x"], "has no name"),
        (["topic", "list", "-X", "novalue"], "name=value"),
        (["topic", "list", "--bootstrap", "host:notaport"], "HOST:PORT"),
        (["topic", "alter", "t"], "Nothing to change"),
        (["offsets", "t", "--time", "soon"], "is not a position"),
        (["group", "reset-offsets", "g"], "exactly one of"),
        (["group", "reset-offsets", "g", "--to-latest", "--to-offset", "0"], "exactly one of"),
        (["up", "--set", "novalue"], "name=value"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], reason: str) -> None:
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert reason in result.output


def test_up_names_every_bad_setting(tmp_path: Path) -> None:
    result = run("up", "--data", str(tmp_path), "--set", "no.such=1", "--set", "num.partitions=x")
    assert result.exit_code == 1
    assert "no.such" in result.output and "num.partitions" in result.output


def test_client_properties_that_do_not_exist(tmp_path: Path) -> None:
    result = run("topic", "list", "--client-config-file", str(tmp_path / "absent"))
    assert result.exit_code == 1 and "cannot read" in result.output


def imported_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_up_imports_no_client_and_no_table_drawing() -> None:
    names = imported_by("import tidelog.cli.main, tidelog.cli.up, tidelog.server.process")
    assert "uvloop" in names or "asyncio" in names
    assert not names & {"confluent_kafka", "rich", "pytest"}


def test_plugin_imports_nothing_of_the_broker() -> None:
    program = "import sys, pytest\nbefore = set(sys.modules)\nimport tidelog.testing.plugin\n"
    done = subprocess.run(
        [sys.executable, "-c", program + "print('\\n'.join(set(sys.modules) - before))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == {"tidelog", "tidelog.testing", "tidelog.testing.plugin"}
