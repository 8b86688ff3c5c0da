"""The ports every outside thing enters by: time here, the disk in storage, the store in coordination."""

from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in milliseconds since the epoch, and a monotonic one for deadlines."""

    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...
