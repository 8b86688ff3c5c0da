"""docs/cli.md has every command with an example, and every option of every command."""

import ast
import re
from functools import cache
from pathlib import Path

import click

from tests.support.cli_commands import PAGE, leaf_commands
from tidelog.cli.main import tidelog

ROOT = Path(__file__).parents[2]
SHARED_PARAMETERS = {"bootstrap", "client_config", "client_config_file", "timeout_seconds"}


COMMANDS = dict(leaf_commands(tidelog, ("tidelog",)))


@cache
def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/cli.md has no section '{title}'"
    return found[1]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 20


def test_commands_are_documented_with_an_example() -> None:
    shown = {name: re.search(rf"^\$ .*{re.escape(name)}", section(name), re.MULTILINE) for name in COMMANDS}
    assert [name for name, example in shown.items() if example is None] == []


def test_every_option_is_documented() -> None:
    missing = [
        f"{name} {option}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in SHARED_PARAMETERS
        for option in (*parameter.opts, *parameter.secondary_opts)
        if f"`{option}`" not in section(name)
    ]
    assert missing == []


def test_help_teaches_with_an_example() -> None:
    assert [name for name, command in COMMANDS.items() if name not in (command.help or "")] == []


def test_shared_options_are_documented() -> None:
    text = section("Connection options")
    for parameter in COMMANDS["tidelog topic list"].params:
        if parameter.name in SHARED_PARAMETERS:
            for option in parameter.opts:
                assert f"`{option}`" in text, option


def test_no_section_is_left_from_a_removed_command() -> None:
    groups = {name.rsplit(" ", 1)[0] for name in COMMANDS}
    for title in re.findall(r"^##+ (tidelog .+)$", PAGE, re.MULTILINE):
        assert title in COMMANDS or title in groups, title


#: commands that show something, by their last word
SHOWING = {"list", "describe", "show", "status", "lag", "offsets", "brokers", "plan", "doctor", "version"}


def test_what_shows_something_shows_it_to_programs_too() -> None:
    showing = {name: command for name, command in COMMANDS.items() if name.split()[-1] in SHOWING}
    assert len(showing) > 20
    for name, command in showing.items():
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_errors_name_a_next_step() -> None:
    """A CommandError without a hint is allowed where it passes on what another has explained."""
    missing = []
    for path in sorted((ROOT / "src" / "tidelog" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CommandError":
                words = ast.unparse(node)
                if len(node.args) + len(node.keywords) < 2 and words not in EXPLAINED_ELSEWHERE:
                    missing.append(f"{path.name}:{node.lineno} {words}")
    assert missing == []


#: the fault itself says what to write instead
EXPLAINED_ELSEWHERE = {"CommandError(str(fault))", "CommandError(f'{text!r} is not NAME or NAME:read')"}
