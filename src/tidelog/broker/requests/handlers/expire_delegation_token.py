"""ExpireDelegationToken (key 40), versions 1 and 2: let a token end sooner (KIP-48).

Its owner and its renewers may. A negative period removes it at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.token_requests import change_expiry, milliseconds, refusal, timestamp
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer with the token's new end."""

    metadata: Metadata
    clock: Clock
    users: BrokerUsers

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        code = refusal(self.users, request)
        if code is not ErrorCode.NONE:
            return {"error_code": code, "expiry_timestamp": timestamp(-1)}
        period_ms = milliseconds(request.body.expiry_time_period)
        token = self.users.token_by_hmac(bytes(request.body.hmac))
        now_ms = self.clock.now_ms()
        expiry_ms = None if period_ms < 0 else now_ms + period_ms
        return change_expiry(self.metadata, now_ms, request, token, expiry_ms)
