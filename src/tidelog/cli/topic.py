"""`tidelog topic`: create, list, describe, alter and delete topics of any Kafka cluster."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.properties import parse_assignments
from tidelog.cli.topic_description import describe_topics, print_description

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

VISIBLE_POLL_SECONDS = 0.05


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    A topic is a named stream of records, cut into partitions; order holds inside one partition.
    """


def wait_visible(connection: Connection, admin: "AdminClient", name: str, *, present: bool) -> None:
    """Wait until the metadata agrees that the topic exists (or is gone), so that the next command sees it."""
    deadline = time.monotonic() + connection.timeout_seconds
    while time.monotonic() < deadline:
        known = connection.metadata(admin).topics.get(name)
        if (known is not None and known.error is None) == present:
            return
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
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    configs = parse_assignments(settings, "'--config'")
    admin = connection.admin()
    wanted = NewTopic(
        name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replication_factor is None else replication_factor,
        config=configs,
    )
    with explained(f"topic {name!r} was not created"):
        try:
            futures = admin.create_topics(
                [wanted], validate_only=dry_run, request_timeout=connection.timeout_seconds
            )
            connection.outcome(futures[name])
        except KafkaException as failure:
            exists = failure.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not (exists and if_not_exists):
                raise
            click.echo(f"Topic {name} exists already; nothing changed.")
            return
    if dry_run:
        click.echo(f"Topic {name} could be created; nothing was changed (--dry-run).")
        return
    wait_visible(connection, admin, name, present=True)
    count = len(connection.metadata(admin).topics[name].partitions)
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
    topics = connection.metadata(connection.admin()).topics
    rows: list[dict[str, Any]] = []
    for name in sorted(topics):
        if name.startswith("__") and not internal:
            continue
        partitions = topics[name].partitions.values()
        rows.append(
            {
                "name": name,
                "partitions": len(topics[name].partitions),
                "replication_factor": max((len(partition.replicas) for partition in partitions), default=0),
                "under_replicated": sum(
                    len(partition.isrs) < len(partition.replicas) for partition in partitions
                ),
            }
        )
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
    descriptions = describe_topics(connection, list(names))
    if as_json:
        print_json([description.as_json() for description in descriptions])
        return
    for number, description in enumerate(descriptions):
        if number:
            click.echo()
        print_description(description)


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
    from tidelog.cli.config import alter_configs

    values = parse_assignments(settings, "'--set'")
    if partitions is None and not values and not removed:
        raise click.UsageError("Nothing to change: give --partitions, --set or --unset.")
    admin = connection.admin()
    if values or removed:
        alter_configs(connection, admin, "topic", name, values, removed)
    if partitions is not None:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        with explained(f"topic {name!r} did not get {partitions} partitions"):
            futures = admin.create_partitions(
                [NewPartitions(name, partitions)], request_timeout=connection.timeout_seconds
            )
            connection.outcome(futures[name])
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
    admin = connection.admin()
    known = connection.metadata(admin).topics
    missing = [name for name in names if name not in known]
    if missing and not if_exists:
        raise CommandError(f"there is no topic {', '.join(missing)}", "'tidelog topic list' shows the topics")
    wanted = [name for name in dict.fromkeys(names) if name in known]
    if not wanted:
        click.echo("Nothing to delete.")
        return
    confirm(f"Delete {', '.join(wanted)} and all their records?", yes)
    futures = admin.delete_topics(wanted, request_timeout=connection.timeout_seconds)
    for name in wanted:
        with explained(f"topic {name!r} was not deleted"):
            connection.outcome(futures[name])
        wait_visible(connection, admin, name, present=False)
        click.echo(f"Deleted topic {name}.")


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; without a terminal to ask on, demand --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("this cannot be undone and there is no terminal to ask on", "add --yes")
    click.confirm(question, abort=True)
