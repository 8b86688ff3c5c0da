"""`tidelog cluster reassign`, `move`, `elect`, `decommission`: plans first, and only --execute does them."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tidelog.admin import reassignment
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import ClusterState, cluster_state
from tidelog.admin.hidden_topics import hides_topics
from tidelog.admin.log_dirs import known_sizes
from tidelog.admin.reassignment_plan import (
    PlanRefused,
    ReassignmentPlan,
    drain,
    read_plan,
    spread,
    with_leader,
)
from tidelog.admin.sizes import bytes_text
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.topic import confirm

Command = TypeVar("Command", bound=Callable[..., Any])


def numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read a list of broker numbers: 1,2,3."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts) or len(set(parts)) != len(parts):
        raise click.BadParameter(f"{text!r} is not a list of different broker numbers, such as 1,2,3")
    return tuple(int(part) for part in parts)


def execution_options(command: Command) -> Command:
    """Add --execute, --throttle and --no-wait."""
    for option in (
        click.option("--no-wait", is_flag=True, help="Return as soon as it is under way."),
        click.option(
            "--throttle",
            type=click.IntRange(min=1),
            metavar="BYTES",
            help="Copy at most so many bytes a second from and to each broker.",
        ),
        click.option("--execute", is_flag=True, help="Do it. Without this, only the plan is shown."),
    ):
        command = option(command)
    return command


def plan_or_error(make: Callable[[], ReassignmentPlan]) -> ReassignmentPlan:
    """Turn a refused plan into an error for a person."""
    try:
        return make()
    except PlanRefused as refused:
        raise CommandError(str(refused), "see 'tidelog cluster status --partitions'") from refused


def check_brokers(plan: ReassignmentPlan, state: ClusterState) -> None:
    """Refuse a plan that puts replicas on brokers that are not there."""
    missing = sorted({broker for move in plan.moves for broker in move.adding} - set(state.alive_racks))
    if missing:
        raise CommandError(
            f"broker {', '.join(map(str, missing))} is not alive", "'tidelog cluster brokers' shows who is"
        )


def partition_sizes(
    admin: ClusterAdmin, plan: ReassignmentPlan, state: ClusterState
) -> dict[tuple[str, int], int]:
    """The largest replica of each partition of the plan, where the cluster can be asked for it."""
    if not plan.moves:
        return {}
    topics: dict[str, list[int]] = {}
    for move in plan.moves:
        topics.setdefault(move.topic, []).append(move.partition)
    sizes: dict[tuple[str, int], int] = {}
    for (_, topic, partition), size in known_sizes(admin, state.alive_racks, topics).items():
        sizes[topic, partition] = max(size, sizes.get((topic, partition), 0))
    return sizes


def show_plan(admin: ClusterAdmin, plan: ReassignmentPlan, state: ClusterState, as_json: bool) -> None:
    """Print a plan: a table for people, Kafka's JSON for programs and for --plan."""
    if as_json:
        print_json(plan.as_json())
        return
    sizes = partition_sizes(admin, plan, state)
    print_table(
        ("topic", "partition", "replicas", "new replicas", "copy to", "drop from", "size"),
        [
            (
                move.topic,
                move.partition,
                move.before,
                move.after,
                move.adding,
                move.removing,
                bytes_text(sizes.get((move.topic, move.partition))),
            )
            for move in plan.moves
        ],
    )
    copies = sum(len(move.adding) for move in plan.moves)
    total = f", about {bytes_text(plan.copied_bytes(sizes))}" if sizes else ""
    click.echo(f"{len(plan.moves)} partitions change, {copies} replicas are copied{total}.")


def carry_out(
    admin: ClusterAdmin, plan: ReassignmentPlan, state: ClusterState, throttle: int | None, no_wait: bool
) -> None:
    """Start a plan, wait until it is done and take the throttle away again."""
    limit = None if throttle is None else reassignment.MoveThrottle(admin, plan, throttle, state.alive_racks)
    with contextlib.ExitStack() as stack:
        if limit is not None:
            stack.callback(limit.clear)
            limit.set()
        reassignment.start(admin, plan)
        if no_wait:
            click.echo("Under way: 'tidelog cluster reassign --list' shows what is left.", err=True)
            if limit is not None:
                click.echo("The throttle stays until you unset it: see 'tidelog config unset'.", err=True)
            stack.pop_all()
            return
        different = reassignment.wait_done(admin, plan, progress_lines())
    if different:
        first = different[0]
        raise CommandError(
            f"{len(different)} partitions did not end as planned, such as {first.topic}-{first.partition} "
            f"with replicas {', '.join(map(str, first.replicas))}",
            "someone may have cancelled it; run the command again to see what is left",
        )
    click.echo("Done.", err=True)


