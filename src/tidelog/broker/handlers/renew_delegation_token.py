"""RenewDelegationToken (key 39), versions 1 and 2: let a token last longer (KIP-48).

Its owner and its renewers may; never beyond the token's last moment.
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
    period_ms = broker.settings.get_int("delegation.token.expiry.time.ms")
    asked_ms = milliseconds(request.body.renew_period)
    if asked_ms > 0:
        period_ms = min(period_ms, asked_ms)
    token = broker.users.token_by_hmac(bytes(request.body.hmac))
    return change_expiry(broker, request, token, broker.clock.now_ms() + period_ms)
