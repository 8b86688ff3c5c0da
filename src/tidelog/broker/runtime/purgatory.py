"""Requests whose answer comes later.

`DelayedAnswer` is what a handler returns instead of an answer. Whoever holds it answers it once; the
connection sends the answer when its turn comes. `DelayedOperation` is a request that watches things
(partitions) and has a deadline; `Purgatory` completes operations when what they watch moves on, and at their
deadlines. One structure serves long-poll fetches and acknowledgements that wait for a flush or for replicas.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tidelog.broker.runtime.timers import Timers

Deliver = Callable[[Any], None]


class DelayedAnswer:
    """An answer that is not ready yet."""

    __slots__ = ("_deliver", "_response", "answered")

    def __init__(self) -> None:
        self.answered = False
        self._response: Any = None
        self._deliver: Deliver | None = None

    def answer(self, response: Any) -> None:
        """Give the answer; only the first one counts."""
        if self.answered:
            return
        self.answered = True
        deliver = self._deliver
        if deliver is None:
            self._response = response
        else:
            # It knows the answer's place, which knows this: a circle would keep both, and a large answer.
            self._deliver = None
            deliver(response)

    def deliver_to(self, deliver: Deliver) -> None:
        """Say where the answer goes; called once by dispatch."""
        if self.answered:
            response, self._response = self._response, None
            deliver(response)
        else:
            self._deliver = deliver

    def abandon(self) -> None:
        """The connection is gone: the answer is not wanted any more."""
        self.answered = True
        self._deliver = None


class Watched(Protocol):
    """Something that makes progress waiters wait for."""

    waiters: "dict[DelayedOperation, None]"


class Progressing(Watched, Protocol):
    """Something that whoever waits for it is woken for at the end of a turn (see `turn`)."""

    #: whether it stands on the list of what moved on in this turn
    progressing: bool

    @property
    def commits(self) -> "Sequence[tuple[int, DelayedOperation]]":
        """Who waits for an offset to be committed."""

    def take_committed(self) -> "DelayedOperation | None":
        """The next of those who need wait no more, or None."""


class DelayedOperation(DelayedAnswer):
    """A parked request that watches things; subclasses say when it is ready and what its answer is."""

    __slots__ = ("purgatory", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.watched: tuple[Watched, ...] = ()
        self.purgatory: Purgatory | None = None

    @abstractmethod
    def ready(self, progressed: Watched) -> bool:
        """Whether the request can be answered now that `progressed` moved on."""

    @abstractmethod
    def complete(self, *, expired: bool) -> Any:
        """Build the answer."""

    def lost(self, watched: Watched) -> None:
        """Something that it watches will make no more progress here: by default that ends the wait."""
        if self.purgatory is not None:
            self.purgatory.finish(self, expired=True)

    def abandon(self) -> None:
        super().abandon()
        if self.purgatory is not None:
            self.purgatory.release(self)


class Purgatory:
    """All waiters of the node."""

    __slots__ = ("_timers", "count", "count_max")

    def __init__(self, timers: Timers, count_max: int) -> None:
        self._timers = timers
        self.count = 0
        self.count_max = count_max

    @property
    def full(self) -> bool:
        return self.count >= self.count_max

    def park(self, waiter: DelayedOperation, watched: Iterable[Watched], deadline_ms: int) -> None:
        """Let a waiter wait until it is ready or its deadline passes."""
        waiter.watched = tuple(watched)
        waiter.purgatory = self
        for thing in waiter.watched:
            thing.waiters[waiter] = None
        self.count += 1
        self._timers.set(waiter, deadline_ms, lambda: self.finish(waiter, expired=True))

    def wake(self, progressed: Watched) -> None:
        """Answer the waiters that became ready because `progressed` moved on."""
        for waiter in [w for w in progressed.waiters if w.ready(progressed)]:
            self.finish(waiter, expired=False)

    def settle(self, progressed: Progressing) -> None:
        """Answer those whose records are committed now; all of them if the partition is led elsewhere."""
        while (waiter := progressed.take_committed()) is not None:
            if waiter.purgatory is not None and waiter.ready(progressed):
                self.finish(waiter, expired=False)

    def finish(self, waiter: DelayedOperation, *, expired: bool) -> None:
        """Answer a waiter and forget it."""
        if waiter.purgatory is None:
            return
        self.release(waiter)
        waiter.answer(waiter.complete(expired=expired))

    def release(self, waiter: DelayedOperation) -> None:
        """Forget a waiter without answering it."""
        for thing in waiter.watched:
            thing.waiters.pop(waiter, None)
        waiter.watched = ()
        waiter.purgatory = None
        self.count -= 1
        self._timers.cancel(waiter)
