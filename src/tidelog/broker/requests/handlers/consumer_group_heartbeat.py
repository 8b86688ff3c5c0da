"""ConsumerGroupHeartbeat (key 68), versions 0 and 1: all that a member of a consumer group asks (KIP-848).

It joins (epoch 0), reports what it reads, learns its epoch and what it may read, and leaves (epoch -1, or -2
for a static member that comes back). Version 1 brings expressions (`subscribed_topic_regex`) and wants the
member to make its own id; in version 0 the coordinator makes one for a member that has none. Where
`group.coordinator.rebalance.protocols` leaves "consumer" out the answer is UNSUPPORTED_VERSION.

An expression is compiled and held against the topics away from the loop first, once this is the group's
coordinator; the group hears of the heartbeat when that is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.group_answers import milliseconds
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import ConsumerHeartbeat
from tidelog.groups.consumer_responses import heartbeat_error
from tidelog.groups.consumer_schemas import Partitions
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.topic_expressions import TopicExpressions
    from tidelog.broker.requests.authorization import Authorization

MEMBERS_MAKE_IDS_SINCE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the group's coordinator; the answer waits until what it says is replicated."""

    metadata: Metadata
    settings: LiveSettings
    authorization: "Authorization | None"
    groups: "Deferred[GroupCoordinator]"
    topic_expressions: "Deferred[TopicExpressions]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, context, coordinator = request.body, request.context, self.groups.get()
        if "consumer" not in self.settings.get_list("group.coordinator.rebalance.protocols"):
            return heartbeat_error(
                ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled."
            )
        new_member_id = ""
        if request.version < MEMBERS_MAKE_IDS_SINCE_VERSION and not body.member_id:
            new_member_id = coordinator.new_member_suffix()
        expression = getattr(body, "subscribed_topic_regex", None)
        delayed = DelayedAnswer()
        authorization = self.authorization
        may_describe = None if authorization is None else authorization.described_topics(context)

        def command(token: int) -> ConsumerHeartbeat:
            return ConsumerHeartbeat(
                token=token,
                group_id=body.group_id,
                member_id=body.member_id,
                member_epoch=body.member_epoch,
                client_id=context.client_id or "",
                client_host=f"/{context.host}",
                instance_id=body.instance_id,
                rack_id=body.rack_id,
                rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
                subscribed_topic_names=body.subscribed_topic_names,
                subscribed_topic_regex=expression,
                server_assignor=body.server_assignor,
                owned=_owned(body.topic_partitions),
                new_member_id=new_member_id,
                may_describe=may_describe,
            )

        def ask() -> None:
            error = coordinator.ask(body.group_id, command, delayed.answer)
            if error:
                delayed.answer(heartbeat_error(error, None))

        coordinates = not isinstance(coordinator.machine_for(body.group_id), ErrorCode)
        if expression and coordinates:
            self.topic_expressions.get().when_resolved(expression, self.metadata.image.topics, ask)
        else:
            ask()
        return delayed


def _owned(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)
