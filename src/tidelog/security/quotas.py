"""The arithmetic of quotas: which limit holds, how much somebody may still do, how long to make them wait.

Every limit is a bucket of tokens (KIP-599) that fills at the limit. It holds what Kafka's windows hold, so
that a client that begins, or has rested, may send a burst of `quota.window.num - 1` windows at once; Kafka
measures rates over these windows and comes to the same, but forgets what lies before them. A bucket does
not: who took more than there was waits until it is paid for, however much it was.

Nothing here knows the time: it is an argument, in milliseconds.
"""

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from tidelog.model.client_quotas import CLIENT_ID, IP, USER, QuotaEntity, QuotaValues

#: throttle times are 32-bit numbers of milliseconds
THROTTLE_MS_MAX = 2**31 - 1


class Limit(NamedTuple):
    """A limit, and the user and client id that share it; None where all of them do."""

    value: float
    user: str | None
    client_id: str | None


def find_limit(
    quotas: Mapping[QuotaEntity, QuotaValues], key: str, user: str, client_id: str
) -> Limit | None:
    """The limit that holds for a user and client id: the most particular one, in Kafka's order."""
    for with_user, with_client in (
        (user, client_id),
        (user, None),
        (user, ""),
        (None, client_id),
        (None, None),
        (None, ""),
    ):
        value = _limit_of(quotas, key, with_user, with_client)
        if value is not None:
            return Limit(value, user, None if with_client == "" else client_id)
    for named in (client_id, None):
        value = quotas.get(((CLIENT_ID, named),), {}).get(key)
        if value is not None:
            return Limit(value, None, client_id)
    return None


def _limit_of(
    quotas: Mapping[QuotaEntity, QuotaValues], key: str, user: str | None, client_id: str | None
) -> float | None:
    """The limit set for exactly this user and client id; an empty client id stands for none at all."""
    entity: QuotaEntity = ((USER, user),) if client_id == "" else ((CLIENT_ID, client_id), (USER, user))
    return quotas.get(entity, {}).get(key)


def find_address_limit(quotas: Mapping[QuotaEntity, QuotaValues], key: str, address: str) -> float | None:
    """The limit that holds for an address."""
    own = quotas.get(((IP, address),), {}).get(key)
    return own if own is not None else quotas.get(((IP, None),), {}).get(key)


class TokenBucket:
    """What may still be done at once; below zero one waits."""

    __slots__ = ("_burst_ms", "_filled_ms", "_tokens", "held_count")

    def __init__(self, burst_ms: int, limit: float, now_ms: int) -> None:
        #: how many requests were held since one was let through
        self.held_count = 0
        self._burst_ms = burst_ms
        self._tokens = self.capacity(limit)
        self._filled_ms = now_ms

    def capacity(self, limit: float) -> float:
        """The most that can be done at once."""
        return limit * self._burst_ms / 1000.0

    def is_full(self, limit: float, now_ms: int) -> bool:
        """Whether it has nothing to remember."""
        self._fill(limit, now_ms)
        return self._tokens >= self.capacity(limit)

    def _fill(self, limit: float, now_ms: int) -> None:
        gained = limit * (now_ms - self._filled_ms) / 1000.0
        self._tokens = min(self.capacity(limit), self._tokens + gained)
        self._filled_ms = now_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until something may be taken; then it may."""
        self._fill(limit, now_ms)
        return min(ceil(-self._tokens / limit * 1000.0), THROTTLE_MS_MAX) if self._tokens < 0 else 0

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take so many, also more than there are; less than nothing gives back."""
        self._fill(limit, now_ms)
        self._tokens -= count

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:.1f}>"
