"""The port to threads: work that may block runs elsewhere, and its outcome comes back to the event loop."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    """Runs `work` off the event loop, then calls `then` on it with the outcome: a value or the exception."""

    def run(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None: ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop; may be called from any thread. Nothing happens after the end."""
        ...


class InlineBackground:
    """Runs everything at once, for tests and simulations.

    Only failures of the environment become outcomes; a bug in the work surfaces where it is.
    """

    def run(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        outcome: T | BaseException
        try:
            outcome = work()
        except (OSError, ValueError) as error:
            outcome = error
        then(outcome)

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()
