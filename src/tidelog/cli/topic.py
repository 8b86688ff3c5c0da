"""`tidelog topic`: create, list, describe, alter and delete topics of any Kafka cluster."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tidelog.admin import topics
from tidelog.admin.sizes import bytes_text
from tidelog.admin.topic_description import TopicDescription, describe_topics
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.output import json_option, print_fields, print_json, print_table
from tidelog.cli.properties import parse_assignments

if TYPE_CHECKING:
    from tidelog.admin.cluster_admin import ClusterAdmin
    from tidelog.admin.snapshot import TopicView

VISIBLE_POLL_SECONDS = 0.05


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    A topic is a named stream of records, cut into partitions; order holds inside one partition.
    """


def wait_visible(
    connection: Connection, admin: "ClusterAdmin", name: str, *, present: bool
) -> "TopicView | None":
    """Wait until the metadata agrees that the topic exists (or is gone), so that the next command sees it."""
    deadline = time.monotonic() + connection.timeout_seconds
    while time.monotonic() < deadline:
        known = topics.topic_views(admin, [name]).get(name)
        if (known is not None) == present:
            return known
        time.sleep(VISIBLE_POLL_SECONDS)
    raise CommandError(
        f"the broker accepted the change of topic {name!r} but does not show it yet",
        "look with 'tidelog topic list'",
    )


