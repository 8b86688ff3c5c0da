"""How long something took, counted in ranges, in Prometheus' text format."""

from bisect import bisect_left

#: seconds; what takes longer than the last is in +Inf
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latency:
    """A histogram; 14 numbers, whatever is counted."""

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"<Latency {self.name} count={sum(self._counts)}>"

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def lines(self) -> list[str]:
        """The family, with cumulative buckets."""
        lines = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} histogram"]
        so_far = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            so_far += count
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{self.name}_sum {self._sum:.6f}", f"{self.name}_count {so_far}"]
