"""A turn: one run of the event loop on behalf of somebody, with one time and one end.

`with turn:` begins and ends one, and is the only way to do so. At its beginning the clock is read once, for
everything that happens in it. At its end whoever waits for something that moved on meanwhile is woken, once
for all that happened. Requests of a connection, timers that are due, outcomes of background work and answers
of other brokers are turns. A turn inside another one ends like any: whoever waits is woken a little sooner.
"""

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from tidelog.broker.runtime.background import Background
from tidelog.broker.runtime.peers import CONTROL_CHANNEL, PeerAnswer, PeerFault, Peers
from tidelog.broker.runtime.purgatory import Progressing, Purgatory
from tidelog.model.ports import Clock

T = TypeVar("T")


class Turn:
    """The turns of one broker: there is one at a time."""

    __slots__ = ("_clock", "_listeners", "_progressed", "_purgatory", "now_ms")

    def __init__(self, clock: Clock, purgatory: Purgatory) -> None:
        self._clock = clock
        self._purgatory = purgatory
        self._progressed: list[Progressing] = []
        #: when this turn began, by the wall clock
        self.now_ms = clock.now_ms()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time when those who waited for something have been woken."""
        self._listeners.append(listener)

    def __enter__(self) -> "Turn":
        self.now_ms = self._clock.now_ms()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progressed:
            self.wake()

    def note_progress(self, moved: Progressing) -> None:
        """Something moved on: if anybody waits for that, have them woken at the end of this turn."""
        if (moved.waiters or moved.commits) and not moved.progressing:
            moved.progressing = True
            self._progressed.append(moved)

    def wake(self) -> None:
        """Wake whoever waits for what moved on so far, before the end of the turn."""
        progressed, self._progressed = self._progressed, []
        for moved in progressed:
            moved.progressing = False
        for moved in progressed:
            self._purgatory.wake(moved)
            if moved.commits:
                self._purgatory.settle(moved)
        if progressed:
            for listener in self._listeners:
                listener()

    def __repr__(self) -> str:
        return f"<Turn since {self.now_ms} progressed={len(self._progressed)}>"


class TurnBackground:
    """A background whose outcomes are turns of their own."""

    __slots__ = ("_background", "_turn")

    def __init__(self, background: Background, turn: Turn) -> None:
        self._background = background
        self._turn = turn

    def run(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        """Run `work` off the loop, then `then` and what it sets in motion."""

        def outcome_came(outcome: T | BaseException) -> None:
            with self._turn:
                then(outcome)

        self._background.run(work, outcome_came)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, from any thread."""

        def called() -> None:
            with self._turn:
                callback()

        self._background.call_soon(called)


class TurnPeers:
    """Peers whose answers are turns of their own."""

    __slots__ = ("_peers", "_turn")

    def __init__(self, peers: Peers, turn: Turn) -> None:
        self._peers = peers
        self._turn = turn

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
        """Send a request, then run `then` and what it sets in motion."""

        def answered(answer: memoryview | PeerFault) -> None:
            with self._turn:
                then(answer)

        self._peers.request(
            broker_id, api_key, version, body, answered, timeout_ms=timeout_ms, channel=channel
        )

    def forget(self, broker_id: int) -> None:
        self._peers.forget(broker_id)
