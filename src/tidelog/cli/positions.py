"""Places in a log as people write them: beginning, end, an offset, the last N, a moment.

beginning | earliest      the first record kept
end | latest              only what comes next
1234                      offset 1234 of every partition
-5                        the last five records of every partition
@1700000000000            the first record at or after this time, in milliseconds since 1970
2026-01-31T12:00:00Z      the same as ISO time (local time when it names no zone; a bare date works)
15m, 2h, 7d               the same as an age
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

import click


class PositionKind(Enum):
    """Which of the five ways a position was given."""

    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    TIMESTAMP = auto()


@dataclass(frozen=True, slots=True)
class RequestedPosition:
    """A parsed position; `number` is the offset, the count before the end or the timestamp in ms."""

    kind: PositionKind
    number: int = 0


_AGE = re.compile(r"(\d+)(s|m|h|d)")
_AGE_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NAMES = {
    "beginning": PositionKind.BEGINNING,
    "earliest": PositionKind.BEGINNING,
    "end": PositionKind.END,
    "latest": PositionKind.END,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_position(text: str, clock_ms: Callable[[], int] = now_ms) -> RequestedPosition:
    """Read a position, or raise ValueError with a sentence that lists what is possible."""
    word = text.strip()
    named = _NAMES.get(word.lower())
    if named is not None:
        return RequestedPosition(named)
    if re.fullmatch(r"\d+", word):
        return RequestedPosition(PositionKind.OFFSET, int(word))
    if re.fullmatch(r"-\d+", word):
        return RequestedPosition(PositionKind.BEFORE_END, int(word[1:]))
    return RequestedPosition(PositionKind.TIMESTAMP, parse_moment(word, clock_ms))


def parse_moment(text: str, clock_ms: Callable[[], int] = now_ms) -> int:
    """Read `@milliseconds`, an age or an ISO time as milliseconds since 1970, or raise ValueError."""
    if re.fullmatch(r"@\d+", text):
        return int(text[1:])
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(0, clock_ms() - int(age[1]) * _AGE_MS[age[2]])
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a position: use beginning, end, an offset (42), the last N (-5), "
            "a time (2026-01-31T12:00:00Z or @1700000000000) or an age (15m, 2h, 7d)"
        ) from None


def position_callback(ctx: click.Context, parameter: click.Parameter, value: str) -> RequestedPosition:
    """The click callback of an option that is a position in a log."""
    try:
        return parse_position(value)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from fault


def moment_callback(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The click callback of an option that is a moment, in milliseconds since 1970."""
    if value is None:
        return None
    try:
        return parse_moment(value)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from fault
