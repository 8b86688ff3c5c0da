"""Heartbeat (key 12), versions 0 to 4: a member is alive, and learns whether its group rebalances.

While the coordinator loads, a heartbeat is answered NONE, as in Kafka: the member's session begins anew
after loading. Version 3 brings static members (KIP-345).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.parking import Parked
from tidelog.groups import responses
from tidelog.groups.commands import Heartbeat
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Keep the member's session."""
    body = request.body
    parked = Parked()

    def command(token: int) -> Heartbeat:
        instance_id = getattr(body, "group_instance_id", None)
        return Heartbeat(token, body.group_id, body.member_id, instance_id, body.generation_id)

    error = broker.groups.ask(body.group_id, command, parked.answer)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return responses.heartbeat(ErrorCode.NONE)
    return responses.heartbeat(error) if error else parked
