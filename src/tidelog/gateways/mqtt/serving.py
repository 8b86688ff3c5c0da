"""Running a gateway: listeners for MQTT and for web sockets, both with TLS or without, and for metrics."""

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import uvloop

from tidelog.client.client_settings import ClientSettings
from tidelog.gateways.metrics_port import MetricsPort
from tidelog.gateways.mqtt.access import ClusterAccess, OpenAccess
from tidelog.gateways.mqtt.connection import Connection
from tidelog.gateways.mqtt.gateway import Gateway, GatewaySettings

log = logging.getLogger(__name__)

BACKLOG = 1_024
HANDSHAKE_SECONDS_MAX = 10.0
THREADS = 8


class GatewayFenced(Exception):
    """Another gateway started under the same name, or took our sessions because we did not answer."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway listens; port 0 picks a free one."""

    host: str
    #: None for no such listener
    mqtt: int | None
    web_socket: int | None = None
    #: metrics are served on the loopback, without TLS
    metrics: int | None = None
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that were taken; 0 for none."""

    mqtt: int = 0
    web_socket: int = 0
    metrics: int = 0


async def serve(
    settings: GatewaySettings,
    listening: Listening,
    login: ClientSettings | None,
    ready: Callable[[Ports], None],
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; raises KafkaException, OSError and GatewayFenced.

    `login` says how the cluster checks passwords; None asks for none.
    """
    loop = asyncio.get_running_loop()
    stopped = stop or asyncio.Event()
    fenced = False

    def on_fenced() -> None:
        nonlocal fenced
        fenced = True
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="mqtt-worker")
    access = OpenAccess() if login is None else ClusterAccess(login, executor)
    gateway = Gateway(settings, access, executor, on_fenced)
    servers: dict[str, asyncio.Server] = {}
    try:
        await gateway.start()
        await _listen(gateway, listening, servers)
        ready(Ports(**{name: server.sockets[0].getsockname()[1] for name, server in servers.items()}))
        await stopped.wait()
    finally:
        for server in servers.values():
            server.close()
        await gateway.stop()
        executor.shutdown(wait=False, cancel_futures=True)
    if fenced:
        raise GatewayFenced


async def _listen(gateway: Gateway, listening: Listening, servers: dict[str, asyncio.Server]) -> None:
    """Open the listeners that are wanted; raises OSError."""
    protocols: dict[str, tuple[int, Callable[[Gateway], asyncio.Protocol]]] = {}
    if listening.mqtt is not None:
        protocols["mqtt"] = (listening.mqtt, Connection)
    if listening.web_socket is not None:
        from tidelog.gateways.mqtt.web_socket import WebSocket

        protocols["web_socket"] = (listening.web_socket, WebSocket)
    for name, (port, protocol) in protocols.items():
        servers[name] = await gateway.loop.create_server(
            partial(protocol, gateway),
            listening.host,
            port,
            ssl=listening.tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=None if listening.tls is None else HANDSHAKE_SECONDS_MAX,
        )
    if listening.metrics is not None:
        serve_metrics = MetricsPort(gateway.metrics_text).serve
        servers["metrics"] = await asyncio.start_server(serve_metrics, "127.0.0.1", listening.metrics)


def run(
    settings: GatewaySettings,
    listening: Listening,
    login: ClientSettings | None,
    ready: Callable[[Ports], None],
) -> None:
    """The same, blocking, on a loop of its own."""
    uvloop.run(serve(settings, listening, login, ready))
