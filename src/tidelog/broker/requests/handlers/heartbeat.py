"""Heartbeat (key 12), versions 0 to 4: a member is alive, and learns whether its group rebalances.

While the coordinator loads, a heartbeat is answered NONE, as in Kafka: the member's session begins anew
after loading. Version 3 brings static members (KIP-345).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups import responses
from tidelog.groups.commands import Heartbeat
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Keep the member's session."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        delayed = DelayedAnswer()

        def command(token: int) -> Heartbeat:
            instance_id = getattr(body, "group_instance_id", None)
            return Heartbeat(token, body.group_id, body.member_id, instance_id, body.generation_id)

        error = self.groups.get().ask(body.group_id, command, delayed.answer)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return responses.heartbeat(ErrorCode.NONE)
        return responses.heartbeat(error) if error else delayed
