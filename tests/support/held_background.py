"""A worker thread that runs when the test says so."""

from collections.abc import Callable
from typing import Any


class HeldBackground:
    """Work waits until `step` runs the first of it, and what follows from it."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.held.append((work, then))

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def step(self) -> None:
        work, then = self.held.pop(0)
        then(work())
