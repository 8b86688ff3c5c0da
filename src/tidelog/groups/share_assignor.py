"""The assignor of share groups, `simple`: partitions are shared, so it spreads members over them.

Each partition gets as many members as it takes for every member to have something, and each member as many
partitions as the others, give or take one. What a member has it keeps where that allows. Members with the
same subscription are spread over all their partitions; otherwise the readers of each topic over those of the
topic."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog.groups.consumer_schemas import NOTHING, Partition, Partitions


class ShareSubscriber(NamedTuple):
    topics: frozenset[UUID]
    """Only topics that exist."""
    previous: Partitions = NOTHING
    """What the last target gave it."""


def assign_simple(members: Mapping[str, ShareSubscriber], assignable: Partitions) -> dict[str, Partitions]:
    """Who fetches from which partitions."""
    assigned: dict[str, set[Partition]] = {member_id: set() for member_id in members}
    topics = {topic_id for member in members.values() for topic_id in member.topics}
    if len({member.topics for member in members.values()}) <= 1:
        pools = [topics]
    else:
        pools = [{topic_id} for topic_id in sorted(topics)]
    for pool in pools:
        readers = {member_id: member for member_id, member in members.items() if pool <= member.topics}
        partitions = sorted(partition for partition in assignable if partition[0] in pool)
        _spread(readers, partitions, assigned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _spread(
    members: Mapping[str, ShareSubscriber], partitions: list[Partition], assigned: dict[str, set[Partition]]
) -> None:
    if not members or not partitions:
        return
    ordered = sorted(members)
    sharing = -(-len(members) // len(partitions))
    room = dict(zip(ordered, _shares(sharing * len(partitions), len(ordered)), strict=True))
    readers: dict[Partition, set[str]] = {partition: set() for partition in partitions}
    for member_id in ordered:
        for partition in sorted(members[member_id].previous & readers.keys()):
            if room[member_id] and len(readers[partition]) < sharing:
                readers[partition].add(member_id)
                room[member_id] -= 1
    # Partitions that nobody reads come first: that none is left without a reader matters most.
    for partition in sorted(partitions, key=lambda partition: (len(readers[partition]), partition)):
        _fill(readers[partition], sharing, room)
    for partition, member_ids in readers.items():
        for member_id in member_ids:
            assigned[member_id].add(partition)


def _fill(readers: set[str], sharing: int, room: dict[str, int]) -> None:
    """Give a partition the readers it lacks, those with the most room first."""
    free = (member_id for member_id, left in room.items() if left and member_id not in readers)
    for member_id in sorted(free, key=lambda member_id: (-room[member_id], member_id))[
        : sharing - len(readers)
    ]:
        readers.add(member_id)
        room[member_id] -= 1


def _shares(total: int, count: int) -> Iterable[int]:
    """A total in so many parts that differ by one at most."""
    return (-(-total * (index + 1) // count) + (-total * index // count) for index in range(count))
