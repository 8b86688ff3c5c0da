"""ExpireDelegationToken (key 40), versions 1 and 2: let a token end sooner (KIP-48).

Its owner and its renewers may. A negative period removes it at once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.parking import Parked
from tidelog.broker.token_requests import change_expiry, milliseconds, refusal, timestamp
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Answer with the token's new end."""
    code = refusal(broker, request)
    if code is not ErrorCode.NONE:
        return {"error_code": code, "expiry_timestamp": timestamp(-1)}
    period_ms = milliseconds(request.body.expiry_time_period)
    token = broker.users.token_by_hmac(bytes(request.body.hmac))
    expiry_ms = None if period_ms < 0 else broker.clock.now_ms() + period_ms
    return change_expiry(broker, request, token, expiry_ms)
