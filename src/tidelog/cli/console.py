"""`tidelog console`: the web console in the foreground."""

import importlib.util
import os
import sys
import threading

import click

from tidelog.cli.connection import Connection, connection_options
from tidelog.cli.errors import CommandError

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
    help="Listen on this address. The console has no login: whoever reaches it can use it.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers may reach it, besides localhost and addresses; repeat for more.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--exit-with-stdin", is_flag=True, help="Stop when standard input ends, as 'tidelog up' needs.")
@connection_options()
def console(
    connection: Connection,
    port: int,
    host: str,
    allowed_hosts: tuple[str, ...],
    read_only: bool,
    exit_with_stdin: bool,
) -> None:
    """Run the web console for a cluster: topics, records, groups, brokers, what happens.

    It works with any Kafka cluster, through ordinary client requests.

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

    try:
        listening = listen(host, port)
    except OSError as failure:
        raise CommandError(
            f"cannot listen on {host}:{port}: {failure.strerror or failure}",
            "another --port (0 picks a free one), or stop what uses this one",
        ) from failure
    settings = ConsoleSettings(
        connection.bootstrap,
        connection.properties,
        read_only=read_only,
        allowed_hosts=(*allowed_hosts, host),
        timeout_seconds=connection.timeout_seconds,
    )
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"

    def ready() -> None:
        click.echo(f"Console of {connection.bootstrap} at {address}")
        sys.stdout.flush()

    def run() -> None:
        if exit_with_stdin:
            threading.Thread(target=_exit_with_stdin, daemon=True).start()
        serve(settings, listening, ready)

    raise click.exceptions.Exit(run_restarted(run))


def _exit_with_stdin() -> None:
    """End with the process that started us, however it ends: its end of the pipe closes."""
    while os.read(0, 4096):
        pass
    os._exit(0)
