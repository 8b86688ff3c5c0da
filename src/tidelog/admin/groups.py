"""Groups: listed, described, committed offsets, lag, resets, deletion.

librdkafka can abort the whole process when a connection breaks under a request about groups
(confluentinc/librdkafka, issue 4605) or one is refused, so none of them goes through it.

Many groups are asked for once for each coordinator. A broker that does not answer keeps nothing from the
others: what it would have told is left out, or named as a problem. A question about one group has an answer
or a fault.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.admin.offset_reset import ResetPlan
from tidelog.admin.snapshot import GroupView, MemberView, TopicPartitionKey
from tidelog.client.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SHARE_GROUP_DESCRIBE,
)
from tidelog.client.client_settings import READ_UNCOMMITTED
from tidelog.client.cluster import LATEST, Cluster, CoordinatorKind
from tidelog.client.faults import MOVED, ClientFault, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

#: FindCoordinator takes many keys from this version on, OffsetFetch many groups
MANY_COORDINATORS_VERSION = 4
MANY_GROUPS_VERSION = 8
COORDINATORS_KEPT_MAX = 10_000
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DESCRIBE_APIS = {"consumer": (CONSUMER_GROUP_DESCRIBE, 0, 1), "share": (SHARE_GROUP_DESCRIBE, 1, 1)}
_CLASSIC = (DESCRIBE_GROUPS, 0, 5)

CommittedOffsets = dict[TopicPartitionKey, int]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group: lag is the log's end minus the committed offset."""

    topic: str
    partition: int
    committed: int | None
    latest: int | None
    lag: int | None
    member: str | None = None
    host: str | None = None


