"""Where long work may be put aside for others: the checkpoints of a call that runs in slices.

A broker has one thread for everything, and a request that names fifty thousand topics takes it half a second
to read, to authorize and to answer. The server runs such calls on stacks of their own, in slices
(`server/sliced_calls.py`). Inside of one `checkpoint()` is called wherever work can be put aside; outside of
one it does nothing.

Who calls `checkpoint` must have nothing half done: it is for reading and writing bytes, for asking the
authorizer, and for loops over partitions whose turns do not depend on each other. Whatever changes the state
of the broker in more than one step runs in `whole(…)`, inside of which nothing pauses.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

#: how many small things are done between two looks at the clock
STEP = 64
#: more is not copied in one step: a hundred megabytes take a tenth of a second, or half of one
PIECE_BYTES = 1 << 20

T = TypeVar("T")


class PausingCall(Protocol):
    """A call that runs in slices."""

    #: for how long it has waited for its turns
    paused_ns: int

    def pause_if_due(self) -> None:
        """Called inside of it: pause if the slice is over."""


class _Running(threading.local):
    """The call that runs in slices now, in this thread; None outside of one and inside of `whole`."""

    call: "PausingCall | None" = None


running = _Running()


def checkpoint() -> None:
    """Let others go on if this call has computed for long enough; there is nothing half done here."""
    call_now = running.call
    if call_now is not None:
        call_now.pause_if_due()


def each(items: Iterable[T]) -> Iterator[T]:
    """The items one by one, with a checkpoint now and then."""
    for number, item in enumerate(items):
        if number % STEP == STEP - 1:
            checkpoint()
        yield item


def paced(items: Sequence[T]) -> Iterable[T]:
    """The same for where every microsecond counts: a few items are gone through as they are."""
    return items if len(items) <= STEP else each(items)


def pieces_of(parts: Sequence[bytes]) -> list[bytes]:
    """The parts put together, in pieces of about a megabyte, at least one; in slices."""
    pieces: list[bytes] = []
    first = size = 0
    for number, part in enumerate(parts):
        size += len(part)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(parts[first : number + 1]))
            first, size = number + 1, 0
            checkpoint()
    if size or not pieces:
        pieces.append(b"".join(parts[first:]))
    return pieces


def copied(data: memoryview, pause: Callable[[], None] = checkpoint) -> bytes:
    """The same bytes in memory of their own, copied in slices if they are many."""
    if len(data) <= PIECE_BYTES:
        return bytes(data)
    copy = BytesIO()
    for first in range(0, len(data), PIECE_BYTES):
        copy.write(data[first : first + PIECE_BYTES])
        pause()
    return copy.getvalue()  # the bytes that were written, not one more copy


def whole(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call without a pause."""
    call_now = running.call
    if call_now is None:
        return call(*arguments, **named)
    running.call = None
    try:
        return call(*arguments, **named)
    finally:
        running.call = call_now


def clock_ns() -> int:
    """A clock that stands still while the call that reads it is paused."""
    call_now = running.call
    now_ns = perf_counter_ns()
    return now_ns if call_now is None else now_ns - call_now.paused_ns