def progress_lines() -> Callable[[int, int], None]:
    """A line on standard error whenever more partitions are done."""
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if done != shown:
            click.echo(f"{done} of {total} partitions done", err=True)
            shown = done

    return progress


@click.command()
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
    metavar="FILE",
    help="A plan in JSON, as --json prints it and Kafka's own tool uses it; - is standard input.",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Balance this topic; repeat for more."
)
@click.option("--all-topics", is_flag=True, help="Balance every topic.")
@click.option(
    "--brokers",
    callback=numbers,
    metavar="1,2,3",
    help="Over these brokers (default: all that are alive).",
)
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), metavar="N", help="With this many replicas."
)
@execution_options
@click.option("--list", "show_list", is_flag=True, help="Show the reassignments under way.")
@click.option("--cancel", is_flag=True, help="Take back those under way (of --topic, or all).")
@json_option
@connection_options()
def reassign(
    connection: Connection,
    plan_file: Path | None,
    topics: tuple[str, ...],
    all_topics: bool,
    brokers: tuple[int, ...] | None,
    replication_factor: int | None,
    execute: bool,
    throttle: int | None,
    no_wait: bool,
    show_list: bool,
    cancel: bool,
    as_json: bool,
) -> None:
    """Move replicas to other brokers, or change how many there are; shows the plan without --execute.

    The plan comes from a file, or is made: topics are balanced over the brokers and racks with as few
    copies as that takes. New replicas catch up first, then the old ones are dropped; clients go on
    meanwhile. --json prints the plan for --plan; keep it, its opposite is the way back.

    \b
    Examples:
      tidelog cluster reassign --topic orders
      tidelog cluster reassign --all-topics --brokers 1,2,3,4 --execute --throttle 50000000
      tidelog cluster reassign --topic orders --replication-factor 3 --json > plan.json
      tidelog cluster reassign --plan plan.json --execute
      tidelog cluster reassign --list
      tidelog cluster reassign --cancel --execute
    """
    given = sum((plan_file is not None, bool(topics) and not cancel, all_topics, show_list, cancel))
    if given != 1:
        raise click.UsageError("Give one of --plan, --topic, --all-topics, --list and --cancel.")
    admin = connection.cluster_admin()
    if show_list or cancel:
        ongoing = [
            item for item in reassignment.list_reassignments(admin) if item.topic in topics or not topics
        ]
        show_ongoing(ongoing, as_json)
        if cancel and ongoing:
            cancel_ongoing(admin, ongoing, execute)
        return
    state = cluster_state(admin)
    if plan_file is not None:
        text = plan_text(plan_file)
        plan = plan_or_error(lambda: ReassignmentPlan.between(state.assignments, read_plan(text)))
    else:
        plan = generated(state, topics, brokers, replication_factor)
    finish(admin, plan, state, execute=execute, throttle=throttle, no_wait=no_wait, as_json=as_json)


