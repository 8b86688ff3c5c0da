"""One client connection: bytes to frames, answers in request order.

Receiving. A connection that waits for its next request holds no buffer: all connections read into one shared
buffer. Only a frame that did not arrive whole gets a private buffer, which grows as bytes arrive (never to
the size a client merely announces), so idle or lying connections cost nothing.

Answering. Requests of a connection are served in order, and answers leave in order: an answer that is ready
waits behind a parked one.

Fairness. A request that takes long is served in slices (`protocol/slices.py`), and many requests at once in
turns of `TURN_NS`; nothing more is read from the connection meanwhile. `LongWork` says who goes on when.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

from tidelog.broker.dispatch import HELD, CloseConnection, ConnectionContext, PendingAnswer
from tidelog.broker.metrics import SHORT_COUNT_TIMED
from tidelog.protocol.apis import FETCH
from tidelog.protocol.headers import FRAME_SIZE_MIN
from tidelog.protocol.primitives import INT32
from tidelog.server.output import SocketOutput
from tidelog.server.receive_buffers import grown
from tidelog.server.sliced_calls import Unfinished

if TYPE_CHECKING:
    from tidelog.security.listeners import ListenerSecurity
    from tidelog.server.edge import Edge
    from tidelog.server.tls_output import TlsOutput

log = logging.getLogger(__name__)

PRIVATE_BUFFER_STEP = 64 << 10
#: from this size of frame on a connection keeps its private buffer for the next ones
LARGE_FRAME_BYTES = 64 << 10
#: a buffer for large frames holds several, up to this size, so that few of them have to be moved; clients
#: have five requests in flight if nobody told them otherwise, and all of them are best taken at once
BULK_BUFFER_BYTES = 1 << 20
BULK_FRAMES = 6
#: when less room than this is left behind a partial frame it is moved to the front
ROOM_BYTES_MIN = 64 << 10
#: a buffer of this size takes long to move into a larger one: one connection does it in a turn of the loop
SLOWLY_GROWN_BYTES = 4 << 20
#: larger frames of Produce and Fetch, and all others, may be served in slices
SLICED_FRAME_BYTES_MIN = 4 << 10
#: to copy one field of a larger frame takes several slices: one request in a turn of the loop may do so
DEFERRED_FRAME_BYTES_MIN = 16 << 20
#: how long one connection is served before the others are
TURN_NS = 4_000_000
#: answers kept in memory for a client that does not read; ranges of files do not count
QUEUED_ANSWER_BYTES_MAX = 256 << 10


def _capacity_for(frame_bytes: int) -> int:
    """How large a private buffer for frames of this size grows.

    A little more than the frame at least: a read that fills the whole buffer would make the loop read on
    and on from one connection.
    """
    if frame_bytes < LARGE_FRAME_BYTES:
        return frame_bytes
    return max(min(BULK_FRAMES * frame_bytes, BULK_BUFFER_BYTES), frame_bytes + ROOM_BYTES_MIN)


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
        "edge",
        "last_active_ms",
        "opened_ms",
        "security",
    )

    def __init__(self, edge: "Edge", listener_name: str, security: "ListenerSecurity | None" = None) -> None:
        """`security` is what the listener asks for; None for a plain one."""
        self.edge = edge
        self.security = security
        self.context = ConnectionContext("", 0, listener_name)
        self.context.frame_bytes_max = edge.frame_bytes_max
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
        if not self.edge.admit(self):
            self._transport.abort()
            return
        self.last_active_ms = self.opened_ms = self.edge.clock.monotonic_ms()
        self.context.finish = self.finish
        sock = transport.get_extra_info("socket")
        try:
            output = SocketOutput(self.edge.loop, sock.fileno(), self._resume, self.close)
        except OSError as fault:
            self.close(f"no descriptor for its answers: {fault.strerror}")
            return
        self._output = self._make_output(output)
        if self.security is not None and self.security.authenticates:
            self._begin_authentication(self.security)

    def _make_output(self, output: SocketOutput) -> "SocketOutput | TlsOutput":
        return output

    def _begin_authentication(self, security: "ListenerSecurity") -> None:
        from tidelog.broker.authentication import Authentication

        context = self.context
        context.authentication = context.gate = Authentication(
            self.edge.broker, context, security, self.finish
        )
        context.frame_bytes_max = security.receive_bytes_max

    @property
    def established(self) -> bool:
        """Whether the peer has done everything that the listener asks for before requests."""
        authentication = self.context.authentication
        return authentication is None or authentication.completed

    def connection_lost(self, exc: Exception | None) -> None:
        self.edge.forget(self)
        self.context.finish = None
        if self._output is not None:
            self._output.close()
        for pending in self._pending:
            if isinstance(pending, PendingAnswer):
                pending.parked.abandon()
                pending.on_filled = None  # the answer may be being written
        self._pending.clear()
        self._drop_private()
        self._transport = None
        if self._unfinished is not None:
            self._unfinished.abandon()
            self._let_go()
        if self.context.authentication is not None:
            self.context.authentication.abandon()

    def close(self, reason: str | None = None) -> None:
        """Close now; with a reason it is logged, once per reason and peer."""
        if self._transport is not None:
            if reason is not None:
                self.edge.report(self.context, reason)
            self._transport.abort()

    def finish(self, reason: str | None = None) -> None:
        """Close once what was answered has left."""
        if self._transport is not None:
            if reason is not None:
                self.edge.report(self.context, reason)
            self._transport.close()

    # -- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        private = self._private
        if private is None:
            return self.edge.shared_buffer
        return private[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        edge = self.edge
        edge.requests.began_ns = began_ns = perf_counter_ns()
        edge.broker.turn_ms = (began_ns + edge.epoch_ns) // 1_000_000
        if began_ns > edge.liveness.lease_end_ns:
            edge.liveness.overdue()  # which lets all connections go, this one too
            return
        self._end += nbytes
        view = self._private
        if view is None:
            view = edge.shared_buffer
        try:
            stopped_early = self._serve(view)
        except CloseConnection as refusal:
            self._end_turn()
            self.close(str(refusal))
            return
        self._end_turn()
        output = self._output
        self.last_active_ms = edge.monotonic_ms
        if output is None or output.closed:
            self.close()
        elif self._deferred is not None:
            self._pause()
            self._deferred(self._take_turn)
        elif self._unfinished is not None or self._is_full:
            self._pause()
        elif stopped_early:
            # It was full, and has been emptied since.
            edge.loop.call_soon(self._serve_rest)
        if self.context.throttle_ms:
            self._mute()

    def _end_turn(self) -> None:
        """Send the answers of the requests just served, and wake those who waited for what they wrote."""
        if self._output is not None:
            self._output.flush()
        if self.edge.requests.short_count >= SHORT_COUNT_TIMED:
            self.edge.requests.end_turn()
        if self.edge.broker.progressed:
            self.edge.broker.wake_progressed()

    def eof_received(self) -> bool:
        return False

    def _serve(self, view: memoryview) -> bool:
        """Serve the whole frames in the buffer and keep the rest; whether it stopped since it is full."""
        start, end = self._start, self._end
        dispatcher = self.edge.dispatcher
        context = self.context
        answers: list[bytes] = []
        output = self._output
        answers_bytes = 0 if output is None else output.queued_bytes
        frame_bytes_max = context.frame_bytes_max
        size = 0
        stopped_early = False
        may_run = True
        try:
            while not stopped_early and end - start >= 4:
                size = INT32.unpack_from(view, start)[0]
                if size < FRAME_SIZE_MIN or size > frame_bytes_max:
                    raise CloseConnection(f"a frame of {size} bytes (limit {frame_bytes_max})")
                stop = start + 4 + size
                if stop > end:
                    break
                answer: Any = None
                if may_run and context.produce_shape_end and end - stop > size and not self._pending:
                    run = dispatcher.handle_run(context, view, start, end)
                    if run is not None:
                        answers += run[0]
                        start = run[1]
                        continue
                    # Not for every frame of this turn again: a client that means ill would have each of
                    # them checked as often as there are frames before it.
                    may_run = False
                if context.produce_shape_end:
                    answer = dispatcher.handle_again(context, view, start + 4, stop)
                if answer is None:
                    answer = self._handle(view[start + 4 : stop], size)
                    if answer is HELD:
                        self._deferred, context.wait_for = context.wait_for, None
                        break  # it stays where it is until something is done, or the peer has waited
                    if type(answer) is Unfinished:
                        self._set_aside(answer, view, start, stop)
                        return False
                    if end - stop >= 4 and perf_counter_ns() - self.edge.requests.began_ns > TURN_NS:
                        self._deferred, stopped_early = self.edge.long_work.take_turn, True
                start = stop
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
        self._keep_rest(view, size)
        return stopped_early

    def _handle(self, frame: memoryview, size: int) -> Any:
        """Serve one frame the long way: its answer, or an `Unfinished`."""
        edge = self.edge
        if size <= SLICED_FRAME_BYTES_MIN and frame[1] <= FETCH and not frame[0]:
            return edge.dispatcher.handle(self.context, frame)
        if size >= DEFERRED_FRAME_BYTES_MIN:
            return edge.slices.prepare(edge.dispatcher.handle, self.context, frame)
        return edge.slices.run(edge.dispatcher.handle, self.context, frame)

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
        capacity = _capacity_for(frame_size + 4)
        if rest == 0:
            self._start = self._end = 0
            if frame_size < LARGE_FRAME_BYTES:
                self._drop_private()
            elif len(private) < capacity:
                self._replace_private(private, capacity)
            return
        wanted = _bytes_wanted(private, start, rest)
        if start and frame_size >= LARGE_FRAME_BYTES and len(private) < capacity:
            # Large frames do come whole on this connection: room for several saves moving them about.
            self._replace_private(private, capacity)
        elif start and (start + wanted > len(private) or len(private) - self._end < ROOM_BYTES_MIN):
            private[:rest] = private[start : self._end]
            self._start, self._end = 0, rest
        if wanted > len(private) and rest == len(private):
            if len(private) >= SLOWLY_GROWN_BYTES:
                self._deferred = self.edge.long_work.take_turn
            else:
                self._grow_private(private, wanted)

    def _replace_private(self, private: memoryview, capacity: int) -> None:
        """Go on in a larger buffer, with what is not served yet at its front."""
        rest = self._end - self._start
        self.edge.reserve(capacity - len(private))
        self._private = grown(private, self._start, self._end, capacity)
        self._start, self._end = 0, rest

    def _take_private(self, beginning: memoryview, frame_size: int) -> None:
        """Begin a private buffer: small at first, for the rest of the frame may never come."""
        rest = len(beginning)
        wanted = frame_size + 4 if rest >= 4 else 4
        capacity = max(rest, min(_capacity_for(wanted), max(PRIVATE_BUFFER_STEP, 2 * rest)))
        self.edge.reserve(capacity)
        self._private = private = memoryview(bytearray(capacity))
        private[:rest] = beginning
        self._start, self._end = 0, rest
        if rest == capacity:
            self._grow_private(private, max(wanted, rest + 1))

    def _grow_private(self, private: memoryview, wanted: int) -> None:
        """Make room for more of the frame: double, but not far past its end."""
        self._replace_private(private, min(_capacity_for(wanted), 2 * max(len(private), PRIVATE_BUFFER_STEP)))

    def _drop_private(self) -> None:
        if self._private is not None:
            self.edge.release(len(self._private))
            self._private = None

    def release_idle_buffer(self) -> None:
        """Give the private buffer back if no frame is under way in it."""
        if self._end == 0:
            self._drop_private()

    # -- long requests

    def _set_aside(self, unfinished: Unfinished, view: memoryview, start: int, stop: int) -> None:
        """A request takes long: the buffer is its own from now on, what comes after it goes into another."""
        edge = self.edge
        unfinished.began_ns = edge.requests.began_ns
        self._unfinished = unfinished
        self._long_frame = view[start + 4 : stop]
        if self._private is None:
            edge.keep_shared_buffer()
            self._held_bytes = len(view)
            edge.receive_bytes += len(view)
        else:
            self._held_bytes = len(self._private)
            self._private = None
        rest = view[stop : self._end]
        self._start = self._end = 0
        edge.long_work.add(self._continue)
        if rest:
            self._take_private(rest, _bytes_wanted(rest, 0, len(rest)) - 4)

    def _let_go(self) -> None:
        """The long request is over, one way or the other."""
        self._unfinished = self._long_frame = None
        self.edge.release(self._held_bytes)
        self._held_bytes = 0

    def _continue(self) -> bool:
        """Serve another slice of the long request; whether it is over."""
        unfinished, transport, edge = self._unfinished, self._transport, self.edge
        if unfinished is None or transport is None or transport.is_closing():
            return True
        edge.requests.began_ns = unfinished.began_ns
        edge.broker.turn_ms = (perf_counter_ns() + edge.epoch_ns) // 1_000_000
        served = False
        try:
            answer = unfinished.resume()
            served = True
        except CloseConnection as refusal:
            self._let_go()
            self._end_turn()
            self.close(str(refusal))
            return True
        finally:
            if not served:
                self.close()
        if answer is unfinished:
            self._end_turn()
            return False
        if answer is HELD:
            wait, self.context.wait_for = self.context.wait_for, None
            assert wait is not None, "quotas hold a request before it is read"
            wait(self._offer_again)
            self._end_turn()
            return True
        self._let_go()
        if answer is not None:
            self._queue_answer(answer)
        self._end_turn()
        self.last_active_ms = edge.monotonic_ms
        if self.context.throttle_ms:
            self._mute()
        self._resume()
        return True

    def _offer_again(self) -> None:
        """What the long request waited for is over: serve it from its beginning."""
        before, frame, edge = self._unfinished, self._long_frame, self.edge
        if before is None or frame is None:
            return  # the connection is gone
        self._unfinished = again = edge.slices.prepare(edge.dispatcher.handle, self.context, frame)
        again.began_ns = before.began_ns
        edge.long_work.add(self._continue)

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
        if perf_counter_ns() > self.edge.liveness.lease_end_ns:
            # What was worked out before this broker stood still may not be true any more: others may lead.
            self.edge.liveness.overdue()
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
            output.queued_bytes > QUEUED_ANSWER_BYTES_MAX or len(self._pending) >= self.edge.in_flight_max
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
                self.edge.loop.call_soon(self._serve_rest)

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
        self.edge.loop.call_later(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted_count -= 1
        self.last_active_ms = self.edge.monotonic_ms
        self._resume()

    @property
    def answering(self) -> bool:
        """Whether requests are still waiting for their answers."""
        return bool(self._pending) or self._unfinished is not None

    def __repr__(self) -> str:
        return f"<Connection {self.context!r} pending={len(self._pending)}>"
