"""RenewDelegationToken (key 39), versions 1 and 2: let a token last longer (KIP-48).

Its owner and its renewers may; never beyond the token's last moment.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.token_requests import change_expiry, milliseconds, refusal, timestamp
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer with the token's new end."""

    metadata: Metadata
    settings: LiveSettings
    clock: Clock
    users: BrokerUsers

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        code = refusal(self.users, request)
        if code is not ErrorCode.NONE:
            return {"error_code": code, "expiry_timestamp": timestamp(-1)}
        period_ms = self.settings.get_int("delegation.token.expiry.time.ms")
        asked_ms = milliseconds(request.body.renew_period)
        if asked_ms > 0:
            period_ms = min(period_ms, asked_ms)
        token = self.users.token_by_hmac(bytes(request.body.hmac))
        now_ms = self.clock.now_ms()
        return change_expiry(self.metadata, now_ms, request, token, now_ms + period_ms)
