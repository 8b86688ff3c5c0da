"""ListGroups (key 16), versions 0 to 5: the groups this broker coordinates.

Version 4 filters by state (KIP-518), 5 by type (KIP-848), both without regard to case; a filter that names
nothing known lets nothing through.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """List what the machines of this broker hold."""

    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object]:
        machines = self.groups.get().machines()
        if isinstance(machines, ErrorCode):
            return {"error_code": machines, "groups": ()}
        states = _filter(getattr(request.body, "states_filter", ()))
        types = _filter(getattr(request.body, "types_filter", ()))
        groups = [group for machine in machines for group in machine.list_groups(states, types)]
        return {"error_code": ErrorCode.NONE, "groups": groups}


def _filter(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in words)
