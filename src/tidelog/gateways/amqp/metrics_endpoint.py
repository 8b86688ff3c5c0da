"""`GET /metrics` for Prometheus, and `GET /healthz`; anything else is not there.

HTTP/1.1 with one request on a connection; h11 reads it, with its own limits.
"""

import asyncio
import contextlib

import h11

from tidelog.gateways.amqp.gateway import Gateway
from tidelog.gateways.amqp.metrics import exposition

_READ_BYTES = 4_096
_REQUEST_BYTES_MAX = 16 << 10
_SECONDS_MAX = 5.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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


async def serve_metrics(gateway: Gateway, host: str, port: int) -> asyncio.Server:
    """Listen; the server is the caller's to close."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, h11.RemoteProtocolError):
            async with asyncio.timeout(_SECONDS_MAX):
                writer.write(await _answer(gateway, reader))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answered, host, port, limit=_REQUEST_BYTES_MAX)


async def _answer(gateway: Gateway, reader: asyncio.StreamReader) -> bytes:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=_REQUEST_BYTES_MAX)
    event = http.next_event()
    while event is h11.NEED_DATA:
        http.receive_data(await reader.read(_READ_BYTES))
        event = http.next_event()
    status, body = 404, b"not found\n"
    if isinstance(event, h11.Request) and event.method == b"GET":
        if event.target == b"/metrics":
            status, body = 200, metrics_text(gateway).encode()
        elif event.target == b"/healthz":
            status, body = 200, b"ok\n"
    headers = [
        ("content-type", _CONTENT_TYPE),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    parts = (
        http.send(h11.Response(status_code=status, headers=headers)),
        http.send(h11.Data(data=body)),
        http.send(h11.EndOfMessage()),
    )
    return b"".join(part or b"" for part in parts)
