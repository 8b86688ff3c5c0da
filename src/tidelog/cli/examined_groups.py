"""What `tidelog doctor` asks about groups: states, members, commits, and whether those move."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tidelog.cli.broker_links import BrokerLinks
from tidelog.cli.diagnosis import Examination, Partition, SeenGroup
from tidelog.cli.diagnosis_checks import REBALANCING
from tidelog.client.faults import known_code
from tidelog.model.errors import ErrorCode

OFFSET_FETCH = 9
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
CONSUMER_GROUP_DESCRIBE = 69
#: ListGroups tells states from this version on, OffsetFetch takes many groups from that one on
MANY_GROUPS_VERSION = 8
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
            answer = self._brokers.ask(broker, LIST_GROUPS, {}, "groups", highest=5)
            for row in () if answer is None else answer.groups:
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
        for broker, ids in self._by_coordinator(group.id for group in groups if group.kind == "classic"):
            fields = {"groups": tuple(ids), "include_authorized_operations": False}
            answer = self._brokers.ask(broker, DESCRIBE_GROUPS, fields, "groups", highest=5)
            self._note(answer, found)
        for broker, ids in self._by_coordinator(group.id for group in groups if group.kind == "consumer"):
            fields = {"group_ids": tuple(ids), "include_authorized_operations": False}
            answer = self._brokers.ask(broker, CONSUMER_GROUP_DESCRIBE, fields, "groups", highest=1)
            self._note(answer, found)
        return found

    def _note(self, answer: Any, found: dict[str, tuple[str, int]]) -> None:
        for row in () if answer is None else answer.groups:
            if self._brokers.allowed(row.error_code, f"group {row.group_id}"):
                found[str(row.group_id)] = str(row.group_state), len(row.members)

    def _committed(self, ids: Iterable[str]) -> dict[str, dict[Partition, int]]:
        found: dict[str, dict[Partition, int]] = {}
        for broker, some_ids in self._by_coordinator(ids):
            if self._brokers.offers(broker, OFFSET_FETCH, MANY_GROUPS_VERSION):
                rows = [{"group_id": group_id, "topics": None} for group_id in some_ids]
                fields: dict[str, Any] = {"groups": rows, "require_stable": False}
                # Version 10 names topics by id; names are what is compared here.
                answer = self._brokers.ask(
                    broker, OFFSET_FETCH, fields, "committed offsets", lowest=8, highest=9
                )
                for group in () if answer is None else answer.groups:
                    if self._brokers.allowed(group.error_code, f"committed offsets of {group.group_id}"):
                        found[str(group.group_id)] = _offsets(group.topics)
                continue
            for group_id in some_ids:
                fields = {"group_id": group_id, "topics": None, "require_stable": False}
                answer = self._brokers.ask(
                    broker, OFFSET_FETCH, fields, f"committed offsets of {group_id}", lowest=2, highest=7
                )
                if answer is not None:
                    found[group_id] = _offsets(answer.topics)
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


def _offsets(topics: Iterable[Any]) -> dict[Partition, int]:
    return {
        (str(topic.name), int(row.partition_index)): int(row.committed_offset)
        for topic in topics
        for row in topic.partitions
        if known_code(row.error_code) is ErrorCode.NONE and row.committed_offset >= 0
    }
