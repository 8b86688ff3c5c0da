"""The console that `tidelog up` brings along: a process of its own, which ends with this one.

A process, because the broker's event loop shares its time with nobody. Without --console-port it runs where a
person is likely to want it: standard output is a terminal and the extra `console` is installed. It is started
once brokers are ready, and ends when its standard input does, however this process ends.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tidelog.cli.console import DEFAULT_CONSOLE_PORT, console_installed
from tidelog.cli.errors import CommandError

_KEPT_AS = "tidelog.console"
STOP_SECONDS_MAX = 5.0


class ConsoleChild:
    """The console to start; `start` does it once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def is_free(self) -> bool:
        """Whether the port can be had: the console itself would say so too late."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
        return True

    def start(self, bootstrap: str, client_properties: Path | None, data_folders: Sequence[Path]) -> str:
        """Start the console for a cluster; its address."""
        command = [sys.executable, "-m", "tidelog.cli", "console", "--exit-with-stdin"]
        command += ["--bootstrap", bootstrap, "--port", str(self.port)]
        if client_properties is not None:
            command += ["--client-config-file", str(client_properties)]
        for folder in data_folders:
            command += ["--data", str(folder)]
        if self._process is None:
            # A session of its own: Ctrl-C is for the brokers, the console ends when they have.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()


def prepare_console(context: click.Context, parameter: click.Parameter, port: int | None) -> None:
    """The callback of --console-port: keep what to start in the command's context."""
    if port is not None and port > 0 and not console_installed():
        raise CommandError("the console is not installed", "pip install 'tidelog[console]'")
    if port is None:
        port = DEFAULT_CONSOLE_PORT if sys.stdout.isatty() and console_installed() else 0
    if port > 0 and not context.resilient_parsing:
        child = ConsoleChild(port)
        context.meta[_KEPT_AS] = child
        context.call_on_close(child.stop)


def start_console(bootstrap: str, security: Any, *, as_json: bool, data_folders: Sequence[Path] = ()) -> None:
    """Brokers are ready: start the console if this command wants one, and say where it is."""
    context = click.get_current_context(silent=True)
    child = None if context is None else context.meta.get(_KEPT_AS)
    if not isinstance(child, ConsoleChild):
        return
    if not child.is_free():
        fault = f"port {child.port} is in use: --console-port chooses another"
        if as_json:
            click.echo(json.dumps({"event": "console failed", "reason": fault}))
        else:
            click.echo(f"  console    not started, {fault}")
        return
    properties = None if security is None else Path(security.folder) / "client.properties"
    address = child.start(bootstrap, properties, data_folders)
    if as_json:
        click.echo(json.dumps({"event": "console", "address": address}))
    else:
        click.echo(f"  console    {address}")


console_option = click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    callback=prepare_console,
    expose_value=False,
    help=f"Run the web console on this port; 0 for none (default: {DEFAULT_CONSOLE_PORT} on a terminal).",
)
