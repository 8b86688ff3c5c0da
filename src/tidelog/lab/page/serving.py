"""A console whose cluster comes and goes with the scenario that runs.

`Switch` is an ASGI application that hands requests to the application of the present console: one of the
cluster of the scenario, or one without a cluster that has the lab alone. Their forms share a token, so a page
stays good when the cluster changes under it; streams end at a change, and browsers ask again.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from tidelog.console.application import create_application, reading
from tidelog.console.console import Console, ConsoleSettings
from tidelog.console.protection import Token
from tidelog.console.serving import Server
from tidelog.lab.page.pages import ENTRY, extension
from tidelog.lab.page.stage import Stage, TourProgress

NO_CLUSTER = "no cluster yet"


class Switch:
    """The application of the lab; `stage` has the scenario."""

    def __init__(self, *, progress: TourProgress | None = None) -> None:
        self.stage = Stage(progress=progress, on_cluster=self._connect, on_end=self._disconnect)
        self._token = Token()
        self._lock = threading.Lock()
        self._waiting, self._waiting_application = self._without_cluster()
        self._console: Console | None = None
        self._application = self._waiting_application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return

    def end_streams(self) -> None:
        """Let open streams end, so that nobody waits for them."""
        self._waiting.end_streams()
        if (console := self._console) is not None:
            console.end_streams()

    def close(self) -> None:
        """End the scenario and its cluster."""
        self.stage.stop()
        self._waiting.close()

    def _without_cluster(self) -> tuple[Console, Starlette]:
        def to_the_lab(console: Console, request: Request) -> Response:
            return RedirectResponse("/lab", 303)

        console = Console(ConsoleSettings(NO_CLUSTER))
        application = self._extended(console, to_the_lab)
        console.navigation = (ENTRY,)
        return console, application

    def _extended(
        self, console: Console, front: Callable[[Console, Request], Response] | None = None
    ) -> Starlette:
        console.token = self._token
        more = extension(console, self.stage)
        routes = [*more.routes] if front is None else [reading(console, "/", front), *more.routes]
        return create_application(
            console,
            extra_routes=routes,
            navigation=more.navigation,
            template_folders=more.template_folders,
        )

    def _connect(self, bootstrap: str) -> None:
        console = Console(ConsoleSettings(bootstrap))
        application = self._extended(console)
        console.watcher.start()
        with self._lock:
            self._console = console
            self._application = application

    def _disconnect(self) -> None:
        with self._lock:
            console, self._console = self._console, None
            self._application = self._waiting_application
        if console is not None:
            console.end_streams()
            console.close()


def serve(switch: Switch, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then end the scenario."""
    # The console would tell the terminal of every broker that somebody broke on purpose.
    logging.getLogger("tidelog.console").addHandler(logging.NullHandler())
    with contextlib.closing(switch):
        Server(switch, switch, on_ready).run(sockets=[listening])
