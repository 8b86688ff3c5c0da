"""`tidelog share`: list, describe, lag, reset and delete of share groups."""

from dataclasses import asdict
from typing import Any

import click

from tidelog.admin.groups import Groups
from tidelog.admin.offset_reset import TargetKind, plan_reset
from tidelog.admin.offsets import log_ends
from tidelog.admin.share_groups import ShareGroups, SharePartitionOffsets
from tidelog.admin.shares_in_flight import PartitionInFlight, SharesInFlight, completed, shares_in_flight
from tidelog.admin.snapshot import GroupView
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.group import chosen_partitions, chosen_target, listed_groups, reset_options
from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.topic import confirm

_HINTS = {
    "NON_EMPTY_GROUP": "stop the group's members first ('tidelog share describe GROUP' names them)",
    "GROUP_ID_NOT_FOUND": "'tidelog share list' shows the share groups",
}


@click.group()
def share() -> None:
    """Look at share groups (queues), their lag, and have them begin elsewhere.

    Any number of members of a share group get the records of its topics one by one, and say of each whether
    it is accepted, released or rejected.
    """


@share.command("list")
@json_option
@connection_options()
def list_groups(connection: Connection, as_json: bool) -> None:
    """List the share groups with their state.

    \b
    Examples:
      tidelog share list
      tidelog share list --json
    """
    rows = [
        {"group": item.id, "state": item.state}
        for item in listed_groups(connection.cluster_admin())
        if item.type == "share"
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("group", "state"), [tuple(row.values()) for row in rows])
    else:
        click.echo("There are no share groups yet. The first member of one makes it.")


@share.command()
@click.argument("name", metavar="GROUP")
@json_option
@connection_options()
def describe(connection: Connection, name: str, as_json: bool) -> None:
    """Show the state, coordinator and members of GROUP, and where it is in each partition.

    Tidelog's brokers also tell, while members fetch, how many records members have (acquired), how many may
    be had (available), how many of both were delivered how often ('1:40 3:2': two records three times), and
    what they have counted since they started. Kafka's protocol has no question for that.

    \b
    Examples:
      tidelog share describe invoices
      tidelog share describe invoices --json
    """
    admin = connection.cluster_admin()
    described = _described(Groups(admin), name)
    rows = ShareGroups(admin).offsets(described)
    told = shares_in_flight(admin, name, [(row.topic, row.partition) for row in rows])
    rows = completed(rows, name, told)
    members = [
        {
            "member": member.id,
            "client_id": member.client_id,
            "host": member.host,
            "partitions": [f"{topic}-{number}" for topic, number in member.assignment],
        }
        for member in described.members
    ]
    summary = {
        "group": name,
        "state": described.state,
        "assignor": described.assignor or None,
        "epoch": described.epoch,
        "coordinator": described.coordinator,
    }
    if as_json:
        partitions = [
            {**_as_json(row), "in_flight": _in_flight_json(_found(told, name, row))} for row in rows
        ]
        counts = None if told is None else told.groups.get(name)
        print_json(
            {
                **summary,
                "members": members,
                "partitions": partitions,
                "counts": None if counts is None else asdict(counts),
            }
        )
        return
    print_fields([*summary.items(), ("members", len(members))])
    if members:
        click.echo()
        print_table(
            ("member", "client id", "host", "partitions"), [tuple(member.values()) for member in members]
        )
    if rows:
        click.echo()
        _print_in_flight(name, rows, told)


@share.command()
@click.argument("name", metavar="GROUP")
@json_option
@connection_options()
def lag(connection: Connection, name: str, as_json: bool) -> None:
    """Show how many records GROUP has still to deal with, per partition.

    Lag = latest - start - done, where done is what lies behind the start and is dealt with already.

    \b
    Examples:
      tidelog share lag invoices
      tidelog share lag invoices --json | jq 'map(.lag) | add'
    """
    admin = connection.cluster_admin()
    rows = ShareGroups(admin).offsets(_described(Groups(admin), name))
    told = shares_in_flight(admin, name, [(row.topic, row.partition) for row in rows])
    rows = completed(rows, name, told)
    if as_json:
        print_json([_as_json(row) for row in rows])
        return
    if not rows:
        click.echo(f"Share group {name} has begun nowhere.")
        return
    _print_partitions(rows)
    click.echo(f"total lag {sum(row.lag or 0 for row in rows)}")


def _as_json(row: SharePartitionOffsets) -> dict[str, Any]:
    return {**asdict(row), "done": row.done}


def _found(told: SharesInFlight | None, group: str, row: SharePartitionOffsets) -> PartitionInFlight | None:
    return None if told is None else told.partitions.get((group, row.topic, row.partition))


