"""ConsumerGroupDescribe (key 69), versions 0 and 1: epochs, members and assignments of consumer groups.

A classic group is GROUP_ID_NOT_FOUND here, as a consumer group is for DescribeGroups. Version 1 tells which
protocol each member speaks. Authorized operations are all of a group's while there are no ACLs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tidelog.broker.requests.handlers.describe_groups import GROUP_OPERATIONS
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.groups.consumer_responses import described_missing
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Describe each group as its coordinator sees it."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object]:
        include_operations = request.body.include_authorized_operations

        def describe(group_id: str) -> Mapping[str, object]:
            group = self._describe(group_id)
            if include_operations and not group["error_code"]:
                group = {**group, "authorized_operations": GROUP_OPERATIONS}
            return group

        # One that is named again is not described again.
        return {"groups": list(map(cache(describe), request.body.group_ids))}

    def _describe(self, group_id: str) -> Mapping[str, object]:
        if not group_id:
            return described_missing(group_id, ErrorCode.INVALID_GROUP_ID, None)
        machine = self.groups.get().machine_for(group_id)
        if isinstance(machine, ErrorCode):
            return described_missing(group_id, machine, None)
        return machine.describe_consumer_group(group_id)
