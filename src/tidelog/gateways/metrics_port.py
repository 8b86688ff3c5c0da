"""`/metrics` and `/healthz` of a gateway over HTTP: one small request on a connection, read by h11."""

import asyncio
from collections.abc import Callable

import h11

CONNECTIONS_MAX = 64
REQUEST_BYTES_MAX = 8 << 10
SECONDS_MAX = 10.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPort:
    """Answers scrapes; `text` makes what is shown."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which is closed after its answer."""
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                await asyncio.wait_for(self._answer(reader, writer), SECONDS_MAX)
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            writer.transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(REQUEST_BYTES_MAX))
            elif isinstance(event, h11.Request):
                break
            else:
                return
        status, body = self._page(event.method, event.target.partition(b"?")[0])
        data = body.encode()
        headers = [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(data)))]
        headers.append(("Connection", "close"))
        writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
        if event.method == b"GET":
            writer.write(http.send(h11.Data(data=data)) or b"")
        await writer.drain()

    def _page(self, method: bytes, path: bytes) -> tuple[int, str]:
        if method not in (b"GET", b"HEAD"):
            return 405, "GET and HEAD only\n"
        if path == b"/metrics":
            return 200, self._text()
        if path == b"/healthz":
            return 200, "ok\n"
        return 404, "/metrics, /healthz\n"
