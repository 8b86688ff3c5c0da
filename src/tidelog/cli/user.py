"""`tidelog user`: who can authenticate with SCRAM (and with PLAIN, against the same passwords).

A password is never given on the command line, where others could read it: it is asked for, read from standard
input, or made up. The client salts and hashes it before it is sent.
"""

import secrets
import sys
from typing import Any

import click

from tidelog.admin import access
from tidelog.admin.access import MECHANISMS
from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import ACCESS_HINTS, CommandError
from tidelog.cli.output import json_option, print_json, print_table

ITERATIONS_DEFAULT = 8_192
PASSWORD_BYTES_MAX = 1_024

_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(MECHANISMS),
    multiple=True,
    help="Only for this mechanism; repeat for more (default: both).",
)


def read_password(user: str, generate: bool) -> str:
    """Make a password up, ask for it twice on a terminal, or take the first line of standard input."""
    if generate:
        return secrets.token_urlsafe(18)
    if sys.stdin.isatty():
        prompt = f"Password of {user}"
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt=True))
    password = sys.stdin.readline(PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
    if not password:
        raise CommandError(
            "standard input has no password", "pipe it in, or give --generate to have one made up"
        )
    return password


def described(connection: Connection, users: list[str] | None) -> list[dict[str, Any]]:
    """Users and what they have, by name."""
    return [
        {"user": user.name, "credentials": [one._asdict() for one in user.credentials]}
        for user in access.users(connection.cluster_admin(ACCESS_HINTS), users)
    ]


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("user", "mechanism", "iterations"),
        [
            (row["user"], credential["mechanism"], credential["iterations"])
            for row in rows
            for credential in row["credentials"]
        ],
    )


@click.group()
def user() -> None:
    """Create, list and delete users, and change their passwords.

    What users may do is a matter of ACLs ('tidelog acl').
    """


@user.command("create")
@click.argument("name")
@_mechanism_option
@click.option("--generate", is_flag=True, help="Make up a password and print it, once.")
@click.option(
    "--iterations",
    type=click.IntRange(4_096, 16_384),
    default=ITERATIONS_DEFAULT,
    show_default=True,
    help="How much work trying one password shall be.",
)
@json_option
@connection_options()
def create(
    connection: Connection,
    name: str,
    mechanisms: tuple[str, ...],
    generate: bool,
    iterations: int,
    as_json: bool,
) -> None:
    """Create user NAME with a password.

    The password is asked for, or read from standard input; --generate makes one up and prints it.

    \b
    Examples:
      tidelog user create alice
      tidelog user create ci --generate --json
      echo "$PASSWORD" | tidelog user create loader --mechanism SCRAM-SHA-512
    """
    if any(row["user"] == name for row in described(connection, None)):
        raise CommandError(f"the user {name!r} exists", "'tidelog user password NAME' changes the password")
    _set_password(connection, name, mechanisms, generate, iterations, as_json, "created")


@user.command("password")
@click.argument("name")
@_mechanism_option
@click.option("--generate", is_flag=True, help="Make up a password and print it, once.")
@click.option(
    "--iterations",
    type=click.IntRange(4_096, 16_384),
    default=ITERATIONS_DEFAULT,
    show_default=True,
    help="How much work trying one password shall be.",
)
@json_option
@connection_options()
def password(
    connection: Connection,
    name: str,
    mechanisms: tuple[str, ...],
    generate: bool,
    iterations: int,
    as_json: bool,
) -> None:
    """Give user NAME another password.

    Connections that are open stay open, until they have to authenticate again
    (connections.max.reauth.ms).

    \b
    Examples:
      tidelog user password alice
      tidelog user password ci --generate
    """
    described(connection, [name])
    _set_password(connection, name, mechanisms, generate, iterations, as_json, "changed")


def _set_password(
    connection: Connection,
    name: str,
    mechanisms: tuple[str, ...],
    generate: bool,
    iterations: int,
    as_json: bool,
    outcome: str,
) -> None:
    chosen = mechanisms or MECHANISMS
    secret = read_password(name, generate)
    admin = connection.cluster_admin(ACCESS_HINTS)
    access.set_password(admin, name, chosen, secret, iterations)
    if as_json:
        shown = {"password": secret} if generate else {}
        print_json({"user": name, "mechanisms": list(chosen), "iterations": iterations, **shown})
        return
    click.echo(f"User {name} {outcome} ({', '.join(chosen)}).")
    if generate:
        click.echo(f"  password  {secret}    (it is shown this once)")


@user.command("list")
@json_option
@connection_options()
def list_users(connection: Connection, as_json: bool) -> None:
    """List the users that have a password.

    \b
    Example:
      tidelog user list --json
    """
    rows = described(connection, None)
    if as_json:
        print_json(rows)
    elif rows:
        _print(rows)
    else:
        click.echo("There are no users; 'tidelog user create NAME' makes one.")


@user.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@connection_options()
def describe(connection: Connection, names: tuple[str, ...], as_json: bool) -> None:
    """Show which mechanisms users have a password for.

    \b
    Example:
      tidelog user describe alice bob
    """
    rows = described(connection, list(dict.fromkeys(names)))
    if as_json:
        print_json(rows)
    else:
        _print(rows)


@user.command("delete")
@click.argument("name")
@_mechanism_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connection_options()
def delete(connection: Connection, name: str, mechanisms: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Take the password of user NAME away, under all mechanisms or some.

    \b
    Examples:
      tidelog user delete alice --yes
      tidelog user delete alice --mechanism SCRAM-SHA-256
    """
    [row] = described(connection, [name])
    present = [credential["mechanism"] for credential in row["credentials"]]
    chosen = [mechanism for mechanism in present if not mechanisms or mechanism in mechanisms]
    if not chosen:
        raise CommandError(
            f"the user {name!r} has no password for {', '.join(mechanisms)}", f"it has {', '.join(present)}"
        )
    if not yes:
        click.confirm(f"Take {', '.join(chosen)} away from {name}?", abort=True)
    access.remove_password(connection.cluster_admin(ACCESS_HINTS), name, chosen)
    if as_json:
        print_json({"user": name, "deleted": chosen})
    else:
        click.echo(f"User {name} can no longer use {', '.join(chosen)}.")
