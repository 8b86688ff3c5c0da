"""A part that is made when it is first asked for: importing it takes a noticeable share of a start."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """Makes a part at its first use; `made` is it, or None before that."""

    __slots__ = ("_make", "made")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.made: T | None = None

    def get(self) -> T:
        """The part."""
        if self.made is None:
            self.made = self._make()
        return self.made

    def __repr__(self) -> str:
        return f"<Deferred {self.made!r}>"
