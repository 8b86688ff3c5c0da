"""`tidelog lab`: scenarios on a real local cluster, told in the terminal or drawn in a browser."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tidelog.cli.console import console_installed
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from tidelog.lab.scenario import Scenario, ScenarioResult

PROGRESS_FILE = "tidelog/lab-tour.json"
PAGE_HOST = "127.0.0.1"

page_option = click.option("--page", "on_page", is_flag=True, help="Show it in a browser.")
page_port_option = click.option(
    "--page-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    metavar="PORT",
    help="The port of the page (0 picks a free one).",
)


@click.group()
def lab() -> None:
    """Learn on a real cluster of your own: it is started, shown, broken and checked for you.

    \b
    Examples:
      tidelog lab list
      tidelog lab run acks
      tidelog lab tour
      tidelog lab page
    """


@lab.command("list")
@json_option
def list_scenarios(as_json: bool) -> None:
    """List the scenarios in the order of the tour.

    \b
    Examples:
      tidelog lab list
      tidelog lab list --json
    """
    from tidelog.lab import catalog
    from tidelog.lab.requirements import missing

    scenarios = list(catalog.all_scenarios())
    lacking = {found.name: missing(found) for found in scenarios}
    if as_json:
        print_json([{**found.as_json(), "missing": lacking[found.name]} for found in scenarios])
        return
    print_table(
        ("name", "minutes", "brokers", "what it is about"),
        [
            (
                found.name,
                found.minutes,
                found.brokers,
                found.title + (f" (needs {' and '.join(found.needs)})" if found.needs else ""),
            )
            for found in scenarios
        ],
    )
    for name, advice in lacking.items():
        for line in advice:
            click.echo(f"{name} cannot run here yet. {line}")
    click.echo(
        f"{sum(found.minutes for found in scenarios)} minutes in all; 'tidelog lab tour' goes through them."
    )


@lab.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--auto", is_flag=True, help="Do not wait for a key between steps.")
@page_option
@page_port_option
@json_option
def run(names: tuple[str, ...], auto: bool, on_page: bool, page_port: int, as_json: bool) -> None:
    """Run scenarios; the exit code is 1 if a check did not hold, 130 after Ctrl-C.

    \b
    Examples:
      tidelog lab run keys-and-ordering
      tidelog lab run acks min-insync --auto
      tidelog lab run replication-and-failover --page
      tidelog lab run compaction --json
    """
    if on_page:
        if len(names) != 1 or as_json:
            raise CommandError("--page shows one scenario, to a person", "one NAME, and no --json")
        _serve_page(page_port, StoredTourProgress(restart=False), start=_load(names[0]).name, auto=auto)
        return
    results = _run_all([_load(name) for name in names], auto=auto, as_json=as_json)
    _end(results, as_json)


@lab.command("all")
@json_option
def run_all(as_json: bool) -> None:
    """Run every scenario without waiting for keys, and say how long each took.

    \b
    Examples:
      tidelog lab all
      tidelog lab all --json
    """
    from tidelog.lab import catalog

    results = _run_all(list(catalog.all_scenarios()), auto=True, as_json=as_json)
    if not as_json:
        click.echo()
        rows = [(found.scenario.name, str(found.outcome), f"{found.seconds:.1f}") for found in results]
        print_table(("scenario", "outcome", "seconds"), rows)
        click.echo(f"{sum(found.seconds for found in results):.0f} s in all")
    _end(results, as_json)


@lab.command()
@page_port_option
def page(page_port: int) -> None:
    """Show the lab in a browser: the list of scenarios, each with a button that starts it.

    \b
    Examples:
      tidelog lab page
      tidelog lab page --page-port 8090
    """
    _serve_page(page_port, StoredTourProgress(restart=False))


@lab.command()
@click.option("--auto", is_flag=True, help="Do not wait for a key between steps.")
@click.option("--restart", is_flag=True, help="Begin at the first scenario again.")
@page_option
@page_port_option
def tour(auto: bool, restart: bool, on_page: bool, page_port: int) -> None:
    """Go through all scenarios in order; stop with q, and the next 'tidelog lab tour' goes on from there.

    \b
    Examples:
      tidelog lab tour
      tidelog lab tour --page
      tidelog lab tour --restart
    """
    from tidelog.lab import catalog
    from tidelog.lab.scenario import Outcome

    progress = StoredTourProgress(restart)
    names = catalog.names()
    left = [name for name in names if name not in progress.done]
    if not left:
        click.echo("You have been through all of it; 'tidelog lab tour --restart' begins again.")
        return
    if on_page:
        _serve_page(page_port, progress, start=left[0], auto=auto)
        return
    click.echo(
        f"The tour has {len(names)} scenarios; {len(names) - len(left)} are done. q stops; it goes on later."
    )
    for name in left:
        [result] = _run_all([_load(name)], auto=auto, as_json=False)
        if result.outcome is Outcome.STOPPED:
            click.echo(f"'tidelog lab tour' goes on with {name}.")
            return
        if result.outcome is Outcome.FAILED:
            raise click.exceptions.Exit(1)
        progress.finish(name)
    click.echo("That was all of it.")


class StoredTourProgress:
    """What of the tour is done, kept in a file of the user's state folder."""

    def __init__(self, restart: bool) -> None:
        self.path = _state_folder() / PROGRESS_FILE
        self.done: list[str] = []
        if restart:
            self.path.unlink(missing_ok=True)
        elif self.path.exists():
            self.done = self._read()

    def finish(self, name: str) -> None:
        self.done.append(name)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"done": self.done}))

    def _read(self) -> list[str]:
        try:
            return [str(name) for name in json.loads(self.path.read_text())["done"]]
        except (ValueError, KeyError, TypeError) as fault:
            raise CommandError(
                f"{self.path} cannot be read: {fault}", "begin again with 'tidelog lab tour --restart'"
            ) from fault


