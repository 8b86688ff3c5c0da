"""`tidelog config`: read and change settings of topics, brokers and groups."""

from collections.abc import Mapping, Sequence

import click

from tidelog.admin.configs import ConfigResource, ConfigSource, alter_configs, describe_configs
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.properties import parse_assignments

# Where a value comes from, in the words of the person who would change it.
_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.BROKER: "broker (dynamic)",
    ConfigSource.ALL_BROKERS: "all brokers (dynamic)",
    ConfigSource.STATIC_BROKER: "broker (static)",
    ConfigSource.DEFAULT: "default",
    ConfigSource.GROUP: "group",
}
_KINDS = click.Choice(["topic", "broker", "group"])


def change_configs(
    connection: Connection, kind: str, name: str, values: Mapping[str, str], removed: Sequence[str]
) -> None:
    """Set and unset settings, and say so."""
    alter_configs(connection.cluster_admin(), ConfigResource[kind.upper()], name, values, removed)
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
    found = describe_configs(connection.cluster_admin(), ConfigResource[kind.upper()], name)
    shown = [
        {
            "name": entry.name,
            "value": entry.value,
            "source": _SOURCES.get(entry.source, "unknown"),
            "read_only": entry.read_only,
            "sensitive": entry.sensitive,
        }
        for entry in found
        if everything or entry.source is not ConfigSource.DEFAULT
    ]
    if as_json:
        print_json(shown)
    elif shown:
        print_table(
            ("setting", "value", "from", "read only"),
            [
                (name, "(hidden)" if sensitive else value, source, read_only)
                for name, value, source, read_only, sensitive in (row.values() for row in shown)
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
    change_configs(connection, kind, name, values, ())


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
    change_configs(connection, kind, name, {}, settings)
