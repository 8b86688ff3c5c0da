"""ShareGroupDescribe (key 77), version 1: epochs, members and assignments of share groups.

A group of another kind is GROUP_ID_NOT_FOUND, as one that does not exist. Authorized operations are all of a
group's while there are no ACLs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.described_groups import describe_each
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.groups.machine import GroupMachine

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Describe each group as its coordinator sees it."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object]:
        return describe_each(self.groups.get(), request.body, GroupMachine.describe_share_group)
