"""ShareAcknowledge (key 79), versions 1 and 2: a member of a share group says what became of its records.

It belongs to a share session that a ShareFetch began, and ends it with epoch -1: what the member has not
acknowledged is available to others again. Version 2 may renew locks (KIP-1222). What concerns one partition
is stored or refused as a whole; the answer comes when the share coordinator has stored all of it.

Deliberate difference: what is said of a partition from which nobody fetched since this broker leads it is
INVALID_RECORD_STATE, for nothing of it is acquired; Kafka says UNKNOWN_TOPIC_OR_PARTITION.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.broker.requests.request import Request
from tidelog.broker.requests.share_acknowledgements import (
    Acknowledgements,
    Member,
    Results,
    asked_of,
    may_be_member,
)
from tidelog.broker.requests.share_answers import answer, error_fields, refused_whole
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.acls import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, Refused
from tidelog.shares.sessions import CLOSING_EPOCH, SessionKey

if TYPE_CHECKING:
    from tidelog.broker.coordinators.sharing import Sharing
    from tidelog.broker.requests.authorization import Authorization


@dataclass(frozen=True, slots=True)
class Handler:
    """Answers when everything is stored or refused."""

    metadata: Metadata
    replicas: Replicas
    authorization: "Authorization | None"
    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, context = request.body, request.context
        if body.group_id is None or not may_be_member(body.member_id):
            return refused_whole(Refused(ErrorCode.INVALID_REQUEST, "Who acknowledges is not said."))
        authorization = self.authorization
        if authorization is not None and not authorization.allows(
            context, AclOperation.READ, ResourceType.GROUP, body.group_id
        ):
            return refused_whole(Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."))
        shares = self.shares.get()
        session_key = SessionKey(body.group_id, body.member_id)
        session = shares.sessions.acknowledged(session_key, body.share_session_epoch)
        if isinstance(session, Refused):
            return refused_whole(session)
        delayed = DelayedAnswer()

        def stored(results: Results) -> None:
            if body.share_session_epoch == CLOSING_EPOCH and shares.sessions.get(session_key) is session:
                shares.sessions.close(session_key)
                shares.session_ended(session, lost=False)
            leaders = KnownLeaders(self.metadata, self.replicas, context.listener_name)
            rows = {place: error_fields(refused) for place, refused in results.items()}
            delayed.answer(answer(rows, leaders, shares.partitions.lock_duration_ms(body.group_id)))

        acknowledgements = Acknowledgements(self.metadata, self.replicas, authorization, shares)
        acknowledgements.store(
            Member(context, body.group_id, body.member_id),
            asked_of(body.topics),
            is_renew=getattr(body, "is_renew_ack", False),
            then=stored,
        )
        return delayed
