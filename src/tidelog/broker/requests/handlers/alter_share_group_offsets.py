"""AlterShareGroupOffsets (key 91), version 0: have a share group begin elsewhere (KIP-932).

The group must have no members, else NON_EMPTY_GROUP; one that does not exist is made. What was stored of the
partitions is forgotten. The answer comes when share coordinators have begun anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import AlterShareOffsets
from tidelog.groups.share_responses import offsets_error
from tidelog.model.errors import Refused

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the group's coordinator."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, delayed = request.body, DelayedAnswer()

        def command(token: int) -> AlterShareOffsets:
            topics = tuple(
                (
                    topic.topic_name,
                    tuple((part.partition_index, part.start_offset) for part in topic.partitions),
                )
                for topic in body.topics
            )
            return AlterShareOffsets(token, body.group_id, topics)

        error = self.groups.get().ask(body.group_id, command, delayed.answer)
        return offsets_error(Refused(error, error.name)) if error else delayed
