"""Many sessions in a row on two systems that run: what differed, what was exercised, how long clients waited.

A session that cannot be carried out, for whatever reason, is counted and told; the next one goes on. When so
many in a row could not, a system is gone and the campaign ends. Its summary is there at any moment, also when
somebody ends it early.
"""

import math
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

from tests.oracle.coverage import Coverage
from tests.oracle.judge import Difference
from tests.oracle.live import Pair
from tests.oracle.runner import KILL, SLOW
from tests.oracle.session import Session
from tests.oracle.shrink import shrunk, told

CRASHES_IN_A_ROW_MAX = 5
PROGRESS_EVERY = 10


class Campaign:
    """Sessions compared one after the other, and the counts of it."""

    def __init__(
        self,
        pair: Pair,
        coverage: Coverage,
        *,
        shrink: bool = True,
        kinds_max: int | None = None,
        seconds_max: float = math.inf,
        every_version: bool = True,
    ) -> None:
        self.pair = pair
        self.coverage = coverage
        self.shrink = shrink
        self.kinds_max = kinds_max
        #: behind which no session begins
        self.seconds_max = seconds_max
        #: whether a version that was never exercised is worth a line
        self.every_version = every_version
        self.sessions = 0
        self.steps = 0
        #: what went wrong in sessions that could not be carried out
        self.crashed: list[str] = []
        #: differences that did not come again
        self.unsteady: list[str] = []
        self.kinds: Counter[str] = Counter()
        self._started = time.monotonic()

    def run(self, seeds: range, make: Callable[[int], Session]) -> None:
        """Every session of these seeds, or until there are too many kinds of differences, or no time."""
        in_a_row = 0
        for seed in seeds:
            if time.monotonic() - self._started > self.seconds_max:
                print(f"time is over before seed {seed}", flush=True)
                return
            try:
                self._one(make(seed))
                in_a_row = 0
            except Exception as fault:
                in_a_row += 1
                self.crashed.append(f"seed {seed}: {type(fault).__name__}: {fault}")
                print(f"could not be carried out, seed {seed}:\n{traceback.format_exc()}", flush=True)
            self.sessions += 1
            if self.sessions % PROGRESS_EVERY == 0 or seed == seeds[-1]:
                print(self.progress(), flush=True)
            if in_a_row >= CRASHES_IN_A_ROW_MAX or len(self.kinds) == self.kinds_max:
                return

    @property
    def found(self) -> bool:
        """Whether anything is left to look at."""
        return bool(self.kinds or self.crashed)

    def progress(self) -> str:
        rate = self.sessions / (time.monotonic() - self._started)
        return (
            f"{self.sessions} sessions, {self.steps} steps, {len(self.kinds)} kinds of differences,"
            f" {len(self.unsteady)} unsteady, {len(self.crashed)} not carried out, {rate:.1f} sessions/s"
        )

    def summary(self) -> str:
        """Everything that was counted."""
        missing = self.coverage.missing() if self.every_version else []
        return "\n".join(
            [
                self.coverage.table(),
                *(f"never exercised: {api} v{version}" for api, version in missing),
                *self._liveness(),
                *(f"not carried out: {one}" for one in self.crashed),
                *(f"unsteady: {one}" for one in self.unsteady),
                *(f"{count:5} {kind}" for kind, count in self.kinds.most_common()),
                self.progress(),
            ]
        )

    def _one(self, session: Session) -> None:
        found = self.pair.compare(session)
        self.coverage.note([session])
        self.steps += sum(not step.cleanup for step in session.steps)
        while SLOW:
            print(f"seed {session.seed}: {SLOW.pop()[:400]}", flush=True)
        if not found:
            return
        # What comes behind the first one may follow from it.
        kind = found[0].kind
        if kind not in self.kinds and not any(one.kind == kind for one in self.pair.compare_slowly(session)):
            self.unsteady.append(f"seed {session.seed}: {found[0]}")
            print(f"once, {self.unsteady[-1]}", flush=True)
            return
        self.kinds[kind] += 1
        if self.kinds[kind] == 1:
            self._tell(session, found)

    def _tell(self, session: Session, found: list[Difference]) -> None:
        print(f"seed {session.seed}: {found[0]}", flush=True)
        # where brokers are killed a session takes long, and comes out a little different every time
        if self.shrink and all(step.api != KILL for step in session.steps):
            session = shrunk(session, found[0], self.pair.compare_quickly)
            found = self.pair.compare(session) or found
            SLOW.clear()
        print(told(session, found[:3]), flush=True)

    def _liveness(self) -> Iterator[str]:
        """How long clients waited for their next answer after a fault, side by side."""
        waits = self.pair.waits
        if waits:
            yield f"{'seconds until the client goes on':40} times   Kafka median  worst   here median  worst"
        for fault, rows in sorted(waits.items()):
            cells = [(statistics.median(column), max(column)) for column in zip(*rows, strict=True)]
            figures = "   ".join(f"{median:12.2f} {worst:6.2f}" for median, worst in cells)
            yield f"{fault:40} {len(rows):5}   {figures}"
