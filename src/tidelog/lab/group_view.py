"""Groups seen from outside, as `tidelog group describe` sees them: members, committed offsets, lag."""

from typing import TYPE_CHECKING

from tidelog.admin.groups import describe
from tidelog.client.cluster import CoordinatorKind

if TYPE_CHECKING:
    from tidelog.lab.lab import Lab


def members(lab: "Lab", group: str, kind: str = "consumer") -> dict[str, list[int]]:
    """Partitions of each member of a group of the newer protocol (or a share group), by client id, as its
    coordinator says.
    """
    link = lab.wire_cluster().coordinator_link(CoordinatorKind.GROUP, group)
    [described] = describe(link, kind, [group])
    return {
        member.client_id: sorted(
            number for place in member.assignment.topic_partitions for number in place.partitions
        )
        for member in described.members
    }


def committed(lab: "Lab", group: str, topic: str) -> dict[int, int]:
    """The committed offset of each partition; partitions without one are left out."""
    found = lab.wire_cluster().committed_offsets(group, stable=False)
    return {place.partition: offset for place, offset in found.items() if place.topic == topic}


def lag(lab: "Lab", group: str, topic: str, partitions: int) -> dict[int, int]:
    """By how many records the group is behind the end of each of the first `partitions` partitions."""
    done = committed(lab, group, topic)
    return {
        number: lab.positions(topic, number).high_watermark - done.get(number, 0)
        for number in range(partitions)
    }
