"""The broker's session at the coordination store: one call at a time, in worker threads, in order.

`run(work, then)` calls `work(store)` in a worker thread after all calls before it, then `then` on the loop
with its value or the exception; never two calls at once, so what was read is older than what is written next.
A call belongs to the session it was made in: when that is lost, calls that wait end with SessionLost, and so
do later ones until `reopen` has opened another store.

Trouble with the store is logged when it begins and when it ends, not for every call that fails between.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.broker.runtime.background import Background
from tidelog.coordination.store import CoordinationStore, SessionLost, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")
OpenStore = Callable[[], CoordinationStore]


class StoreSession:
    """The store that is open now, and the calls that wait for it."""

    def __init__(
        self,
        open_store: OpenStore,
        background: Background,
        *,
        on_opened: Callable[[CoordinationStore], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_opened` hears of every store that was opened, `on_lost`, on the loop, once of every loss."""
        self._open_store = open_store
        self._background = background
        self._store: CoordinationStore | None = None
        self._queue: deque[_Call] = deque()
        self._under_way = False
        self._pumping = False
        self._failing = False
        self._closed = False
        self._on_opened = on_opened
        self._on_lost = on_lost

    def __repr__(self) -> str:
        return f"<StoreSession {self._store!r} waiting={len(self._queue)} failing={self._failing}>"

    @property
    def store(self) -> CoordinationStore:
        """The open store, for work that blocks at start, before there is a loop to block."""
        assert self._store is not None, "the store is not open"
        return self._store

    def open(self) -> CoordinationStore:
        """Open the store, blocking."""
        store = self._store = self._open_store()
        self._on_opened(store)
        self._hear_of_loss(store)
        return store

    def watch(self, store: CoordinationStore, key: str, listener: Callable[[], None]) -> None:
        """Have `listener` called on the loop after changes of a key; blocks, so call it from work."""
        heard = _Once(self._background, lambda: listener() if store is self._store else None)
        store.watch(key, heard.call)

    def run(self, work: Callable[[CoordinationStore], T], then: Callable[[T | BaseException], None]) -> None:
        """Do `work` with the store after everything before it, then `then` with the outcome on the loop."""
        self._queue.append(_Call(self._store, work, then))
        self._pump()

    def reopen(self, then: Callable[[StoreError | None], None]) -> None:
        """Open another store after the last was lost; `then` with the trouble, or None."""
        assert self._store is None

        def opened(outcome: CoordinationStore | BaseException) -> None:
            self._note(outcome)
            if isinstance(outcome, BaseException):
                then(outcome if isinstance(outcome, StoreError) else StoreError(str(outcome)))
            elif self._closed:
                self._background.run(outcome.close, lambda _: None)
            else:
                self._store = outcome
                self._on_opened(outcome)
                self._hear_of_loss(outcome)
                then(None)

        self._background.run(self._open_store, opened)

    def close(self) -> None:
        """End the session, blocking; calls that wait end with an error."""
        self._closed = True
        store, self._store = self._store, None
        if store is not None:
            store.close()
        self._pump()

    # -- calls

    def _pump(self) -> None:
        # A loop, not recursion: work that is done at once calls back into `run` from within.
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and not self._under_way:
                call = self._queue.popleft()
                if call.store is None or call.store is not self._store:
                    call.then(SessionLost("there is no session with the coordination store"))
                    continue
                self._under_way = True
                self._start(call, call.store)
        finally:
            self._pumping = False

    def _start(self, call: "_Call", store: CoordinationStore) -> None:
        def settle(outcome: Any) -> None:
            self._under_way = False
            try:
                if store is self._store:
                    self._note(outcome)
                    if isinstance(outcome, SessionLost):
                        self._lose(store)
                call.then(outcome)
            finally:
                # When this came later, from the loop, the queue has been waiting for it.
                self._pump()

        self._background.run(lambda: call.work(store), settle)

    def _note(self, outcome: object) -> None:
        """Tell people about trouble once."""
        if isinstance(outcome, StoreError) and not isinstance(outcome, SessionLost):
            if not self._failing and not self._closed:
                self._failing = True
                log.error(
                    "the coordination store does not answer (%s); this broker goes on with what it knows",
                    outcome,
                )
        elif self._failing and not isinstance(outcome, BaseException):
            self._failing = False
            log.warning("the coordination store answers again")

    # -- loss

    def end(self) -> None:
        """Have the session ended, from any thread and without waiting; its loss is told as any other."""
        store = self._store
        if store is not None:
            store.lapse()

    def give_up(self) -> None:
        """Take the session for lost, now, and end it."""
        store = self._store
        if store is not None:
            store.lapse()
            self._lose(store)

    def _hear_of_loss(self, store: CoordinationStore) -> None:
        store.on_session_lost(lambda: self._background.call_soon(lambda: self._lose(store)))

    def _lose(self, store: CoordinationStore) -> None:
        if store is not self._store or self._closed:
            return
        self._store = None
        self._background.run(store.close, lambda _: None)
        self._on_lost()


class _Call:
    """Work that waits for its turn."""

    __slots__ = ("store", "then", "work")

    def __init__(
        self,
        store: CoordinationStore | None,
        work: Callable[[CoordinationStore], Any],
        then: Callable[[Any], None],
    ) -> None:
        self.store = store
        self.work = work
        self.then = then


class _Once:
    """Carries calls of any thread to the loop; many calls before the loop gets to them become one."""

    __slots__ = ("_background", "_due", "_listener")

    def __init__(self, background: Background, listener: Callable[[], None]) -> None:
        self._background = background
        self._listener = listener
        self._due = False

    def call(self) -> None:
        # Threads may pass the look together; then the listener is called twice, which it can bear.
        if not self._due:
            self._due = True
            self._background.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        self._listener()
