"""DescribeTopicPartitions (key 75), version 0: topics page by page (KIP-966).

Topics come in order of their names. No topics asked for means all. At most as many partitions are sent as
the client and `max.request.partition.size.limit` allow, at least one; a cursor says where the next page
begins. `eligible_leader_replicas` and `last_known_elr` are lists, empty ones where there are none: the Java
client fails on null. Deliberate difference: Kafka keeps at most the last leader in `last_known_elr`; here
are all members of the last ISR and ELR whose machine may have lost the ends of their logs since.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.cluster_answers import OPERATIONS_NOT_ASKED, TOPIC_OPERATIONS, partition_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import INTERNAL_TOPICS, topic_name_fault
from tidelog.model.image import ClusterImage, PartitionImage

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer one page from the image."""

    metadata: Metadata
    settings: LiveSettings

    def handle(self, request: Request) -> Mapping[str, object]:
        image = self.metadata.image
        body = request.body
        asked = sorted({topic.name for topic in body.topics})
        cursor = body.cursor
        if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
            return {"topics": [_error_topic(name, ErrorCode.INVALID_REQUEST) for name in asked]}
        names = asked or sorted(image.topics)
        first_index = 0
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
            first_index = cursor.partition_index if names and names[0] == cursor.topic_name else 0
        limit = self.settings.get_int("max.request.partition.size.limit")
        remaining = max(min(limit, body.response_partition_limit), 1)
        return _page(image, names, first_index, remaining, request.context.listener_name)


def _page(
    image: ClusterImage, names: list[str], first_index: int, remaining: int, listener_name: str
) -> Mapping[str, object]:
    topics: list[Fields] = []
    for name in names:
        if remaining == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = image.topics.get(name)
        if topic is None:
            legal = topic_name_fault(name) is None
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
            # what one may do with a topic is known before there is one
            topics.append({**_error_topic(name, error), "topic_authorized_operations": TOPIC_OPERATIONS})
            continue
        last_index = min(first_index + remaining, len(topic.partitions))
        topics.append(
            {
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.internal,
                "partitions": [
                    _partition(image, topic.partitions[index], index, listener_name)
                    for index in range(first_index, last_index)
                ],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        if last_index < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": last_index}}
        remaining -= max(last_index - first_index, 0)
        first_index = 0
    return {"topics": topics, "next_cursor": None}


def _partition(image: ClusterImage, partition: PartitionImage, index: int, listener_name: str) -> Fields:
    fields = partition_fields(image, partition, index, listener_name)
    return {**fields, "eligible_leader_replicas": partition.elr, "last_known_elr": partition.last_known_elr}


def _error_topic(name: str, error: ErrorCode) -> Fields:
    return {
        "error_code": error,
        "name": name,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": OPERATIONS_NOT_ASKED,
    }
