"""A gateway with its listeners, in one event loop, until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable

from tidelog.gateways.amqp.connection import Connection
from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.metrics import exposition
from tidelog.gateways.amqp.upkeep import Upkeep
from tidelog.gateways.metrics_port import MetricsPort

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
            serve_metrics = MetricsPort(lambda: metrics_text(gateway)).serve
            metrics = await asyncio.start_server(serve_metrics, host, metrics_port)
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


def metrics_text(gateway: Gateway) -> str:
    """What a scrape gets."""
    sessions = list(gateway.all_sessions())
    readers = [reader for session in sessions for reader in session.readers.values()]
    return exposition(
        gateway.metrics,
        {
            "connections": ("Connections now.", lambda: gateway.connections),
            "queues": ("Queues that exist.", lambda: len(gateway.definitions.queues)),
            "exchanges": ("Exchanges that exist.", lambda: len(gateway.definitions.exchanges)),
            "consumers": ("Consumers at this gateway.", lambda: sum(len(each.consumers) for each in readers)),
            "unacknowledged": ("Records locked here.", lambda: sum(each.locked for each in readers)),
            "unconfirmed_bytes": (
                "Published and not yet on all replicas.",
                lambda: sum(session.writer.unconfirmed_bytes for session in sessions),
            ),
        },
    )
