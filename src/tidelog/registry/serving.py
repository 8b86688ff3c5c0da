"""Running an instance: uvicorn in this process until it is told to stop."""

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from tidelog.registry.access import Access
from tidelog.registry.application import create_application
from tidelog.registry.service import Registry

STOP_SECONDS_MAX = 5
CONNECTIONS_MAX = 500
KEEP_ALIVE_SECONDS = 30


class TlsFiles(NamedTuple):
    """The certificate of the registry itself, as PEM files."""

    certificate: str
    key: str


class Server(uvicorn.Server):
    """A server that says when it listens, and ends well however often it is told to."""

    def __init__(
        self, application: ASGIApp, on_ready: Callable[[], None], tls: TlsFiles | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_level="warning",
                access_log=False,
                server_header=False,
                # Anybody can write X-Forwarded-For: wrong passwords are counted by who is really there.
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
                log_config=None,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
            )
        )
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM; uvicorn would raise the signal anew at its end."""
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


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; OSError where it cannot be had. Port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, reuse_port=False)


def make_server(
    registry: Registry,
    access: Access,
    on_ready: Callable[[], None],
    *,
    tls: TlsFiles | None = None,
    forward_tls: ssl.SSLContext | None = None,
) -> Server:
    """A server for an instance that was started, to be run with `run(sockets=[…])`."""
    return Server(create_application(registry, access, forward_tls), on_ready, tls)
