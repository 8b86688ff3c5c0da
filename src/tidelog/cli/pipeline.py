"""`tidelog pipeline`: run pipelines from files or by kind, see what they would do and how far they are."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table, utc_text
from tidelog.cli.pipeline_progress import ProgressPrinter, progress_rows
from tidelog.cli.properties import parse_assignments

if TYPE_CHECKING:
    from tidelog.pipelines.definition import Definition
    from tidelog.pipelines.plan import Plan
    from tidelog.pipelines.running import Place, Status

FAILURE_LINES_MAX = 6


@click.group()
def pipeline() -> None:
    """Run data pipelines on Spark, from a file or ready-made.

    FILE is YAML or Python; a kind, such as 'archive', is a ready pipeline that takes its options with -o.
    """


def definition_options(command: Any) -> Any:
    """The options of `run` and `plan` that go before what the file says."""
    rows = (
        (("-o", "--option", "options"), "NAME=VALUE", "An option of a ready pipeline."),
        (("--name",), "NAME", "Call the pipeline so (default: the file's name, or kind and topic)."),
        (("--trigger",), "WHEN", "available_now, continuous, or a time like '10 seconds'."),
        (("--checkpoint",), "DIR", "Keep the progress here."),
        (("--dead-letters",), "TOPIC", "Records that fail go here, and the pipeline goes on."),
        (("--master",), "MASTER", "Spark's master, for example local[2] or spark://host:7077."),
    )
    for names, metavar, sentence in reversed(rows):
        option = click.option(*names, multiple="options" in names, metavar=metavar, help=sentence)
        command = option(command)
    return command


@pipeline.command()
@click.argument("source", metavar="FILE|KIND")
@definition_options
@click.option(
    "--progress",
    "progress_seconds",
    type=click.FloatRange(min=0.2),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to report.",
)
@json_option
@connection_options()
def run(connection: Connection, source: str, progress_seconds: float, as_json: bool, **changes: Any) -> None:
    """Show the plan of a pipeline, then run it until it ends or is stopped.

    Ctrl-C stops it cleanly, and so does 'tidelog pipeline stop'; the next run goes on where it was.

    \b
    Examples:
      tidelog pipeline run totals.yaml
      tidelog pipeline run archive -o topic=orders -o path=/data/orders --trigger available_now
      tidelog pipeline run totals.yaml --master local[2] --progress 1 --json
    """
    from tidelog.client.faults import ClientFault
    from tidelog.client.masking import masked_text
    from tidelog.client.pipeline_places import FAILED, STOPPED
    from tidelog.pipelines.runner import Runner
    from tidelog.pipelines.session import check_environment

    definition = _definition(connection, source, changes)
    plan = _plan(definition)
    if not as_json:
        click.echo(plan.explain())
    else:
        for note in plan.as_json()["notes"]:
            click.echo(f"note: {note}", err=True)
    stopping = threading.Event()
    printer = ProgressPrinter(as_json)
    try:
        check_environment()
        runner = Runner(plan, definition.origin, stopping)
        _stop_on_signals(stopping)
        if not as_json:
            click.echo("starting Spark; Ctrl-C stops the pipeline cleanly")
        status = runner.run(printer.report, progress_seconds, lambda: _stop_on_signals(stopping))
    except ClientFault as fault:
        # What Spark and databases say may repeat a setting.
        raise CommandError(masked_text(str(fault), plan.secrets()), _hint(fault)) from fault
    finally:
        printer.close()
    if status.state == FAILED:
        raise CommandError(
            f"pipeline {status.name} failed: {_first_lines(status.failure or '')}",
            f"'tidelog pipeline status {status.name}' has it all; the next run goes on where this one was",
        )
    if not as_json:
        end = "stopped; the next run goes on here" if status.state == STOPPED else "ended"
        click.echo(f"pipeline {status.name} {end}")


@pipeline.command("plan")
@click.argument("source", metavar="FILE|KIND")
@definition_options
@json_option
@connection_options()
def plan_command(connection: Connection, source: str, as_json: bool, **changes: Any) -> None:
    """Say what a pipeline would do, without starting anything.

    \b
    Examples:
      tidelog pipeline plan totals.yaml
      tidelog pipeline plan archive -o topic=orders -o path=/data/orders
    """
    plan = _plan(_definition(connection, source, changes))
    if as_json:
        print_json(plan.as_json())
    else:
        click.echo(plan.explain())


@pipeline.command("list")
@click.option("--kinds", is_flag=True, help="The ready pipelines, instead of what ran here.")
@click.option("--options", "of_kind", metavar="KIND", help="The options of a ready pipeline.")
@json_option
def list_pipelines(kinds: bool, of_kind: str | None, as_json: bool) -> None:
    """List the pipelines that run or ran on this machine.

    \b
    Examples:
      tidelog pipeline list
      tidelog pipeline list --kinds
      tidelog pipeline list --options archive
    """
    if of_kind is not None:
        _list_options(of_kind, as_json)
    elif kinds:
        _list_kinds(as_json)
    else:
        _list_statuses(as_json)


@pipeline.command("status")
@click.argument("name", metavar="NAME|FILE")
@json_option
def status_command(name: str, as_json: bool) -> None:
    """Show how far a pipeline is: rates, lag, batch time, dead letters.

    \b
    Examples:
      tidelog pipeline status totals
      tidelog pipeline status totals.yaml --json
    """
    _, status = _place(name)
    if as_json:
        print_json(status.as_json())
        return
    print_fields(
        [
            ("name", status.name),
            ("kind", status.kind),
            ("state", status.state),
            ("pid", status.pid),
            ("file", status.origin),
            ("started", utc_text(status.started_ms)),
            ("reported", utc_text(status.updated_ms)),
            ("dead letters to", status.dead_letters),
        ]
    )
    if status.progress:
        columns, rows = progress_rows(status.progress)
        print_table(columns, rows)
    if status.failure is not None:
        click.echo(f"failure\n{status.failure}")


@pipeline.command()
@click.argument("name", metavar="NAME|FILE")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it has stopped.",
)
def stop(name: str, wait_seconds: float) -> None:
    """Stop a pipeline that runs on this machine; its next run goes on where it was.

    \b
    Examples:
      tidelog pipeline stop totals
      tidelog pipeline stop totals.yaml --wait 10
    """
    from tidelog.client.faults import BadOption

    place, _ = _place(name)
    try:
        stopped = place.ask_to_stop(wait_seconds)
    except BadOption as fault:
        raise CommandError(str(fault), "'tidelog pipeline list' shows what runs") from fault
    if not stopped:
        raise CommandError(
            f"pipeline {place.name} was asked to stop and has not in {wait_seconds:g} s",
            f"wait longer, or see 'tidelog pipeline status {place.name}'",
        )
    click.echo(f"pipeline {place.name} stopped")


def _definition(connection: Connection, source: str, changes: dict[str, Any]) -> "Definition":
    from tidelog.client.faults import ClientFault
    from tidelog.pipelines.definition import Overrides, load_definition, read_definition
    from tidelog.pipelines.ready import READY

    options = parse_assignments(changes.pop("options"), "'-o'")
    kafka = dict(connection.properties)
    if click.get_current_context().get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE:
        kafka["bootstrap.servers"] = connection.bootstrap
    overrides = Overrides(options=options, kafka=kafka, bootstrap_default=connection.bootstrap, **changes)
    try:
        if Path(source).exists():
            return load_definition(Path(source), overrides)
        if source.replace("_", "-") in READY:
            topic = str(options.get("topic", "")).replace(",", "-")
            return read_definition({"kind": source}, overrides, stem=f"{source}-{topic}" if topic else source)
    except ClientFault as fault:
        raise CommandError(str(fault), _hint(fault)) from fault
    raise CommandError(
        f"there is no file {source}, and no ready pipeline of that name",
        "'tidelog pipeline list --kinds' names the ready ones",
    )


def _plan(definition: "Definition") -> "Plan":
    from tidelog.client.faults import ClientFault
    from tidelog.pipelines.planning import make_plan

    try:
        return make_plan(definition)
    except ClientFault as fault:
        raise CommandError(str(fault), _hint(fault, definition.kind)) from fault


def _hint(fault: Exception, kind: str | None = None) -> str | None:
    from tidelog.pipelines.begun_with import OtherOptions
    from tidelog.pipelines.running import AlreadyRunning

    if isinstance(fault, AlreadyRunning):
        return "'tidelog pipeline stop NAME' stops it; --name gives this one another name"
    if isinstance(fault, OtherOptions):
        return "with the options of before it goes on where it was"
    if kind is not None:
        return f"'tidelog pipeline list --options {kind}' shows the options"
    return None


def _stop_on_signals(stopping: threading.Event) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _place(name: str) -> "tuple[Place, Status]":
    """The pipeline that is called so, or that a file of this name describes."""
    from tidelog.client.faults import ClientFault
    from tidelog.pipelines.definition import load_definition
    from tidelog.pipelines.running import Place

    called = name
    if Path(name).suffix in (".yaml", ".yml", ".py") and Path(name).exists():
        try:
            called = load_definition(Path(name)).run.name
        except ClientFault as fault:
            raise CommandError(str(fault)) from fault
    place = Place(called)
    status = place.status()
    if status is None:
        raise CommandError(
            f"no pipeline {called} has run here", "'tidelog pipeline list' names those that did"
        )
    return place, status


def _list_kinds(as_json: bool) -> None:
    from tidelog.pipelines.ready import READY

    if as_json:
        print_json([{"kind": kind, "summary": summary} for kind, summary in READY.items()])
    else:
        print_table(("kind", "summary"), READY.items())


def _list_statuses(as_json: bool) -> None:
    from tidelog.pipelines.running import all_statuses

    statuses = all_statuses()
    if as_json:
        print_json([status.as_json() for status in statuses])
    elif statuses:
        columns = ("name", "kind", "state", "pid", "started", "rows", "lag", "dead letters")
        print_table(columns, [_row(status) for status in statuses])
    else:
        click.echo("No pipeline has run here yet.")


def _row(status: "Status") -> Sequence[Any]:
    lags = [one.lag for one in status.progress if one.lag is not None]
    return (
        status.name,
        status.kind,
        status.state,
        status.pid,
        utc_text(status.started_ms),
        sum(one.rows for one in status.progress),
        sum(lags) if lags else None,
        sum(one.dead_letters for one in status.progress),
    )


def _list_options(kind: str, as_json: bool) -> None:
    from tidelog.client.faults import BadOption
    from tidelog.pipelines.ready import ready_pipeline

    try:
        options = ready_pipeline(kind).options
    except BadOption as fault:
        raise CommandError(str(fault)) from fault
    rows = [
        {
            "name": option.name,
            "type": option.type.value,
            "default": "required" if option.required else option.default,
            "sentence": option.sentence + (f" One of {', '.join(option.choices)}." if option.choices else ""),
        }
        for option in options
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("option", "type", "default", ""), [tuple(row.values()) for row in rows])


def _first_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:FAILURE_LINES_MAX])
