"""Share groups: where they start in partitions, how far they have to go, and moving them elsewhere.

Lag is what is still to be dealt with (KIP-1226): the end of the partition less the start offset less what is
done with behind the start. Brokers before Kafka 4.2 do not tell it.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.admin.groups import Groups
from tidelog.admin.offset_reset import ResetPlan
from tidelog.admin.snapshot import GroupView, MemberView, TopicPartitionKey
from tidelog.client.api_keys import ALTER_SHARE_GROUP_OFFSETS, DESCRIBE_SHARE_GROUP_OFFSETS
from tidelog.client.client_settings import READ_UNCOMMITTED
from tidelog.client.cluster import LATEST, Cluster, CoordinatorKind
from tidelog.client.faults import MOVED, Refusal, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

#: start offset and lag of partitions
Starts = dict[TopicPartitionKey, tuple[int | None, int | None]]


@dataclass(frozen=True, slots=True)
class SharePartitionOffsets:
    """One partition of a share group; None is what the cluster did not tell."""

    topic: str
    partition: int
    #: everything before is done with
    start: int | None
    #: the end of the partition
    latest: int | None
    #: records still to be dealt with
    lag: int | None
    members: tuple[str, ...] = ()

    @property
    def done(self) -> int | None:
        """How many records behind the start are done with."""
        if self.start is None or self.latest is None or self.lag is None:
            return None
        return max(0, self.latest - self.start - self.lag)


class ShareGroups:
    """What there is to ask and to change of share groups; calls block."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin

    def offsets(self, group: GroupView) -> list[SharePartitionOffsets]:
        """Start, end and lag of every partition that the group has begun, or that a member is assigned."""
        readers: dict[TopicPartitionKey, list[MemberView]] = {}
        for member in group.members:
            for key in member.assignment:
                readers.setdefault(key, []).append(member)
        starts = self.starts(group.id)
        keys = sorted({*starts, *readers})
        latest = self._latest(group.id, keys) if keys else {}
        rows = []
        for key in keys:
            start, lag = starts.get(key, (None, None))
            names = tuple(member.id for member in readers.get(key, ()))
            rows.append(SharePartitionOffsets(*key, start, latest.get(key), lag, names))
        return rows

    def starts(self, group_id: str) -> Starts:
        """Start offset and lag of every partition that the group has begun; none of a group that is not."""

        def ask(cluster: Cluster) -> Starts:
            link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
            (row,) = offsets_rows(link, [group_id])
            return starts_of(row)

        return self._admin.asked(f"the offsets of share group {group_id!r} cannot be read", ask)

    def starts_of_many(self, groups: Groups, group_ids: Sequence[str]) -> dict[str, Starts]:
        """The same of many groups; those that do not answer are left out."""
        found: dict[str, Starts] = {}

        def ask(link: Link, broker: int, ids: list[str]) -> list[str]:
            stale: list[str] = []
            if link.offers(DESCRIBE_SHARE_GROUP_OFFSETS) is None:
                return stale
            for row in offsets_rows(link, ids):
                if known_code(row.error_code) in MOVED:
                    stale.append(str(row.group_id))
                    continue
                with suppress(Refusal):
                    found[str(row.group_id)] = starts_of(row)
            return stale

        groups.ask_coordinators(group_ids, ask)
        return found

    def _latest(self, group_id: str, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, int]:
        def ask(cluster: Cluster) -> dict[TopicPartitionKey, int]:
            known = cluster.topics(sorted({topic for topic, _ in keys}))
            there = {(name, row.partition) for name, topic in known.items() for row in topic.partitions}
            # A group can remember a topic that was deleted or is hidden.
            wanted = {TopicPartition(*key): LATEST for key in keys if key in there}
            listed = cluster.list_offsets(wanted, READ_UNCOMMITTED) if wanted else {}
            return {(key.topic, key.partition): found.offset for key, found in listed.items()}

        return self._admin.asked(f"the lag of share group {group_id!r} cannot be read", ask)

    def reset(self, plan: ResetPlan) -> int:
        """Have a group begin elsewhere; in how many partitions. It must have no members.

        Also where the start stays the same: what was acknowledged behind it is delivered again.
        """
        by_topic: dict[str, list[dict[str, int]]] = {}
        for move in plan.moves:
            row = {"partition_index": move.partition, "start_offset": move.new}
            by_topic.setdefault(move.topic, []).append(row)
        fields: dict[str, object] = {
            "group_id": plan.group,
            "topics": [{"topic_name": topic, "partitions": rows} for topic, rows in by_topic.items()],
        }
        what = f"share group {plan.group!r} was not moved"
        self._admin.asked(what, partial(_alter, group_id=plan.group, fields=fields, what=what))
        return len(plan.moves)


def offsets_rows(link: Link, group_ids: Sequence[str]) -> Sequence[Any]:
    """The rows of share groups with all their partitions, as their coordinator answers."""
    fields = {"groups": [{"group_id": group_id, "topics": None} for group_id in group_ids]}
    rows: Sequence[Any] = link.request(DESCRIBE_SHARE_GROUP_OFFSETS, fields, highest=1).groups
    return rows


def starts_of(group: Any) -> Starts:
    """Start offset and lag of each partition in a row of `offsets_rows`; None is what is not known."""
    found: Starts = {}
    if known_code(group.error_code) is ErrorCode.GROUP_ID_NOT_FOUND:
        return found
    check(group, f"share group {group.group_id!r}")
    for topic in group.topics:
        for row in topic.partitions:
            if row.error_code:
                where = f"{topic.topic_name}-{row.partition_index} of share group {group.group_id!r}"
                raise Refusal(row.error_code, where, row.error_message)
            start, lag = int(row.start_offset), int(getattr(row, "lag", -1))
            key = str(topic.topic_name), int(row.partition_index)
            found[key] = start if start >= 0 else None, lag if lag >= 0 else None
    return found


def _alter(cluster: Cluster, group_id: str, fields: dict[str, object], what: str) -> None:
    link = cluster.coordinator_link(CoordinatorKind.GROUP, group_id)
    answer = link.request(ALTER_SHARE_GROUP_OFFSETS, fields, highest=0)
    check(answer, what)
    for topic in answer.responses:
        for row in topic.partitions:
            if row.error_code:
                where = f"{topic.topic_name}-{row.partition_index} of share group {group_id!r}"
                raise Refusal(row.error_code, where, row.error_message)