@topic.command()
@click.argument("name")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1),
    help="How many partitions (default: the broker's num.partitions).",
)
@click.option(
    "--replication-factor",
    "-r",
    type=click.IntRange(min=1),
    help="Copies of each partition (default: the broker's).",
)
@click.option(
    "--config",
    "--set",
    "-c",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic; repeat for more.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed quietly when the topic is already there.")
@click.option("--dry-run", is_flag=True, help="Let the broker check the request without creating anything.")
@connection_options(config_alias=False)
def create(
    connection: Connection,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topic NAME.

    \b
    Examples:
      tidelog topic create orders
      tidelog topic create orders --partitions 6 --config retention.ms=3600000
      tidelog topic create prices --config cleanup.policy=compact --if-not-exists
    """
    configs = parse_assignments(settings, "'--config'")
    admin = connection.cluster_admin()
    made = topics.create_topic(
        admin,
        name,
        partitions,
        replication_factor,
        configs,
        validate_only=dry_run,
        if_not_exists=if_not_exists,
    )
    if not made:
        click.echo(f"Topic {name} exists already; nothing changed.")
        return
    if dry_run:
        click.echo(f"Topic {name} could be created; nothing was changed (--dry-run).")
        return
    view = wait_visible(connection, admin, name, present=True)
    assert view is not None
    count = len(view.partitions)
    click.echo(f"Created topic {name} with {count} partition{'s' if count != 1 else ''}.")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Show internal topics (__consumer_offsets, …) too.")
@json_option
@connection_options()
def list_topics(connection: Connection, internal: bool, as_json: bool) -> None:
    """List the topics with their partitions and replicas.

    \b
    Examples:
      tidelog topic list
      tidelog topic list --json | jq -r '.[].name'
    """
    rows: list[dict[str, Any]] = [
        {
            "name": view.name,
            "partitions": len(view.partitions),
            "replication_factor": view.replication_factor,
            "under_replicated": view.under_replicated,
        }
        for view in topics.topic_views(connection.cluster_admin()).values()
        if internal or not view.internal
    ]
    if as_json:
        print_json(rows)
    elif rows:
        columns = ("topic", "partitions", "replication factor", "under-replicated")
        print_table(columns, [tuple(row.values()) for row in rows])
    else:
        unseen = " (or none that this user may see)" if connection.properties else ""
        click.echo(f"There are no topics yet{unseen}. Create one: tidelog topic create orders")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@connection_options()
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show partitions, leaders, replicas, in-sync replicas, offsets, sizes and the settings that differ.

    \b
    Examples:
      tidelog topic describe orders
      tidelog topic describe orders payments --json
    """
    descriptions = describe_topics(connection.cluster_admin(), names)
    if as_json:
        print_json([description.as_json() for description in descriptions])
        return
    for number, description in enumerate(descriptions):
        if number:
            click.echo()
        print_description(description)


def print_description(description: TopicDescription) -> None:
    """Print one topic for a person."""
    sizes = [partition.size_bytes for partition in description.partitions]
    known_sizes = [size for size in sizes if size is not None]
    records = sum(
        partition.latest - partition.earliest
        for partition in description.partitions
        if partition.latest is not None and partition.earliest is not None
    )
    configs = [f"{name}={value}" for name, value in description.configs.items()]
    print_fields(
        [
            ("topic", description.name + (" (internal)" if description.internal else "")),
            ("topic id", description.topic_id),
            ("partitions", len(description.partitions)),
            ("offsets in use", records),
            ("size on leaders", bytes_text(sum(known_sizes)) if known_sizes else None),
            ("settings changed", " ".join(configs) or "none (all at the broker's defaults)"),
        ]
    )
    click.echo()
    shows_eligible = any(row.elr or row.last_known_elr for row in description.partitions)
    headings = ("elr", "last known elr") if shows_eligible else ()
    print_table(
        ("partition", "leader", "replicas", "isr", *headings, "earliest", "latest", "size"),
        [
            (
                row.partition,
                row.leader,
                row.replicas,
                row.isr,
                *((row.elr, row.last_known_elr) if shows_eligible else ()),
                row.earliest,
                row.latest,
                bytes_text(row.size_bytes),
            )
            for row in description.partitions
        ],
    )
    for sentence in description.waiting:
        click.echo(sentence)


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="The new number of partitions; it can only grow."
)
@click.option(
    "--set",
    "--add",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give a setting a value for this topic.",
)
@click.option(
    "--unset", "removed", multiple=True, metavar="NAME", help="Return a setting to the broker's default."
)
@connection_options()
def alter(
    connection: Connection,
    name: str,
    partitions: int | None,
    settings: tuple[str, ...],
    removed: tuple[str, ...],
) -> None:
    """Add partitions to topic NAME, or change its settings.

    Adding partitions changes which partition a key goes to from then on; old records stay where they are.

    \b
    Examples:
      tidelog topic alter orders --partitions 12
      tidelog topic alter orders --set retention.ms=60000 --unset segment.bytes
    """
    from tidelog.cli.config import change_configs

    values = parse_assignments(settings, "'--set'")
    if partitions is None and not values and not removed:
        raise click.UsageError("Nothing to change: give --partitions, --set or --unset.")
    if values or removed:
        change_configs(connection, "topic", name, values, removed)
    if partitions is not None:
        topics.add_partitions(connection.cluster_admin(), name, partitions)
        click.echo(f"Topic {name} has {partitions} partitions now.")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Succeed quietly when a topic is not there.")
@connection_options()
def delete(connection: Connection, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete topics and all their records, for good.

    On a terminal it asks first; in a script it needs --yes.

    \b
    Examples:
      tidelog topic delete orders
      tidelog topic delete orders payments --yes
    """
    admin = connection.cluster_admin()
    known = topics.topic_views(admin, names)
    missing = [name for name in names if name not in known]
    if missing and not if_exists:
        raise CommandError(f"there is no topic {', '.join(missing)}", "'tidelog topic list' shows the topics")
    wanted = [name for name in dict.fromkeys(names) if name in known]
    if not wanted:
        click.echo("Nothing to delete.")
        return
    confirm(f"Delete {', '.join(wanted)} and all their records?", yes)
    for name in wanted:
        topics.delete_topic(admin, name)
        wait_visible(connection, admin, name, present=False)
        click.echo(f"Deleted topic {name}.")


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal to ask on, demand --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("this cannot be undone and there is no terminal to ask on", "add --yes")
    click.confirm(question, abort=True)
