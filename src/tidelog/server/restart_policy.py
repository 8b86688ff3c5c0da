"""When a broker that died is started again: at once, after a pause, or not any more. No clock, no process."""

from dataclasses import dataclass
from typing import NamedTuple


class Verdict(NamedTuple):
    """The immediate failures in a row so far, and the pause before the next start; None gives up."""

    failures: int
    delay_seconds: float | None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A broker that served for a while is started again at once; one that fails at once, ever later.

    An immediate failure is an end before the broker was ready, or within `healthy_seconds` of that.
    """

    healthy_seconds: float = 3.0
    delay_first_seconds: float = 0.2
    delay_max_seconds: float = 5.0
    failures_max: int = 5

    def after_end(self, failures: int, served_seconds: float) -> Verdict:
        """Decide about a broker that ended after serving so long, with this many failures in a row before."""
        if served_seconds >= self.healthy_seconds:
            return Verdict(0, 0.0)
        failures += 1
        if failures >= self.failures_max:
            return Verdict(failures, None)
        return Verdict(failures, min(self.delay_first_seconds * 2 ** (failures - 1), self.delay_max_seconds))
