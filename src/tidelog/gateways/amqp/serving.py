"""A gateway with its listeners, in one event loop, until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable

from tidelog.gateways.amqp.connection import Connection
from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.metrics_endpoint import serve_metrics
from tidelog.gateways.amqp.upkeep import Upkeep

log = logging.getLogger(__name__)


async def serve(
    gateway: Gateway,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    metrics_port: int | None = None,
    ready: Callable[[int], None],
    stopped: asyncio.Event | None = None,
) -> None:
    """Serve until `stopped` is set, or SIGINT or SIGTERM came where that is None."""
    loop = asyncio.get_running_loop()
    if stopped is None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
    upkeep = Upkeep(gateway)
    metrics: asyncio.Server | None = None
    try:
        await gateway.start()
        server = await loop.create_server(lambda: Connection(gateway), host, port, ssl=tls)
        if metrics_port is not None:
            metrics = await serve_metrics(gateway, host, metrics_port)
        await upkeep.start()
        ready(server.sockets[0].getsockname()[1])
        await stopped.wait()
        server.close()
    finally:
        if metrics is not None:
            metrics.close()
        await upkeep.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await gateway.stop()
