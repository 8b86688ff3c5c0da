"""Groups seen from outside, as `tidelog group describe` sees them: members, committed offsets, lag."""

from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions

from tidelog.client.cluster import CoordinatorKind

if TYPE_CHECKING:
    from tidelog.lab.lab import Lab

ASK_SECONDS_MAX = 10.0
CONSUMER_GROUP_DESCRIBE = 69


def members(lab: "Lab", group: str) -> dict[str, list[int]]:
    """Partitions of each member of a group of the newer protocol, by client id, as its coordinator says."""
    link = lab.wire_cluster().coordinator_link(CoordinatorKind.GROUP, group)
    asked = {"group_ids": [group], "include_authorized_operations": False}
    described = link.request(CONSUMER_GROUP_DESCRIBE, asked, highest=0).groups[0]
    return {
        member.client_id: sorted(
            number for place in member.assignment.topic_partitions for number in place.partitions
        )
        for member in described.members
    }


def committed(lab: "Lab", group: str, topic: str) -> dict[int, int]:
    """The committed offset of each partition; partitions without one are left out."""
    asked = lab.admin().list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], request_timeout=ASK_SECONDS_MAX
    )
    answer = asked[group].result(ASK_SECONDS_MAX)
    return {
        place.partition: place.offset
        for place in answer.topic_partitions
        if place.topic == topic and place.offset >= 0
    }


def lag(lab: "Lab", group: str, topic: str, partitions: int) -> dict[int, int]:
    """By how many records the group is behind the end of each of the first `partitions` partitions."""
    done = committed(lab, group, topic)
    return {
        number: lab.positions(topic, number).high_watermark - done.get(number, 0)
        for number in range(partitions)
    }
