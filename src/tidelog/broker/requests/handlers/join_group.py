"""JoinGroup (key 11), versions 0 to 9: become a member of a group, or take part in its next generation.

The answer waits until the join phase is over. Version 0 has no rebalance timeout (the session timeout
counts); from version 4 on a member first gets an id (KIP-394); 5 brings static members (KIP-345), 8 the
reason (KIP-800), 9 the leader's order to skip the assignment (KIP-814).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.group_answers import milliseconds
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import responses
from tidelog.groups.commands import NO_MEMBER_ID, JoinGroup

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

KNOWN_MEMBER_ID_SINCE_VERSION = 4
PROTOCOL_NAME_NULLABLE_SINCE_VERSION = 7
SKIP_ASSIGNMENT_SINCE_VERSION = 9


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the group's coordinator; the answer comes with the next generation."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version, context = request.body, request.version, request.context
        coordinator = self.groups.get()
        session_timeout_ms = milliseconds(body.session_timeout)
        rebalance_timeout_ms = milliseconds(body.rebalance_timeout) if version >= 1 else session_timeout_ms
        suffix = coordinator.new_member_suffix()
        delayed = DelayedAnswer()

        def command(token: int) -> JoinGroup:
            return JoinGroup(
                token=token,
                group_id=body.group_id,
                member_id=body.member_id,
                group_instance_id=getattr(body, "group_instance_id", None),
                client_id=context.client_id or "",
                client_host=f"/{context.host}",
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                protocol_type=body.protocol_type,
                protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
                new_member_suffix=suffix,
                requires_known_member_id=version >= KNOWN_MEMBER_ID_SINCE_VERSION,
                supports_skipping_assignment=version >= SKIP_ASSIGNMENT_SINCE_VERSION,
                reason=getattr(body, "reason", None),
            )

        error = coordinator.ask(
            body.group_id, command, lambda answer: delayed.answer(_shaped(answer, version))
        )
        if error:
            return _shaped(responses.join_error(error, NO_MEMBER_ID), version)
        return delayed


def _shaped(answer: Mapping[str, object], version: int) -> Mapping[str, object]:
    if version < PROTOCOL_NAME_NULLABLE_SINCE_VERSION and answer["protocol_name"] is None:
        return {**answer, "protocol_name": ""}
    return answer
