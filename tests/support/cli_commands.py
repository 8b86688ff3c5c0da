"""The commands of `tidelog`, and the parts of the page that documents them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def leaf_commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """Every command that is not a group, with its words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, name
        yield from leaf_commands(inner, (*path, name))


@dataclass(frozen=True)
class Example:
    """A command line of the page; `output` is what the page shows after it, without its last empty lines."""

    section: str
    command: str
    output: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.section}: {self.command}"


def examples(page: str = PAGE) -> list[Example]:
    """Every line after a `$` in a block of the page, with the lines up to the next one."""
    found: list[Example] = []
    section = ""
    for part in re.split(r"^(##+ .*)$", page, flags=re.MULTILINE):
        if part.startswith("##"):
            section = part.lstrip("# ").strip()
            continue
        for block in re.findall(r"^```[a-z]*\n(.*?)^```$", part, re.MULTILINE | re.DOTALL):
            for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *output = piece.rstrip("\n").split("\n")
                found.append(Example(section, command, tuple(output)))
    return found
