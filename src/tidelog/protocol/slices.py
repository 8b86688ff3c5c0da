"""Long work in slices: a call that pauses itself, so that others are served in between.

A broker has one thread for everything, and a request that names fifty thousand topics takes it half a second
to read, to authorize and to answer. `Slices.run` makes a call on a stack of its own (a greenlet). Inside of
it `checkpoint()` is called wherever work can be put aside; after `SLICE_NS` it goes back to who called `run`,
which gets an `Unfinished` and goes on with it later. A call that needs less than a slice, as nearly all do,
comes back as any call does, a microsecond later.

Who calls `checkpoint` must have nothing half done: it is for reading and writing bytes, for asking the
authorizer, and for loops over partitions whose turns do not depend on each other. Whatever changes the state
of the broker in more than one step runs in `whole(…)`, inside of which nothing pauses.

    outcome = slices.run(handle, context, frame)
    while isinstance(outcome, Unfinished):
        …                       # serve others
        outcome = outcome.resume()
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

#: how long a call computes before it pauses
SLICE_NS = 4_000_000
#: how many small things are done between two looks at the clock
STEP = 64
#: stacks that are kept for the next calls
IDLE_MAX = 4

T = TypeVar("T")


class Abandoned(BaseException):
    """Raised inside of a call that nobody waits for any more."""


class _Running(threading.local):
    """The call that runs in slices now, in this thread; None outside of one and inside of `whole`."""

    call: "Unfinished | None" = None


_running = _Running()


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
        _running.call = self
        try:
            self._stack.switch(self)
        finally:
            _running.call = None
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


def _work() -> None:
    """What a stack does: one call after the other. Between them it holds on to nothing."""
    home = getcurrent().parent
    assert home is not None
    while True:
        home.switch().work()


def checkpoint() -> None:
    """Let others go on if this call has computed for long enough; there is nothing half done here."""
    running = _running.call
    if running is not None:
        running.pause_if_due()


def each(items: Iterable[T]) -> Iterator[T]:
    """The items one by one, with a checkpoint now and then."""
    for number, item in enumerate(items):
        if number % STEP == STEP - 1:
            checkpoint()
        yield item


def whole(call: Callable[..., T], *arguments: Any) -> T:
    """Call without a pause."""
    running = _running.call
    if running is None:
        return call(*arguments)
    _running.call = None
    try:
        return call(*arguments)
    finally:
        _running.call = running


def clock_ns() -> int:
    """A clock that stands still while the call that reads it is paused."""
    running = _running.call
    now_ns = perf_counter_ns()
    return now_ns if running is None else now_ns - running.paused_ns