def _state_folder() -> Path:
    import os

    chosen = os.environ.get("XDG_STATE_HOME")
    return Path(chosen) if chosen else Path.home() / ".local" / "state"


def _load(name: str) -> "Scenario":
    from tidelog.lab import catalog

    try:
        return catalog.load(name)
    except LookupError as fault:
        raise CommandError(str(fault), "'tidelog lab list' shows them all") from fault


def _serve_page(
    port: int, progress: StoredTourProgress, *, start: str | None = None, auto: bool = False
) -> None:
    """Serve the lab's page until Ctrl-C; exit code 1 if the last scenario did not hold."""
    if not console_installed():
        raise CommandError("the page is part of the console", "pip install 'tidelog[console]'")
    from tidelog.console.serving import listen
    from tidelog.lab.page.serving import Switch, serve
    from tidelog.lab.scenario import Outcome

    try:
        listening = listen(PAGE_HOST, port)
    except OSError as fault:
        raise CommandError(
            f"cannot listen on port {port}: {fault.strerror or fault}", "another --page-port, or none"
        ) from fault
    switch = Switch(progress=progress)
    address = f"http://{PAGE_HOST}:{listening.getsockname()[1]}/lab"

    def ready() -> None:
        if start is not None:
            switch.stage.start(start, auto=auto)
        click.echo(f"The lab is at {address}{'/run' if start else ''} (Ctrl-C ends it)")
        sys.stdout.flush()

    serve(switch, listening, ready)
    session = switch.stage.session
    if session is not None and session.result is not None and session.result.outcome is Outcome.FAILED:
        raise click.exceptions.Exit(1)


def _run_all(scenarios: "list[Scenario]", *, auto: bool, as_json: bool) -> "list[ScenarioResult]":
    from tidelog.lab.narrator import TerminalNarrator
    from tidelog.lab.runner import SilentNarrator, run_scenario
    from tidelog.lab.scenario import Outcome
    from tidelog.testing.broker import BrokerNotStarted

    narrator = SilentNarrator() if as_json else TerminalNarrator(auto=auto)
    results = []
    for scenario in scenarios:
        try:
            with _cleared_away_when_interrupted():
                results.append(run_scenario(scenario, narrator))
        except BrokerNotStarted as fault:
            raise CommandError(
                f"the cluster of {scenario.name} did not start: {fault}", "see above"
            ) from fault
        if results[-1].outcome is Outcome.STOPPED:
            break
    return results


class _Interrupted(KeyboardInterrupt):
    """A signal asks the scenario to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.exit_code = 128 + number


@contextmanager
def _cleared_away_when_interrupted() -> Iterator[None]:
    """Ctrl-C or SIGTERM ends what runs inside, with the exit code that shells expect of that signal.

    Those that follow the first are not heard: they would end the clearing away of brokers and files.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for ending in before:
            signal.signal(ending, signal.SIG_IGN)
        raise _Interrupted(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    except _Interrupted as interrupted:
        click.echo("\nInterrupted; its cluster is gone.", err=True)
        raise click.exceptions.Exit(interrupted.exit_code) from interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(results: "list[ScenarioResult]", as_json: bool) -> None:
    from tidelog.lab.scenario import Outcome

    if as_json:
        print_json([found.as_json() for found in results])
    sys.stdout.flush()
    only_unavailable = len(results) == 1 and results[0].outcome is Outcome.UNAVAILABLE
    if only_unavailable or any(found.outcome is Outcome.FAILED for found in results):
        raise click.exceptions.Exit(1)
