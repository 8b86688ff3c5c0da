"""LeaveGroup (key 13), versions 0 to 5: members go, and the others share their partitions at once.

Up to version 2 one member leaves and its error is the answer's; from 3 on (KIP-345) several do, also static
ones by instance id alone, each with an error of its own. Version 5 brings the reason (KIP-800). Members of
the consumer protocol (KIP-848) can be taken out too, as Kafka 4.3 has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import responses
from tidelog.groups.commands import LeaveGroup, LeavingMember

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

BATCHED_SINCE_VERSION = 3


@dataclass(frozen=True, slots=True)
class Handler:
    """Take the members out of the group."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version = request.body, request.version
        if version < BATCHED_SINCE_VERSION:
            leaving: tuple[LeavingMember, ...] = (LeavingMember(body.member_id),)
        else:
            leaving = tuple(
                LeavingMember(member.member_id, member.group_instance_id, getattr(member, "reason", None))
                for member in body.members
            )
        delayed = DelayedAnswer()
        error = self.groups.get().ask(
            body.group_id,
            lambda token: LeaveGroup(token, body.group_id, leaving),
            lambda answer: delayed.answer(_shaped(answer, version)),
        )
        return responses.leave_error(error) if error else delayed


def _shaped(answer: Mapping[str, object], version: int) -> Mapping[str, object]:
    members = answer["members"]
    assert isinstance(members, tuple)
    if version < BATCHED_SINCE_VERSION and not answer["error_code"] and members:
        return {"error_code": members[0]["error_code"]}
    return answer
