"""ShareGroupHeartbeat (key 76), version 1: all that a member asks of its share group's coordinator (KIP-932).

It joins (epoch 0), says what it reads, learns its epoch and what it is assigned, and leaves (epoch -1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import ShareHeartbeat
from tidelog.groups.share_responses import heartbeat_error
from tidelog.model.errors import Refused

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the group's coordinator; the answer waits until what it says is replicated."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, context = request.body, request.context
        delayed = DelayedAnswer()

        def command(token: int) -> ShareHeartbeat:
            return ShareHeartbeat(
                token=token,
                group_id=body.group_id,
                member_id=body.member_id,
                member_epoch=body.member_epoch,
                client_id=context.client_id or "",
                client_host=f"/{context.host}",
                rack_id=body.rack_id,
                subscribed_topic_names=body.subscribed_topic_names,
            )

        error = self.groups.get().ask(body.group_id, command, delayed.answer)
        return heartbeat_error(Refused(error)) if error else delayed
