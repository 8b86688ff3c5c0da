"""Whose turn it is among those with long work."""

import asyncio
from collections.abc import Callable

from tidelog.server.long_work import SHORT_SLICES_MAX, LongWork


class HandLoop:
    """A loop whose turns are made by hand."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def turn(self) -> int:
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()
        return len(ready)


def made() -> tuple[HandLoop, LongWork]:
    loop = HandLoop()
    work = LongWork(loop)  # type: ignore[arg-type]
    return loop, work


def request(done: list[str], name: str, slices: int) -> Callable[[], bool]:
    left = slices

    def step() -> bool:
        nonlocal left
        left -= 1
        done.append(name)
        return left == 0

    return step


def test_one_slice_in_each_turn() -> None:
    loop, work = made()
    done: list[str] = []
    for name in "abcdefgh":
        work.add(request(done, name, 3))
        work.take_turn(lambda: done.append("turn"))
    for number in range(1, 8 * 3 + 8 + 1):
        assert loop.turn() == 1 and len(done) == number
    assert not len(work) and loop.turn() == 0


def test_a_short_request_does_not_wait_for_long_ones() -> None:
    loop, work = made()
    done: list[str] = []
    for name in ("long 1", "long 2", "long 3"):
        work.add(request(done, name, 1_000))
    for _ in range(100):
        loop.turn()
    work.add(request(done, "short", 3))
    before = len(done)
    while done.count("short") < 3:
        loop.turn()
    assert len(done) - before <= 12


def test_only_one_of_the_long_ones_is_far_along() -> None:
    loop, work = made()
    done: list[str] = []
    for number in range(8):
        work.add(request(done, f"long {number}", 1_000))
    for _ in range(900):
        loop.turn()
    counts = sorted(done.count(f"long {number}") for number in range(8))
    assert counts[-2] <= SHORT_SLICES_MAX < counts[-1]
    while len(work):
        loop.turn()
    assert len(done) == 8_000


def test_what_fails_is_over_and_the_others_go_on() -> None:
    loop, work = made()
    done: list[str] = []

    def fail() -> bool:
        raise ValueError("trouble")

    work.add(fail)
    work.add(request(done, "other", 2))
    try:
        loop.turn()
        raise AssertionError("the trouble is for the loop to tell of")
    except ValueError:
        pass
    while len(work):
        loop.turn()
    assert done == ["other", "other"]


def test_on_a_real_loop_others_come_between() -> None:
    async def run() -> list[str]:
        done: list[str] = []
        work = LongWork(asyncio.get_running_loop())
        work.add(request(done, "slice", 5))
        for _ in range(5):
            await asyncio.sleep(0)
            done.append("other")
        while len(work):
            await asyncio.sleep(0)
        return done

    done = asyncio.run(run())
    assert done.count("slice") == 5 and done[:3] != ["slice"] * 3
