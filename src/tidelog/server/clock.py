"""The system's clocks."""

import time


class SystemClock:
    """Wall-clock and monotonic time of the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
