"""The server-side assignors of consumer groups: pure functions from members and topics to a target.

`uniform`: partition counts differ by at most one among members with the same subscriptions, and a partition
stays where it was unless balance needs it to move. With differing subscriptions no single move can make
the assignment more even.

`range`: for each topic its subscribers, in order, get consecutive partitions. Members with the same
subscriptions get the same indexes of topics with the same partition count (co-partitioning). It does not
look at what was before.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.groups.consumer_schemas import NOTHING, Partition, Partitions


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    instance_id: str | None
    topics: frozenset[UUID]
    """Only topics that exist."""
    previous: Partitions = NOTHING
    """What the last target gave it."""


Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    assigned: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    for topic_id, partition_count in partition_counts.items():
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topics]
        start = 0
        for position, member_id in enumerate(subscribers):
            share, extra = divmod(partition_count, len(subscribers))
            end = start + share + (position < extra)
            assigned[member_id] += ((topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members first, by their instance ids, so that a restart leaves the order as it was."""
    return (False, member.instance_id) if member.instance_id is not None else (True, member_id)


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, Partitions]:
    if len({member.topics for member in members.values()}) <= 1:
        assigned = _assign_equal(members, partition_counts)
    else:
        assigned = _assign_differing(members, partition_counts)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _valid_previous(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, list[Partition]]:
    """What each member had and may keep; where two had the same partition the first keeps it."""
    taken: set[Partition] = set()
    kept: dict[str, list[Partition]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        kept[member_id] = [
            partition
            for partition in sorted(member.previous)
            if partition not in taken
            and partition[0] in member.topics
            and partition[1] < partition_counts.get(partition[0], 0)
        ]
        taken.update(kept[member_id])
    return kept


def _all_partitions(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> list[Partition]:
    wanted = frozenset[UUID]().union(*(member.topics for member in members.values()))
    return [
        (topic_id, index)
        for topic_id in sorted(wanted & partition_counts.keys())
        for index in range(partition_counts[topic_id])
    ]


def _assign_equal(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, list[Partition]]:
    if not members:
        return {}
    everything = _all_partitions(members, partition_counts)
    share, extra = divmod(len(everything), len(members))
    assigned = _valid_previous(members, partition_counts)
    for partitions in assigned.values():
        if len(partitions) > share:
            keeps = share + (extra > 0)
            extra -= keeps > share
            del partitions[keeps:]
    taken = {partition for partitions in assigned.values() for partition in partitions}
    free = [partition for partition in everything if partition not in taken]
    # Those short of their share take turns, so that the partitions of one topic are spread.
    short = [member_id for member_id in assigned if len(assigned[member_id]) < share]
    at = 0
    while short and at < len(free):
        for member_id in short:
            assigned[member_id].append(free[at])
            at += 1
        short = [member_id for member_id in short if len(assigned[member_id]) < share]
    with_room = (member_id for member_id in assigned if len(assigned[member_id]) == share)
    for partition, member_id in zip(free[at:], with_room, strict=False):
        assigned[member_id].append(partition)
    return assigned


def _assign_differing(
    members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
) -> dict[str, list[Partition]]:
    assigned = _valid_previous(members, partition_counts)
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    everything = _all_partitions(members, partition_counts)
    # Topics with few possible readers first: they leave the least choice.
    everything.sort(key=lambda partition: (len(subscribers[partition[0]]), partition))
    owner = {partition: member_id for member_id, partitions in assigned.items() for partition in partitions}
    load = {member_id: len(partitions) for member_id, partitions in assigned.items()}
    for partition in everything:
        if partition not in owner:
            owner[partition] = _least_loaded(subscribers[partition[0]], load)
            load[owner[partition]] += 1
    moved = True
    while moved:  # every move makes the sum of squared loads smaller, so this ends
        moved = False
        for partition in everything:
            best = _least_loaded(subscribers[partition[0]], load)
            if load[owner[partition]] - load[best] >= 2:
                load[owner[partition]] -= 1
                load[best] += 1
                owner[partition] = best
                moved = True
    result: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition, member_id in owner.items():
        result[member_id].append(partition)
    return result


def _least_loaded(candidates: list[str], load: Mapping[str, int]) -> str:
    return min(candidates, key=load.__getitem__)


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
