"""`tidelog acl`: who may, or may not, do what to which topics, groups, transactional ids and the cluster."""

from collections.abc import Callable
from typing import Any

import click

from tidelog.admin import access
from tidelog.admin.access import EVERY_ACL, AclView
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import ACCESS_HINTS
from tidelog.cli.output import json_option, print_json, print_table
from tidelog.model.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

Row = dict[str, Any]
Patterns = list[tuple[ResourceType, str, PatternType]]

_OPERATIONS = [
    operation.name.lower().replace("_", "-") for operation in AclOperation if operation >= AclOperation.ALL
]


def _added(command: Callable[..., Any], *options: Callable[..., Any]) -> Callable[..., Any]:
    """A command with these arguments and options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name resources; the command receives what `_patterns` takes."""
    return _added(
        command,
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic; '*' for all."),
        click.option("--group", "groups", multiple=True, metavar="NAME", help="A group; '*' for all."),
        click.option(
            "--transactional-id", "transactions", multiple=True, metavar="ID", help="A transactional id."
        ),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--prefix", is_flag=True, help="The names are beginnings of names."),
    )


def _patterns(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactions: tuple[str, ...],
    cluster: bool,
    prefix: bool,
) -> Patterns:
    way = PatternType.PREFIXED if prefix else PatternType.LITERAL
    found: Patterns = [(ResourceType.TOPIC, name, way) for name in topics]
    found += [(ResourceType.GROUP, name, way) for name in groups]
    found += [(ResourceType.TRANSACTIONAL_ID, name, way) for name in transactions]
    if cluster:
        found.append((ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def principal_of(user: str) -> str:
    """`alice` stands for `User:alice`; a name with a colon is a whole principal."""
    return user if ":" in user else f"User:{user}"


def _operation(word: str) -> AclOperation:
    return AclOperation[word.upper().replace("-", "_")]


def _row(acl: AclView) -> Row:
    return {
        name: value if isinstance(value, str) else value.name.lower().replace("_", "-")
        for name, value in acl._asdict().items()
    }


def _print(rows: list[Row]) -> None:
    columns = ("principal", "permission", "operation", "resource", "name", "pattern", "host")
    print_table(columns, [tuple(row[column] for column in columns) for row in rows])


def _sentence(row: Row) -> str:
    verb = "may" if row["permission"] == "allow" else "may not"
    names = "that begin with " if row["pattern"] == "prefixed" else ""
    where = "" if row["host"] == "*" else f" from {row['host']}"
    if row["resource"] == "cluster":
        return f"{row['principal']} {verb} {row['operation']} the cluster{where}."
    kind = f"{row['resource']}s" if names or row["name"] == "*" else row["resource"]
    return f"{row['principal']} {verb} {row['operation']} {kind} {names}{row['name']}{where}."


def _create(
    connection: Connection,
    permission: PermissionType,
    user: str,
    operations: tuple[str, ...],
    patterns: Patterns,
    host: str,
    as_json: bool,
) -> None:
    if not patterns:
        raise click.UsageError("name what it is for: --topic, --group, --transactional-id or --cluster")
    created: list[AclView] = []
    for kind, name, way in patterns:
        for word in operations:
            operation = _operation(word)
            if operation is not AclOperation.ALL and operation not in SUPPORTED_OPERATIONS[kind]:
                raise click.UsageError(f"{word} is nothing that can be done to a {kind.name.lower()}")
            created.append(AclView(principal_of(user), permission, operation, kind, name, way, host))
    access.create_acls(connection.cluster_admin(ACCESS_HINTS), created)
    rows = [_row(one) for one in created]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(_sentence(row))


@click.group()
def acl() -> None:
    """Say who may, or may not, do what to topics, groups, transactional ids and the cluster.

    Without an ACL nobody may do anything but super users; what is denied is denied, whatever else is allowed.
    read, write, delete and alter include describe.
    """


def _grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Who, what, to which resources and from where; the command receives them by these names."""
    return _added(
        command,
        click.argument("user"),
        click.argument(
            "operations", nargs=-1, required=True, type=click.Choice(_OPERATIONS), metavar="OPERATION..."
        ),
        _resource_options,
        click.option(
            "--host", default="*", show_default=True, metavar="ADDRESS", help="Only from this address."
        ),
        json_option,
        connection_options(),
    )


def _grant(permission: PermissionType, asked: Row) -> None:
    patterns = _patterns(*(asked[name] for name in ("topics", "groups", "transactions", "cluster", "prefix")))
    who, operations = asked["user"], asked["operations"]
    _create(asked["connection"], permission, who, operations, patterns, asked["host"], asked["as_json"])


@acl.command("allow")
@_grant_options
def allow(**asked: Any) -> None:
    """Allow USER to do something; '*' is everybody.

    Operations: all, read, write, create, delete, alter, describe, cluster-action, describe-configs,
    alter-configs, idempotent-write, two-phase-commit.

    \b
    Examples:
      tidelog acl allow alice write --topic orders
      tidelog acl allow alice read --topic orders --group billing
      tidelog acl allow '*' read --topic public. --prefix
    """
    _grant(PermissionType.ALLOW, asked)


@acl.command("deny")
@_grant_options
def deny(**asked: Any) -> None:
    """Deny USER something, whatever else is allowed; '*' is everybody.

    \b
    Examples:
      tidelog acl deny mallory all --topic '*'
      tidelog acl deny alice write --topic public.audit --host 10.0.0.7
    """
    _grant(PermissionType.DENY, asked)


def _filters(
    user: str | None, operation: str | None, patterns: Patterns, match: bool = False
) -> list[dict[str, Any]]:
    base = {
        **EVERY_ACL,
        "principal_filter": None if user is None else principal_of(user),
        "operation": int(AclOperation.ANY if operation is None else _operation(operation)),
    }
    if not patterns:
        return [base]
    return [
        {
            **base,
            "resource_type_filter": int(kind),
            "resource_name_filter": name,
            "pattern_type_filter": int(PatternType.MATCH if match else way),
        }
        for kind, name, way in patterns
    ]


_OF_USER = click.option("--user", metavar="USER", help="Only those of this user.")
_OF_OPERATION = click.option("--operation", type=click.Choice(_OPERATIONS), help="Only those for this.")


@acl.command("list")
@_OF_USER
@_OF_OPERATION
@_resource_options
@click.option("--matching", is_flag=True, help="Everything that applies to the name, prefixes and '*' too.")
@json_option
@connection_options()
def list_acls(
    connection: Connection,
    user: str | None,
    operation: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactions: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    matching: bool,
    as_json: bool,
) -> None:
    """List ACLs: all of them, or those of a user, an operation or a resource.

    \b
    Examples:
      tidelog acl list
      tidelog acl list --user alice --json
      tidelog acl list --topic public.news --matching
    """
    admin = connection.cluster_admin(ACCESS_HINTS)
    filters = _filters(user, operation, _patterns(topics, groups, transactions, cluster, prefix), matching)
    rows = [_row(one) for fitting in filters for one in access.acls(admin, fitting)]
    if as_json:
        print_json(rows)
    elif rows:
        _print(rows)
    else:
        click.echo("There are no such ACLs.")


@acl.command("delete")
@_OF_USER
@_OF_OPERATION
@_resource_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options()
def delete(
    connection: Connection,
    user: str | None,
    operation: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactions: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the ACLs of a user, an operation or a resource.

    \b
    Examples:
      tidelog acl delete --user mallory --yes
      tidelog acl delete --topic public. --prefix --operation read
    """
    patterns = _patterns(topics, groups, transactions, cluster, prefix)
    if user is None and operation is None and not patterns:
        raise click.UsageError("say which: --user, --operation, --topic, --group, … ")
    filters = _filters(user, operation, patterns)
    if not yes:
        click.confirm("Delete every ACL that fits?", abort=True)
    deleted = access.delete_acls(connection.cluster_admin(ACCESS_HINTS), filters)
    rows = [_row(one) for one in deleted]
    if as_json:
        print_json(rows)
    elif rows:
        click.echo(f"Deleted {len(rows)} {'ACL' if len(rows) == 1 else 'ACLs'}:")
        _print(rows)
    else:
        click.echo("There are no such ACLs.")
