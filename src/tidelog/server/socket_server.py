"""What all connections of a broker share: the receive buffer, the limits, the timers, who is connected.

Receive memory is bounded: one shared buffer, plus private buffers for frames that did not arrive whole. Those
grow with the bytes received and all together stay below `queued.max.request.bytes` (1 GiB where that is not
above 0); a connection that would need more is closed, and the client retries. One request of the largest size
that `socket.request.max.bytes` allows always has room.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.dispatch import Calls, Dispatcher
from tidelog.broker.requests.live_quotas import LiveQuotas
from tidelog.broker.requests.request import CloseConnection
from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.liveness import Liveness
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.timers import Timers
from tidelog.broker.runtime.turn import Turn
from tidelog.model.ports import Clock
from tidelog.protocol.headers import FRAME_SIZE_BYTES
from tidelog.server import allocator
from tidelog.server.connection_limits import ConnectionLimits
from tidelog.server.long_work import LongWork
from tidelog.server.receive_buffers import buffer_capacity
from tidelog.server.sliced_calls import SlicedCalls, Slices

if TYPE_CHECKING:
    from tidelog.broker.requests.authentication import Authenticator
    from tidelog.security.listeners import ListenerSecurity
    from tidelog.server.connection import Connection

log = logging.getLogger(__name__)

#: not larger: one turn serves what fits, and the others wait meanwhile
SHARED_BUFFER_BYTES = 128 << 10
#: what TLS connections receive at a time: large frames come in fewer turns, each of a millisecond
ENCRYPTED_BUFFER_BYTES = 512 << 10
RECEIVE_BYTES_DEFAULT_MAX = 1 << 30
TICK_SECONDS = 1.0
#: how often memory is given back after much was received: what was made of it is in use a while longer
TRIMS = 3
BUFFER_IDLE_MS = 5_000
REPORTS_REMEMBERED_MAX = 1_000
#: a client id may have 32 KB; whoever makes one up must not fill the log with it
CLIENT_ID_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """What connections need of their broker."""

    settings: LiveSettings
    metrics: Metrics
    turn: Turn
    timers: Timers
    liveness: Liveness
    background: Background
    quotas: LiveQuotas
    authenticator: "Deferred[Authenticator]"


class SocketServer:
    """The shared side of every connection of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        make_dispatcher: Callable[[Calls], Dispatcher],
        clock: Clock,
    ) -> None:
        settings = broker.settings
        self.loop = loop
        self.broker = broker
        self.clock = clock
        self.requests = broker.metrics.requests
        self.turn = broker.turn
        self.liveness = broker.liveness
        #: connections taken in, and those refused or closed for a reason, since the start
        self.accepted_count = 0
        self.reported_count = 0
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.slices = Slices()
        self.long_work = LongWork(loop)
        self.dispatcher = make_dispatcher(SlicedCalls(self.slices, self.long_work))
        self.frame_bytes_max = settings.get_int("socket.request.max.bytes")
        self.in_flight_max = settings.get_int("tidelog.connection.requests.max")
        self.connections: set[Connection] = set()
        self.receive_bytes = 0
        self._released_bytes = self._trims_left = 0
        #: coarse monotonic time, good enough to notice idle connections
        self.monotonic_ms = clock.monotonic_ms()
        queued_bytes_max = settings.get_int("queued.max.request.bytes")
        self._receive_bytes_max = max(
            queued_bytes_max if queued_bytes_max > 0 else RECEIVE_BYTES_DEFAULT_MAX,
            buffer_capacity(self.frame_bytes_max + FRAME_SIZE_BYTES),
        )
        self._limits = ConnectionLimits(settings.current, self.monotonic_ms)
        idle_ms_max = settings.get_int("connections.max.idle.ms")
        self._idle_ms_max = idle_ms_max if idle_ms_max >= 0 else math.inf
        self._establishing_ms_max = settings.get_int("tidelog.connection.authentication.timeout.ms")
        #: the listeners with TLS or SASL
        self.secured: Sequence[ListenerSecurity] = ()
        self._reported: set[tuple[str, str]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        broker.timers.on_earlier = self._arm
        self._arm()
        self._tick()

    @cached_property
    def encrypted_buffer(self) -> memoryview:
        """What TLS connections receive into, before it is decrypted."""
        return memoryview(bytearray(ENCRYPTED_BUFFER_BYTES))

    # -- connections

    def admit(self, connection: "Connection") -> bool:
        """Count a new connection in, or refuse it because there are too many."""
        context = connection.context
        refusal = self._limits.enter(context.host, context.listener_name, self.clock.monotonic_ms())
        quotas = self.broker.quotas.current
        if refusal is None and quotas is not None and not quotas.admits(context.host):
            self._limits.leave(context.host, context.listener_name)
            refusal = "too many new connections from one address (connection_creation_rate)"
        if refusal is not None:
            self.report(context, refusal)
            return False
        self.connections.add(connection)
        self.accepted_count += 1
        return True

    def forget(self, connection: "Connection") -> None:
        """A connection is gone."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._limits.leave(connection.context.host, connection.context.listener_name)

    def let_everybody_go(self) -> None:
        """Others lead now what this broker led: a connection that ends has its client look for them.

        As after a crash. Not every client looks again because it is told so: librdkafka waits for the
        connection of a coordinator that left the metadata until some connection of it goes up or down.
        """
        for connection in list(self.connections):
            connection.finish()

    def report(self, context: ConnectionContext, reason: str) -> None:
        """Log why a connection was refused or closed, once per reason and address."""
        self.reported_count += 1
        key = (context.host, re.sub(r"\d+", "#", reason)[:60])
        if key in self._reported:
            return
        if len(self._reported) >= REPORTS_REMEMBERED_MAX:
            self._reported.clear()
        self._reported.add(key)
        client_id = (context.client_id or "")[:CLIENT_ID_SHOWN_MAX]
        log.warning("closed the connection of %s (client id %r): %s", context.host, client_id, reason)

    def keep_shared_buffer(self) -> None:
        """Somebody still reads what is in the shared buffer: the others receive into another one."""
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more receive memory may be taken."""
        return self.receive_bytes + size_bytes <= self._receive_bytes_max

    def reserve(self, size_bytes: int) -> None:
        """Count receive memory in before it is allocated."""
        if not self.has_room(size_bytes):
            raise CloseConnection(
                f"requests under way would take more than {self._receive_bytes_max} bytes of memory "
                "(queued.max.request.bytes)"
            )
        self.receive_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count receive memory out that is not used any more."""
        self.receive_bytes -= size_bytes
        self._released_bytes += size_bytes

    # -- time

    def _arm(self) -> None:
        """Wake up for the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delay_ms = self.broker.timers.delay_ms()
        if delay_ms is not None:
            self._timer = self.loop.call_later(delay_ms / 1000, self._run_due)

    def _run_due(self) -> None:
        self._timer = None
        try:
            with self.broker.turn:
                self.broker.timers.run_due()
        finally:
            # Whatever went wrong in one timer, the clock of the others goes on.
            self._arm()

    def _tick(self) -> None:
        """Once a second: close idle connections, free buffers nobody fills, look at certificates."""
        # First of all: whatever goes wrong in one tick, there is a next.
        if self._released_bytes >= allocator.TRIMMED_AFTER_BYTES:
            self._released_bytes = 0
            self._trims_left = TRIMS
        if self._trims_left:
            self._trims_left -= 1
            self.broker.background.run(allocator.trim, lambda outcome: None)
        self._tick_handle = self.loop.call_later(TICK_SECONDS, self._tick)
        self.monotonic_ms = now_ms = self.clock.monotonic_ms()
        settings = self.broker.settings.current
        if settings is not self._limits.settings:
            self._limits.configure(settings, now_ms)
        for security in self.secured:
            security.refresh(settings)
        for connection in list(self.connections):
            if (
                connection.security is not None
                and now_ms - connection.opened_ms > self._establishing_ms_max
                and not connection.established
            ):
                connection.close("it did not authenticate in time")
                continue
            idle_ms = now_ms - connection.last_active_ms
            if idle_ms > self._idle_ms_max and not connection.answering:
                connection.close()
            elif idle_ms > BUFFER_IDLE_MS:
                connection.release_idle_buffer()

    def close(self) -> None:
        """Close every connection and stop the clockwork."""
        self.broker.timers.on_earlier = lambda: None
        for handle in (self._timer, self._tick_handle):
            if handle is not None:
                handle.cancel()
        for connection in list(self.connections):
            connection.close()
