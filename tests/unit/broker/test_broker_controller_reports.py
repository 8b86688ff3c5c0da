"""What a part of a broker tells the controller: together, one message at a time, until it is known."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.node import ManualClock
from tidelog.broker.replication.controller_reports import THINGS_PER_MESSAGE, ControllerReports, Message
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import Command, Done, RebalanceLeaders, Result

RETRY_MS = 100


class Bench:
    """Reports of numbers; nothing is said of negative ones, and a refused one is due again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.asked: list[Callable[[Sequence[Result]], None]] = []
        self.told: list[list[int]] = []
        self.refused: list[int] = []
        metadata: Any = SimpleNamespace(broker_epoch=7, submit=self._submit)
        self.metadata = metadata
        self.reports = ControllerReports[int](metadata, self.timers, "numbers", RETRY_MS, self._message)

    def _submit(self, command: Command, then: Callable[[Sequence[Result]], None]) -> None:
        self.asked.append(then)

    def _message(self, things: list[int], epoch: int) -> Message | None:
        assert epoch == 7
        said = [thing for thing in things if thing >= 0]
        if not said:
            return None
        self.told.append(said)
        return Message(RebalanceLeaders(), self._heard)

    def _heard(self, results: Sequence[Result]) -> bool:
        again, self.refused = self.refused, []
        for thing in again:
            self.reports.add(thing)
        return bool(again)

    def wait(self, milliseconds: int = 0) -> None:
        self.clock.time_ms += milliseconds
        self.timers.run_due()

    def answer(self) -> None:
        self.asked.pop(0)((Done(),))


def test_what_is_due_goes_together_and_one_message_at_a_time() -> None:
    bench = Bench()
    for thing in (1, 2, 1):
        bench.reports.add(thing)
    assert bench.told == []
    bench.wait()
    bench.reports.add(3)
    bench.wait(RETRY_MS)
    assert bench.told == [[1, 2]]
    bench.answer()
    bench.wait()
    assert bench.told == [[1, 2], [3]]


def test_what_is_due_again_waits_a_little() -> None:
    bench = Bench()
    bench.reports.add(1)
    bench.wait()
    bench.refused = [1]
    bench.answer()
    bench.wait(RETRY_MS - 1)
    assert bench.told == [[1]]
    bench.wait(1)
    assert bench.told == [[1], [1]]


def test_nothing_is_said_between_two_registrations() -> None:
    bench = Bench()
    bench.metadata.broker_epoch = -1
    bench.reports.add(1)
    bench.wait(RETRY_MS)
    assert bench.told == []
    bench.metadata.broker_epoch = 7
    bench.wait(RETRY_MS)
    assert bench.told == [[1]]


def test_those_behind_a_batch_of_which_nothing_is_to_be_said_have_their_turn() -> None:
    bench = Bench()
    for thing in range(-THINGS_PER_MESSAGE, 1):
        bench.reports.add(thing)
    bench.wait()
    bench.wait()
    assert bench.told == [[0]]


def test_a_broker_that_stops_says_no_more() -> None:
    bench = Bench()
    bench.reports.add(1)
    bench.wait()
    bench.refused = [1]
    bench.reports.stop()
    bench.answer()
    bench.reports.add(2)
    bench.wait(RETRY_MS)
    assert bench.told == [[1]] and bench.refused == [1] and len(bench.timers) == 0
