"""One client connection: bytes to frames, answers in request order.

Receiving. A connection that waits for its next request holds no buffer: all connections read into one shared
buffer. Only a frame that did not arrive whole gets a private buffer, which grows as bytes arrive (never to
the size a client merely announces), so idle or lying connections cost nothing.

Answering. Requests of a connection are served in order, and answers leave in order: an answer that is ready
waits behind a delayed one.

Fairness. A request that takes long is served in slices (`protocol/slices.py`), and many requests at once in
turns of `TURN_NS`; nothing more is read from the connection meanwhile. `LongWork` says who goes on when.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import HELD, CloseConnection, PendingAnswer
from tidelog.broker.runtime.metrics import FAST_PATH_COUNT_TIMED
from tidelog.protocol.headers import FRAME_SIZE_BYTES
from tidelog.protocol.primitives import INT32
from tidelog.server.output import SocketOutput
from tidelog.server.receive_buffers import LARGE_FRAME_BYTES, ROOM_BYTES_MIN, buffer_capacity, grown
from tidelog.server.sliced_calls import Unfinished

if TYPE_CHECKING:
    from tidelog.security.listeners import ListenerSecurity
    from tidelog.server.socket_server import SocketServer
    from tidelog.server.tls_output import TlsOutput

log = logging.getLogger(__name__)

PRIVATE_BUFFER_STEP = 64 << 10
#: a buffer of this size takes long to move into a larger one: one connection does it in a turn of the loop
SLOWLY_GROWN_BYTES = 4 << 20
#: how long one connection is served before the others are
TURN_NS = 4_000_000
#: answers kept in memory for a client that does not read; ranges of files do not count
QUEUED_ANSWER_BYTES_MAX = 256 << 10


def _bytes_wanted(buffer: memoryview, start: int, rest: int) -> int:
    """The size of the incomplete frame at `start`, as far as it is known."""
    return INT32.unpack_from(buffer, start)[0] + 4 if rest >= 4 else 4


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection."""

    __slots__ = (
        "_deferred",
        "_end",
        "_held_bytes",
        "_long_frame",
        "_muted_count",
        "_output",
        "_paused",
        "_pending",
        "_private",
        "_start",
        "_transport",
        "_unfinished",
        "context",
        "last_active_ms",
        "opened_ms",
        "security",
        "server",
    )

    def __init__(
        self, server: "SocketServer", listener_name: str, security: "ListenerSecurity | None" = None
    ) -> None:
        """`security` is what the listener asks for; None for a plain one."""
        self.server = server
        self.security = security
        self.context = ConnectionContext("", 0, listener_name)
        self.context.frame_bytes_max = server.frame_bytes_max
        self.last_active_ms = 0
        self.opened_ms = 0
        self._transport: asyncio.Transport | None = None
        self._output: SocketOutput | TlsOutput | None = None
        self._private: memoryview | None = None
        self._start = 0
        self._end = 0
        self._pending: deque[Any] = deque()
        self._paused = False
        self._muted_count = 0
        #: the request that is served in slices, and the receive memory that it holds
        self._unfinished: Unfinished | None = None
        self._long_frame: memoryview | None = None
        self._held_bytes = 0
        #: if its next requests wait for something: who calls when that is over
        self._deferred: Callable[[Callable[[], None]], None] | None = None

    # -- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.context.host, self.context.port = str(peer[0]), int(peer[1])
        if not self.server.admit(self):
            self._transport.abort()
            return
        self.last_active_ms = self.opened_ms = self.server.clock.monotonic_ms()
        self.context.finish = self.finish
        sock = transport.get_extra_info("socket")
        try:
            output = SocketOutput(self.server.loop, sock.fileno(), self._resume, self.close)
        except OSError as fault:
            self.close(f"no descriptor for its answers: {fault.strerror}")
            return
        self._output = self._make_output(output)
        if self.security is not None and self.security.authenticates:
            self._begin_authentication(self.security)

    def _make_output(self, output: SocketOutput) -> "SocketOutput | TlsOutput":
        return output

    def _begin_authentication(self, security: "ListenerSecurity") -> None:
        context = self.context
        authenticator = self.server.broker.authenticator.get()
        context.authentication = context.gate = authenticator.gate(context, security, self.finish)
        context.frame_bytes_max = security.receive_bytes_max

    @property
    def established(self) -> bool:
        """Whether the peer has done everything that the listener asks for before requests."""
        authentication = self.context.authentication
        return authentication is None or authentication.completed

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.forget(self)
        self.context.finish = None
        if self._output is not None:
            self._output.close()
        for pending in self._pending:
            if isinstance(pending, PendingAnswer):
                pending.delayed.abandon()
                pending.on_filled = None  # the answer may be being written
        self._pending.clear()
        self._drop_private()
        self._transport = None
        if self._unfinished is not None:
            self._unfinished.abandon()
            self._let_go()
        if self.context.authentication is not None:
            self.context.authentication.abandon()
        if self.context.leavings:
            with self.server.broker.turn:
                self.context.lost()

    def close(self, reason: str | None = None) -> None:
        """Close now; with a reason it is logged, once per reason and peer."""
        if self._transport is not None:
            if reason is not None:
                self.server.report(self.context, reason)
            self._transport.abort()

    def finish(self, reason: str | None = None) -> None:
        """Close once what was answered has left."""
        if self._transport is not None:
            if reason is not None:
                self.server.report(self.context, reason)
            self._transport.close()

    # -- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        private = self._private
        if private is None:
            return self.server.shared_buffer
        return private[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        server = self.server
        server.requests.began_ns = began_ns = perf_counter_ns()
        if began_ns > server.liveness.lease_end_ns:
            server.liveness.overdue()  # which lets all connections go, this one too
            return
        self._end += nbytes
        view = self._private
        if view is None:
            view = server.shared_buffer
        with server.turn:
            try:
                stopped_early = self._serve(view)
            except CloseConnection as refusal:
                self._flush_answers()
                self.close(str(refusal))
                return
            self._flush_answers()
        output = self._output
        self.last_active_ms = server.monotonic_ms
        if output is None or output.closed:
            self.close()
        elif self._deferred is not None:
            self._pause()
            self._deferred(self._take_turn)
        elif self._unfinished is not None or self._is_full:
            self._pause()
        elif stopped_early:
            # It was full, and has been emptied since.
            server.loop.call_soon(self._serve_rest)
        if self.context.throttle_ms:
            self._mute()

    def _flush_answers(self) -> None:
        """Send the answers of the requests just served; who waited for what they wrote is woken after it."""
        if self._output is not None:
            self._output.flush()
        if self.server.requests.fast_path_count >= FAST_PATH_COUNT_TIMED:
            self.server.requests.end_turn()

    def eof_received(self) -> bool:
        return False

    def _serve(self, view: memoryview) -> bool:
        """Serve the whole frames in the buffer and keep the rest; whether it stopped since it is full."""
        start, end = self._start, self._end
        server, context, output = self.server, self.context, self._output
        serve = server.dispatcher.serve
        answers: list[bytes] = []
        answers_bytes = 0 if output is None else output.queued_bytes
        #: the frame that was looked at last
        looked_at = -1
        stopped_early = False
        try:
            while not stopped_early and end - start >= FRAME_SIZE_BYTES:
                served = serve(context, view, start, end)
                looked_at = start
                if served is None:
                    break
                answer, stop = served
                if answer is HELD:
                    self._deferred, context.wait_for = context.wait_for, None
                    break  # it stays where it is until something is done, or the peer has waited
                if type(answer) is Unfinished:
                    self._set_aside(answer, view, start, stop)
                    return False
                start = stop
                if end - stop >= FRAME_SIZE_BYTES and perf_counter_ns() - server.requests.began_ns > TURN_NS:
                    self._deferred, stopped_early = server.long_work.take_turn, True
                if type(answer) is bytes and not self._pending:
                    answers.append(answer)
                    answers_bytes += len(answer)
                    if answers_bytes > QUEUED_ANSWER_BYTES_MAX:
                        self._send(b"".join(answers))
                        answers.clear()
                        stopped_early = stopped_early or self._is_full
                        answers_bytes = 0 if output is None else output.queued_bytes
                elif answer is not None:
                    if answers:
                        self._send(b"".join(answers))
                        answers.clear()
                    self._queue_answer(answer)
                    stopped_early = stopped_early or self._is_full
                if context.throttle_ms:
                    break  # the next frame is served when the peer has waited
        finally:
            # Also when a later frame ends the connection: what was done is answered, and not done again.
            if self._unfinished is None:
                self._start = start
            if answers:
                self._send(answers[0] if len(answers) == 1 else b"".join(answers))
        if start == end and self._private is None:
            self._start = self._end = 0
        else:
            self._keep_rest(view, 0 if looked_at < 0 else INT32.unpack_from(view, looked_at)[0])
        return stopped_early

    def _keep_rest(self, view: memoryview, frame_size: int) -> None:
        """Keep an incomplete frame in a private buffer, with room for the rest of it."""
        start, rest = self._start, self._end - self._start
        private = self._private
        if private is None:
            if rest:
                self._take_private(view[start : self._end], frame_size)
            else:
                self._start = self._end = 0
            return
        capacity = buffer_capacity(frame_size + 4)
        if rest == 0:
            self._start = self._end = 0
            if frame_size < LARGE_FRAME_BYTES:
                self._drop_private()
            elif len(private) < capacity and self.server.has_room(capacity - len(private)):
                self._replace_private(private, capacity)
            return
        wanted = _bytes_wanted(private, start, rest)
        if (
            start
            and frame_size >= LARGE_FRAME_BYTES
            and len(private) < capacity
            and self.server.has_room(capacity - len(private))
        ):
            # Large frames do come whole on this connection: room for several saves moving them about.
            self._replace_private(private, capacity)
        elif start and (start + wanted > len(private) or len(private) - self._end < ROOM_BYTES_MIN):
            private[:rest] = private[start : self._end]
            self._start, self._end = 0, rest
        if wanted > len(private) and rest == len(private):
            if len(private) >= SLOWLY_GROWN_BYTES:
                self._deferred = self.server.long_work.take_turn
            else:
                self._grow_private(private, wanted)

    def _replace_private(self, private: memoryview, capacity: int) -> None:
        """Go on in a larger buffer, with what is not served yet at its front."""
        rest = self._end - self._start
        self.server.reserve(capacity - len(private))
        self._private = grown(private, self._start, self._end, capacity)
        self._start, self._end = 0, rest

    def _take_private(self, beginning: memoryview, frame_size: int) -> None:
        """Begin a private buffer: small at first, for the rest of the frame may never come."""
        rest = len(beginning)
        wanted = frame_size + 4 if rest >= 4 else 4
        capacity = max(rest, min(buffer_capacity(wanted), max(PRIVATE_BUFFER_STEP, 2 * rest)))
        self.server.reserve(capacity)
        self._private = private = memoryview(bytearray(capacity))
        private[:rest] = beginning
        self._start, self._end = 0, rest
        if rest == capacity:
            self._grow_private(private, max(wanted, rest + 1))

    def _grow_private(self, private: memoryview, wanted: int) -> None:
        """Make room for more of the frame: double, but not far past its end."""
        self._replace_private(
            private, min(buffer_capacity(wanted), 2 * max(len(private), PRIVATE_BUFFER_STEP))
        )

    def _drop_private(self) -> None:
        if self._private is not None:
            self.server.release(len(self._private))
            self._private = None

    def release_idle_buffer(self) -> None:
        """Give the private buffer back if no frame is under way in it."""
        if self._end == 0:
            self._drop_private()

    # -- long requests

    def _set_aside(self, unfinished: Unfinished, view: memoryview, start: int, stop: int) -> None:
        """A request takes long: the buffer is its own from now on, what comes after it goes into another."""
        server = self.server
        unfinished.began_ns = server.requests.began_ns
        self._unfinished = unfinished
        self._long_frame = view[start + 4 : stop]
        if self._private is None:
            server.keep_shared_buffer()
            self._held_bytes = len(view)
            server.receive_bytes += len(view)
        else:
            self._held_bytes = len(self._private)
            self._private = None
        rest = view[stop : self._end]
        self._start = self._end = 0
        server.long_work.add(self._continue)
        if rest:
            self._take_private(rest, _bytes_wanted(rest, 0, len(rest)) - 4)

    def _let_go(self) -> None:
        """The long request is over, one way or the other."""
        self._unfinished = self._long_frame = None
        self.server.release(self._held_bytes)
        self._held_bytes = 0

    def _continue(self) -> bool:
        """Serve another slice of the long request; whether it is over."""
        unfinished, transport, server = self._unfinished, self._transport, self.server
        if unfinished is None or transport is None or transport.is_closing():
            return True
        server.requests.began_ns = unfinished.began_ns
        with server.turn:
            try:
                return self._resume_long(unfinished)
            finally:
                self._flush_answers()

    def _resume_long(self, unfinished: Unfinished) -> bool:
        served = False
        try:
            answer = unfinished.resume()
            served = True
        except CloseConnection as refusal:
            self._let_go()
            self._flush_answers()
            self.close(str(refusal))
            return True
        finally:
            if not served:
                self.close()
        if answer is unfinished:
            return False
        if answer is HELD:
            wait, self.context.wait_for = self.context.wait_for, None
            assert wait is not None, "quotas hold a request before it is read"
            wait(self._offer_again)
            return True
        self._let_go()
        if answer is not None:
            self._queue_answer(answer)
        self._flush_answers()
        self.last_active_ms = self.server.monotonic_ms
        if self.context.throttle_ms:
            self._mute()
        self._resume()
        return True

    def _offer_again(self) -> None:
        """What the long request waited for is over: serve it from its beginning."""
        before, frame, server = self._unfinished, self._long_frame, self.server
        if before is None or frame is None:
            return  # the connection is gone
        self._unfinished = again = server.slices.prepare(server.dispatcher.handle, self.context, frame)
        again.began_ns = before.began_ns
        server.long_work.add(self._continue)

    def _take_turn(self) -> None:
        """What was waited for is over: go on with the requests that are here."""
        self._deferred = None
        self._resume()

    # -- answering

    def _queue_answer(self, answer: Any) -> None:
        """Put an answer, ready or not, in its place."""
        if isinstance(answer, PendingAnswer):
            answer.on_filled = self._flush
            self._pending.append(answer)
        elif self._pending:
            self._pending.append(answer)
        else:
            self._send(answer)

    def _flush(self) -> None:
        """Send every answer that is ready and has none unready before it."""
        pending = self._pending
        while pending:
            first = pending[0]
            chunks = first.chunks if isinstance(first, PendingAnswer) else first
            if chunks is None:
                break
            pending.popleft()
            self._send(chunks)
        if self._output is not None:
            self._output.flush()
        if self.context.throttle_ms:
            self._mute()
        self._resume()

    def _send(self, chunks: Any) -> None:
        if self._output is None:
            return
        if perf_counter_ns() > self.server.liveness.lease_end_ns:
            # What was worked out before this broker stood still may not be true any more: others may lead.
            self.server.liveness.overdue()
            self.close("this broker stood still while it worked on a request")
            return
        if type(chunks) is bytes:
            self._output.send_bytes(chunks)
        else:
            self._output.queue_chunks(chunks)

    # -- flow control

    @property
    def _is_full(self) -> bool:
        """Whether the peer must read, or wait for, answers before more of its requests are served."""
        output = self._output
        return output is not None and (
            output.queued_bytes > QUEUED_ANSWER_BYTES_MAX or len(self._pending) >= self.server.in_flight_max
        )

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if (
            self._paused
            and not self._muted_count
            and self._deferred is None
            and self._unfinished is None
            and self._transport is not None
            and self._output is not None
            and not self._is_full
        ):
            if not self._make_room():
                return
            self._paused = False
            self._transport.resume_reading()
            if self._end > self._start:
                self.server.loop.call_soon(self._serve_rest)

    def _make_room(self) -> bool:
        """Have room to read into: for the rest of a frame, or behind requests that wait for their turn."""
        private = self._private
        if private is None or self._end < len(private):
            return True
        wanted = _bytes_wanted(private, self._start, self._end - self._start)
        try:
            if wanted > len(private) - self._start:
                self._grow_private(private, wanted)
            else:
                self._replace_private(private, len(private) + ROOM_BYTES_MIN)
        except CloseConnection as refusal:
            self.close(str(refusal))
            return False
        return True

    def _serve_rest(self) -> None:
        """Serve the requests that had arrived before the pause, without anything new arriving."""
        if (
            self._paused
            or self._end <= self._start
            or self._transport is None
            or self._transport.is_closing()
        ):
            return
        served = False
        try:
            # Not the business of a subclass, which has decrypted them.
            Connection.buffer_updated(self, 0)
            served = True
        finally:
            if not served:
                # The transport, which would see to that, did not call.
                self.close()

    def _mute(self) -> None:
        """Read nothing from a client that is above a quota for as long as it is told to wait."""
        throttle_ms, self.context.throttle_ms = self.context.throttle_ms, 0
        self._muted_count += 1
        self._pause()
        self.server.loop.call_later(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted_count -= 1
        self.last_active_ms = self.server.monotonic_ms
        self._resume()

    @property
    def answering(self) -> bool:
        """Whether requests are still waiting for their answers."""
        return bool(self._pending) or self._unfinished is not None

    def __repr__(self) -> str:
        return f"<Connection {self.context!r} pending={len(self._pending)}>"
