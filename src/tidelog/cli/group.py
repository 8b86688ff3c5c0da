"""`tidelog group`: list, describe, lag, reset-offsets, delete and delete-offsets of consumer groups."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.groups import Groups
from tidelog.admin.offset_reset import (
    Partition,
    Target,
    TargetKind,
    parse_offsets_csv,
    partitions_of,
    plan_reset,
)
from tidelog.admin.offsets import log_ends
from tidelog.admin.snapshot import GroupView
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.positions import moment_callback
from tidelog.cli.topic import confirm
from tidelog.client.cluster import Cluster

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def group() -> None:
    """Look at consumer groups, their lag, and move their offsets.

    Members of a group share the partitions of its topics; the group remembers, per partition, the offset
    it will read next.
    """


def listed_groups(admin: ClusterAdmin) -> list[GroupView]:
    """Every group of the cluster, of whatever kind."""
    brokers = admin.asked("the groups cannot be listed", Cluster.broker_ids)
    listed, problems = Groups(admin).list_groups(brokers)
    if problems:
        raise CommandError(problems[0], "check 'tidelog cluster status'")
    return list(listed.values())


@group.command("list")
@json_option
@connection_options()
def list_groups(connection: Connection, as_json: bool) -> None:
    """List the consumer groups with their state.

    \b
    Examples:
      tidelog group list
      tidelog group list --json
    """
    rows = [
        {"group": item.id, "state": _state(item), "type": item.type}
        for item in listed_groups(connection.cluster_admin())
        if item.protocol_type in ("", "consumer")
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("group", "state", "type"), [tuple(row.values()) for row in rows])
    else:
        click.echo("There are no groups yet. Make one: tidelog consume TOPIC --group NAME")


@group.command()
@click.argument("name", metavar="GROUP")
@json_option
@connection_options()
def describe(connection: Connection, name: str, as_json: bool) -> None:
    """Show the state, coordinator, members and offsets of GROUP.

    \b
    Examples:
      tidelog group describe billing
      tidelog group describe billing --json
    """
    groups = Groups(connection.cluster_admin())
    described = _described(groups, name)
    rows = groups.lag(described)
    members = [
        {
            "member": member.id,
            "client_id": member.client_id,
            "host": member.host,
            "instance_id": member.instance_id,
            "partitions": [f"{topic}-{number}" for topic, number in member.assignment],
        }
        for member in described.members
    ]
    summary = {
        "group": name,
        "state": _state(described),
        "type": described.type,
        "assignor": described.assignor or None,
        "coordinator": described.coordinator,
    }
    if as_json:
        print_json({**summary, "members": members, "offsets": [asdict(row) for row in rows]})
        return
    print_fields([*summary.items(), ("members", len(members))])
    if members:
        click.echo()
        print_table(
            ("member", "client id", "host", "instance", "partitions"),
            [tuple(member.values()) for member in members],
        )
    if rows:
        click.echo()
        _print_lag(rows)


def _described(groups: Groups, name: str) -> GroupView:
    """The group's state and members; a group nobody has used is an error for a person."""
    found = groups.describe(name)
    if found is None:
        raise CommandError(f"there is no group {name!r}", "'tidelog group list' shows the groups")
    return found


def _state(group: GroupView) -> str:
    return group.state.replace("rebalance", "rebalancing")


def _print_lag(rows: list[Any]) -> None:
    print_table(
        ("topic", "partition", "committed", "latest", "lag", "member"),
        [(row.topic, row.partition, row.committed, row.latest, row.lag, row.member) for row in rows],
    )


