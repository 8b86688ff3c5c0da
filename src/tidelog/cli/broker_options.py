"""The options of every command that runs brokers: where settings come from, how the log looks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def broker_options(log_level: str) -> Callable[[Command], Command]:
    """--config-file, --set, --log-format and --log-level, which is `log_level` by default."""
    options = [
        click.option(
            "--config-file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="A properties file of settings.",
        ),
        click.option(
            "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting; repeat for more."
        ),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How log lines look.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default=log_level,
            show_default=True,
            help="How much to log.",
        ),
    ]

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
