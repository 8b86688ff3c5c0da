"""What the four APIs of delegation tokens share (KIP-48, KIP-373).

Tokens are only for those who came in without one and proved who they are. Whoever has a token's HMAC can come
in as its owner, so it is told to nobody but its owner, its renewers and its requester, and to those whom an
ACL allows it. Deliberate difference from Kafka: where there is no authorizer, nobody may do for others what
takes a right, while there everybody may.
"""

import datetime
from typing import Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.users import BrokerUsers
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import ChangeTokens, Result, TokenChange
from tidelog.model.credentials import ANONYMOUS, DelegationToken
from tidelog.model.errors import ErrorCode, Refused

Fields = dict[str, object]


def principal_fields(prefix: str, principal: str) -> Fields:
    """A principal as the protocol has it, in two fields."""
    kind, _, name = principal.partition(":")
    return {f"{prefix}principal_type": kind, f"{prefix}principal_name": name}


def refusal(users: BrokerUsers, request: Request) -> ErrorCode:
    """Why no token can be asked for on this connection; NONE if one can."""
    context = request.context
    if context.token_id or context.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if not users.tokens_enabled:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return ErrorCode.NONE


def milliseconds(value: Any) -> int:
    """A span of time that a request names."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return int(value)


def change_expiry(
    metadata: Metadata, now_ms: int, request: Request, token: DelegationToken | None, expiry_ms: int | None
) -> Fields | DelayedAnswer:
    """Let a token end at another time, or at once; answer with when."""
    if token is None:
        return _expiry_fields(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    if not token.may_renew(request.context.principal):
        return _expiry_fields(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if expiry_ms is not None and token.expired(now_ms):
        return _expiry_fields(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    shown_ms = now_ms if expiry_ms is None else min(expiry_ms, token.max_timestamp_ms)
    delayed = DelayedAnswer()

    def changed(results: tuple[Result, ...]) -> None:
        [result] = results
        refused = isinstance(result, Refused)
        delayed.answer(
            _expiry_fields(result.code) if refused else _expiry_fields(ErrorCode.NONE, shown_ms)  # type: ignore[union-attr]
        )

    change = TokenChange(token.token_id, expiry_timestamp_ms=expiry_ms)
    metadata.submit(ChangeTokens((change,)), changed)
    return delayed


def _expiry_fields(code: ErrorCode, expiry_ms: int = 0) -> Fields:
    return {"error_code": code, "expiry_timestamp": timestamp(expiry_ms)}


def timestamp(value_ms: int) -> datetime.datetime:
    """A time as kio writes it; -1 stands for none."""
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=value_ms)
