"""Who goes on when many have long work to do: one slice in each turn of the loop, whoever it belongs to.

However many there are, everybody else waits for one slice. Among the long requests the first goes on until it
is over, in every other turn; the turns between belong to those that have had the least, as long as that is
little. So one that takes twenty milliseconds does not wait for one that takes seconds, and only one of those
that take seconds is spread out in memory at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable

#: slices after which a request is a long one among the long
SHORT_SLICES_MAX = 5


class _Request:
    """A request under way; `step` does a slice of it, and says whether it is over."""

    __slots__ = ("slices", "step")

    def __init__(self, step: Callable[[], bool]) -> None:
        self.step = step
        self.slices = 0


class LongWork:
    """The long work of one event loop."""

    __slots__ = ("_is_scheduled", "_loop", "_requests", "_turn_number", "_turns")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: deque[Callable[[], None]] = deque()
        self._requests: list[_Request] = []
        self._turn_number = 0
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._requests) + len(self._turns)

    def take_turn(self, turn: Callable[[], None]) -> None:
        """Call back once, when those before have had their turns."""
        self._turns.append(turn)
        self._schedule()

    def add(self, step: Callable[[], bool]) -> None:
        """Call again and again, a slice at a time, until it says that it is over."""
        self._requests.append(_Request(step))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and len(self):
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._turn_number += 1
        try:
            if self._turns and (self._turn_number % 2 or not self._requests):
                self._turns.popleft()()
            elif self._requests:
                self._serve(self._chosen())
        finally:
            self._schedule()

    def _chosen(self) -> _Request:
        requests = self._requests
        if self._turn_number % 4 >= 2:
            least = min(requests, key=lambda request: request.slices)
            if least.slices < SHORT_SLICES_MAX:
                return least
        return requests[0]

    def _serve(self, request: _Request) -> None:
        request.slices += 1
        is_over = True
        try:
            is_over = request.step()
        finally:
            if is_over:
                self._requests.remove(request)
