"""What `tidelog up` runs beside its brokers: processes of their own, which end with this one.

Processes, because a broker's event loop shares its time with nobody. A child is started once brokers are
ready, and ends when its standard input does, however this process ends. One that dies is started again.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tidelog.model.addresses import address_text

STOP_SECONDS_MAX = 5.0
PAUSE_SECONDS = 1.0
#: a life that is shorter is a start that failed; so many in a row are enough
SHORT_LIFE_SECONDS = 30.0
SHORT_LIVES_MAX = 5


class UpChild:
    """A command of ours to keep running on a port, from `start` to `stop`."""

    def __init__(self, name: str, port: int, command: Sequence[str] = ()) -> None:
        """`command` is what starts it, where that is not the name itself."""
        self.name = name
        self.port = port
        self.host = "127.0.0.1"
        self.scheme = "http"
        self._words = command or (name,)
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        #: held where the process is exchanged, so that none is started behind a stop
        self._exchanging = threading.Lock()

    def is_free(self) -> bool:
        """Whether the port can be had: the child itself would say so too late."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            socket.create_server((self.host, self.port), family=family).close()
        except OSError:
            return False
        return True

    def start(self, bootstrap: str, client_properties: Path | None, more: Sequence[str] = ()) -> str:
        """Start the child for a cluster; its address."""
        if self._process is None:
            self._command = [sys.executable, "-m", "tidelog.cli", *self._words, "--exit-with-stdin"]
            self._command += ["--bootstrap", bootstrap, "--host", self.host, "--port", str(self.port)]
            if client_properties is not None:
                self._command += ["--client-config-file", str(client_properties)]
            self._command += more
            self._process = self._launch()
            threading.Thread(target=self._keep, name=f"up-{self.name}", daemon=True).start()
        return f"{self.scheme}://{address_text(self.host, self.port)}"

    def _launch(self) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C is for the brokers, the child ends when they have.
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _keep(self) -> None:
        """In a thread: start it again when it has died, unless it never stays."""
        short_lives = 0
        while self._process is not None:
            began = time.monotonic()
            code = self._process.wait()
            short_lives = short_lives + 1 if time.monotonic() - began < SHORT_LIFE_SECONDS else 0
            if self._stopping.is_set():
                return
            ended = f"{self.name} has ended with the exit code {code}"
            if short_lives >= SHORT_LIVES_MAX:
                click.echo(f"{ended}, {short_lives} times at once: it is not started again", err=True)
                return
            click.echo(f"{ended} and is started again", err=True)
            self._stopping.wait(PAUSE_SECONDS)
            with self._exchanging:
                if self._stopping.is_set():
                    return
                self._close_input()
                self._process = self._launch()

    def stop(self) -> None:
        """End it when its brokers have ended; it writes nothing more."""
        with self._exchanging:
            self._stopping.set()
            self._close_input()
        self._await_end()

    def stop_cleanly(self) -> None:
        """End it while its brokers are still there: it says goodbye and writes what it has to."""
        with self._exchanging:
            self._stopping.set()
            if self._process is not None:
                self._process.terminate()
        self._await_end()

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _await_end(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def keep_child(context: click.Context, key: str, child: UpChild) -> None:
    """Keep what to start in the command's context, which stops it at its end."""
    context.meta[key] = child
    context.call_on_close(child.stop)


def kept_child(key: str) -> UpChild | None:
    """What this command wants to have started, if it does."""
    context = click.get_current_context(silent=True)
    child = None if context is None else context.meta.get(key)
    return child if isinstance(child, UpChild) else None


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
    child = kept_child(key)
    if child is None:
        return None
    if not child.is_free():
        fault = f"port {child.port} is in use: {option} chooses another"
        if as_json:
            click.echo(json.dumps({"event": f"{child.name} failed", "reason": fault}))
        else:
            click.echo(f"  {child.name:<10} not started, {fault}")
        return None
    address = child.start(bootstrap, client_properties, more)
    if as_json:
        click.echo(json.dumps({"event": child.name, "address": address}))
    else:
        click.echo(f"  {child.name:<10} {address}")
    return address