def plan_text(path: Path) -> str:
    """The text of a plan file; - is standard input."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise CommandError(f"cannot read {path}: {failure}", "give a plan in JSON") from failure


def generated(
    state: ClusterState, topics: tuple[str, ...], brokers: tuple[int, ...] | None, factor: int | None
) -> ReassignmentPlan:
    """A plan that balances topics (none: all of them) over brokers."""
    alive = state.alive_racks
    unknown = sorted(set(brokers or ()) - set(alive))
    if unknown:
        raise CommandError(
            f"broker {', '.join(map(str, unknown))} is not alive", "see 'tidelog cluster brokers'"
        )
    racks = {number: alive[number] for number in (brokers or alive)}
    chosen = state.of_topics(topics) if topics else list(state.partitions)
    assignments = [partition.assignment for partition in chosen]
    return plan_or_error(lambda: spread(assignments, racks, replication_factor=factor))


def finish(
    admin: ClusterAdmin,
    plan: ReassignmentPlan,
    state: ClusterState,
    *,
    execute: bool,
    throttle: int | None,
    no_wait: bool,
    as_json: bool,
) -> bool:
    """Show a plan and, if asked, carry it out; False when it was only shown."""
    if not plan.moves:
        if as_json:
            print_json(plan.as_json())
        else:
            click.echo("Nothing has to move.")
        return execute
    check_brokers(plan, state)
    show_plan(admin, plan, state, as_json)
    if execute:
        carry_out(admin, plan, state, throttle, no_wait)
    elif not as_json:
        click.echo("Nothing was changed: add --execute to do it.")
    return execute and not no_wait


def show_ongoing(ongoing: list[reassignment.Ongoing], as_json: bool) -> None:
    """Print the reassignments under way."""
    if as_json:
        print_json([item._asdict() for item in ongoing])
    elif ongoing:
        columns = ("topic", "partition", "replicas", "adding", "removing")
        print_table(columns, [tuple(item) for item in ongoing])
    else:
        click.echo("No reassignment is under way.")


def cancel_ongoing(admin: ClusterAdmin, ongoing: list[reassignment.Ongoing], execute: bool) -> None:
    """Take reassignments back."""
    if not execute:
        click.echo("Nothing was changed: add --execute to cancel these.", err=True)
        return
    outcomes = reassignment.alter_reassignments(
        admin, {(item.topic, item.partition): None for item in ongoing}
    )
    failed = [item for item in outcomes if item.error not in (None, "NO_REASSIGNMENT_IN_PROGRESS")]
    if failed:
        raise CommandError(
            f"{failed[0].topic}-{failed[0].partition} was not cancelled: {failed[0].error}",
            "'tidelog cluster reassign --list' shows what is under way",
        )
    click.echo(f"Cancelled {len(outcomes)} reassignments.", err=True)


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option(
    "--replicas", callback=numbers, metavar="1,2,3", help="The new replicas; the first one should lead."
)
@click.option("--leader", type=click.IntRange(min=0), metavar="N", help="Make this replica the leader.")
@execution_options
@json_option
@connection_options()
def move(
    connection: Connection,
    topic: str,
    partition: int,
    replicas: tuple[int, ...] | None,
    leader: int | None,
    execute: bool,
    throttle: int | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Move PARTITION of TOPIC to other brokers, or make another replica its leader.

    --leader makes a replica the preferred one and elects it, so that it stays the leader. Without
    --execute the change is only shown.

    \b
    Examples:
      tidelog cluster move orders 0 --replicas 2,3,4 --execute
      tidelog cluster move orders 0 --leader 3 --execute
    """
    if (replicas is None) == (leader is None):
        raise click.UsageError("Give either --replicas or --leader.")
    admin = connection.cluster_admin()
    state = cluster_state(admin)
    found = state.partition(topic, partition)
    present = found.assignment

    def make() -> ReassignmentPlan:
        after = (
            present._replace(replicas=replicas) if replicas is not None else with_leader(present, leader or 0)
        )
        return ReassignmentPlan.between([present], [after])

    plan = plan_or_error(make)
    done = finish(admin, plan, state, execute=execute, throttle=throttle, no_wait=no_wait, as_json=as_json)
    if leader is not None and done and found.leader != leader:
        outcomes = reassignment.elect_leaders(admin, reassignment.ELECTION_PREFERRED, [(topic, partition)])
        report_elections(outcomes, as_json=False)


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC[:0,1]]...")
@click.option(
    "--preferred",
    "kind",
    flag_value="preferred",
    default=True,
    help="The first replica, if in sync (default).",
)
@click.option(
    "--unclean",
    "kind",
    flag_value="unclean",
    help="Any replica that lives, for a partition without a leader: RECORDS MAY BE LOST.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before an unclean election.")
