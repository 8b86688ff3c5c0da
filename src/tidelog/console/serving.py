"""Running the console: uvicorn in this process until it is told to stop."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from tidelog.console.application import Extension, create_application
from tidelog.console.console import Console, ConsoleSettings

STOP_SECONDS_MAX = 2


class Streaming(Protocol):
    """What has open streams, as a console does."""

    def end_streams(self) -> None:
        """Let them end."""


class Server(uvicorn.Server):
    """A server that says when it listens, and lets streams end before it does."""

    def __init__(self, application: ASGIApp, streaming: Streaming, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                server_header=False,
                # Anybody can write X-Forwarded-For: wrong passwords are counted by who is really there.
                proxy_headers=False,
                # Streams have no end of their own; people who stop the console do not want to wait for them.
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
            )
        )
        self._streaming = streaming
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, however often they come, and end well.

        Ctrl-C reaches us twice, from the terminal and from the parent (`restarting`). uvicorn takes the
        second for impatience and drops what is under way with a traceback; at its end it raises the signal
        anew.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.should_exit = True

        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streaming.end_streams()
        await super().shutdown(sockets)


Extend = Callable[[Console], Extension]


def make_server(
    settings: ConsoleSettings, on_ready: Callable[[], None], extend: Extend | None = None
) -> Server:
    """A server for a console, to be run with `run(sockets=[…])`."""
    console = Console(settings)
    more = Extension() if extend is None else extend(console)
    application = create_application(
        console,
        extra_routes=more.routes,
        navigation=more.navigation,
        template_folders=more.template_folders,
    )
    return Server(application, console, on_ready)


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; OSError where it cannot be had. Port 0 picks a free one."""
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, reuse_port=False
    )


def serve(
    settings: ConsoleSettings,
    listening: socket.socket,
    on_ready: Callable[[], None],
    extend: Extend | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM."""
    make_server(settings, on_ready, extend).run(sockets=[listening])
