"""SyncGroup (key 14), versions 0 to 5: the leader hands in the assignment, every member gets its part.

The answer waits until the leader's assignment is stored. Version 3 brings static members (KIP-345), 5 the
check of protocol type and name (KIP-559).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.parking import Parked
from tidelog.groups import responses
from tidelog.groups.commands import SyncGroup

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Ask the group's coordinator; the answer comes with the assignment."""
    body = request.body
    parked = Parked()

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

    error = broker.groups.ask(body.group_id, command, parked.answer)
    return responses.sync_error(error) if error else parked
