"""`tidelog quota`: how much users, client ids and addresses may send, read and ask."""

import re
from collections.abc import Callable
from typing import Any

import click

from tidelog.admin import access
from tidelog.admin.access import Entity
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import ACCESS_HINTS
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.cli.properties import parse_assignments
from tidelog.model.client_quotas import CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, USER

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|k|m|g|ki|mi|gi)b?(?:/s)?", re.IGNORECASE)


def parse_amount(text: str) -> float:
    """A number with an optional unit: `500000`, `1MB`, `2Mi`, `12.5`."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no amount, such as 500000, 1MB or 2Mi", param_hint="'LIMIT'")
    return float(match[1]) * _UNITS[match[2].lower()]


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--user", metavar="NAME", help="The user it is for."),
        click.option("--default-user", is_flag=True, help="Every user without a limit of their own."),
        click.option("--client-id", metavar="ID", help="The client id it is for."),
        click.option("--default-client-id", is_flag=True, help="Every client id without a limit of its own."),
        click.option("--ip", metavar="ADDRESS", help="The address it is for."),
        click.option("--default-ip", is_flag=True, help="Every address without a limit of its own."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _entity(**chosen: Any) -> Entity:
    entity: Entity = {}
    for kind, name, default in (
        (USER, chosen["user"], chosen["default_user"]),
        (CLIENT_ID, chosen["client_id"], chosen["default_client_id"]),
        (IP, chosen["ip"], chosen["default_ip"]),
    ):
        if name is not None and default:
            raise click.UsageError(f"give a {kind} or the default of all, not both")
        if name is not None or default:
            entity[kind] = name
    return entity


def _words(entity: Entity) -> str:
    return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity.items())


def _change(connection: Connection, entity: Entity, limits: dict[str, float | None], as_json: bool) -> None:
    if not entity:
        raise click.UsageError("say who: --user, --client-id, both of them, or --ip")
    known = IP_KEYS if IP in entity else CLIENT_KEYS
    for key in limits:
        if key not in known:
            raise click.UsageError(f"there is no limit {key!r} here; there are {', '.join(known)}")
    access.set_quotas(connection.cluster_admin(ACCESS_HINTS), entity, limits)
    if as_json:
        print_json({"entity": entity, "limits": limits})
        return
    for key, limit in limits.items():
        change = "has no limit any more" if limit is None else f"is at most {limit:g}"
        click.echo(f"{key} of {_words(entity)} {change}.")


@click.group()
def quota() -> None:
    """Limit how much users, client ids and addresses may send, read and ask.

    The most particular limit holds: user and client id, then the user, then the client id, then defaults.
    Each broker counts for itself.
    """


@quota.command("set")
@click.argument("limits", nargs=-1, required=True, metavar="KEY=LIMIT...")
@_entity_options
@json_option
@connection_options()
def set_quotas(connection: Connection, limits: tuple[str, ...], as_json: bool, **chosen: Any) -> None:
    """Set limits of a user, a client id, both together, or an address.

    Keys: producer_byte_rate and consumer_byte_rate in bytes a second, request_percentage (100 is all of one
    broker), controller_mutation_rate in partitions a second; for addresses connection_creation_rate.

    \b
    Examples:
      tidelog quota set producer_byte_rate=1MB consumer_byte_rate=2MB --user alice
      tidelog quota set request_percentage=25 --default-user
      tidelog quota set connection_creation_rate=10 --ip 10.0.0.7
    """
    values = parse_assignments(limits, "'KEY=LIMIT'")
    _change(connection, _entity(**chosen), {key: parse_amount(text) for key, text in values.items()}, as_json)


@quota.command("unset")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_entity_options
@json_option
@connection_options()
def unset_quotas(connection: Connection, keys: tuple[str, ...], as_json: bool, **chosen: Any) -> None:
    """Take limits away.

    \b
    Example:
      tidelog quota unset producer_byte_rate --user alice
    """
    _change(connection, _entity(**chosen), dict.fromkeys(keys), as_json)


@quota.command("list")
@_entity_options
@json_option
@connection_options()
def list_quotas(connection: Connection, as_json: bool, **chosen: Any) -> None:
    """List limits: all of them, or those that name a user, client id or address.

    \b
    Examples:
      tidelog quota list
      tidelog quota list --user alice --json
    """
    found = access.quotas(connection.cluster_admin(ACCESS_HINTS), _entity(**chosen))
    rows: list[dict[str, Any]] = [{"entity": quota.of, "limits": dict(quota.limits)} for quota in found]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("for", "limit", "value"),
            [(_words(row["entity"]), key, value) for row in rows for key, value in row["limits"].items()],
        )
    else:
        click.echo("There are no such quotas.")
