"""Latencies counted in buckets of about one percent, so that a long run costs little memory."""

import math

_RATIO = math.log(1.01)
_SMALLEST_US = 1.0


class LatencyHistogram:
    """Counts of latencies; percentiles are right to about one percent."""

    __slots__ = ("_counts", "count", "largest_us", "total_us")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_us = 0.0
        self.largest_us = 0.0

    def add(self, seconds: float) -> None:
        microseconds = max(seconds * 1e6, _SMALLEST_US)
        bucket = round(math.log(microseconds) / _RATIO)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_us += microseconds
        self.largest_us = max(self.largest_us, microseconds)

    def percentile_ms(self, percent: float) -> float | None:
        """The latency that `percent` of all stay within, or None before the first one."""
        if self.count == 0:
            return None
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(math.exp(bucket * _RATIO), self.largest_us) / 1000
        return self.largest_us / 1000

    def summary(self) -> dict[str, float | None]:
        """Mean, the usual percentiles and the largest, in milliseconds."""
        named = {f"p{percent:g}_ms": self.percentile_ms(percent) for percent in (50, 95, 99, 99.9)}
        mean = self.total_us / self.count / 1000 if self.count else None
        largest = self.largest_us / 1000 if self.count else None
        values = {"mean_ms": mean, **named, "max_ms": largest}
        return {name: None if value is None else round(value, 3) for name, value in values.items()}
