"""Tells the controller what it has to hear of: in batches, one message at a time, until it is known.

What is due waits here. It is not told in the turn in which it becomes due, since much of it comes together;
what comes while a message is on its way waits for the next. What is said of each thing, and which of them are
due again after the answer, knows who reports.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Command, Result

THINGS_PER_MESSAGE = 1_000

ThingT = TypeVar("ThingT", bound=Hashable)


class Message(NamedTuple):
    """A command, and who takes its results and says whether what is due then waits a little."""

    command: Command
    heard: Callable[[Sequence[Result]], bool]


class ControllerReports(Generic[ThingT]):
    """What one part of a broker tells the controller."""

    def __init__(
        self,
        metadata: Metadata,
        timers: Timers,
        name: str,
        retry_ms: int,
        message: Callable[[list[ThingT], int], Message | None],
    ) -> None:
        """`message` gets things that are due, and the broker epoch; None if nothing is to be said of them."""
        self._metadata = metadata
        self._timers = timers
        self._name = name
        self._retry_ms = retry_ms
        self._message = message
        self.due: dict[ThingT, None] = {}
        self.in_flight = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<ControllerReports {self._name} due={len(self.due)} in_flight={self.in_flight}>"

    def stop(self) -> None:
        self._stopped = True
        self._timers.cancel(self._name)

    def add(self, thing: ThingT) -> None:
        """Something is due."""
        self.due[thing] = None
        self._send_soon(0)

    def _send_soon(self, delay_ms: int) -> None:
        if not self.in_flight and not self._stopped:
            self._timers.set_after(self._name, delay_ms, self._send)

    def _send(self) -> None:
        if self.in_flight or self._stopped:
            return
        epoch = self._metadata.broker_epoch
        if epoch < 0:
            # Between two registrations; the next one is on its way.
            self._send_soon(self._retry_ms)
            return
        things = list(islice(self.due, THINGS_PER_MESSAGE))
        for thing in things:
            del self.due[thing]
        message = self._message(things, epoch)
        if message is not None:
            self.in_flight = True
            self._metadata.submit(message.command, lambda results: self._heard(message, results))
        elif self.due:
            self._send_soon(0)

    def _heard(self, message: Message, results: Sequence[Result]) -> None:
        self.in_flight = False
        if not self._stopped:
            later = message.heard(results)
            if self.due:
                self._send_soon(self._retry_ms if later else 0)
