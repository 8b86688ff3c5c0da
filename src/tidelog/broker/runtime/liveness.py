"""Whether this broker makes progress, and what follows when it does not: it gives up its session.

A session with the coordination store says that a broker lives, and threads of their own keep it alive. They
would go on to do so while the event loop hangs or a disk does not answer, and nobody could lead in its place.
So liveness comes from progress, and has a bound, the *stall limit*: two thirds of the session timeout, the
one that was asked for or a shorter one that the store grants.

- The loop moves when its timer runs, many times per stall limit, and when long work on it says so (`moved`).
- A thread beside it (`look`) ends the session when the loop has not moved for the stall limit. Only time in
  which the thread itself ran counts, so that a machine that sleeps or swaps is not taken for a hung loop.
- A loop that comes back finds its lease over (`lease_end_ns`) before it answers anything, whoever slept: it
  gives up its roles and its session, and registers as a new incarnation. The others may have ended it: they
  heard of it for the last time at most a third of the session timeout before it stood still.
- A disk that did not answer for the stall limit costs the session too, though the loop turns. The broker
  registers again when the disk has answered for a while.

Below the limit nothing happens. Above it another broker leads within the session timeout, counted from the
moment of the stall: the limit, a tick, and an election, for which a quarter of the timeout is left.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from tidelog.broker.runtime.timers import Timers
from tidelog.model.ports import Clock

log = logging.getLogger(__name__)

#: how often per session timeout the loop tells that it moves, and the thread beside it looks
TICKS_PER_SESSION = 20
TICK_MS_MIN = 10
#: of the time between two looks at most so many ticks count: what is above it the whole process slept
TICKS_COUNTED_MAX = 4
NEVER_NS = 1 << 62
_TIMER = "liveness"


class Disks(Protocol):
    """Where the logs are, and whether anything answers there."""

    def silent_ms(self) -> int:
        """For how long a disk has not answered; 0 while all do, or none is suspected."""

    def hanging(self) -> list[str]:
        """The directories that do not answer."""


class NoDisks:
    """For a broker whose disks always answer."""

    def silent_ms(self) -> int:
        return 0

    def hanging(self) -> list[str]:
        return []


class Liveness:
    """The progress of one broker. `look` is for another thread, everything else for the event loop."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        session_timeout_ms: int,
        *,
        on_lapse: Callable[[str], None],
        end_session: Callable[[], None],
    ) -> None:
        """`on_lapse` gives up roles and session, on the loop, and is told why; `end_session` ends the
        session, from any thread, without waiting.
        """
        self._clock = clock
        self._timers = timers
        self._asked_ms = session_timeout_ms
        self.stall_ms = self.tick_ms = 0
        self.granted(session_timeout_ms)
        #: from this moment on (by the monotonic clock) nothing may be answered before `overdue` was called
        self.lease_end_ns = NEVER_NS
        self._on_lapse = on_lapse
        self._end_session = end_session
        self.disks: Disks = NoDisks()
        #: how often each cause cost the session
        self.lapses = {"loop": 0, "disk": 0}
        self._running = False
        self._disk_hangs = False
        self._disk_answers_since_ms: int | None = None
        # What the loop writes and the other thread reads: a number that grows.
        self._moves = 0
        self._moves_seen = 0
        self._looked_ms = 0
        self._still_ms = 0

    def __repr__(self) -> str:
        return f"<Liveness stall={self.stall_ms} ms disk_hangs={self._disk_hangs} lapses={self.lapses}>"

    @property
    def disk_answers(self) -> bool:
        """Whether the disks answer, as far as anybody asked: no broker registers without."""
        return not self._disk_hangs

    # -- on the loop

    def granted(self, session_timeout_ms: int | None) -> None:
        """A session was opened, which the store ends after so long a silence: None, as long as was asked for.

        A shorter one counts, since others lead when it is over. A longer one changes nothing: this broker
        gives it up after the time that it was meant to have.
        """
        timeout_ms = min(self._asked_ms, session_timeout_ms or self._asked_ms)
        self.stall_ms = timeout_ms * 2 // 3
        self.tick_ms = max(timeout_ms // TICKS_PER_SESSION, TICK_MS_MIN)

    def start(self) -> None:
        """Begin to measure: the logs are open, and there is a loop that turns."""
        if not self._running:
            self._running = True
            self._looked_ms = self._clock.monotonic_ms()
            self._renew()
            self._arm()

    def stop(self) -> None:
        """No more: the broker stops, and closing its logs may take as long as it takes."""
        self._running = False
        self.lease_end_ns = NEVER_NS
        self._timers.cancel(_TIMER)

    def moved(self) -> None:
        """Long work on the loop goes on."""
        if self._running:
            self.check(self._clock.monotonic_ms() * 1_000_000)
            self._renew()

    def check(self, now_ns: int) -> None:
        """Before anything is done as a leader: did this broker stand still for too long?"""
        if now_ns > self.lease_end_ns:
            self.overdue()

    def overdue(self) -> None:
        """The loop stood still for so long that the session may be over, or is: take it for lost."""
        stood_ms = self._clock.monotonic_ms() - (self.lease_end_ns // 1_000_000 - self.stall_ms)
        self.lapses["loop"] += 1
        # Before the roles go: what follows from their end asks again.
        self._renew()
        self._on_lapse(f"this broker stood still for {stood_ms / 1000:.1f} s")

    def _arm(self) -> None:
        self._timers.set_after(_TIMER, self.tick_ms, self._tick)

    def _tick(self) -> None:
        if self._running:
            self._arm()
            self.moved()
            self._look_at_disks()

    def _renew(self) -> None:
        self._moves += 1
        self.lease_end_ns = (self._clock.monotonic_ms() + self.stall_ms) * 1_000_000

    def _look_at_disks(self) -> None:
        silent_ms = self.disks.silent_ms()
        if not self._disk_hangs:
            if silent_ms >= self.stall_ms:
                self._disk_hangs = True
                self._disk_answers_since_ms = None
                self.lapses["disk"] += 1
                names = ", ".join(self.disks.hanging()) or "a disk"
                self._on_lapse(f"{names} did not answer for {silent_ms / 1000:.1f} s")
            return
        now_ms = self._clock.monotonic_ms()
        if silent_ms >= self.stall_ms // 4:
            self._disk_answers_since_ms = None
        elif self._disk_answers_since_ms is None:
            self._disk_answers_since_ms = now_ms
        elif now_ms - self._disk_answers_since_ms >= self.stall_ms // 2:
            # Not at its first answer: a disk that hangs now and then would make leaders come and go.
            self._disk_hangs = False
            log.warning("the disks of this broker answer again")

    # -- in another thread

    def look(self) -> int:
        """End the session if the loop stands still for too long; for how long it does, in milliseconds."""
        now_ms = self._clock.monotonic_ms()
        elapsed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        moves = self._moves
        if moves != self._moves_seen or not self._running:
            self._moves_seen = moves
            self._still_ms = 0
            return 0
        self._still_ms += min(elapsed_ms, TICKS_COUNTED_MAX * self.tick_ms)
        if self._still_ms >= self.stall_ms:
            # Again at every look: a session that is just being opened must not escape.
            self._end_session()
        return self._still_ms