@json_option
@connection_options()
def elect(connection: Connection, topics: tuple[str, ...], kind: str, yes: bool, as_json: bool) -> None:
    """Elect leaders for the partitions of TOPICS (default, for preferred elections: of all).

    After a broker returned, preferred elections give it back what it should lead; the cluster also does
    that by itself every few minutes (auto.leader.rebalance.enable). An unclean election makes a replica
    lead that was not in sync, and what it lacks is gone: only when the in-sync replicas are lost for good.

    \b
    Examples:
      tidelog cluster elect
      tidelog cluster elect orders:0,3 payments
      tidelog cluster elect --unclean orders:0
    """
    admin = connection.cluster_admin()
    state = cluster_state(admin)
    wanted = [key for text in topics for key in chosen_partitions(state, text)]
    if kind == "unclean":
        if not wanted:
            raise click.UsageError("Name the topics or partitions of an unclean election.")
        confirm(f"Elect replicas that may lack records for {len(wanted)} partitions?", yes)
    election = reassignment.ELECTION_UNCLEAN if kind == "unclean" else reassignment.ELECTION_PREFERRED
    report_elections(reassignment.elect_leaders(admin, election, wanted or None), as_json)


def chosen_partitions(state: ClusterState, text: str) -> list[tuple[str, int]]:
    """The partitions that TOPIC or TOPIC:0,1 names."""
    topic, separator, listed = text.partition(":")
    if not separator:
        return [(item.topic, item.partition) for item in state.of_topics((topic,))]
    parts = listed.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1", param_hint="TOPIC")
    return [(topic, state.partition(topic, int(part)).partition) for part in parts]


def report_elections(outcomes: list[reassignment.ReassignmentResult], as_json: bool) -> None:
    """Print what was elected; an election that failed is an error."""
    failed = [item for item in outcomes if item.error not in (None, "ELECTION_NOT_NEEDED")]
    elected = [item for item in outcomes if item.error is None]
    if as_json:
        print_json([item._asdict() for item in outcomes])
    else:
        click.echo(f"{len(elected)} leaders were elected; {len(failed)} elections failed.")
    if failed:
        first = failed[0]
        raise CommandError(
            f"{first.topic}-{first.partition}: {first.message or 'no leader was elected'} ({first.error})",
            "'tidelog cluster status' shows which replicas are in sync",
        )


@click.command()
@click.argument("broker_id", type=click.IntRange(min=0), metavar="BROKER")
@execution_options
@json_option
@connection_options()
def decommission(
    connection: Connection, broker_id: int, execute: bool, throttle: int | None, no_wait: bool, as_json: bool
) -> None:
    """Take BROKER out of the cluster for good: move all it holds to the others, then forget it.

    Its replicas are spread evenly over the brokers that stay, in other racks than their siblings where
    possible. A broker that is alive is emptied; stop it then and run the command again, which unregisters
    it. Without --execute the plan is only shown.

    Partitions without a leader cannot be moved. Where they wait for BROKER, and it never returns, elect
    for them first ('tidelog cluster elect --unclean'): what only BROKER has is given up by that.

    It is for those who may see every topic: others do not know what BROKER holds, and are refused.

    \b
    Examples:
      tidelog cluster decommission 3
      tidelog cluster decommission 3 --execute --throttle 50000000
    """
    admin = connection.cluster_admin()
    state = cluster_state(admin)
    known = {broker.id: broker for broker in state.brokers}
    if broker_id not in known:
        raise CommandError(f"the cluster knows no broker {broker_id}", "see 'tidelog cluster brokers'")
    if hides_topics(admin, state):
        raise CommandError(
            f"you are not shown every topic, so broker {broker_id} may hold more than you can move",
            "somebody who may describe all topics can do it: tidelog acl allow USER describe --topic '*'",
        )
    plan = plan_or_error(lambda: drain(state.assignments, broker_id, state.alive_racks))
    if not finish(admin, plan, state, execute=execute, throttle=throttle, no_wait=no_wait, as_json=as_json):
        return
    if known[broker_id].alive:
        click.echo(
            f"Broker {broker_id} holds nothing now. Stop it, then run this command again to unregister it.",
            err=True,
        )
        return
    reassignment.unregister_broker(admin, broker_id)
    click.echo(f"Broker {broker_id} is unregistered.", err=True)
