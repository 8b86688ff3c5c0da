"""How a record is delivered again: how soon, how often, and in how small a company.

Poison isolation: who fails with a batch of records fails because of one of them. From half of the delivery
count limit on, each further delivery takes half as many records as the one before, and the last one is of a
single record, so that one bad record does not take its neighbours along."""

from tidelog.shares.settings import SharePartitionSettings

_THROTTLE_MIN = 2
#: 2 to this power times any backoff is above every maximum
_DOUBLINGS_MAX = 40


def throttle_count(delivery_count_limit: int) -> int:
    """From how many deliveries on a record is isolated."""
    return max(_THROTTLE_MIN, -(-delivery_count_limit // 2))


def company_max(delivery_count: int, size_before: int, size: int, delivery_count_limit: int) -> int | None:
    """How many records may be delivered together for one time more; None for any number."""
    throttled = throttle_count(delivery_count_limit)
    if delivery_count < throttled:
        return None
    if delivery_count >= delivery_count_limit - 1:
        return 1
    return max(1, (size_before or size) >> (delivery_count - throttled + 1))


def rest_ms(delivery_count: int, settings: SharePartitionSettings) -> int:
    """How long a record rests after a failed delivery."""
    backoff_ms = settings.retry_backoff_ms
    if backoff_ms <= 0 or delivery_count <= 0:
        return 0
    doubled_ms = backoff_ms << min(delivery_count - 1, _DOUBLINGS_MAX)
    return min(doubled_ms, max(backoff_ms, settings.retry_backoff_max_ms))


def lag(log_end_offset: int, start_offset: int, delivery_complete_count: int) -> int:
    """How many records are still to be dealt with (KIP-1226); -1 if that is not known."""
    if start_offset < 0 or delivery_complete_count < 0:
        return -1
    return log_end_offset - start_offset - delivery_complete_count