def _in_flight_json(found: PartitionInFlight | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        name: value for name, value in asdict(found).items() if name not in ("group", "topic", "partition")
    }


def _print_in_flight(group: str, rows: list[SharePartitionOffsets], told: SharesInFlight | None) -> None:
    """Where the group is, and what it has in flight where a leader tells it."""
    table = []
    for row in rows:
        found = _found(told, group, row)
        flying = (
            (None, None, None) if found is None else (found.acquired, found.available, found.deliveries_text)
        )
        table.append((row.topic, row.partition, row.start, row.latest, row.done, row.lag, *flying))
    columns = ("topic", "partition", "start", "latest", "done", "lag")
    print_table((*columns, "acquired", "available", "delivered"), table)
    counts = None if told is None else told.groups.get(group)
    if counts is not None:
        acknowledged = " ".join(f"{kind} {records}" for kind, records in counts.acknowledgements.items())
        click.echo()
        print_fields(
            [
                ("acknowledged", acknowledged or "nothing"),
                ("locks ended", counts.lock_expiries),
                ("dead letters", counts.dead_letters),
                ("given up", counts.dead_letters_given_up),
            ]
        )


def _print_partitions(rows: list[SharePartitionOffsets]) -> None:
    print_table(
        ("topic", "partition", "start", "latest", "done", "lag", "members"),
        [
            (row.topic, row.partition, row.start, row.latest, row.done, row.lag, len(row.members))
            for row in rows
        ],
    )


def _described(groups: Groups, name: str) -> GroupView:
    """The group's state and members; one that is no share group is an error for a person."""
    found = groups.describe(name, "share")
    if found is None:
        raise CommandError(f"there is no share group {name!r}", "'tidelog share list' shows the share groups")
    _refuse_other_kind(found)
    return found


def _refuse_other_kind(group: GroupView) -> None:
    if group.type != "share":
        raise CommandError(f"{group.id!r} is no share group", f"use 'tidelog group' for it ({group.type})")


@share.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options()
def delete(connection: Connection, names: tuple[str, ...], yes: bool) -> None:
    """Delete share groups with everything that is known of their records; they must have no members.

    \b
    Example:
      tidelog share delete invoices --yes
    """
    confirm(f"Delete {', '.join(names)} with what was acknowledged?", yes)
    groups = Groups(connection.cluster_admin(_HINTS))
    for name in names:
        _described(groups, name)
        groups.delete(name)
        click.echo(f"Deleted share group {name}.")


@share.command()
@click.argument("name", metavar="GROUP")
@reset_options("all in which the group has begun")
@json_option
@connection_options()
def reset(
    connection: Connection,
    name: str,
    topics: tuple[str, ...],
    execute: bool,
    as_json: bool,
    **target_options: Any,
) -> None:
    """Have GROUP begin elsewhere; shows the plan, and changes nothing without --execute.

    The group's members must be stopped. What was acknowledged behind the new start is forgotten, and is
    delivered again. An offset outside the log becomes the nearest one inside it. With --topic, a group that
    does not exist yet is made.

    \b
    Examples:
      tidelog share reset invoices --to-earliest
      tidelog share reset invoices --topic orders:0,1 --to-offset 2 --execute
      tidelog share reset invoices --topic orders --to-datetime 2026-01-31T12:00:00Z --execute
    """
    target = chosen_target(target_options)
    admin = connection.cluster_admin(_HINTS)
    found = Groups(admin).describe(name, "share")
    if found is not None:
        _refuse_other_kind(found)
    shares = ShareGroups(admin)
    starts = {} if found is None else shares.starts(name)
    chosen = chosen_partitions(admin, topics) if topics else sorted(starts)
    if not chosen:
        raise CommandError(f"share group {name!r} has begun nowhere", "say which topic with --topic")
    timestamp_ms = target.number if target.kind is TargetKind.TIMESTAMP else None
    current = {key: start for key, (start, _) in starts.items() if start is not None}
    plan = plan_reset(name, target, current, log_ends(admin, chosen, timestamp_ms))
    if execute:
        shares.reset(plan)
    if as_json:
        print_json({"group": name, "executed": execute, "moves": [asdict(move) for move in plan.moves]})
        return
    print_table(
        ("topic", "partition", "current", "new", "note"),
        [(move.topic, move.partition, move.current, move.new, move.note) for move in plan.moves],
    )
    count = len(plan.moves)
    click.echo(
        f"{name} begins there in {count} partitions."
        if execute
        else f"A plan: {name} would begin there in {count} partitions; add --execute to do it."
    )
