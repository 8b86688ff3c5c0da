"""How far a pipeline is: a table that changes on a terminal, lines in a pipe, JSON lines for programs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.output import cell, utc_text

if TYPE_CHECKING:
    from tidelog.pipelines.work import Progress

COLUMNS = ("query", "batch", "rows", "in/s", "done/s", "batch ms", "lag", "dead letters", "dropped", "")


def progress_rows(progress: Sequence["Progress"]) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """A table of what each query does."""
    rows: list[Sequence[Any]] = [
        (
            one.name,
            one.batch_id,
            one.rows,
            _whole(one.input_rows_per_second),
            _whole(one.processed_rows_per_second),
            one.batch_ms,
            one.lag,
            one.dead_letters,
            one.rows_dropped,
            one.message,
        )
        for one in progress
    ]
    return COLUMNS, rows


FIGURES = (
    "query",
    "commits",
    "aborts",
    "state rows",
    "state bytes",
    "watermark",
    "rows dropped",
    "phases (ms)",
)


def figure_rows(progress: Sequence["Progress"]) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """A table of what each query keeps, and what its last batch took."""
    rows: list[Sequence[Any]] = [
        (
            one.name,
            one.commits,
            one.aborts,
            one.state_rows,
            one.state_bytes,
            None if one.watermark_ms is None else utc_text(one.watermark_ms),
            one.rows_dropped,
            ", ".join(f"{phase} {ms}" for phase, ms in one.phases_ms.items()),
        )
        for one in progress
    ]
    return FIGURES, rows


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


class ProgressPrinter:
    """Prints reports as they come."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._live: Any = None

    def report(self, progress: Sequence["Progress"]) -> None:
        if self._as_json:
            click.echo(json.dumps([asdict(one) for one in progress]))
        elif sys.stdout.isatty():
            self._draw(progress)
        else:
            for row in progress_rows(progress)[1]:
                named = zip(COLUMNS[1:-1], row[1:-1], strict=True)
                click.echo(f"{row[0]}: " + ", ".join(f"{name} {cell(value)}" for name, value in named))

    def _draw(self, progress: Sequence["Progress"]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("query", "") else "right")
        for row in progress_rows(progress)[1]:
            table.add_row(*(Text(cell(value)) for value in row))
        if self._live is None:
            self._live = Live(table, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def close(self) -> None:
        """Leave the last table on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None
