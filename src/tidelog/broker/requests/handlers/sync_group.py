"""SyncGroup (key 14), versions 0 to 5: the leader hands in the assignment, every member gets its part.

The answer waits until the leader's assignment is stored. Version 3 brings static members (KIP-345), 5 the
check of protocol type and name (KIP-559).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import responses
from tidelog.groups.commands import SyncGroup

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the group's coordinator; the answer comes with the assignment."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        delayed = DelayedAnswer()

        def command(token: int) -> SyncGroup:
            return SyncGroup(
                token=token,
                group_id=body.group_id,
                member_id=body.member_id,
                group_instance_id=getattr(body, "group_instance_id", None),
                generation=body.generation_id,
                protocol_type=getattr(body, "protocol_type", None),
                protocol_name=getattr(body, "protocol_name", None),
                assignments=tuple((part.member_id, part.assignment) for part in body.assignments),
            )

        error = self.groups.get().ask(body.group_id, command, delayed.answer)
        return responses.sync_error(error) if error else delayed
