"""A small HTTP listener on the broker's event loop: /metrics, /healthz, /readyz, /events.

- `/metrics`: Prometheus' text format. It is worked out in slices of a millisecond, so that requests of
  clients are served in between; scrapes that come while one is under way get the same answer.
- `/healthz`: 200 as long as the event loop turns; nothing else is asked. For whoever restarts processes.
- `/readyz`: 200 when clients should come: the cluster knows this broker and every log is open; else 503.
  The body names each condition.
  Both name the background jobs that fail; no restart and no other broker helps with those, so they change no
  status.
- `/events?after=N`: the newest domain events with a number above N, as JSON.

With `tidelog.metrics.credentials.file` /metrics and /events are for whoever shows one of its passwords (basic
authentication) or tokens (bearer); /healthz and /readyz are open to everybody. A wrong one is answered late.

GET and HEAD only, read and written by h11; it listens on the loopback unless told otherwise. Limits:
`CONNECTIONS_MAX` connections, `REQUEST_BYTES_MAX` of request, `IDLE_SECONDS` of silence; who does not read
its answers gets no more of them.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import h11

from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.telemetry.exposition import CONTENT_TYPE, single
from tidelog.broker.telemetry.health import Health
from tidelog.model.addresses import EVERYWHERE, address_text
from tidelog.server.process_metrics import LoopProbe, connection_families, process_families

if TYPE_CHECKING:
    from tidelog.broker.telemetry.scrape import Scrape
    from tidelog.security.http_credentials import HttpCredentials
    from tidelog.server.socket_server import SocketServer

CONNECTIONS_MAX = 64
REQUEST_BYTES_MAX = 8 << 10
IDLE_SECONDS = 30.0
SLICE_NS = 1_000_000
SCRAPE_JOB = "metrics scrape"
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
OPEN_PATHS = ("/healthz", "/readyz")
#: trying passwords is slow, one at a time on a connection
REFUSAL_DELAY_SECONDS = 0.1
_HEADERS = {
    HTTPStatus.METHOD_NOT_ALLOWED: (("Allow", "GET, HEAD"),),
    HTTPStatus.UNAUTHORIZED: (
        ("WWW-Authenticate", 'Basic realm="tidelog", charset="UTF-8"'),
        ("WWW-Authenticate", 'Bearer realm="tidelog"'),
    ),
}


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    content_type: str
    body: str


Answer = Callable[[Page], None]


class MetricsEndpoint:
    """The listener of one broker."""

    def __init__(
        self,
        socket_server: "SocketServer",
        node_id: int,
        health: Health,
        scrape: "Deferred[Scrape]",
        jobs: BackgroundJobs,
        credentials: "HttpCredentials | None" = None,
    ) -> None:
        """Without `credentials` everybody may read everything."""
        self._socket_server = socket_server
        self._node_id = node_id
        self._health = health
        self._scrape = scrape
        self._jobs = jobs
        self._credentials = credentials
        self._loop = socket_server.loop
        self._probe = LoopProbe(socket_server.loop)
        self._server: asyncio.Server | None = None
        #: who waits for the scrape that is under way
        self._waiting: list[Answer] = []
        self._scrape_seconds = 0.0
        self.connections: set[HttpConnection] = set()
        self.stopping = False
        self.url = ""

    def __repr__(self) -> str:
        return f"<MetricsEndpoint connections={len(self.connections)} waiting={len(self._waiting)}>"

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 becomes one that is free."""
        self._server = await self._loop.create_server(lambda: HttpConnection(self), host or None, port)
        bound_port = self._server.sockets[0].getsockname()[1]
        shown = "127.0.0.1" if host in EVERYWHERE else host
        self.url = f"http://{address_text(shown, bound_port)}/metrics"

    def close(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        self._waiting.clear()
        self._probe.close()

    # -- pages

    def answer(self, target: str, authorization: str, then: Answer) -> None:
        """Find the page of a request; `then` at once, or when it is made."""
        try:
            parts = urlsplit(target)
        except ValueError:
            then(Page(HTTPStatus.BAD_REQUEST, TEXT_TYPE, "not a path\n"))
            return
        if parts.path not in OPEN_PATHS and not self._may_read(authorization):
            page = Page(HTTPStatus.UNAUTHORIZED, TEXT_TYPE, "a password or a token is needed\n")
            self._loop.call_later(REFUSAL_DELAY_SECONDS if authorization else 0, then, page)
            return
        match parts.path:
            case "/metrics":
                self._answer_metrics(then)
            case "/healthz":
                then(Page(HTTPStatus.OK, TEXT_TYPE, self._liveness_text()))
            case "/readyz":
                then(self._readiness())
            case "/events":
                then(self._events(parts.query))
            case _:
                then(
                    Page(HTTPStatus.NOT_FOUND, TEXT_TYPE, "there are /metrics, /healthz, /readyz, /events\n")
                )

    def _may_read(self, authorization: str) -> bool:
        return self._credentials is None or self._credentials.accepts(authorization)

    def _liveness_text(self) -> str:
        failing = self._health.failing()
        return f"ok, but failing: {', '.join(failing)}\n" if failing else "ok\n"

    def _readiness(self) -> Page:
        conditions = {**self._health.conditions(), "not_stopping": not self.stopping}
        ready = all(conditions.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        body = {
            "ready": ready,
            "broker": self._node_id,
            "conditions": conditions,
            "failing": self._health.failing(),
        }
        return Page(status, JSON_TYPE, json.dumps(body) + "\n")

    def _events(self, query: str) -> Page:
        after = parse_qs(query).get("after", ["0"])[-1]
        if not after.isascii() or not after.isdigit() or len(after) > 18:
            return Page(HTTPStatus.BAD_REQUEST, TEXT_TYPE, "after is the number of an event\n")
        events = self._socket_server.broker.metrics.events
        body = {
            "broker": self._node_id,
            "last": events.count,
            "events": [event.as_json() for event in events.after(int(after))],
        }
        return Page(HTTPStatus.OK, JSON_TYPE, json.dumps(body, default=list) + "\n")

    # -- metrics

    def _answer_metrics(self, then: Answer) -> None:
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return
        self._go_on(self._scrape.get().run(), [], 0)

    def _go_on(self, pieces: Iterator[str], text: list[str], spent_ns: int) -> None:
        """Work for one slice, then let the loop have a turn."""
        if not self._waiting:
            return  # the endpoint was closed
        began_ns = perf_counter_ns()
        jobs = self._jobs
        try:
            for piece in pieces:
                text.append(piece)
                if perf_counter_ns() - began_ns > SLICE_NS:
                    spent_ns += perf_counter_ns() - began_ns
                    self._loop.call_soon(self._go_on, pieces, text, spent_ns)
                    return
            text += (connection_families(self._socket_server), process_families(self._probe))
            self._scrape_seconds = (spent_ns + perf_counter_ns() - began_ns) / 1e9
            text.append(single("tidelog_scrape_seconds", self._scrape_seconds))
            page = Page(HTTPStatus.OK, CONTENT_TYPE, "".join(text))
            jobs.ran(SCRAPE_JOB)
        except Exception as fault:
            # Those who wait hear of it, and the next scrape begins anew.
            jobs.failed(SCRAPE_JOB, fault)
            page = Page(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT_TYPE, "the log of the broker says why\n")
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(page)


class HttpConnection(asyncio.Protocol):
    """One connection: requests one after the other; one with a body is the last."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._answering = self._serving = False
        #: the peer does not read: the next request waits until it has
        self._full = False
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._endpoint.connections) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._endpoint.connections.add(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.connections.discard(self)
        self._transport = None
        if self._idle is not None:
            self._idle.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)

    def data_received(self, data: bytes) -> None:
        waiting, _ = self._http.trailing_data
        if len(waiting) + len(data) > REQUEST_BYTES_MAX:
            self.close()
            return
        self._http.receive_data(data)
        self._serve()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._serve()

    def _serve(self) -> None:
        """Serve whole requests for as long as each is answered at once; an answer does not go deeper."""
        if self._serving:
            return
        self._serving = True
        while self._transport is not None and not (
            self._answering or self._full or self._transport.is_closing()
        ):
            try:
                event = self._http.next_event()
                if not isinstance(event, h11.Request):
                    break
                has_body = not isinstance(self._http.next_event(), h11.EndOfMessage)
            except h11.RemoteProtocolError:
                self._send(Page(HTTPStatus.BAD_REQUEST, TEXT_TYPE, "not an HTTP/1 request\n"), keeps=False)
                break
            self._answering = True
            self._serve_one(event, keeps=not has_body)
        self._serving = False

    def _serve_one(self, request: h11.Request, *, keeps: bool) -> None:
        self._wait()
        if request.method not in (b"GET", b"HEAD"):
            page = Page(HTTPStatus.METHOD_NOT_ALLOWED, TEXT_TYPE, "GET or HEAD only\n")
            self._send(page, keeps=False)
            return

        def send(page: Page) -> None:
            self._send(page, keeps=keeps, with_body=request.method != b"HEAD")
            self._serve()

        authorization = dict(request.headers).get(b"authorization", b"").decode("latin-1")
        self._endpoint.answer(request.target.decode("latin-1"), authorization, send)

    def _send(self, page: Page, *, keeps: bool, with_body: bool = True) -> None:
        self._answering = False
        if self._transport is None:
            return
        body = page.body.encode()
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            *_HEADERS.get(page.status, ()),
            # h11 makes it close where the peer or its version wants that
            ("Connection", "keep-alive" if keeps else "close"),
        ]
        answer = h11.Response(status_code=page.status, headers=headers, reason=page.status.phrase)
        events = (answer, h11.Data(body if with_body else b""), h11.EndOfMessage())
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        if self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
        else:
            self._http.start_next_cycle()