class Groups:
    """Everything about groups; calls block, and wait for each other."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._coordinators: dict[str, int] = {}

    # Questions

    def list_groups(self, brokers: Iterable[int]) -> tuple[dict[str, GroupView], list[str]]:
        """Every group that is listed now, and what kept brokers from listing theirs."""
        found: dict[str, GroupView] = {}
        problems: list[str] = []
        for broker in sorted(brokers):
            try:
                rows = self._admin.once(partial(_listed, broker=broker))
            except ClientFault as fault:
                problems.append(f"broker {broker} did not list its groups: {fault}")
                continue
            found.update((row.id, row) for row in rows)
        return {group_id: found[group_id] for group_id in sorted(found)}, problems

    def describe_groups(self, types: Mapping[str, str]) -> dict[str, GroupView]:
        """Members and assignments of groups, given with their types; those without an answer are left out."""
        found: dict[str, GroupView] = {}

        def ask(link: Link, broker: int, ids: list[str]) -> list[str]:
            stale: list[str] = []
            for kind in ("classic", *_DESCRIBE_APIS):
                some = [group for group in ids if _kind(types[group]) == kind]
                if some:
                    answered, moved = _answered(describe(link, kind, some))
                    found.update({str(row.group_id): _view(row, broker, kind) for row in answered})
                    stale += moved
            return stale

        self.ask_coordinators(list(types), ask)
        return found

    def describe(self, group_id: str, group_type: str = "") -> GroupView | None:
        """One group, of this type or of whichever it turns out to be; None if there is none."""
        kinds = dict.fromkeys((_kind(group_type), "consumer", "classic", "share"))

        def ask(cluster: Cluster) -> GroupView | None:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
            broker = cluster.coordinator_of(CoordinatorKind.GROUP, group_id)
            for kind in kinds:
                for row in describe(link, kind, [group_id]):
                    if known_code(row.error_code) is not ErrorCode.GROUP_ID_NOT_FOUND:
                        check(row, f"group {group_id!r}")
                        view = _view(row, broker, kind)
                        if view.state != "dead":
                            return view
            return None

        return self._admin.asked(f"group {group_id!r} cannot be described", ask)

    def committed(self, group_ids: Sequence[str]) -> dict[str, CommittedOffsets]:
        """Every offset that these groups have committed; groups that do not answer are left out."""
        found: dict[str, CommittedOffsets] = {}

        def ask(link: Link, broker: int, ids: list[str]) -> list[str]:
            rows, stale = _answered(fetch_offsets(link, ids))
            found.update({str(row.group_id): offsets_of(row) for row in rows})
            return stale

        self.ask_coordinators(group_ids, ask)
        return found

    def committed_by(self, group_id: str) -> CommittedOffsets:
        """Every offset that one group has committed."""

        def ask(cluster: Cluster) -> CommittedOffsets:
            found = cluster.committed_offsets(group_id, stable=False)
            return {(key.topic, key.partition): offset for key, offset in found.items()}

        return self._admin.asked(f"the offsets of group {group_id!r} cannot be read", ask)

    def lag(self, group: GroupView) -> list[PartitionLag]:
        """Committed offset, end and lag of every partition the group has committed or is assigned."""
        committed = self.committed_by(group.id)
        owners = {key: member for member in group.members for key in member.assignment}
        keys = sorted(set(committed) | set(owners))

        def ask(cluster: Cluster) -> CommittedOffsets:
            known = cluster.topics()
            there = {(name, row.partition) for name, topic in known.items() for row in topic.partitions}
            # A group can remember a topic that was deleted or is hidden; it has no end to lag behind.
            wanted = {TopicPartition(*key): LATEST for key in keys if key in there}
            listed = cluster.list_offsets(wanted, READ_UNCOMMITTED) if wanted else {}
            return {(key.topic, key.partition): found.offset for key, found in listed.items()}

        latest = self._admin.asked(f"the lag of group {group.id!r} cannot be read", ask)
        rows = []
        for key in keys:
            offset, end, owner = committed.get(key), latest.get(key), owners.get(key)
            lag = max(0, end - offset) if end is not None and offset is not None else None
            member = (None, None) if owner is None else (owner.id, owner.host)
            rows.append(PartitionLag(*key, offset, end, lag, *member))
        return rows

    # Changes

    def delete(self, group_id: str) -> None:
        def ask(cluster: Cluster) -> None:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
            for row in link.request(DELETE_GROUPS, {"groups_names": (group_id,)}, highest=2).results:
                check(row, f"group {group_id!r}")

        self._admin.asked(f"group {group_id!r} was not deleted", ask)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartitionKey]
    ) -> dict[TopicPartitionKey, ErrorCode]:
        """Have committed offsets forgotten; the errors of those that were not."""
        by_topic: dict[str, list[dict[str, int]]] = {}
        for topic, number in partitions:
            by_topic.setdefault(topic, []).append({"partition_index": number})
        rows = [{"name": topic, "partitions": found} for topic, found in by_topic.items()]
        what = f"the offsets of group {group_id!r} were not deleted"

        def ask(cluster: Cluster) -> dict[TopicPartitionKey, ErrorCode]:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
            answer = link.request(OFFSET_DELETE, {"group_id": group_id, "topics": rows}, highest=0)
            check(answer, what)
            return {
                (str(topic.name), int(row.partition_index)): known_code(row.error_code)
                for topic in answer.topics
                for row in topic.partitions
                if row.error_code
            }

        return self._admin.asked(what, ask)

    def reset(self, plan: ResetPlan) -> int:
        """Carry a plan out; how many offsets were moved.

        Those that stay are committed too, so that a group with members is refused in any case.
        """
        offsets = {TopicPartition(move.topic, move.partition): move.new for move in plan.moves}
        if offsets:
            self._admin.asked(
                f"the offsets of group {plan.group!r} were not moved",
                lambda cluster: cluster.commit_offsets(plan.group, offsets),
            )
        return sum(move.changes for move in plan.moves)

    # Coordinators

    def ask_coordinators(
        self, group_ids: Sequence[str], ask: Callable[[Link, int, list[str]], list[str]]
    ) -> None:
        """Call `ask` for each coordinator with its groups; those that it says have moved are asked again."""
        left = list(group_ids)
        for _ in range(2):
            by_broker = self._by_coordinator(left)
            left = []
            for broker, ids in by_broker.items():

                def run(cluster: Cluster, broker: int = broker, ids: list[str] = ids) -> list[str]:
                    return ask(cluster.link_to(broker), broker, ids)

                try:
                    stale = self._admin.once(run)
                except ClientFault:
                    stale = ids
                for group_id in stale:
                    self._coordinators.pop(group_id, None)
                left += stale
            if not left:
                return

    def _by_coordinator(self, group_ids: Sequence[str]) -> dict[int, list[str]]:
        unknown = [group_id for group_id in group_ids if group_id not in self._coordinators]
        if unknown:
            try:
                told = self._admin.once(lambda cluster: _coordinators(cluster, unknown))
            except ClientFault:
                told = {}
            if len(self._coordinators) > COORDINATORS_KEPT_MAX:
                self._coordinators.clear()
            self._coordinators.update(told)
        grouped: dict[int, list[str]] = {}
        for group_id in group_ids:
            broker = self._coordinators.get(group_id)
            if broker is not None:
                grouped.setdefault(broker, []).append(group_id)
        return grouped


def _kind(group_type: str) -> str:
    return group_type if group_type in _DESCRIBE_APIS else "classic"


def _word(text: str) -> str:
    """PreparingRebalance as two words."""
    return _WORD_START.sub(" ", text).lower() or "unknown"


def _listed(cluster: Cluster, broker: int) -> list[GroupView]:
    return [_listed_view(row) for row in list_rows(cluster.link_to(broker))]


def list_rows(link: Link) -> Sequence[Any]:
    """The rows of the groups that a broker coordinates."""
    answer = link.request(LIST_GROUPS, {}, highest=5)
    check(answer, "listing groups")
    rows: Sequence[Any] = answer.groups
    return rows


def _listed_view(row: Any) -> GroupView:
    state = _word(str(getattr(row, "group_state", "")))
    kind = _word(str(getattr(row, "group_type", "classic")))
    return GroupView(str(row.group_id), state, kind, protocol_type=str(row.protocol_type))


def _coordinators(cluster: Cluster, group_ids: Sequence[str]) -> dict[str, int]:
    link = cluster.any_link()
    offered = link.offers(FIND_COORDINATOR)
    found: dict[str, int] = {}
    if offered is not None and offered[1] >= MANY_COORDINATORS_VERSION:
        fields = {"key_type": int(CoordinatorKind.GROUP), "coordinator_keys": tuple(group_ids)}
        answer = link.request(FIND_COORDINATOR, fields, lowest=MANY_COORDINATORS_VERSION, highest=6)
        for row in answer.coordinators:
            if not row.error_code:
                found[row.key] = int(row.node_id)
        return found
    for group_id in group_ids:
        fields = {"key": group_id, "key_type": int(CoordinatorKind.GROUP)}
        answer = link.request(FIND_COORDINATOR, fields, highest=3)
        if not answer.error_code:
            found[group_id] = int(answer.node_id)
    return found


def describe(link: Link, kind: str, ids: Sequence[str]) -> Sequence[Any]:
    """The rows of groups of a kind, as their coordinator answers; none from one that has no such groups."""
    api, lowest, highest = _DESCRIBE_APIS.get(kind, _CLASSIC)
    if link.offers(api) is None:
        return ()
    field = "groups" if api == DESCRIBE_GROUPS else "group_ids"
    fields = {field: tuple(ids), "include_authorized_operations": False}
    rows: Sequence[Any] = link.request(api, fields, lowest=lowest, highest=highest).groups
    return rows


def fetch_offsets(link: Link, ids: Sequence[str]) -> list[Any]:
    """The rows of what groups have committed, as their coordinator answers."""
    offered = link.offers(OFFSET_FETCH)
    if offered is not None and offered[1] >= MANY_GROUPS_VERSION:
        groups = [{"group_id": group_id, "topics": None} for group_id in ids]
        fields: dict[str, Any] = {"groups": groups, "require_stable": False}
        # Version 10 names topics by id; names are what is shown.
        return list(link.request(OFFSET_FETCH, fields, lowest=MANY_GROUPS_VERSION, highest=9).groups)
    rows = []
    for group_id in ids:
        fields = {"group_id": group_id, "topics": None, "require_stable": False}
        answer = link.request(OFFSET_FETCH, fields, lowest=2, highest=7)
        rows.append(SimpleNamespace(group_id=group_id, error_code=answer.error_code, topics=answer.topics))
    return rows


def _answered(groups: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """The rows of groups that were answered for, and the groups that have moved."""
    codes = [(known_code(row.error_code), row) for row in groups]
    answered = [row for code, row in codes if code == ErrorCode.NONE]
    return answered, [str(row.group_id) for code, row in codes if code in MOVED]


def _sorted(members: Iterable[MemberView]) -> tuple[MemberView, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.id)))


def _view(row: Any, broker: int, kind: str) -> GroupView:
    return _classic(row, broker) if kind == "classic" else _modern(row, broker, kind)


def _classic(row: Any, broker: int) -> GroupView:
    members = _sorted(
        MemberView(
            item.member_id,
            item.client_id,
            item.client_host,
            getattr(item, "group_instance_id", None),
            read_assignment(bytes(item.member_assignment)),
        )
        for item in row.members
    )
    state = _word(row.group_state)
    return GroupView(str(row.group_id), state, "classic", members, row.protocol_data, broker, described=True)


def _modern(row: Any, broker: int, kind: str) -> GroupView:
    members = _sorted(
        MemberView(
            item.member_id,
            item.client_id,
            item.client_host,
            getattr(item, "instance_id", None),
            _assigned(item.assignment),
            _assigned(item.target_assignment) if hasattr(item, "target_assignment") else None,
            int(item.member_epoch),
        )
        for item in row.members
    )
    return GroupView(
        str(row.group_id),
        _word(row.group_state),
        kind,
        members,
        row.assignor_name,
        broker,
        described=True,
        epoch=int(row.group_epoch),
    )


def _assigned(assignment: Any) -> tuple[TopicPartitionKey, ...]:
    return tuple(
        sorted(
            (str(topic.topic_name), int(number))
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


def read_assignment(data: bytes) -> tuple[TopicPartitionKey, ...]:
    """The partitions in a classic member's assignment, as consumers write it.

    int16 version, int32 count of topics, each: int16 length and name, int32 count, int32 partitions. Groups
    of other kinds (connectors) write something else there: then nothing is known.
    """
    found: list[TopicPartitionKey] = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            name = data[position + 2 : position + 2 + length].decode("utf-8")
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            found += [(name, number) for number in struct.unpack_from(f">{count}i", data, position + 4)]
            position += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(found))


def offsets_of(row: Any) -> CommittedOffsets:
    """The offsets in a row of `fetch_offsets`."""
    return {
        (str(topic.name), int(one.partition_index)): int(one.committed_offset)
        for topic in row.topics
        for one in topic.partitions
        if not one.error_code and one.committed_offset >= 0
    }
