"""DeleteGroups (key 42), versions 0 to 2: forget empty groups and their offsets.

A group with members is NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND; each group is deleted
on its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import DeleteGroup

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask each group's coordinator and put the results together."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        group_ids = tuple(dict.fromkeys(request.body.groups_names))
        gathered = Gathered(len(group_ids), lambda results: {"results": results})
        for index, group_id in enumerate(group_ids):
            put = partial(gathered.put, index)
            error = self.groups.get().ask(group_id, partial(_command, group_id), put)
            if error:
                put({"group_id": group_id, "error_code": error})
        return gathered.delayed


def _command(group_id: str, token: int) -> DeleteGroup:
    return DeleteGroup(token, group_id)