@group.command()
@click.argument("name", metavar="GROUP")
@json_option
@connection_options()
def lag(connection: Connection, name: str, as_json: bool) -> None:
    """Show how far GROUP is behind, per partition: lag = latest - committed.

    \b
    Examples:
      tidelog group lag billing
      tidelog group lag billing --json | jq 'map(.lag) | add'
    """
    groups = Groups(connection.cluster_admin())
    rows = groups.lag(_described(groups, name))
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    if not rows:
        click.echo(f"Group {name} has committed nothing and reads nothing.")
        return
    _print_lag(rows)
    click.echo(f"total lag {sum(row.lag or 0 for row in rows)}")


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options()
def delete(connection: Connection, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups with everything they have committed; they must have no members.

    \b
    Example:
      tidelog group delete billing --yes
    """
    confirm(f"Delete {', '.join(names)} with all committed offsets?", yes)
    groups = Groups(connection.cluster_admin())
    for name in names:
        groups.delete(name)
        click.echo(f"Deleted group {name}.")


@group.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,1]",
    help="Forget the offsets of this topic (or of some partitions).",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options()
def delete_offsets(connection: Connection, name: str, topics: tuple[str, ...], yes: bool) -> None:
    """Make GROUP forget what it has committed for a topic it no longer reads.

    \b
    Examples:
      tidelog group delete-offsets billing --topic orders --yes
      tidelog group delete-offsets billing --topic orders:0,3
    """
    admin = connection.cluster_admin()
    groups = Groups(admin)
    _described(groups, name)
    chosen = chosen_partitions(admin, topics)
    committed = groups.committed_by(name)
    wanted = [partition for partition in chosen if partition in committed]
    if not wanted:
        click.echo(f"Group {name} has committed nothing there.")
        return
    confirm(f"Forget {len(wanted)} committed offsets of {name}?", yes)
    errors = groups.delete_offsets(name, wanted)
    if errors:
        (topic, number), error = next(iter(errors.items()))
        raise CommandError(
            f"{len(errors)} of {len(wanted)} offsets were not deleted, first {topic}-{number}: {error.name}",
            "stop the consumers of this group that read the topic first",
        )
    click.echo(f"Group {name} forgot {len(wanted)} offsets.")


def chosen_partitions(admin: ClusterAdmin, words: tuple[str, ...]) -> list[Partition]:
    """The partitions that options like --topic name; a topic that is not there is an error for a person."""
    known = admin.asked("the topics cannot be listed", Cluster.topics)
    try:
        return partitions_of(words, {name: len(topic.partitions) for name, topic in known.items()})
    except ValueError as fault:
        raise CommandError(str(fault), "'tidelog topic list' shows the topics") from fault


def chosen_target(options: dict[str, Any]) -> Target:
    """The one target among the options; none or two is a mistake on the command line."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if len(given) != 1:
        names = ", ".join("--" + name.replace("_", "-") for name in options)
        raise click.UsageError(f"Give exactly one of {names}.")
    name, value = next(iter(given.items()))
    match name:
        case "to_earliest":
            return Target(TargetKind.EARLIEST)
        case "to_latest":
            return Target(TargetKind.LATEST)
        case "to_current":
            return Target(TargetKind.CURRENT)
        case "to_datetime":
            return Target(TargetKind.TIMESTAMP, value)
        case "to_offset":
            return Target(TargetKind.OFFSET, value)
        case "shift_by":
            return Target(TargetKind.SHIFT, value)
    try:
        return Target(TargetKind.FILE, offsets=parse_offsets_csv(value.read_text(encoding="utf-8")))
    except OSError as failure:
        raise CommandError(f"cannot read {value}: {failure.strerror}", "check the path") from failure
    except ValueError as fault:
        raise CommandError(f"{value} cannot be used: {fault}", "make one with --export") from fault


def reset_options(default: str) -> Callable[[Command], Command]:
    """What both kinds of groups are moved with: which partitions, where to, and whether to do it."""
    options = (
        click.option(
            "--topic",
            "topics",
            multiple=True,
            metavar="TOPIC[:0,1]",
            help=f"Only this topic (or some of its partitions); default: {default}.",
        ),
        click.option("--to-earliest", is_flag=True, help="To the first record kept."),
        click.option("--to-latest", is_flag=True, help="To the end: skip everything."),
        click.option(
            "--to-datetime",
            callback=moment_callback,
            metavar="TIME",
            help="To the first record at or after an ISO time, @milliseconds or an age like 2h.",
        ),
        click.option(
            "--to-offset",
            type=click.IntRange(min=0),
            metavar="OFFSET",
            help="To this offset in every partition.",
        ),
        click.option("--execute", is_flag=True, help="Do it. Without this, only the plan is shown."),
    )

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@group.command("reset-offsets")
@click.argument("name", metavar="GROUP")
@reset_options("all the group has committed")
@click.option("--to-current", is_flag=True, help="Where the group is: for --export.")
@click.option("--shift-by", type=int, metavar="N", help="Forwards by N records, backwards by -N.")
@click.option(
    "--from-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="To the offsets in a file of topic,partition,offset lines.",
)
@click.option(
    "--export", is_flag=True, help="Print the plan as topic,partition,offset lines for --from-file."
)
@json_option
@connection_options()
def reset_offsets(
    connection: Connection,
    name: str,
    topics: tuple[str, ...],
    export: bool,
    execute: bool,
    as_json: bool,
    **target_options: Any,
) -> None:
    """Move the committed offsets of GROUP; shows the plan, and changes nothing without --execute.

    The group's consumers must be stopped. An offset outside the log becomes the nearest one inside it.

    \b
    Examples:
      tidelog group reset-offsets billing --topic orders --to-earliest
      tidelog group reset-offsets billing --to-datetime 2026-01-31T12:00:00Z --execute
      tidelog group reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
      tidelog group reset-offsets billing --to-current --export > offsets.csv
      tidelog group reset-offsets billing --from-file offsets.csv --execute
    """
    target = chosen_target(target_options)
    admin = connection.cluster_admin()
    groups = Groups(admin)
    committed = groups.committed_by(name)
    chosen = chosen_partitions(admin, topics) if topics else list(target.offsets or committed)
    if not chosen:
        raise CommandError(f"group {name!r} has committed nothing", "say which topic with --topic")
    timestamp_ms = target.number if target.kind is TargetKind.TIMESTAMP else None
    plan = plan_reset(name, target, committed, log_ends(admin, chosen, timestamp_ms))
    if not plan.moves:
        raise CommandError("there is nothing to move", "this target needs offsets the group has committed")
    if execute:
        groups.reset(plan)
    if export:
        click.echo(plan.as_csv(), nl=False)
    elif as_json:
        print_json({"group": name, "executed": execute, "moves": [asdict(move) for move in plan.moves]})
    else:
        print_table(
            ("topic", "partition", "current", "new", "note"),
            [(move.topic, move.partition, move.current, move.new, move.note) for move in plan.moves],
        )
        changes = sum(move.changes for move in plan.moves)
        click.echo(
            f"Moved {changes} offsets of {name}."
            if execute
            else f"A plan: {changes} offsets would move; add --execute to do it."
        )
