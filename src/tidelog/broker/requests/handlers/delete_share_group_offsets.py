"""DeleteShareGroupOffsets (key 92), version 0: forget where a share group is in topics (KIP-932).

The group must have no members, else NON_EMPTY_GROUP. When members read the topics again it begins where
`share.auto.offset.reset` says. The answer comes when share coordinators have forgotten.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import DeleteShareOffsets
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

        def command(token: int) -> DeleteShareOffsets:
            return DeleteShareOffsets(token, body.group_id, tuple(topic.topic_name for topic in body.topics))

        error = self.groups.get().ask(body.group_id, command, delayed.answer)
        return offsets_error(Refused(error, error.name)) if error else delayed
