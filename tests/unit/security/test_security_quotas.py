"""Which limit holds, how rates are measured, and that waiting as told brings the rate to the limit."""

from itertools import combinations

import pytest

from tidelog.model.client_quotas import quota_entity
from tidelog.security.quotas import (
    Limit,
    SampledRate,
    TokenBucket,
    Windows,
    find_address_limit,
    find_limit,
)

KEY = "producer_byte_rate"
WINDOWS = Windows(11, 1000)
#: Kafka's order, the most particular first, and who shares the limit
ORDER: list[tuple[dict[str, str | None], tuple[str | None, str | None]]] = [
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": None}, ("alice", "app")),
    ({"user": "alice"}, ("alice", None)),
    ({"user": None, "client-id": "app"}, ("alice", "app")),
    ({"user": None, "client-id": None}, ("alice", "app")),
    ({"user": None}, ("alice", None)),
    ({"client-id": "app"}, (None, "app")),
    ({"client-id": None}, (None, "app")),
]


def test_the_most_particular_limit_holds() -> None:
    for count in range(1, len(ORDER) + 1):
        for chosen in combinations(range(len(ORDER)), count):
            quotas = {quota_entity(ORDER[rank][0]): {KEY: float(rank + 1)} for rank in chosen}
            first = chosen[0]
            assert find_limit(quotas, KEY, "alice", "app") == Limit(first + 1.0, *ORDER[first][1])


def test_limits_of_others_and_of_other_keys_do_not_hold() -> None:
    quotas = {
        quota_entity({"user": "bob"}): {KEY: 1.0},
        quota_entity({"user": "alice"}): {"consumer_byte_rate": 1.0},
        quota_entity({"ip": None}): {"connection_creation_rate": 7.0},
        quota_entity({"ip": "10.0.0.1"}): {"connection_creation_rate": 3.0},
    }
    assert find_limit(quotas, KEY, "alice", "app") is None
    assert find_address_limit(quotas, "connection_creation_rate", "10.0.0.1") == 3.0
    assert find_address_limit(quotas, "connection_creation_rate", "10.0.0.2") == 7.0
    assert find_address_limit({}, "connection_creation_rate", "10.0.0.2") is None


def test_a_burst_counts_over_the_full_windows() -> None:
    rate = SampledRate(WINDOWS, 0)
    rate.record(10_000, 0)
    assert rate.measure(0) == (1000.0, 10_000)
    assert rate.throttle_ms(1000, 0) == 0
    rate.record(1_000, 0)
    assert rate.throttle_ms(1000, 0) == 1000


def test_old_windows_go() -> None:
    rate = SampledRate(WINDOWS, 0)
    rate.record(50_000, 0)
    assert rate.throttle_ms(1000, 500) > 0
    assert rate.measure(11_000)[0] == 0.0
    rate.record(100, 11_000)
    rate.record(-100, 11_000)
    assert rate.measure(11_000)[0] == 0.0


@pytest.mark.parametrize(
    ("chunk", "limit"),
    # A chunk near what all windows hold is forgotten before it is paid for, as in Kafka: not tried here.
    [(100, 10_000), (1_000, 10_000), (30_000, 10_000), (1_000, 123_456), (300_000, 123_456)],
)
def test_who_waits_as_told_keeps_to_the_limit(chunk: int, limit: int) -> None:
    rate = SampledRate(WINDOWS, 0)
    now_ms, sent = 0, 0
    sent_at_ms: list[tuple[int, int]] = []
    while now_ms < 200_000:
        rate.record(chunk, now_ms)
        sent += chunk
        sent_at_ms.append((now_ms, chunk))
        now_ms += 1 + rate.throttle_ms(limit, now_ms)
    late = sum(size for at, size in sent_at_ms if at >= 60_000)
    measured = late / (now_ms - 60_000) * 1000
    assert measured == pytest.approx(limit, rel=0.1)


def test_tokens_fill_at_the_limit_up_to_the_windows() -> None:
    bucket = TokenBucket(Windows(11, 1000), 10.0, 0)
    bucket.take(110, 10.0, 0)
    assert bucket.throttle_ms(10.0, 0) == 0
    bucket.take(60, 10.0, 0)
    assert bucket.throttle_ms(10.0, 0) == 6000
    assert bucket.throttle_ms(10.0, 4000) == 2000
    assert bucket.throttle_ms(10.0, 6000) == 0
    bucket.take(0, 10.0, 10_000_000)
    bucket.take(110, 10.0, 10_000_000)
    assert bucket.throttle_ms(10.0, 10_000_000) == 0
    bucket.take(1, 10.0, 10_000_000)
    assert bucket.throttle_ms(10.0, 10_000_000) == 100
