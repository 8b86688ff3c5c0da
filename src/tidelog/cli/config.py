"""`tidelog config`: read and change settings of topics, brokers and groups."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import explained
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.properties import parse_assignments

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# Kafka's ConfigSource codes, in the words of the person who would change the value.
_SOURCES = {
    1: "topic",
    2: "broker (dynamic)",
    3: "all brokers (dynamic)",
    4: "broker (static)",
    5: "default",
    8: "group",
}
_KINDS = click.Choice(["topic", "broker", "group"])


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """One setting: its value, where that value comes from, and whether it can change at run time."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool


def describe_configs(connection: Connection, admin: "AdminClient", kind: str, name: str) -> list[ConfigLine]:
    """Every setting of one topic, broker or group, by name."""
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    with explained(f"the settings of {kind} {name!r} cannot be read"):
        resource = ConfigResource(kind, name)
        futures = admin.describe_configs([resource], request_timeout=connection.timeout_seconds)
        entries = connection.outcome(futures[resource])
    return [
        ConfigLine(
            entry.name,
            entry.value,
            _SOURCES.get(int(entry.source), "unknown"),
            bool(entry.is_read_only),
            bool(entry.is_sensitive),
        )
        for _, entry in sorted(entries.items())
    ]


def alter_configs(
    connection: Connection,
    admin: "AdminClient",
    kind: str,
    name: str,
    values: Mapping[str, str],
    removed: Sequence[str],
    *,
    quiet: bool = False,
) -> None:
    """Set and unset settings in one request: all of them change, or none does."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in values.items()
    ]
    entries += [
        ConfigEntry(setting, None, incremental_operation=AlterConfigOpType.DELETE) for setting in removed
    ]
    with explained(f"the settings of {kind} {name!r} were not changed"):
        resource = ConfigResource(kind, name, incremental_configs=entries)
        futures = admin.incremental_alter_configs([resource], request_timeout=connection.timeout_seconds)
        connection.outcome(futures[resource])
    if quiet:
        return
    changes = [f"{setting}={value}" for setting, value in values.items()]
    changes += [f"{setting} back to its default" for setting in removed]
    click.echo(f"Changed {kind} {name}: {', '.join(changes)}.")


@click.group()
def config() -> None:
    """Read and change settings of topics, brokers and groups.

    The own value of a topic or group comes first, then the broker's, then the default.
    """


@config.command()
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Show settings that are at their default too.")
@json_option
@connection_options()
def describe(connection: Connection, kind: str, name: str, everything: bool, as_json: bool) -> None:
    """Show the settings of topic or group NAME, or of the broker with id NAME.

    \b
    Examples:
      tidelog config describe topic orders
      tidelog config describe topic orders --all
      tidelog config describe broker 1 --all --json
    """
    lines = describe_configs(connection, connection.admin(), kind, name)
    shown = [line for line in lines if everything or line.source != "default"]
    if as_json:
        print_json([asdict(line) for line in shown])
    elif shown:
        print_table(
            ("setting", "value", "from", "read only"),
            [
                (line.name, "(hidden)" if line.sensitive else line.value, line.source, line.read_only)
                for line in shown
            ],
        )
    else:
        click.echo(f"Every setting of {kind} {name} is at its default; --all shows them.")


@config.command("set")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
@connection_options()
def set_configs(connection: Connection, kind: str, name: str, settings: tuple[str, ...]) -> None:
    """Give settings of a topic, broker or group a value.

    \b
    Examples:
      tidelog config set topic orders retention.ms=86400000 cleanup.policy=compact
      tidelog config set broker 1 log.retention.ms=3600000
      tidelog config set group orders-app consumer.session.timeout.ms=50000
    """
    values = parse_assignments(settings, "'SETTING=VALUE'")
    alter_configs(connection, connection.admin(), kind, name, values, ())


@config.command("unset")
@click.argument("kind", type=_KINDS)
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING...")
@connection_options()
def unset_configs(connection: Connection, kind: str, name: str, settings: tuple[str, ...]) -> None:
    """Return settings of a topic, broker or group to the value they would have without it.

    \b
    Example:
      tidelog config unset topic orders retention.ms
    """
    alter_configs(connection, connection.admin(), kind, name, {}, settings)
