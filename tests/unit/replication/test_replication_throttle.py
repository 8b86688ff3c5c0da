"""The rate of replicas that catch up."""

import pytest

from tidelog.replication.throttle import UNLIMITED, Throttle, is_throttled


def test_who_is_throttled() -> None:
    assert is_throttled(("*",), 3, 1)
    assert is_throttled(("0:2", "3:1"), 3, 1)
    assert not is_throttled(("3:2", "13:1"), 3, 1)
    assert not is_throttled((), 3, 1)


@pytest.mark.parametrize("piece", [10, 900, 5000])
def test_the_rate_holds_over_time(piece: int) -> None:
    throttle = Throttle()
    now_ms = moved = 0
    while now_ms < 60_000:
        delay_ms = throttle.delay_ms(1000, now_ms)
        if delay_ms:
            now_ms += delay_ms
        else:
            throttle.spend(piece)
            moved += piece
            now_ms += 1
    # A second's worth to begin with, and one piece more than there was.
    assert 57_000 <= moved <= 61_000 + piece


def test_no_rate_is_no_limit_and_none_is_a_halt() -> None:
    throttle = Throttle()
    throttle.spend(10**12)
    assert throttle.delay_ms(UNLIMITED, 0) == 0
    halted = Throttle()
    assert [halted.delay_ms(0, now_ms) for now_ms in (0, 5000)] == [1000, 1000]
