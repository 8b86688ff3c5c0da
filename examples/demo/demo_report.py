"""What the demonstration shows: progress while it runs, then the totals beside the truth, and a chart.

On a terminal the progress is drawn in place; elsewhere (a pipe, a log) it is a line every few seconds, in
which `→ 18:20` says up to when windows are written and `2 ↓` that broker 2 is down.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from shop_orders import Cell, Total, Truth

WIDTH = 100
BAR_WIDTH = 44
LINE_EVERY_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Found:
    """What came out at one end: totals per window and country, and how many rows said so."""

    name: str
    cells: dict[Cell, Total]
    rows: int

    @classmethod
    def of(cls, name: str, rows: Iterable[tuple[int, str, int, int, int]]) -> "Found":
        """Add up rows of (window start in seconds, country, orders, items, cents); twice counts twice."""
        cells: dict[Cell, Total] = {}
        count = 0
        for start, country, orders, items, cents in rows:
            cell = cells.setdefault((datetime.fromtimestamp(start, UTC), country), Total())
            cell.add(orders, items, cents)
            count += 1
        return cls(name, cells, count)

    def differences(self, truth: Truth) -> list[str]:
        """In words, each window and country that is not as it was sent."""
        found = []
        for cell in sorted(truth.cells.keys() | self.cells.keys()):
            expected, got = truth.cells.get(cell, Total()), self.cells.get(cell, Total())
            if expected != got:
                place = f"{cell[0]:%H:%M} {cell[1]}"
                found.append(f"{self.name} {place}: sent {_words(expected)}, found {_words(got)}")
        if not found and self.rows != len(truth.cells):
            found.append(f"{self.name}: {self.rows} rows for {len(truth.cells)} windows")
        return found


def _words(total: Total) -> str:
    return f"{total.orders:,} orders for {euros(total.revenue_cents)}"


def euros(cents: int) -> str:
    """An amount as people write it."""
    return f"€ {cents / 100:,.2f}"


def by_country(cells: dict[Cell, Total]) -> dict[str, Total]:
    """Totals of countries."""
    return _grouped(cells, 1)


def by_window(cells: dict[Cell, Total]) -> dict[datetime, Total]:
    """Totals of windows."""
    return _grouped(cells, 0)


def _grouped(cells: dict[Cell, Total], part: int) -> dict[Any, Total]:
    found: dict[Any, Total] = {}
    for cell, total in sorted(cells.items()):
        found.setdefault(cell[part], Total()).add(total.orders, total.items, total.revenue_cents)
    return found


def table_of(truth: Truth, *ends: Found) -> Table:
    """A row per country: what was sent, what each end has."""
    table = Table(title="Totals by country", title_justify="left", width=WIDTH)
    table.add_column("country")
    table.add_column("orders sent", justify="right")
    table.add_column("revenue sent", justify="right")
    for end in ends:
        table.add_column(end.name, justify="right")
    table.add_column("", width=5)
    sent, ended = by_country(truth.cells), [by_country(end.cells) for end in ends]
    for country in sorted(sent.keys() | {name for end in ended for name in end}):
        totals = [end.get(country, Total()) for end in ended]
        _add_row(table, country, sent.get(country, Total()), totals)
    table.add_section()
    _add_row(table, "all", _sum(sent), [_sum(end) for end in ended])
    return table


def _add_row(table: Table, name: str, sent: Total, found: list[Total]) -> None:
    mark = "[green]same[/]" if all(total == sent for total in found) else "[bold red]WRONG[/]"
    ends = (euros(total.revenue_cents) for total in found)
    table.add_row(name, f"{sent.orders:,}", euros(sent.revenue_cents), *ends, mark)


def _sum(totals: dict[Any, Total]) -> Total:
    whole = Total()
    for total in totals.values():
        whole.add(total.orders, total.items, total.revenue_cents)
    return whole


def chart_of(found: Found, notes: dict[datetime, str]) -> Table:
    """A bar per window, from what the topic holds, with what happened at that time."""
    chart = Table(
        title=f"Revenue per five minutes of the shop, as in the {found.name}",
        title_justify="left",
        box=None,
        width=WIDTH,
    )
    chart.add_column("", width=5)
    chart.add_column("", width=BAR_WIDTH)
    chart.add_column("", justify="right", width=14)
    chart.add_column("")
    windows = by_window(found.cells)
    highest = max((total.revenue_cents for total in windows.values()), default=1)
    for start, total in windows.items():
        eighths = round(total.revenue_cents / highest * BAR_WIDTH * 8)
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        note = notes.get(start, "")
        style = "red" if note else "cyan"
        chart.add_row(
            f"{start:%H:%M}", Text(bar, style), f"€ {total.revenue_cents // 100:,}", Text(note, "red")
        )
    return chart


@dataclass(frozen=True, slots=True)
class Status:
    """One look at everything that runs."""

    sent: int
    orders: int
    shop_time: datetime
    brokers: dict[int, bool]
    #: name, orders read, windows closed up to
    queries: tuple[tuple[str, int, datetime | None], ...]


class Screen:
    """Where progress is shown; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._line_due = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> "Screen":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str, style: str = "bold") -> None:
        """A step, which stays on the screen."""
        seconds = time.monotonic() - self._started
        self._console.print(Text(f"{seconds:5.0f} s  ", "dim") + Text(text, style), soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show that something goes on which cannot say how far it is."""
        done = threading.Event()

        def wait() -> None:
            while not done.wait(LINE_EVERY_SECONDS):
                if not self._console.is_terminal:
                    self.say(f"{text} …", style="")

        self._live.update(Spinner("dots", text))
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self._live.update("")

    def show(self, status: Status) -> None:
        """The newest look; a line now and then where nothing can be drawn in place."""
        if self._console.is_terminal:
            self._live.update(_drawn(status))
        elif time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + LINE_EVERY_SECONDS
            self.say(_line(status), style="")


def _brokers(status: Status) -> Text:
    text = Text()
    for number, runs in status.brokers.items():
        text.append(f"{'●' if runs else '✗'} {number}  ", "green" if runs else "bold red")
    return text


def _closed(moment: datetime | None) -> str:
    return "–" if moment is None or moment.year < 2000 else f"{moment:%H:%M}"


def _drawn(status: Status) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("brokers", _brokers(status), f"shop's clock {status.shop_time:%H:%M}")
    names = [("orders sent", status.sent, ""), *((n, read, _closed(to)) for n, read, to in status.queries)]
    for name, count, closed in names:
        bar = ProgressBar(total=status.orders, completed=count, width=BAR_WIDTH)
        grid.add_row(name, bar, f"{count:,}" + (f", windows closed to {closed}" if closed else ""))
    return grid


def _line(status: Status) -> str:
    brokers = " ".join(f"{number}{'' if runs else ' ↓'}" for number, runs in status.brokers.items())
    queries = ", ".join(f"{read:,} {name} → {_closed(to)}" for name, read, to in status.queries)
    return f"sent {status.sent:,}; brokers {brokers}; {queries}"


@contextlib.contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Send errors to a file, those of processes that are started meanwhile too: they inherit descriptor 2."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
