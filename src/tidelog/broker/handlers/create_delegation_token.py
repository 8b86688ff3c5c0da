"""CreateDelegationToken (key 38), versions 1 to 3: a token that stands for a user (KIP-48).

It lasts `delegation.token.expiry.time.ms` unless it is renewed, and no longer than
`delegation.token.max.lifetime.ms` or what the request asks for. From version 3 it can be asked for on behalf
of another user (KIP-373), which takes the right to.
"""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.parking import Parked
from tidelog.broker.token_requests import milliseconds, principal_fields, refusal, timestamp
from tidelog.controller.commands import ChangeTokens, Result, TokenChange
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.credentials import USER_TYPE, DelegationToken
from tidelog.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

Fields = dict[str, object]


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Make a token and answer when every broker will know it."""
    body, requester = request.body, request.context.principal
    owner = requester
    if getattr(body, "owner_principal_name", None):
        owner = f"{body.owner_principal_type or USER_TYPE}:{body.owner_principal_name}"
    code = refusal(broker, request)
    if code is ErrorCode.NONE and owner != requester and not _may_create_for(broker, request, owner):
        code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    if any(renewer.principal_type != USER_TYPE for renewer in body.renewers):
        code = code or ErrorCode.INVALID_PRINCIPAL_TYPE
    if code is not ErrorCode.NONE:
        return _fields(code, owner, requester)
    settings, now_ms = broker.settings, broker.clock.now_ms()
    lifetime_ms = settings.get_int("delegation.token.max.lifetime.ms")
    asked_ms = milliseconds(body.max_lifetime)
    if asked_ms > 0:
        lifetime_ms = min(lifetime_ms, asked_ms)
    token = DelegationToken(
        _new_id(broker),
        owner,
        requester,
        tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in body.renewers),
        now_ms,
        now_ms + min(lifetime_ms, settings.get_int("delegation.token.expiry.time.ms")),
        now_ms + lifetime_ms,
    )
    parked = Parked()

    def created(results: tuple[Result, ...]) -> None:
        [result] = results
        if isinstance(result, Refused):
            parked.answer(_fields(result.code, owner, requester))
            return
        fields = _fields(ErrorCode.NONE, owner, requester, token)
        parked.answer({**fields, "hmac": broker.users.token_hmac(token.token_id)})

    broker.metadata.submit(ChangeTokens((TokenChange(token.token_id, token),)), created)
    return parked


def _may_create_for(broker: "Broker", request: "Request", owner: str) -> bool:
    """Whether the requester has the right to another user's tokens; without an authorizer nobody has."""
    authorization = broker.authorization
    return authorization is not None and authorization.allows(
        request.context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner
    )


def _new_id(broker: "Broker") -> str:
    made = UUID(int=broker.random.getrandbits(128), version=4)
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
