"""Tells a scenario in the terminal, at most 100 columns wide; a key goes on, q stops."""

import os
import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from tidelog.lab.runner import Stopped
from tidelog.lab.scenario import (
    Outcome,
    Preformatted,
    Scenario,
    ScenarioResult,
    Shown,
    Step,
    StepResult,
    Table,
)

WIDTH_MAX = 100
INDENT = 2


class TerminalNarrator:
    """The narrator of `tidelog lab run`; with `auto` nobody is asked to press a key."""

    def __init__(self, console: Console | None = None, *, auto: bool = False) -> None:
        width = min(WIDTH_MAX, Console().width) if sys.stdout.isatty() else WIDTH_MAX
        self.console = console or Console(width=width, highlight=False)
        self.auto = auto

    def scenario_begins(self, scenario: Scenario) -> None:
        brokers = "one broker" if scenario.brokers == 1 else f"{scenario.brokers} brokers"
        topics = ", ".join(f"{topic.name} ({topic.partitions})" for topic in scenario.topics) or "none yet"
        lines = Text()
        lines.append("You will learn\n", style="bold")
        for item in scenario.learn:
            lines.append(f"  · {item}\n")
        lines.append(f"Start: {brokers}; topics (partitions): {topics}. About {scenario.minutes} minutes.")
        self.console.print()
        self.console.print(Panel(lines, title=f"[bold]{scenario.title}[/bold]", title_align="left"))
        self.console.print(Text("  starting the cluster …", style="dim"))

    def step_begins(self, step: Step, number: int, count: int) -> None:
        self.console.print()
        self.console.print(Rule(Text(f"{number} of {count}  {step.title}", style="bold"), align="left"))
        self._print(Text(step.narration))
        self._labelled("Action", step.action, "cyan")
        self._labelled("Prediction", step.prediction, "yellow")
        self._go_on("press a key to do it")

    def step_ended(self, result: StepResult, number: int, count: int) -> None:
        self._print(Text(f"Observed ({result.seconds:.1f} s)", style="bold"))
        for item in result.observation.shown:
            self._show(item)
        for check in result.observation.checks:
            mark = Text("  ✔ " if check.held else "  ✘ ", style="green" if check.held else "bold red")
            mark.append(check.claim)
            if not check.held and check.instead:
                mark.append(f"\n    instead: {check.instead}")
            self._print(mark)
        if result.trouble or not result.observation.checks:
            self._print(Text(f"  ✘ {result.faults[-1]}", style="bold red"))
        if number < count and result.held:
            self._go_on("press a key for the next step")

    def scenario_ended(self, result: ScenarioResult) -> None:
        self.console.print()
        if result.outcome is Outcome.UNAVAILABLE:
            self._print(Text(f"Not run: {result.message}", style="yellow"))
            return
        if result.outcome is Outcome.STOPPED:
            self._print(Text("Stopped.", style="yellow"))
            return
        if result.held:
            if result.scenario.summary:
                self._labelled("Remember", result.scenario.summary, "green")
            checks = sum(len(step.observation.checks) for step in result.steps)
            told = f"{result.scenario.title}: all {checks} checks held, {result.seconds:.1f} s"
            self._print(Text(told, style="bold green"))
            return
        self._print(Text(f"{result.scenario.title}: it did not hold", style="bold red"))
        for fault in result.faults:
            self._print(Text(f"  {fault}", style="red"))

    def _labelled(self, label: str, text: str, style: str) -> None:
        line = Text(f"{label}: ", style=f"bold {style}")
        line.append(text, style="default")
        self._print(line)

    def _print(self, renderable: Any) -> None:
        self.console.print(Padding(renderable, (0, 0, 0, INDENT)))

    def _show(self, item: Shown) -> None:
        if isinstance(item, Table):
            shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
            if item.title:  # rich would fold it to the width of the table
                self.console.print(Padding(Text(item.title, style="italic"), (0, 0, 0, INDENT * 2)))
            for index, name in enumerate(item.columns):
                numeric = all(isinstance(row[index], int | float) for row in item.rows)
                shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
            for row in item.rows:
                shown.add_row(*(Text("-" if value is None else str(value)) for value in row))
            self.console.print(Padding(shown, (0, 0, 0, INDENT * 2)))
        elif isinstance(item, Preformatted):
            self.console.print(Padding(Text(item.text, no_wrap=True, overflow="crop"), (0, 0, 0, INDENT * 2)))
        else:
            self.console.print(Padding(Text(item), (0, 0, 0, INDENT * 2)))

    def _go_on(self, what: str) -> None:
        if self.auto:
            return
        forget_keys()
        self.console.print(Text(f"  [{what}, q to stop]", style="dim"), end="")
        key = read_key()
        self.console.print()
        if key in ("q", "Q", "\x03", "\x04", ""):
            raise Stopped


def forget_keys() -> None:
    """Keys that were pressed while nobody asked do not answer the next question."""
    if sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def read_key() -> str:
    """One key from the terminal; a line where standard input is none. Empty at its end."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()[:1]
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # at once: a key pressed by now counts
        return os.read(descriptor, 1).decode(errors="replace")
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
