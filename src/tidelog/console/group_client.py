"""Groups, asked for and changed with our own client: listed, described, committed offsets, resets, deletion.

librdkafka can abort the whole process when a connection breaks under a request about groups
(confluentinc/librdkafka, issue 4605), so none of them goes through it. Questions about many groups are asked
once for each coordinator. A broker that does not answer keeps nothing from the others: what it would have
told is left out, or named as a problem.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tidelog.client.cluster import FIND_COORDINATOR, LIST_GROUPS, OFFSET_FETCH, Cluster, CoordinatorKind
from tidelog.client.faults import MOVED, Refusal, known_code
from tidelog.client.link import Link
from tidelog.client.offset_reset import ResetPlan
from tidelog.console.faults import NOT_FOUND, ConsoleFault
from tidelog.console.snapshot import GroupView, MemberView, TopicPartitionKey
from tidelog.console.wire_client import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

DESCRIBE_GROUPS = 15
DELETE_GROUPS = 42
CONSUMER_GROUP_DESCRIBE = 69
SHARE_GROUP_DESCRIBE = 77
#: FindCoordinator takes many keys from this version on, OffsetFetch many groups
MANY_COORDINATORS_VERSION = 4
MANY_GROUPS_VERSION = 8
COORDINATORS_KEPT_MAX = 10_000
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DESCRIBE_APIS = {"consumer": (CONSUMER_GROUP_DESCRIBE, 0, 1), "share": (SHARE_GROUP_DESCRIBE, 1, 1)}
_CLASSIC = (DESCRIBE_GROUPS, 0, 5)

Committed = dict[TopicPartitionKey, int]


class GroupClient:
    """Everything about groups; calls block, and wait for each other."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire
        self._coordinators: dict[str, int] = {}

    # Questions

    def list_groups(self, brokers: Iterable[int]) -> tuple[dict[str, GroupView], list[str]]:
        """Every group that is listed now, and what kept brokers from listing theirs."""
        found: dict[str, GroupView] = {}
        problems: list[str] = []
        for broker in sorted(brokers):
            try:
                rows = self._wire.once("groups", partial(_listed, broker=broker))
            except ConsoleFault as fault:
                problems.append(f"broker {broker} did not list its groups: {fault.message}")
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
                    stale += _describe(link, broker, kind, some, found)
            return stale

        self._ask_coordinators(list(types), ask)
        return found

    def describe(self, group_id: str, group_type: str = "") -> GroupView:
        """One group; ConsoleFault where it is not known."""
        kinds = dict.fromkeys((_kind(group_type), "classic", "consumer"))
        for kind in kinds:
            view = self.describe_groups({group_id: kind}).get(group_id)
            if view is not None and view.state != "dead":
                return view
        raise ConsoleFault(
            f"there is no group {group_id!r}", "The list of groups shows those that are.", NOT_FOUND
        )

    def committed(self, group_ids: Sequence[str]) -> dict[str, Committed]:
        """Every offset that these groups have committed; groups that do not answer are left out."""
        found: dict[str, Committed] = {}

        def ask(link: Link, broker: int, ids: list[str]) -> list[str]:
            offered = link.offers(OFFSET_FETCH)
            if offered is not None and offered[1] >= MANY_GROUPS_VERSION:
                return _fetch_many(link, ids, found)
            stale: list[str] = []
            for group_id in ids:
                stale += _fetch_one(link, group_id, found)
            return stale

        self._ask_coordinators(group_ids, ask)
        return found

    # Changes

    def delete(self, group_id: str) -> None:
        def ask(cluster: Cluster) -> None:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
            answer = link.request(DELETE_GROUPS, {"groups_names": (group_id,)}, highest=2)
            for row in answer.results:
                if row.error_code:
                    raise Refusal(row.error_code, f"group {group_id!r}")

        self._wire.asked(f"group {group_id!r} was not deleted", ask)

    def reset(self, plan: ResetPlan) -> int:
        """Carry a plan out; how many offsets were moved."""
        moved = {TopicPartition(move.topic, move.partition): move.new for move in plan.moves if move.changes}
        if not moved:
            return 0
        try:
            self._wire.asked(
                f"the offsets of group {plan.group!r} were not moved",
                lambda cluster: cluster.commit_offsets(plan.group, moved),
            )
        except ConsoleFault as fault:
            hint = "Stop the members of the group first: a group that reads keeps its own offsets."
            raise ConsoleFault(fault.message, fault.hint or hint, fault.status) from fault
        return len(moved)

    # Coordinators

    def _ask_coordinators(
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
                    stale = self._wire.once(f"the groups of broker {broker} cannot be read", run)
                except ConsoleFault:
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
                told = self._wire.once(
                    "coordinators cannot be found", lambda cluster: _coordinators(cluster, unknown)
                )
            except ConsoleFault:
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
    answer = cluster.link_to(broker).request(LIST_GROUPS, {}, highest=5)
    if answer.error_code:
        raise Refusal(answer.error_code, "listing groups")
    return [
        GroupView(
            str(row.group_id),
            _word(str(getattr(row, "group_state", ""))),
            _word(str(getattr(row, "group_type", "classic"))),
        )
        for row in answer.groups
    ]


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


def _describe(link: Link, broker: int, kind: str, ids: list[str], found: dict[str, GroupView]) -> list[str]:
    """Fill in what the coordinator tells; the groups that it does not coordinate (any more)."""
    api, lowest, highest = _DESCRIBE_APIS.get(kind, _CLASSIC)
    if link.offers(api) is None:
        return []
    field = "groups" if api == DESCRIBE_GROUPS else "group_ids"
    fields = {field: tuple(ids), "include_authorized_operations": False}
    answered, stale = _answered(link.request(api, fields, lowest=lowest, highest=highest).groups)
    for row in answered:
        view = _classic(row, broker) if kind == "classic" else _modern(row, broker, kind)
        found[view.id] = view
    return stale


def _answered(groups: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """The rows of groups that were answered for, and the groups that have moved."""
    codes = [(known_code(row.error_code), row) for row in groups]
    answered = [row for code, row in codes if code == ErrorCode.NONE]
    return answered, [str(row.group_id) for code, row in codes if code in MOVED]


def _sorted(members: Iterable[MemberView]) -> tuple[MemberView, ...]:
    return tuple(sorted(members, key=lambda member: (member.client_id, member.id)))


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


def _fetch_many(link: Link, ids: list[str], found: dict[str, Committed]) -> list[str]:
    groups = [{"group_id": group_id, "topics": None} for group_id in ids]
    # Version 10 names topics by id; names are what is shown.
    answer = link.request(
        OFFSET_FETCH, {"groups": groups, "require_stable": False}, lowest=MANY_GROUPS_VERSION, highest=9
    )
    answered, stale = _answered(answer.groups)
    found.update({str(group.group_id): _offsets(group.topics) for group in answered})
    return stale


def _fetch_one(link: Link, group_id: str, found: dict[str, Committed]) -> list[str]:
    fields = {"group_id": group_id, "topics": None, "require_stable": False}
    answer = link.request(OFFSET_FETCH, fields, lowest=2, highest=7)
    code = known_code(answer.error_code)
    if code in MOVED:
        return [group_id]
    if code == ErrorCode.NONE:
        found[group_id] = _offsets(answer.topics)
    return []


def _offsets(topics: Any) -> Committed:
    return {
        (str(topic.name), int(row.partition_index)): int(row.committed_offset)
        for topic in topics
        for row in topic.partitions
        if not row.error_code and row.committed_offset >= 0
    }
