"""Timers and parked requests."""

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.node import ManualClock
from tidelog.broker.runtime.purgatory import DelayedAnswer, DelayedOperation, Purgatory
from tidelog.broker.runtime.timers import Timers


class Thing:
    def __init__(self) -> None:
        self.waiters: dict[DelayedOperation, None] = {}


class CountingWaiter(DelayedOperation):
    """Ready when told so; says how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False

    def ready(self, progressed: Any) -> bool:
        return self.is_ready

    def complete(self, *, expired: bool) -> str:
        return "expired" if expired else "ready"


def test_timers_run_in_order_and_once() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    ran: list[str] = []
    timers.set("b", clock.time_ms + 20, lambda: ran.append("b"))
    timers.set("a", clock.time_ms + 10, lambda: ran.append("a"))
    timers.set("c", clock.time_ms + 15, lambda: ran.append("c"))
    timers.cancel("c")
    assert timers.delay_ms() == 10
    clock.time_ms += 30
    assert timers.run_due() == 2 and ran == ["a", "b"]
    assert timers.run_due() == 0 and timers.delay_ms() is None


def test_setting_a_timer_again_moves_it() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    ran: list[int] = []
    for deadline in range(100):
        timers.set("key", clock.time_ms + 1000 - deadline, lambda: ran.append(1))
    assert len(timers) == 1 and len(timers._heap) <= 65
    clock.time_ms += 2000
    timers.run_due()
    assert ran == [1]


def test_an_earlier_deadline_is_announced() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    announced: list[int] = []
    timers.on_earlier = lambda: announced.append(1)
    timers.set("a", clock.time_ms + 100, lambda: None)
    timers.set("b", clock.time_ms + 200, lambda: None)
    timers.set("c", clock.time_ms + 50, lambda: None)
    assert len(announced) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=60))
def test_timers_match_a_model(steps: list[tuple[str, int]]) -> None:
    clock = ManualClock()
    timers = Timers(clock)
    model: dict[str, int] = {}
    ran: list[str] = []
    for key, number in steps:
        if number % 5 == 0:
            timers.cancel(key)
            model.pop(key, None)
        elif number % 5 == 1:
            clock.time_ms += number
            timers.run_due()
            due = sorted(k for k, deadline in model.items() if deadline <= clock.time_ms)
            assert sorted(ran) == due
            for name in due:
                del model[name]
            ran.clear()
        else:
            model[key] = clock.time_ms + number
            timers.set(key, clock.time_ms + number, lambda key=key: ran.append(key))  # type: ignore[misc]
    assert len(timers) == len(model)


def test_a_parked_answer_reaches_its_connection_whatever_comes_first() -> None:
    got: list[str] = []
    early, late = DelayedAnswer(), DelayedAnswer()
    early.answer("early")
    early.deliver_to(got.append)
    late.deliver_to(got.append)
    late.answer("late")
    late.answer("again")
    assert got == ["early", "late"]


def test_waiters_wake_expire_and_leave_nothing() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    purgatory = Purgatory(timers, 2)
    first, second = Thing(), Thing()
    got: list[str] = []
    waiters = [CountingWaiter(), CountingWaiter()]
    for waiter in waiters:
        waiter.deliver_to(got.append)
        purgatory.park(waiter, (first, second), clock.time_ms + 10)
    assert purgatory.full
    purgatory.wake(first)
    assert got == []
    waiters[0].is_ready = True
    purgatory.wake(first)
    assert got == ["ready"] and len(second.waiters) == 1
    clock.time_ms += 10
    timers.run_due()
    assert got == ["ready", "expired"]
    assert not first.waiters and not second.waiters and purgatory.count == 0 and len(timers) == 0


def test_who_waits_for_what_is_lost_is_answered_at_once() -> None:
    timers = Timers(ManualClock())
    purgatory = Purgatory(timers, 2)
    first, second = Thing(), Thing()
    got: list[str] = []
    waiter = CountingWaiter()
    waiter.deliver_to(got.append)
    waiter.lost(first)
    assert got == []
    purgatory.park(waiter, (first, second), 1 << 60)
    waiter.lost(first)
    waiter.lost(second)
    assert got == ["expired"]
    assert not first.waiters and not second.waiters and purgatory.count == 0 and len(timers) == 0


@pytest.mark.parametrize("answered_first", [True, False])
def test_nothing_holds_on_to_an_answer_that_was_delivered(answered_first: bool) -> None:
    """No circle of the request, its place and its answer, that only a collection of garbage would find."""

    class Place:
        """As a connection keeps it, which knows the request and gets the answer."""

        def __init__(self, parked: DelayedAnswer) -> None:
            self.parked = parked
            self.answer: object = None

        def fill(self, answer: object) -> None:
            self.answer = answer

    parked = DelayedAnswer()
    answer, place = Place(parked), Place(parked)
    gone = weakref.ref(answer), weakref.ref(place)
    gc.collect()
    gc.disable()
    try:
        for step in ("answer", "deliver") if answered_first else ("deliver", "answer"):
            if step == "answer":
                parked.answer(answer)
            else:
                parked.deliver_to(place.fill)
        assert place.answer is answer
        del answer, place
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
