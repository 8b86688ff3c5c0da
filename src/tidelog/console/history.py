"""Figures over time, in memory and bounded: lag of groups, rates of topics.

A series keeps its last SAMPLES_MAX points. There are at most SERIES_MAX series; the one that was fed longest
ago gives way to a new one.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

SAMPLES_MAX = 300
SERIES_MAX = 4_000


class Sample(NamedTuple):
    at: float
    value: float


class History:
    """Series of samples by name."""

    def __init__(self, samples_max: int = SAMPLES_MAX, series_max: int = SERIES_MAX) -> None:
        self._samples_max = samples_max
        self._series_max = series_max
        self._series: OrderedDict[str, deque[Sample]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._series)

    def add(self, name: str, at: float, value: float) -> None:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = deque(maxlen=self._samples_max)
        series.append(Sample(at, value))
        self._series.move_to_end(name)
        while len(self._series) > self._series_max:
            self._series.popitem(last=False)

    def samples(self, name: str) -> list[Sample]:
        """The points of a series, the oldest first; none where it is not known."""
        return list(self._series.get(name, ()))

    def latest(self, name: str) -> float | None:
        series = self._series.get(name)
        return series[-1].value if series else None


class Rates:
    """Turns counters that grow into rates per second; a counter that fell began anew."""

    def __init__(self) -> None:
        self._last: dict[str, Sample] = {}

    def rate(self, name: str, at: float, counter: float) -> float | None:
        """The rate since the last call for this name; None at the first."""
        before = self._last.get(name)
        self._last[name] = Sample(at, counter)
        if before is None or at <= before.at:
            return None
        return max(0.0, counter - before.value) / (at - before.at)

    def keep_only(self, names: set[str]) -> None:
        """Forget counters of things that are gone."""
        for name in set(self._last) - names:
            del self._last[name]
