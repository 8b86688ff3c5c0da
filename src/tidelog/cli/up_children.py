"""What `tidelog up` runs beside its brokers: processes of their own, which end with this one.

Processes, because a broker's event loop shares its time with nobody. A child is started once brokers are
ready, and ends when its standard input does, however this process ends.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

STOP_SECONDS_MAX = 5.0


class UpChild:
    """A command of ours to start on a port; `start` does it once."""

    def __init__(self, command: str, port: int) -> None:
        self.command = command
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def is_free(self) -> bool:
        """Whether the port can be had: the child itself would say so too late."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return False
        return True

    def start(self, bootstrap: str, client_properties: Path | None, more: Sequence[str] = ()) -> str:
        """Start the child for a cluster; its address."""
        command = [sys.executable, "-m", "tidelog.cli", self.command, "--exit-with-stdin"]
        command += ["--bootstrap", bootstrap, "--port", str(self.port)]
        if client_properties is not None:
            command += ["--client-config-file", str(client_properties)]
        if self._process is None:
            # A session of its own: Ctrl-C is for the brokers, the child ends when they have.
            self._process = subprocess.Popen(
                [*command, *more], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
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


def keep_child(context: click.Context, key: str, child: UpChild) -> None:
    """Keep what to start in the command's context, which stops it at its end."""
    context.meta[key] = child
    context.call_on_close(child.stop)


def start_child(
    key: str,
    bootstrap: str,
    client_properties: Path | None,
    *,
    as_json: bool,
    option: str,
    more: Sequence[str] = (),
) -> str | None:
    """Brokers are ready: start the child if this command wants one, and say where it is; its address."""
    context = click.get_current_context(silent=True)
    child = None if context is None else context.meta.get(key)
    if not isinstance(child, UpChild):
        return None
    if not child.is_free():
        fault = f"port {child.port} is in use: {option} chooses another"
        if as_json:
            click.echo(json.dumps({"event": f"{child.command} failed", "reason": fault}))
        else:
            click.echo(f"  {child.command:<10} not started, {fault}")
        return None
    address = child.start(bootstrap, client_properties, more)
    if as_json:
        click.echo(json.dumps({"event": child.command, "address": address}))
    else:
        click.echo(f"  {child.command:<10} {address}")
    return address
