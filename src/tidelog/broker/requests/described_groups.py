"""Describes groups of the protocols whose coordinators assign: consumer groups and share groups."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tidelog.groups.consumer_responses import described_missing
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.groups.machine import GroupMachine

# Bits of READ (3), DELETE (6) and DESCRIBE (8), and since Kafka 3.8 DESCRIBE_CONFIGS (10) and ALTER_CONFIGS
# (11).
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def describe_each(
    coordinator: "GroupCoordinator",
    body: Any,
    describe: "Callable[[GroupMachine, str], Mapping[str, object]]",
) -> Mapping[str, object]:
    """Each group of a request as its coordinator sees it.

    Authorized operations are all of a group's while there are no ACLs.
    """

    def describe_one(group_id: str) -> Mapping[str, object]:
        machine = coordinator.machine_for(group_id)
        if not group_id:
            group: Mapping[str, object] = described_missing(group_id, ErrorCode.INVALID_GROUP_ID, None)
        elif isinstance(machine, ErrorCode):
            group = described_missing(group_id, machine, None)
        else:
            group = describe(machine, group_id)
        if body.include_authorized_operations and not group["error_code"]:
            group = {**group, "authorized_operations": GROUP_OPERATIONS}
        return group

    # One that is named again is not described again.
    return {"groups": list(map(cache(describe_one), body.group_ids))}
