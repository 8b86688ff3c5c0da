"""CreateDelegationToken (key 38), versions 1 to 3: a token that stands for a user (KIP-48).

It lasts `delegation.token.expiry.time.ms` unless it is renewed, and no longer than
`delegation.token.max.lifetime.ms` or what the request asks for. From version 3 it can be asked for on behalf
of another user (KIP-373), which takes the right to.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.token_requests import milliseconds, principal_fields, refusal, timestamp
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import ChangeTokens, Result, TokenChange
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.credentials import USER_TYPE, DelegationToken
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import random_uuid
from tidelog.model.ports import Clock

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """Make a token and answer when every broker will know it."""

    metadata: Metadata
    settings: LiveSettings
    clock: Clock
    users: BrokerUsers
    random: Random
    authorization: "Authorization | None"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, requester = request.body, request.context.principal
        owner = requester
        if getattr(body, "owner_principal_name", None):
            owner = f"{body.owner_principal_type or USER_TYPE}:{body.owner_principal_name}"
        code = refusal(self.users, request)
        if code is ErrorCode.NONE and owner != requester and not self._may_create_for(request, owner):
            code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        if any(renewer.principal_type != USER_TYPE for renewer in body.renewers):
            code = code or ErrorCode.INVALID_PRINCIPAL_TYPE
        if code is not ErrorCode.NONE:
            return _fields(code, owner, requester)
        settings, now_ms = self.settings, self.clock.now_ms()
        lifetime_ms = settings.get_int("delegation.token.max.lifetime.ms")
        asked_ms = milliseconds(body.max_lifetime)
        if asked_ms > 0:
            lifetime_ms = min(lifetime_ms, asked_ms)
        token = DelegationToken(
            self._new_id(),
            owner,
            requester,
            tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in body.renewers),
            now_ms,
            now_ms + min(lifetime_ms, settings.get_int("delegation.token.expiry.time.ms")),
            now_ms + lifetime_ms,
        )
        delayed = DelayedAnswer()

        def created(results: tuple[Result, ...]) -> None:
            [result] = results
            if isinstance(result, Refused):
                delayed.answer(_fields(result.code, owner, requester))
                return
            fields = _fields(ErrorCode.NONE, owner, requester, token)
            delayed.answer({**fields, "hmac": self.users.token_hmac(token.token_id)})

        self.metadata.submit(ChangeTokens((TokenChange(token.token_id, token),)), created)
        return delayed

    def _may_create_for(self, request: Request, owner: str) -> bool:
        """Whether the requester has the right to another user's tokens; without an authorizer nobody has."""
        authorization = self.authorization
        return authorization is not None and authorization.allows(
            request.context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner
        )

    def _new_id(self) -> str:
        made = random_uuid(self.random)
        return base64.urlsafe_b64encode(made.bytes).rstrip(b"=").decode()


def _fields(code: ErrorCode, owner: str, requester: str, token: DelegationToken | None = None) -> Fields:
    return {
        "error_code": code,
        **principal_fields("", owner),
        **principal_fields("token_requester_", requester),
        "issue_timestamp": timestamp(-1 if token is None else token.issue_timestamp_ms),
        "expiry_timestamp": timestamp(-1 if token is None else token.expiry_timestamp_ms),
        "max_timestamp": timestamp(-1 if token is None else token.max_timestamp_ms),
        "token_id": "" if token is None else token.token_id,
        "hmac": b"",
    }
