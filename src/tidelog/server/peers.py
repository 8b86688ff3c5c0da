"""The asyncio side of the port to the other brokers (`tidelog.broker.runtime.peers`).

One connection per (broker, channel), opened by the first request and kept. Requests are pipelined and
answered in order. Answers are served from the receive buffer they arrived in: a fetch answer of megabytes is
not copied once the buffer has grown to its size.

Trouble. A request that was not answered in time ends its connection, for every answer behind it would be late
as well, and everything in flight on it gets a `PeerFault`. What was not sent yet waits for the next
connection. After a failure the next attempt waits 20 ms, then twice that, at most 100 ms; an answer resets
it.

Security. Where the listener that brokers share has TLS or SASL, a link is encrypted and begins with a login
(see peer_login); requests wait until it is over. A login that fails faults what waits. An authentication that
ends is followed by another connection, once what is in flight has been answered.

Limits. So many requests in flight, so many waiting behind them, no answer larger than `ANSWER_BYTES_MAX`.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tidelog.broker.runtime.peers import CONTROL_CHANNEL, FETCH_CHANNEL, PeerAnswer, PeerFault
from tidelog.client.faults import AuthenticationFailed
from tidelog.client.requests import (
    CORRELATION_ID,
    MalformedAnswer,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.addresses import address_text
from tidelog.model.metadata import Endpoint

if TYPE_CHECKING:
    from tidelog.server.peer_login import Login, PeerSecurity

log = logging.getLogger(__name__)

FindEndpoint = Callable[[int], Endpoint | None]

IN_FLIGHT_MAX = 64
WAITING_MAX = 10_000
#: as large as the largest request a broker accepts by default
ANSWER_BYTES_MAX = 100 << 20
BACKOFF_MS_MIN = 20
BACKOFF_MS_MAX = 100
#: an attempt to connect that is not answered was lost; a second one soon is better than the system's patience
CONNECT_SECONDS_MAX = 1.0
#: with a TLS handshake, which keeps both sides busy
CONNECT_ENCRYPTED_SECONDS_MAX = 5.0
#: credentials that were refused are not tried again at once
REFUSED_BACKOFF_MS = 1_000
#: another connection is made when this part of an authentication's time has passed
SESSION_USED = 0.8
#: how long sent bytes may stay unacknowledged before the system gives the connection up
UNACKNOWLEDGED_MS_MAX = 5_000
RECEIVE_BUFFER_BYTES = {FETCH_CHANNEL: 1 << 20}
RECEIVE_BUFFER_BYTES_DEFAULT = 64 << 10
#: a buffer that had to grow is given back after so many answers that did not need it
SMALL_ANSWERS_BEFORE_SHRINKING = 256
_CORRELATION_IDS = 1 << 31


class _Waiting:
    """A request that has no answer yet."""

    __slots__ = ("api_key", "body", "correlation_id", "deadline", "flexible", "then", "version")

    def __init__(
        self, api_key: int, version: int, body: bytes | list[bytes], then: PeerAnswer, deadline: float
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.body: bytes | list[bytes] = body
        self.flexible = flexible_answer(api_key, version)
        self.then = then
        #: in the loop's time
        self.deadline = deadline
        self.correlation_id = -1


class _Link(asyncio.BufferedProtocol):
    """One connection to one broker: connecting, sending, receiving, failing."""

    def __init__(self, peers: "AsyncPeers", broker_id: int, channel: str, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._peers = peers
        self._broker_id = broker_id
        self._channel = channel
        self._loop = peers.loop
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._backoff_ms = 0
        self._writable = True
        self._next_correlation_id = 0
        self._unsent: deque[_Waiting] = deque()
        self._in_flight: deque[_Waiting] = deque()
        self._capacity_min = RECEIVE_BUFFER_BYTES.get(channel, RECEIVE_BUFFER_BYTES_DEFAULT)
        self._buffer = memoryview(bytearray(0))
        self._start = 0
        self._end = 0
        self._small_answers = 0
        self._closed = False
        self._login: Login | None = None
        #: the authentication is about to end: nothing more is sent on this connection
        self._retiring = False
        self._session_timer: asyncio.TimerHandle | None = None

    # -- asking

    def request(self, waiting: _Waiting) -> None:
        if len(self._unsent) >= WAITING_MAX:
            self._post_faults([waiting], f"too many requests wait for broker {self._broker_id}")
            return
        self._unsent.append(waiting)
        if self._transport is not None:
            self._send()
        elif self._connecting is None and self._retry is None:
            self._connect()
        if self._timer is None or waiting.deadline < self._timer_due:
            self._arm(waiting.deadline)

    def _send(self) -> None:
        """Put on the wire what may go, in one write."""
        if self._login is not None or self._retiring:
            return
        if self._transport is None or not self._writable or self._transport.is_closing():
            # A connection that is closing tells so on a later turn; what waits goes over the next one.
            return
        chunks: list[bytes] = []
        while self._unsent and len(self._in_flight) < IN_FLIGHT_MAX:
            waiting = self._unsent.popleft()
            waiting.correlation_id = self._next_correlation_id
            self._next_correlation_id = (self._next_correlation_id + 1) % _CORRELATION_IDS
            body = waiting.body
            parts = [body] if isinstance(body, bytes) else body
            chunks.append(
                frame_prefix(
                    waiting.api_key,
                    waiting.version,
                    waiting.correlation_id,
                    self._peers.client_id,
                    sum(map(len, parts)),
                )
            )
            chunks += parts
            waiting.body = b""
            self._in_flight.append(waiting)
        if chunks:
            self._transport.write(b"".join(chunks))

    # -- connecting

    def _connect(self) -> None:
        self._retry = None
        self._connecting = self._loop.create_task(self._open_connection())

    async def _open_connection(self) -> None:
        security = self._peers.security
        context = None if security is None else security.context
        host, port = self.endpoint
        try:
            async with asyncio.timeout(CONNECT_ENCRYPTED_SECONDS_MAX if context else CONNECT_SECONDS_MAX):
                await self._loop.create_connection(
                    lambda: self, host, port, ssl=context, server_hostname=host if context else None
                )
        except OSError as fault:
            # Also a timeout, which is an OSError.
            self._connecting = None
            why = str(fault) or "timed out"
            reason = f"no connection to {address_text(self.endpoint.host, self.endpoint.port)}: {why}"
            if self._transport is not None:
                # The time was up in the very turn in which the connection was made. It is closed now, and
                # uvloop tells nobody: what was sent on it would wait for its own deadline.
                self._disconnect(reason)
                return
            self._failed(reason, [*self._take(self._unsent)])
        else:
            self._connecting = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._closed or self._connecting is None:
            # Nobody waits for it: this link was closed meanwhile, or the attempt was given up.
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = memoryview(bytearray(self._capacity_min))
        self._start = self._end = 0
        self._writable = True
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
        self._retiring = False
        security = self._peers.security
        if security is not None:
            self._begin_login(security)
        self._send()

    # -- login

    def _begin_login(self, security: "PeerSecurity") -> None:
        try:
            self._login = security.login(self._peers.client_id)
        except AuthenticationFailed as fault:
            self._refused(str(fault))
            return
        if self._login is not None and self._transport is not None:
            self._transport.write(self._login.begin())

    def _go_on_with_login(self, login: "Login", frame: memoryview) -> None:
        try:
            following = login.answered(frame)
        except AuthenticationFailed as fault:
            self._refused(str(fault))
            return
        if following is not None:
            if self._transport is not None:
                self._transport.write(following)
            return
        self._login = None
        if login.session_ms:
            seconds = login.session_ms * SESSION_USED / 1000
            self._session_timer = self._loop.call_later(seconds, self._retire)
        self._send()

    def _refused(self, reason: str) -> None:
        """The other side does not believe us, or we do not believe it."""
        reason = f"no authentication at {address_text(self.endpoint.host, self.endpoint.port)}: {reason}"
        self._peers.report(reason)
        self._backoff_ms = REFUSED_BACKOFF_MS
        waiting = self._take(self._unsent)
        self._disconnect(reason)
        self._post_faults(waiting, reason)

    def _retire(self) -> None:
        self._session_timer = None
        self._retiring = True
        if not self._in_flight:
            self._reconnect()

    def _reconnect(self) -> None:
        self._disconnect("its authentication is about to end")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._disconnect(f"the connection was lost{f': {exc}' if exc else ''}")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._send()

    # -- failing

    def _disconnect(self, reason: str) -> None:
        """End the connection; what was sent gets the reason, what was not waits for the next one."""
        transport, self._transport = self._transport, None
        self._login = None
        if self._session_timer is not None:
            self._session_timer.cancel()
            self._session_timer = None
        if transport is not None:
            transport.abort()
        self._buffer = memoryview(b"")
        self._start = self._end = 0
        self._failed(reason, self._take(self._in_flight))

    def _failed(self, reason: str, faulted: list[_Waiting]) -> None:
        if not self._closed:
            if self._backoff_ms < REFUSED_BACKOFF_MS:
                self._backoff_ms = min(max(2 * self._backoff_ms, BACKOFF_MS_MIN), BACKOFF_MS_MAX)
            if self._retry is None:
                self._retry = self._loop.call_later(self._backoff_ms / 1000, self._retry_due)
        self._post_faults(faulted, reason)

    def _retry_due(self) -> None:
        self._retry = None
        if self._unsent and self._transport is None and self._connecting is None:
            self._connect()

    def _post_faults(self, faulted: list[_Waiting], reason: str) -> None:
        fault = PeerFault(f"broker {self._broker_id}, {self._channel}: {reason}")
        for waiting in faulted:
            self._loop.call_soon(waiting.then, fault)

    @staticmethod
    def _take(queue: deque[_Waiting]) -> list[_Waiting]:
        taken = list(queue)
        queue.clear()
        return taken

    def close(self, reason: str) -> None:
        """End for good."""
        self._closed = True
        for handle in (self._retry, self._timer, self._connecting):
            if handle is not None:
                handle.cancel()
        self._retry = self._timer = self._connecting = None
        unsent = self._take(self._unsent)
        self._disconnect(reason)
        self._post_faults(unsent, reason)

    # -- time

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._overdue)

    def _overdue(self) -> None:
        """A deadline may have passed: end what is too late, and arm for the next."""
        self._timer = None
        # The loop may wake a little early, by the resolution of its clock.
        now = max(self._loop.time(), self._timer_due)
        if any(waiting.deadline <= now for waiting in self._in_flight):
            self._disconnect("timed out")
        late = [waiting for waiting in self._unsent if waiting.deadline <= now]
        if late:
            if self._login is not None:
                self._disconnect("we were not authenticated in time")
            self._unsent = deque(waiting for waiting in self._unsent if waiting.deadline > now)
            self._post_faults(late, "timed out before it was sent")
        deadlines = [waiting.deadline for queue in (self._in_flight, self._unsent) for waiting in queue]
        if deadlines:
            self._arm(min(deadlines))

    # -- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        transport = self._transport
        size_bytes = 0
        while self._end - self._start >= 4:
            size_bytes = CORRELATION_ID.unpack_from(self._buffer, self._start)[0]
            if not CORRELATION_ID.size <= size_bytes <= ANSWER_BYTES_MAX:
                self._disconnect(f"an answer of {size_bytes} bytes was announced")
                return
            stop = self._start + 4 + size_bytes
            if stop > self._end:
                break
            frame = self._buffer[self._start + 4 : stop]
            self._start = stop
            if self._login is not None:
                self._go_on_with_login(self._login, frame)
            else:
                self._answer(frame)
            if transport is None or self._transport is not transport:
                return
        self._make_room(size_bytes)
        if self._unsent:
            self._send()

    def _answer(self, frame: memoryview) -> None:
        correlation_id = CORRELATION_ID.unpack_from(frame)[0]
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            self._disconnect(f"an answer to request {correlation_id}, which is not next")
            return
        waiting = self._in_flight[0]
        try:
            body = response_body(frame, waiting.flexible)
        except MalformedAnswer as fault:
            self._disconnect(f"an answer could not be read: {fault}")
            return
        self._in_flight.popleft()
        self._backoff_ms = 0
        waiting.then(body)
        if self._retiring and not self._in_flight and self._transport is not None:
            self._reconnect()

    def _make_room(self, size_bytes: int) -> None:
        """Leave room behind what is not served yet for all of the frame that is under way."""
        capacity = len(self._buffer)
        rest = self._end - self._start
        if rest == 0:
            self._start = self._end = 0
            if capacity > self._capacity_min:
                self._small_answers = self._small_answers + 1 if size_bytes < self._capacity_min else 0
                if self._small_answers >= SMALL_ANSWERS_BEFORE_SHRINKING:
                    self._small_answers = 0
                    self._buffer = memoryview(bytearray(self._capacity_min))
            return
        wanted = size_bytes + 4 if rest >= 4 else 4
        if wanted > capacity:
            larger = memoryview(bytearray(wanted))
            larger[:rest] = self._buffer[self._start : self._end]
            self._buffer = larger
        elif self._start + wanted > capacity:
            self._buffer[:rest] = self._buffer[self._start : self._end]
        else:
            return
        self._start, self._end = 0, rest

    def __repr__(self) -> str:
        state = "connected" if self._transport is not None else "not connected"
        queues = f"in_flight={len(self._in_flight)} unsent={len(self._unsent)}"
        return f"<_Link broker {self._broker_id} {self._channel} {state} {queues}>"


class AsyncPeers:
    """Requests to the other brokers over TCP."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node_id: int, security: "PeerSecurity | None" = None
    ) -> None:
        self.loop = loop
        self.security = security
        self._reported = ""
        self.client_id = f"broker-{node_id}".encode()
        #: where a broker listens for others; set when there is metadata to know it from
        self.find_endpoint: FindEndpoint = lambda broker_id: None
        self._links: dict[tuple[int, str], _Link] = {}
        self._closed = False

    def request(
        self,
        broker_id: int,
        api_key: int,
        version: int,
        body: bytes | list[bytes],
        then: PeerAnswer,
        *,
        timeout_ms: int,
        channel: str = CONTROL_CHANNEL,
    ) -> None:
        """Send one request; `then` gets the answer or the fault."""
        endpoint = self.find_endpoint(broker_id)
        if endpoint is None or self._closed:
            reason = "this broker is stopping" if self._closed else f"broker {broker_id} has no known address"
            self.loop.call_soon(then, PeerFault(reason))
            return
        link = self._links.get((broker_id, channel))
        if link is None or link.endpoint != endpoint:
            if link is not None:
                link.close("the broker moved")
            link = self._links[(broker_id, channel)] = _Link(self, broker_id, channel, endpoint)
        link.request(_Waiting(api_key, version, body, then, self.loop.time() + timeout_ms / 1000))

    def report(self, reason: str) -> None:
        """Log why other brokers cannot be reached, once until the reason is another."""
        if reason != self._reported:
            self._reported = reason
            log.warning("%s", reason)

    def forget(self, broker_id: int) -> None:
        """Close the links to a broker."""
        for key in [key for key in self._links if key[0] == broker_id]:
            self._links.pop(key).close("the broker left")

    def close(self) -> None:
        """Close every link; later requests fail."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            link.close("this broker is stopping")

    def __repr__(self) -> str:
        return f"<AsyncPeers links={len(self._links)}>"
