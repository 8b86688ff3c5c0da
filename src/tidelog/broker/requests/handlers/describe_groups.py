"""DescribeGroups (key 15), versions 0 to 6: state, protocol and members of classic groups.

A group that does not exist is Dead; from version 6 on (KIP-1043) it is GROUP_ID_NOT_FOUND too.
Subscriptions are shown for stable groups. Authorized operations (version 3, KIP-430) are all of a group's
while there are no ACLs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tidelog.broker.requests.described_groups import GROUP_OPERATIONS
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.groups.responses import described_missing
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

MISSING_IS_ERROR_SINCE_VERSION = 6


@dataclass(frozen=True, slots=True)
class Handler:
    """Describe each group as its coordinator sees it."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object]:
        include_operations = getattr(request.body, "include_authorized_operations", False)

        def describe(group_id: str) -> Mapping[str, object]:
            group = self._describe(group_id, request.version)
            if include_operations and not group["error_code"]:
                group = {**group, "authorized_operations": GROUP_OPERATIONS}
            return group

        # One that is named again is not described again.
        return {"groups": list(map(cache(describe), request.body.groups))}

    def _describe(self, group_id: str, version: int) -> Mapping[str, object]:
        machine = self.groups.get().machine_for(group_id)
        if isinstance(machine, ErrorCode):
            return described_missing(group_id, machine, None)
        return machine.describe_group(group_id, missing_is_error=version >= MISSING_IS_ERROR_SINCE_VERSION)
