"""`tidelog pipeline`: run pipelines from files or by kind, see what they would do and how far they are."""

import json
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table, utc_text
from tidelog.cli.pipeline_progress import ProgressPrinter, figure_rows, progress_rows
from tidelog.cli.pipeline_shared import shared_list, shared_pipeline, stop_shared
from tidelog.cli.properties import parse_assignments

if TYPE_CHECKING:
    from tidelog.admin.shared_pipelines import SharedPipeline
    from tidelog.pipelines.definition import Definition
    from tidelog.pipelines.plan import Plan
    from tidelog.pipelines.problems import Findings
    from tidelog.pipelines.running import Place, Status

LIST_COLUMNS = ("name", "kind", "state", "pid", "started", "rows", "lag", "dead letters")
shared_option = click.option("--shared", is_flag=True, help="Those of the cluster's team, on any machine.")


@click.group()
def pipeline() -> None:
    """Run data pipelines, most of them on Spark, from a file or ready-made.

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
        (("--engine",), "ENGINE", "What runs it: spark, or local (this process) for kinds that can."),
        (("--master",), "MASTER", "Spark's master, for example local[2] or spark://host:7077."),
    )
    command = click.option(
        "--check/--no-check",
        "checked",
        default=True,
        help="Ask the cluster about topics and rights, and Spark's analyser about SQL (default: --check).",
    )(command)
    command = click.option(
        "--shared/--not-shared",
        "shared",
        default=None,
        help="Let the team see, stop and take it over from any machine, through the cluster.",
    )(command)
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
@click.option(
    "--metrics",
    "metrics_at",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus here while it runs.",
)
@click.option(
    "--replace", "replaces", is_flag=True, help="Take the name over from another file that ran by it."
)
@json_option
@connection_options()
def run(
    connection: Connection,
    source: str,
    progress_seconds: float,
    metrics_at: str | None,
    replaces: bool,
    as_json: bool,
    checked: bool,
    **changes: Any,
) -> None:
    """Show the plan of a pipeline and check it, then run it until it ends or is stopped.

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
    from tidelog.pipelines.run_settings import SPARK
    from tidelog.pipelines.runner import Runner
    from tidelog.pipelines.session import check_environment

    definition = _definition(connection, source, changes)
    plan = _plan(definition)
    if not as_json:
        click.echo(plan.explain())
    else:
        for note in plan.as_json()["notes"]:
            click.echo(f"note: {note}", err=True)
    if checked:
        for note in _checked(definition, plan).notes:
            click.echo(f"note: {note}", err=as_json)
    stopping = threading.Event()
    printer = ProgressPrinter(as_json)
    try:
        if plan.run.engine == SPARK:
            check_environment()
        runner = Runner(
            plan,
            definition.origin,
            stopping,
            metrics_at,
            replaces=replaces,
            on_waiting=partial(_say_waiting, as_json),
        )
        _stop_on_signals(stopping)
        if not as_json:
            starting = "starting Spark; " if plan.run.engine == SPARK else ""
            click.echo(f"{starting}Ctrl-C stops the pipeline cleanly")
        status = runner.run(printer.report, progress_seconds, lambda: _stop_on_signals(stopping))
    except ClientFault as fault:
        # What Spark and databases say may repeat a setting.
        raise CommandError(masked_text(str(fault), plan.secrets()), _hint(fault)) from fault
    finally:
        printer.close()
    if status.state == FAILED:
        raise CommandError(
            f"pipeline {status.name} failed: {status.cause}",
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
def plan_command(connection: Connection, source: str, as_json: bool, checked: bool, **changes: Any) -> None:
    """Say what a pipeline would do and whether it can, without starting anything.

    Topics, partitions and rights are those that the cluster tells of; SQL, columns and types go through
    Spark's analyser. What is wrong is said with the line of the file. Nothing is changed.

    \b
    Examples:
      tidelog pipeline plan totals.yaml
      tidelog pipeline plan archive -o topic=orders -o path=/data/orders
      tidelog pipeline plan totals.yaml --no-check
    """
    definition = _definition(connection, source, changes)
    plan = _plan(definition)
    if not as_json:
        click.echo(plan.explain())
        if checked:
            for note in _checked(definition, plan).notes:
                click.echo(f"  note: {note}")
            click.echo("  checked: it can run")
        return
    from tidelog.pipelines.checking import check_plan

    document = plan.as_json()
    if checked:
        findings = check_plan(plan)
        document["problems"] = [one.words(definition.origin, definition.lines) for one in findings.problems]
        document["notes"] += findings.notes
    print_json(document)
    if document.get("problems"):
        click.get_current_context().exit(1)


@pipeline.command("list")
@click.option("--kinds", is_flag=True, help="The ready pipelines, instead of what ran here.")
@click.option("--options", "of_kind", metavar="KIND", help="The options of a ready pipeline.")
@shared_option
@json_option
@connection_options()
def list_pipelines(
    connection: Connection, kinds: bool, of_kind: str | None, shared: bool, as_json: bool
) -> None:
    """List the pipelines that run or ran on this machine, or those that the cluster's team shares.

    \b
    Examples:
      tidelog pipeline list
      tidelog pipeline list --shared
      tidelog pipeline list --kinds
      tidelog pipeline list --options archive
    """
    if of_kind is not None:
        _list_options(of_kind, as_json)
    elif kinds:
        _list_kinds(as_json)
    elif shared:
        _list_shared(connection, as_json)
    else:
        _list_statuses(as_json)


@pipeline.command("status")
@click.argument("name", metavar="NAME|FILE")
@shared_option
@json_option
@connection_options()
def status_command(connection: Connection, name: str, shared: bool, as_json: bool) -> None:
    """Show how far a pipeline is: rates, lag, batch time, dead letters.

    \b
    Examples:
      tidelog pipeline status totals
      tidelog pipeline status totals.yaml --json
      tidelog pipeline status totals --shared
    """
    status = _shared_status(connection, name) if shared else _place(name)[1]
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
        print_table(*progress_rows(status.progress))
        print_table(*figure_rows(status.progress))
    if status.failure is not None:
        click.echo(f"cause\n{status.cause or '-'}\nfailure\n{status.failure}")


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
@shared_option
@connection_options()
def stop(connection: Connection, name: str, wait_seconds: float, shared: bool) -> None:
    """Stop a pipeline that runs on this machine, or a shared one anywhere; its next run goes on where it was.

    \b
    Examples:
      tidelog pipeline stop totals
      tidelog pipeline stop totals.yaml --wait 10
      tidelog pipeline stop totals --shared
    """
    from tidelog.client.faults import BadOption

    if shared:
        stop_shared(connection, _called(name), wait_seconds)
        click.echo(f"pipeline {_called(name)} stopped")
        return
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


def _checked(definition: "Definition", plan: "Plan") -> "Findings":
    """What a person should know before it runs; what stops it is an error, with the lines of the file."""
    from tidelog.client.masking import masked_text
    from tidelog.pipelines.checking import check_plan

    findings = check_plan(plan)
    words = [one.words(definition.origin, definition.lines) for one in findings.problems]
    if words:
        raise CommandError(
            masked_text("\n  ".join(words), plan.secrets()), "--no-check goes on without these checks"
        )
    return findings


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


def _say_waiting(as_json: bool, before: "SharedPipeline") -> None:
    click.echo(
        f"{before.name} ran on {before.host} when it was last heard of; it is taken over "
        f"if it says nothing for {before.lease_seconds:g} s",
        err=as_json,
    )


def _stop_on_signals(stopping: threading.Event) -> None:
    def on_signal(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def _place(name: str) -> "tuple[Place, Status]":
    """The pipeline that is called so, or that a file of this name describes."""
    from tidelog.pipelines.running import Place

    called = _called(name)
    place = Place(called)
    status = place.status()
    if status is None:
        raise CommandError(
            f"no pipeline {called} has run here", "'tidelog pipeline list' names those that did"
        )
    return place, status


def _called(name: str) -> str:
    """The name of a pipeline, which may be that of its file."""
    from tidelog.client.faults import ClientFault
    from tidelog.pipelines.definition import load_definition

    if Path(name).suffix not in (".yaml", ".yml", ".py") or not Path(name).exists():
        return name
    try:
        return load_definition(Path(name)).run.name
    except ClientFault as fault:
        raise CommandError(str(fault)) from fault


def _shared_status(connection: Connection, name: str) -> "Status":
    from tidelog.pipelines.running import Status

    found = shared_pipeline(connection, _called(name))
    return Status.read(json.dumps(found.seen(time.time() * 1000)))


def _list_shared(connection: Connection, as_json: bool) -> None:
    from tidelog.pipelines.running import Status

    found = shared_list(connection)
    now_ms = time.time() * 1000
    if as_json:
        print_json([{**one.seen(now_ms), "host": one.host} for one in found])
    elif found:
        columns = ("name", "host", *LIST_COLUMNS[1:])
        rows = [(Status.read(json.dumps(one.seen(now_ms))), one.host) for one in found]
        print_table(columns, [(status.name, host, *_row(status)[1:]) for status, host in rows])
    else:
        click.echo("No pipeline is shared in this cluster.")


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
        print_table(LIST_COLUMNS, [_row(status) for status in statuses])
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
