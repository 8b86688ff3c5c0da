"""The console and the schema registry that `tidelog up` brings along.

Without --console-port the console runs where a person is likely to want it: standard output is a terminal
and the extra `console` is installed. The registry runs where --registry-port asks for it; the console then
shows records with its schemas.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tidelog.cli.console import DEFAULT_CONSOLE_PORT, console_installed
from tidelog.cli.errors import CommandError
from tidelog.cli.registry import registry_installed
from tidelog.cli.up_children import UpChild, keep_child, start_child

_CONSOLE = "tidelog.console"
_REGISTRY = "tidelog.registry"


def prepare_console(context: click.Context, parameter: click.Parameter, port: int | None) -> None:
    """The callback of --console-port."""
    if port is not None and port > 0 and not console_installed():
        raise CommandError("the console is not installed", "pip install 'tidelog[console]'")
    if port is None:
        port = DEFAULT_CONSOLE_PORT if sys.stdout.isatty() and console_installed() else 0
    if port > 0 and not context.resilient_parsing:
        keep_child(context, _CONSOLE, UpChild("console", port))


def prepare_registry(context: click.Context, parameter: click.Parameter, port: int | None) -> None:
    """The callback of --registry-port."""
    if port is None or port == 0 or context.resilient_parsing:
        return
    if not registry_installed():
        raise CommandError("the schema registry is not installed", "pip install 'tidelog[registry]'")
    keep_child(context, _REGISTRY, UpChild("registry", port))


def start_console(bootstrap: str, security: Any, *, as_json: bool, data_folders: Sequence[Path] = ()) -> None:
    """Brokers are ready: start what this command wants beside them, and say where it is."""
    properties = None if security is None else Path(security.folder) / "client.properties"
    registry = start_child(_REGISTRY, bootstrap, properties, as_json=as_json, option="--registry-port")
    more = [argument for folder in data_folders for argument in ("--data", str(folder))]
    if registry is not None and security is None:
        more += ["--registry", registry]
    start_child(_CONSOLE, bootstrap, properties, as_json=as_json, option="--console-port", more=more)


console_option = click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    callback=prepare_console,
    expose_value=False,
    help=f"Run the web console on this port; 0 for none (default: {DEFAULT_CONSOLE_PORT} on a terminal).",
)

registry_option = click.option(
    "--registry-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    callback=prepare_registry,
    expose_value=False,
    help="Run a schema registry on this port (none without it).",
)
