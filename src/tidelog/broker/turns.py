"""The ends of turns that no connection began: work that came back from a thread, an answer of another broker.

Whoever waits for a partition is woken at the end of a turn of the loop, once for everything that happened in
it. Connections and timers end their turns themselves; these two see to it for the rest.
"""

from collections.abc import Callable
from typing import TypeVar

from tidelog.broker.background import Background
from tidelog.broker.peers import CONTROL_CHANNEL, PeerAnswer, PeerFault, Peers

T = TypeVar("T")
EndTurn = Callable[[], None]


class TurnBackground:
    """A background whose outcomes are turns of their own."""

    __slots__ = ("_background", "_end_turn")

    def __init__(self, background: Background, end_turn: EndTurn) -> None:
        self._background = background
        self._end_turn = end_turn

    def run(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        """Run `work` off the loop, then `then` and what it sets in motion."""

        def turn(outcome: T | BaseException) -> None:
            try:
                then(outcome)
            finally:
                self._end_turn()

        self._background.run(work, turn)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, from any thread."""

        def turn() -> None:
            try:
                callback()
            finally:
                self._end_turn()

        self._background.call_soon(turn)


class TurnPeers:
    """Peers whose answers are turns of their own."""

    __slots__ = ("_end_turn", "_peers")

    def __init__(self, peers: Peers, end_turn: EndTurn) -> None:
        self._peers = peers
        self._end_turn = end_turn

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

        def turn(answer: memoryview | PeerFault) -> None:
            try:
                then(answer)
            finally:
                self._end_turn()

        self._peers.request(broker_id, api_key, version, body, turn, timeout_ms=timeout_ms, channel=channel)

    def forget(self, broker_id: int) -> None:
        self._peers.forget(broker_id)
