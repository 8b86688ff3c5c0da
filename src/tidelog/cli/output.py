"""What commands print: tables for people (drawn by rich on a terminal, aligned text in a pipe) and JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

EMPTY_CELL = "-"


def json_option(command: Command) -> Command:
    """Add --json; the command receives `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def cell(value: Any) -> str:
    """The text of one table cell: '-' for what is not known, commas between the items of a list."""
    if value is None or value == "":
        return EMPTY_CELL
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or EMPTY_CELL
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print rows under column names; columns of numbers are set right, everything else left."""
    values = [tuple(row) for row in rows]
    texts = [[cell(value) for value in row] for row in values]
    numeric = [all(_numeric(row[index]) for row in values) for index in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, texts, numeric, title)
    else:
        _print_plain(columns, texts, numeric, title)


def _numeric(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _print_rich(
    columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str | None
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title is not None:
        click.secho(title, bold=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Text keeps rich from reading '[…]' in a topic's data as markup.
        table.add_row(*(Text(text) for text in row))
    Console().print(table)


def _print_plain(
    columns: Sequence[str], rows: list[list[str]], numeric: list[bool], title: str | None
) -> None:
    if title is not None:
        click.echo(title)
    heads = [name.upper() for name in columns]
    widths = [max(len(row[index]) for row in [heads, *rows]) for index in range(len(columns))]
    for row in [heads, *rows]:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def print_fields(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print `name  value` lines with the values in one column."""
    shown = [(name, cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        click.echo(f"{name.ljust(width)}  {text}")


def utc_text(timestamp_ms: int | None) -> str | None:
    """A timestamp as ISO time in UTC with milliseconds, or None where Kafka says there is none."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
