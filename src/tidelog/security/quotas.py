"""The arithmetic of quotas: which limit holds, how fast somebody is, how long to make them wait.

Rates are measured as Kafka does: the last `quota.window.num` windows of `quota.window.size.seconds` and the
one under way. Until so many windows have passed they are taken as empty, so that a client that begins may
send a burst of what the full windows would hold. Who is above the limit waits until, with nothing more sent,
the measured rate would be the limit: `(rate - limit) / limit * window`.

Mutations of the metadata come in bursts; they are measured by a bucket of tokens that fills at the limit and
holds what the windows would hold (KIP-599).

Nothing here knows the time: it is an argument, in milliseconds.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.model.client_quotas import CLIENT_ID, IP, USER, QuotaEntity, QuotaValues


class Windows(NamedTuple):
    """Over how many windows of which length rates are measured."""

    samples: int
    size_ms: int


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


class SampledRate:
    """How much there was lately, by windows."""

    __slots__ = ("_current", "_lasts_ms", "_starts_ms", "_values", "windows")

    def __init__(self, windows: Windows, now_ms: int) -> None:
        self.windows = windows
        self._values = [0.0]
        self._starts_ms = [now_ms]
        self._lasts_ms = [now_ms]
        self._current = 0

    @property
    def last_ms(self) -> int:
        """When it was last told of something."""
        return max(self._lasts_ms)

    def record(self, value: float, now_ms: int) -> None:
        """Note that there was so much more; less than nothing takes back."""
        current = self._current
        if now_ms - self._starts_ms[current] >= self.windows.size_ms:
            current = self._advance(now_ms)
        self._values[current] += value
        self._lasts_ms[current] = now_ms

    def _advance(self, now_ms: int) -> int:
        # One more than there are windows: the oldest still counts while a part of it does.
        self._current = current = (self._current + 1) % (self.windows.samples + 1)
        if current == len(self._values):
            self._values.append(0.0)
            self._starts_ms.append(now_ms)
            self._lasts_ms.append(now_ms)
        else:
            self._reset(current, now_ms)
        return current

    def _reset(self, index: int, now_ms: int) -> None:
        self._values[index] = 0.0
        self._starts_ms[index] = self._lasts_ms[index] = now_ms

    def measure(self, now_ms: int) -> tuple[float, int]:
        """The rate per second, and the milliseconds it was measured over."""
        count, size_ms = self.windows
        for index, last_ms in enumerate(self._lasts_ms):
            if now_ms - last_ms >= count * size_ms:
                self._reset(index, now_ms)
        elapsed_ms = now_ms - min(self._starts_ms)
        missing = count - 1 - elapsed_ms // size_ms
        if missing > 0:
            elapsed_ms += missing * size_ms
        elapsed_ms = max(elapsed_ms, 1)
        return sum(self._values) * 1000.0 / elapsed_ms, elapsed_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until the rate is the limit."""
        rate, elapsed_ms = self.measure(now_ms)
        return round((rate - limit) / limit * elapsed_ms) if rate > limit else 0

    def __repr__(self) -> str:
        return f"<SampledRate {sum(self._values):.0f} in {len(self._values)} windows>"


class TokenBucket:
    """What may still be done at once; below zero one waits."""

    __slots__ = ("_filled_ms", "_tokens", "windows")

    def __init__(self, windows: Windows, limit: float, now_ms: int) -> None:
        self.windows = windows
        self._tokens = self._capacity(limit)
        self._filled_ms = now_ms

    @property
    def last_ms(self) -> int:
        return self._filled_ms

    def _capacity(self, limit: float) -> float:
        return limit * self.windows.samples * self.windows.size_ms / 1000.0

    def _fill(self, limit: float, now_ms: int) -> None:
        gained = limit * (now_ms - self._filled_ms) / 1000.0
        self._tokens = min(self._capacity(limit), self._tokens + gained)
        self._filled_ms = now_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long to wait until something may be taken."""
        self._fill(limit, now_ms)
        return round(-self._tokens / limit * 1000.0) if self._tokens < 0 else 0

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take so many, also more than there are."""
        self._fill(limit, now_ms)
        self._tokens -= count

    def __repr__(self) -> str:
        return f"<TokenBucket {self._tokens:.1f}>"
