"""One heap of deadlines for everything on the node.

A timer is set under a key; setting the same key again replaces it. Deadlines are given in wall-clock
milliseconds but kept in monotonic time, so a step of the wall clock neither fires nor delays them.
"""

import heapq
from collections.abc import Callable, Hashable
from itertools import count

from tidelog.model.ports import Clock

Callback = Callable[[], None]


class Timers:
    """Deadlines under keys, run by whoever owns the loop."""

    __slots__ = ("_clock", "_heap", "_live", "_serial", "on_earlier")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Hashable]] = []
        self._live: dict[Hashable, tuple[int, Callback]] = {}
        self._serial = count()
        #: called when the next deadline moved closer, so that the loop can re-arm
        self.on_earlier: Callback = lambda: None

    def set(self, key: Hashable, deadline_ms: int, callback: Callback) -> None:
        """Call `callback` at `deadline_ms` unless the key is set again or cancelled before."""
        due_ms = self._clock.monotonic_ms() + max(0, deadline_ms - self._clock.now_ms())
        serial = next(self._serial)
        earlier = not self._heap or due_ms < self._heap[0][0]
        self._live[key] = (serial, callback)
        heapq.heappush(self._heap, (due_ms, serial, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._live):
            self._compact()
        if earlier:
            self.on_earlier()

    def set_after(self, key: Hashable, delay_ms: int, callback: Callback) -> None:
        """Call `callback` in `delay_ms` unless the key is set again or cancelled before."""
        self.set(key, self._clock.now_ms() + delay_ms, callback)

    def monotonic_ms(self) -> int:
        """The time by which delays are measured."""
        return self._clock.monotonic_ms()

    def cancel(self, key: Hashable) -> None:
        """Forget a timer; unknown keys are fine."""
        self._live.pop(key, None)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def __len__(self) -> int:
        return len(self._live)

    def delay_ms(self) -> int | None:
        """Milliseconds until the next deadline, None if there is none."""
        self._drop_dead()
        if not self._heap:
            return None
        return max(0, self._heap[0][0] - self._clock.monotonic_ms())

    def run_due(self) -> int:
        """Run every timer whose deadline has passed; return how many ran."""
        ran = 0
        now_ms = self._clock.monotonic_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, serial, key = heapq.heappop(self._heap)
            live = self._live.get(key)
            if live is None or live[0] != serial:
                continue
            del self._live[key]
            ran += 1
            live[1]()
        return ran

    def _drop_dead(self) -> None:
        while self._heap:
            _, serial, key = self._heap[0]
            live = self._live.get(key)
            if live is not None and live[0] == serial:
                return
            heapq.heappop(self._heap)

    def _compact(self) -> None:
        """Drop cancelled and replaced entries, so that a busy key does not grow the heap."""
        live = self._live
        self._heap = [row for row in self._heap if row[2] in live and live[row[2]][0] == row[1]]
        heapq.heapify(self._heap)
