"""A click group that imports a command's module only when that command runs.

`tidelog up` must be ready in well under half a second, so it may not pay for the imports of the client
commands. A group is told where its commands live and what one line says about each; `--help` prints those
lines without importing anything.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Where a command is defined (`module:attribute`) and its line in the list of commands."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group over `entries`; the module of an entry is imported when the command is first looked up."""

    def __init__(self, *arguments: Any, entries: Mapping[str, CommandEntry], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.entries = dict(entries)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command), entry.target
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])
