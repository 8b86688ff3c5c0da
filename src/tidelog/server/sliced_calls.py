"""Long work in slices: a call that pauses itself, so that others are served in between.

`Slices.run` makes a call on a stack of its own (a greenlet). Inside of it `checkpoint()` is called wherever
work can be put aside (`protocol/slices.py`); after `SLICE_NS` it goes back to who called `run`, which gets an
`Unfinished` and goes on with it later. A call that needs less than a slice, as nearly all do, comes back as
any call does, a microsecond later.

    outcome = slices.run(handle, context, frame)
    while isinstance(outcome, Unfinished):
        …                       # serve others
        outcome = outcome.resume()
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from greenlet import getcurrent, greenlet

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.dispatch import Calls, Handle
from tidelog.protocol.slices import running
from tidelog.server.long_work import LongWork

#: to copy one field of a larger frame takes several slices: one request in a turn of the loop may do so
DEFERRED_FRAME_BYTES_MIN = 16 << 20

#: how long a call computes before it pauses
SLICE_NS = 4_000_000
#: stacks that are kept for the next calls
IDLE_MAX = 4


class Abandoned(BaseException):
    """Raised inside of a call that nobody waits for any more."""


class Unfinished:
    """A call that has begun."""

    __slots__ = (
        "_abandoned",
        "_call",
        "_deadline_ns",
        "_fault",
        "_home",
        "_over",
        "_result",
        "_slices",
        "_stack",
        "began_ns",
        "paused_ns",
    )

    def __init__(self, slices: "Slices", stack: greenlet, call: Callable[[], Any]) -> None:
        self._slices = slices
        self._stack = stack
        self._call: Callable[[], Any] | None = call
        self._result: Any = None
        self._fault: BaseException | None = None
        self._home = getcurrent()
        self._abandoned = self._over = False
        self._deadline_ns = 0
        #: for whoever runs it: when its request arrived
        self.began_ns = 0
        #: for how long it has waited for its turns
        self.paused_ns = 0

    def resume(self) -> Any:
        """Compute for another slice: what the call returns, or this again if it has to go on later."""
        self._home = getcurrent()
        self._deadline_ns = perf_counter_ns() + SLICE_NS
        running.call = self
        try:
            self._stack.switch(self)
        finally:
            running.call = None
        if not self._over:
            return self
        self._slices.give_back(self._stack)
        fault, result, self._fault, self._result = self._fault, self._result, None, None
        if fault is not None:
            try:
                raise fault
            finally:
                # Else it would hold this frame, and the frame it, until the collector comes.
                del fault
        return result

    def work(self) -> None:
        """Called on the stack: make the call, and keep what comes of it for who resumes it."""
        call, self._call = self._call, None
        assert call is not None
        try:
            self._result = call()
        except BaseException as fault:
            self._fault = fault
        self._over = True

    def abandon(self) -> None:
        """End it where it is, if it is not over."""
        if self._over:
            return
        self._abandoned = True
        try:
            while self.resume() is self:
                pass
        except Abandoned:
            pass

    def pause_if_due(self) -> None:
        """Called inside of it: pause if the slice is over."""
        now_ns = perf_counter_ns()
        if now_ns < self._deadline_ns:
            return
        self._home.switch()
        self.paused_ns += perf_counter_ns() - now_ns
        if self._abandoned:
            raise Abandoned


class Slices:
    """The stacks of one event loop."""

    __slots__ = ("_idle",)

    def __init__(self) -> None:
        self._idle: list[greenlet] = []

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; returns what it returns, or an `Unfinished` if that takes longer than a slice."""
        return self.prepare(call, *arguments).resume()

    def prepare(self, call: Callable[..., Any], *arguments: Any) -> Unfinished:
        """A call that begins when it is resumed."""
        if self._idle:
            stack = self._idle.pop()
        else:
            stack = greenlet(_work)
            stack.switch()
        return Unfinished(self, stack, partial(call, *arguments))

    def give_back(self, stack: greenlet) -> None:
        """Keep a stack whose call is over."""
        if len(self._idle) < IDLE_MAX:
            self._idle.append(stack)


class SlicedCalls(Calls):
    """Serves requests that may take long in slices."""

    __slots__ = ("_long_work", "_slices")

    def __init__(self, slices: Slices, long_work: LongWork) -> None:
        self._slices = slices
        self._long_work = long_work

    def serve(self, handle: Handle, context: ConnectionContext, frame: memoryview) -> Any:
        """Serve a frame: its answer, or an `Unfinished`."""
        if len(frame) >= DEFERRED_FRAME_BYTES_MIN:
            return self._slices.prepare(handle, context, frame)
        return self._slices.run(handle, context, frame)

    def later(self, call: Callable[[], None]) -> None:
        """Make a call in slices, beginning later."""
        unfinished = self._slices.prepare(call)
        self._long_work.add(lambda: unfinished.resume() is not unfinished)


def _work() -> None:
    """What a stack does: one call after the other. Between them it holds on to nothing."""
    home = getcurrent().parent
    assert home is not None
    while True:
        home.switch().work()
