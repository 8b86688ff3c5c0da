"""Which limit holds, how much may be done at once, and that waiting as told brings the rate to the limit."""

from itertools import combinations

import pytest

from tidelog.model.client_quotas import quota_entity
from tidelog.security.quotas import Limit, TokenBucket, find_address_limit, find_limit

KEY = "producer_byte_rate"
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


@pytest.mark.parametrize(
    ("chunk", "limit"),
    [(100, 10_000), (1_000, 10_000), (30_000, 10_000), (1_000, 123_456), (5_000_000, 10_000), (1, 0.01)],
)
def test_who_waits_as_told_keeps_to_the_limit(chunk: int, limit: float) -> None:
    """Also where one chunk is more than is ever held at once."""
    bucket = TokenBucket(10_000, limit, 0)
    now_ms, sent = 0, 0
    while now_ms < 10_000_000:
        bucket.take(chunk, limit, now_ms)
        sent += chunk
        now_ms += bucket.throttle_ms(limit, now_ms)
        assert bucket.throttle_ms(limit, now_ms) == 0, "who has waited may go on"
    assert sent <= limit * (now_ms / 1000 + 10) + chunk
    assert sent >= limit * now_ms / 1000


def test_tokens_fill_at_the_limit_up_to_the_windows() -> None:
    bucket = TokenBucket(11_000, 10.0, 0)
    assert bucket.is_full(10.0, 0) and bucket.capacity(10.0) == 110
    bucket.take(110, 10.0, 0)
    assert bucket.throttle_ms(10.0, 0) == 0 and not bucket.is_full(10.0, 1000)
    bucket.take(60, 10.0, 0)
    assert bucket.throttle_ms(10.0, 0) == 6000
    assert bucket.throttle_ms(10.0, 4000) == 2000
    assert bucket.throttle_ms(10.0, 6000) == 0
    bucket.take(0, 10.0, 10_000_000)
    bucket.take(110, 10.0, 10_000_000)
    assert bucket.throttle_ms(10.0, 10_000_000) == 0
    bucket.take(1, 10.0, 10_000_000)
    assert bucket.throttle_ms(10.0, 10_000_000) == 100
    bucket.take(-1, 10.0, 10_000_000)
    assert bucket.throttle_ms(10.0, 10_000_000) == 0


def test_a_debt_is_not_forgotten_and_fits_a_throttle_time() -> None:
    bucket = TokenBucket(10_000, 1.0, 0)
    bucket.take(1_010, 1.0, 0)
    assert bucket.throttle_ms(1.0, 999_000) == 1_000
    bucket.take(1e12, 1.0, 999_000)
    assert bucket.throttle_ms(1.0, 999_000) == 2**31 - 1
