"""`tidelog group`: list, describe, lag, reset-offsets, delete and delete-offsets of consumer groups."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.group_offsets import committed_offsets, describe_group, group_lag, log_ends
from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.positions import moment_callback
from tidelog.cli.topic import confirm
from tidelog.client.offset_reset import (
    Partition,
    ResetPlan,
    Target,
    TargetKind,
    parse_offsets_csv,
    partitions_of,
    plan_reset,
)
from tidelog.model.addresses import address_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@click.group()
def group() -> None:
    """Look at consumer groups, their lag, and move their offsets.

    Members of a group share the partitions of its topics; the group remembers, per partition, the offset
    it will read next.
    """


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
    admin = connection.admin()
    with explained("the groups cannot be listed"):
        listed = connection.outcome(admin.list_consumer_groups(request_timeout=connection.timeout_seconds))
    if listed.errors:
        raise CommandError(
            f"a broker did not list its groups: {listed.errors[0]}", "check 'tidelog cluster status'"
        )
    rows = [
        {"group": item.group_id, "state": _name(item.state), "type": _name(item.type)}
        for item in sorted(listed.valid, key=lambda item: item.group_id)
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
    admin = connection.admin()
    described = describe_group(connection, admin, name)
    rows = group_lag(connection, admin, name)
    members = [
        {
            "member": member.member_id,
            "client_id": member.client_id,
            "host": member.host,
            "instance_id": member.group_instance_id,
            "partitions": [
                f"{item.topic}-{item.partition}"
                for item in (member.assignment.topic_partitions if member.assignment is not None else [])
            ],
        }
        for member in described.members
    ]
    coordinator = described.coordinator
    summary = {
        "group": name,
        "state": _name(described.state),
        "type": _name(described.type),
        "assignor": described.partition_assignor or None,
        "coordinator": coordinator.id if coordinator is not None else None,
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


def _name(value: Any) -> str | None:
    return value.name.replace("_", " ").lower() if value is not None else None


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
    rows = group_lag(connection, connection.admin(), name)
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
    admin = connection.admin()
    futures = admin.delete_consumer_groups(list(names), request_timeout=connection.timeout_seconds)
    for name in names:
        with explained(f"group {name!r} was not deleted"):
            connection.outcome(futures[name])
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
    from tidelog.cli.wire import delete_group_offsets

    admin = connection.admin()
    coordinator = describe_group(connection, admin, name).coordinator
    chosen = _chosen(connection, admin, topics)
    committed = committed_offsets(connection, admin, name)
    wanted = [partition for partition in chosen if partition in committed]
    if not wanted:
        click.echo(f"Group {name} has committed nothing there.")
        return
    confirm(f"Forget {len(wanted)} committed offsets of {name}?", yes)
    by_topic: dict[str, list[int]] = {}
    for topic, number in wanted:
        by_topic.setdefault(topic, []).append(number)
    address = address_text(coordinator.host, coordinator.port)
    errors = {
        partition: error
        for partition, error in delete_group_offsets(connection, address, name, by_topic).items()
        if error is not None
    }
    if errors:
        (topic, number), error = next(iter(errors.items()))
        raise CommandError(
            f"{len(errors)} of {len(wanted)} offsets were not deleted, first {topic}-{number}: {error}",
            "stop the consumers of this group that read the topic first",
        )
    click.echo(f"Group {name} forgot {len(wanted)} offsets.")


def _chosen(connection: Connection, admin: "AdminClient", words: tuple[str, ...]) -> list[Partition]:
    known = connection.metadata(admin).topics
    try:
        return partitions_of(words, {name: len(topic.partitions) for name, topic in known.items()})
    except ValueError as fault:
        raise CommandError(str(fault), "'tidelog topic list' shows the topics") from fault


def _target(options: dict[str, Any]) -> Target:
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


@group.command("reset-offsets")
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Only this topic (or some of its partitions); default: all the group has committed.",
)
@click.option("--to-earliest", is_flag=True, help="To the first record kept.")
@click.option("--to-latest", is_flag=True, help="To the end: skip everything.")
@click.option("--to-current", is_flag=True, help="Where the group is: for --export.")
@click.option(
    "--to-datetime",
    callback=moment_callback,
    metavar="TIME",
    help="To the first record at or after an ISO time, @milliseconds or an age like 2h.",
)
@click.option(
    "--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To this offset in every partition."
)
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
@click.option("--execute", is_flag=True, help="Do it. Without this, only the plan is shown.")
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
    target = _target(target_options)
    admin = connection.admin()
    committed = committed_offsets(connection, admin, name)
    chosen = _chosen(connection, admin, topics) if topics else list(target.offsets or committed)
    if not chosen:
        raise CommandError(f"group {name!r} has committed nothing", "say which topic with --topic")
    timestamp_ms = target.number if target.kind is TargetKind.TIMESTAMP else None
    plan = plan_reset(name, target, committed, log_ends(connection, admin, chosen, timestamp_ms))
    if not plan.moves:
        raise CommandError("there is nothing to move", "this target needs offsets the group has committed")
    if execute:
        execute_plan(connection, admin, plan)
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


def execute_plan(connection: Connection, admin: "AdminClient", plan: ResetPlan) -> None:
    """Commit the plan's offsets for the group, and check that every partition took its own."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    partitions = [TopicPartition(move.topic, move.partition, move.new) for move in plan.moves]
    with explained(f"the offsets of group {plan.group!r} were not moved"):
        futures = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(plan.group, partitions)], request_timeout=connection.timeout_seconds
        )
        result = connection.outcome(futures[plan.group])
    for partition in result.topic_partitions:
        if partition.error is not None:
            raise CommandError(
                f"{partition.topic}-{partition.partition} was not moved: {partition.error.str()}",
                "stop the group's consumers first",
            )
