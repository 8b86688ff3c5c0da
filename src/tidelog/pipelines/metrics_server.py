"""A pipeline's metrics for Prometheus, served by its driver.

with MetricsServer("0.0.0.0:9308", lambda: [status]) as server:
    server.address            # http://…:9308/metrics
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.client.pipeline_metrics import CONTENT_TYPE, exposition

PATH = "/metrics"
HOST_DEFAULT = "127.0.0.1"
#: who connects and says nothing is not waited for longer
REQUEST_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 5.0

Statuses = Callable[[], Iterable[Mapping[str, Any]]]


class MetricsServer:
    """Serves from `__enter__` to `__exit__`, in threads. Raises BadOption where it cannot listen."""

    def __init__(self, listen: str, statuses: Statuses) -> None:
        host, _, port = listen.rpartition(":")
        try:
            self._server = ThreadingHTTPServer((host or HOST_DEFAULT, int(port)), _handler(statuses))
        except (OSError, ValueError, OverflowError) as fault:
            raise BadOption(f"metrics cannot be served at {listen}: {fault}") from None
        self._server.daemon_threads = True
        host, number = str(self._server.server_address[0]), self._server.server_address[1]
        self.address = f"http://{host}:{number}{PATH}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="pipeline-metrics", daemon=True
        )

    def __enter__(self) -> "MetricsServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_SECONDS_MAX)


def _handler(statuses: Statuses) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS_MAX

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, "metrics are at /metrics")
                return
            body = exposition(statuses()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody wants a line for each scrape."""

    return Handler
