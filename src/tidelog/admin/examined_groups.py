"""What `tidelog doctor` asks about groups: states, members, commits, and whether those move."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tidelog.admin.broker_links import BrokerLinks
from tidelog.admin.diagnosis import Examination, Partition, SeenGroup
from tidelog.admin.diagnosis_checks import REBALANCING
from tidelog.admin.groups import describe, fetch_offsets, list_rows, offsets_of

GROUPS_PER_REQUEST = 100


class GroupQuestions:
    """Asks the coordinators; the broker that lists a group is the one that coordinates it."""

    def __init__(self, brokers: BrokerLinks) -> None:
        self._brokers = brokers
        self._coordinators: dict[str, int] = {}

    def groups(self) -> tuple[SeenGroup, ...]:
        """Every group with its members and what it has committed."""
        found: dict[str, SeenGroup] = {}
        for broker in self._brokers.links:
            for row in self._brokers.attempt(broker, "groups", list_rows) or ():
                group_id = str(row.group_id)
                kind = str(getattr(row, "group_type", "") or "classic").lower()
                state = str(getattr(row, "group_state", "") or "Unknown")
                found[group_id] = SeenGroup(group_id, state, kind, 0, {})
                self._coordinators[group_id] = broker
        states = self._described(found.values())
        commits = self._committed([group.id for group in found.values() if group.kind != "share"])
        return tuple(
            replace(
                group,
                state=states.get(group.id, (group.state, 0))[0],
                members=states.get(group.id, (group.state, 0))[1],
                committed=commits.get(group.id, {}),
            )
            for group in sorted(found.values(), key=lambda group: group.id)
        )

    def worth_watching(self, groups: Iterable[SeenGroup], seen: Examination) -> list[SeenGroup]:
        """Groups that rebalance, or have members and records to read."""
        return [
            group for group in groups if group.state in REBALANCING or (group.members and _waits(group, seen))
        ]

    def looked_at_again(
        self, groups: tuple[SeenGroup, ...], waiting: list[SeenGroup]
    ) -> tuple[SeenGroup, ...]:
        """The same groups, those that are waited for with what they are and have committed by now."""
        states = self._described(waiting)
        commits = self._committed([group.id for group in waiting])
        watched = {group.id for group in waiting}
        return tuple(
            replace(
                group,
                state_later=states.get(group.id, (None, 0))[0],
                committed_later=commits.get(group.id),
            )
            if group.id in watched
            else group
            for group in groups
        )

    def _described(self, groups: Iterable[SeenGroup]) -> dict[str, tuple[str, int]]:
        """State and number of members of each group that is described."""
        found: dict[str, tuple[str, int]] = {}
        known = list(groups)
        for kind in ("classic", "consumer"):
            for broker, ids in self._by_coordinator(group.id for group in known if group.kind == kind):
                question = partial(describe, kind=kind, ids=ids)
                for row in self._brokers.attempt(broker, "groups", question) or ():
                    if self._brokers.allowed(row.error_code, f"group {row.group_id}"):
                        found[str(row.group_id)] = str(row.group_state), len(row.members)
        return found

    def _committed(self, ids: Iterable[str]) -> dict[str, dict[Partition, int]]:
        found: dict[str, dict[Partition, int]] = {}
        for broker, some_ids in self._by_coordinator(ids):
            question = partial(fetch_offsets, ids=some_ids)
            for row in self._brokers.attempt(broker, "committed offsets", question) or ():
                if self._brokers.allowed(row.error_code, f"committed offsets of {row.group_id}"):
                    found[str(row.group_id)] = offsets_of(row)
        return found

    def _by_coordinator(self, ids: Iterable[str]) -> list[tuple[int, list[str]]]:
        """Portions of groups, each with the broker to ask."""
        by_broker: dict[int, list[str]] = {}
        for group_id in ids:
            by_broker.setdefault(self._coordinators[group_id], []).append(group_id)
        return [
            (broker, found[start : start + GROUPS_PER_REQUEST])
            for broker, found in by_broker.items()
            for start in range(0, len(found), GROUPS_PER_REQUEST)
        ]


def _waits(group: SeenGroup, seen: Examination) -> bool:
    return any(
        partition in seen.logs and seen.logs[partition].end > committed
        for partition, committed in group.committed.items()
    )
