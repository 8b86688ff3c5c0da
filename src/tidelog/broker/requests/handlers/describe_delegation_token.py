"""DescribeDelegationToken (key 41), versions 1 to 3: the tokens that the asker owns, asked for or may renew.

`owners` narrows them down: null for all, an empty list for none. The answer has the tokens' HMACs, with which
one can come in, so nobody sees those of others without the right to: DESCRIBE on the token, or
DESCRIBE_TOKENS on its owner. From version 3 it says who asked for each (KIP-373).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.token_requests import principal_fields, refusal
from tidelog.broker.requests.users import BrokerUsers
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.credentials import DelegationToken
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the newest metadata."""

    metadata: Metadata
    clock: Clock
    users: BrokerUsers
    authorization: "Authorization | None"

    def handle(self, request: Request) -> Mapping[str, object]:
        code = refusal(self.users, request)
        if code is not ErrorCode.NONE:
            return {"error_code": code, "tokens": ()}
        wanted = request.body.owners
        owners = (
            None if wanted is None else {f"{each.principal_type}:{each.principal_name}" for each in wanted}
        )
        asker, now_ms = request.context.principal, self.clock.now_ms()
        tokens = [
            {
                **principal_fields("", token.owner),
                **principal_fields("token_requester_", token.requester),
                "issue_timestamp": token.issue_timestamp_ms,
                "expiry_timestamp": token.expiry_timestamp_ms,
                "max_timestamp": token.max_timestamp_ms,
                "token_id": token.token_id,
                "hmac": self.users.token_hmac(token.token_id),
                "renewers": [principal_fields("", renewer) for renewer in token.renewers],
            }
            for token in self.metadata.image.tokens.values()
            if (owners is None or token.owner in owners)
            and (token.may_renew(asker) or token.requester == asker or self._may_describe(request, token))
            and not token.expired(now_ms)
        ]
        return {"error_code": ErrorCode.NONE, "tokens": tokens}

    def _may_describe(self, request: Request, token: DelegationToken) -> bool:
        """Whether the asker has the right to somebody else's token; without an authorizer nobody has."""
        authorization, context = self.authorization, request.context
        return authorization is not None and (
            authorization.allows(
                context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id
            )
            or authorization.allows(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        )
