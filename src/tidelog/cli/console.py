"""`tidelog console`: the web console in the foreground."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError
from tidelog.cli.foreground import EXIT_WITH_STDIN_OPTION, end_with_stdin
from tidelog.model.addresses import address_text

DEFAULT_CONSOLE_PORT = 8080
_NEEDED = ("starlette", "uvicorn", "jinja2")


def console_installed() -> bool:
    """Whether the packages of the extra `console` are there."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_CONSOLE_PORT,
    show_default=True,
    metavar="PORT",
    help="Listen on this port (0 picks a free one).",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Listen on this address. Without a login, whoever reaches it can use it.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers may reach it, besides localhost and addresses; repeat for more.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option(
    "--login-user",
    "login_users",
    multiple=True,
    metavar="NAME[:read]",
    help="A user of the cluster who may log in, besides the console's own; everyone works with the"
    " console's rights, or with :read only reads. Repeat for more.",
)
@click.option(
    "--users-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Ask for a login against this file in place of the cluster's users; --new-user makes its lines.",
)
@click.option("--no-login", is_flag=True, help="Ask for no login, though the cluster is secured.")
@click.option("--new-user", metavar="NAME[:read]", help="Ask for a password, print a line for a users file.")
@click.option(
    "--registry",
    metavar="URL",
    help="A schema registry, to show Avro, JSON Schema and Protobuf records; name:password for it come from"
    " TIDELOG_REGISTRY_USER_INFO.",
)
@click.option(
    "--data",
    "data_folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A data folder of brokers on this machine, to read and show their segments; repeat for more.",
)
@EXIT_WITH_STDIN_OPTION
@connection_options()
def console(
    connection: Connection,
    port: int,
    host: str,
    allowed_hosts: tuple[str, ...],
    read_only: bool,
    login_users: tuple[str, ...],
    users_file: Path | None,
    no_login: bool,
    new_user: str | None,
    registry: str | None,
    data_folders: tuple[Path, ...],
    exit_with_stdin: bool,
) -> None:
    """Run the web console for a cluster: topics, records, groups, brokers, what happens.

    It works with any Kafka cluster, through ordinary client requests. Where the cluster asks for a password,
    so does the console, of the same user.

    \b
    Examples:
      tidelog console
      tidelog console --bootstrap broker.example.com:9092 --port 8081 --read-only
    """
    if not console_installed():
        raise CommandError("the console is not installed", "pip install 'tidelog[console]'")
    from tidelog.console.console import ConsoleSettings
    from tidelog.console.restarting import run_restarted
    from tidelog.console.serving import listen, serve

    if new_user is not None:
        _print_user(new_user)
        return
    roles = None if users_file is not None or no_login else _login_roles(connection.properties, login_users)
    try:
        listening = listen(host, port)
    except OSError as failure:
        raise CommandError(
            f"cannot listen on {address_text(host, port)}: {failure.strerror or failure}",
            "another --port (0 picks a free one), or stop what uses this one",
        ) from failure
    settings = ConsoleSettings(
        connection.bootstrap,
        connection.properties,
        read_only=read_only,
        login_roles=roles,
        users_file=users_file,
        registry=registry,
        registry_user_info=os.environ.get("TIDELOG_REGISTRY_USER_INFO", ""),
        data_folders=data_folders,
        allowed_hosts=(*allowed_hosts, host),
        timeout_seconds=connection.timeout_seconds,
    )
    address = f"http://{address_text(host, listening.getsockname()[1])}"

    def ready() -> None:
        click.echo(f"Console of {connection.bootstrap} at {address}")
        sys.stdout.flush()

    def run() -> None:
        if exit_with_stdin:
            end_with_stdin()
        serve(settings, listening, ready)

    raise click.exceptions.Exit(run_restarted(run))


def _named(text: str) -> tuple[str, str]:
    """NAME or NAME:read as a name and a role."""
    name, separator, role = text.rpartition(":")
    if not separator:
        return text, "change"
    if role not in ("read", "change") or not name:
        raise CommandError(f"{text!r} is not NAME or NAME:read")
    return name, role


def _print_user(text: str) -> None:
    from tidelog.console.login import users_file_line

    name, role = _named(text)
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    click.echo(users_file_line(name, password, role))


def _login_roles(properties: Mapping[str, str], login_users: tuple[str, ...]) -> dict[str, str] | None:
    """Who may log in with a password of the cluster; None where the cluster is open to everyone."""
    from tidelog.client.client_settings import ClientSettings
    from tidelog.client.faults import BadOption
    from tidelog.console.login import PASSWORD_MECHANISMS

    try:
        client = ClientSettings.from_options({**properties, "bootstrap.servers": "localhost"})
    except BadOption as fault:
        raise CommandError(str(fault)) from fault
    if not (client.authenticated or client.encrypted):
        if login_users:
            raise CommandError(
                "--login-user needs a cluster that checks passwords",
                "give the console users of its own with --users-file",
            )
        return None
    if client.sasl_mechanism not in PASSWORD_MECHANISMS:
        raise CommandError(
            "the cluster is secured, but it has no passwords that people could log in with",
            "give the console users of its own with --users-file, or --no-login to let in whoever reaches it",
        )
    return {client.sasl_username: "change", **dict(_named(text) for text in login_users)}
