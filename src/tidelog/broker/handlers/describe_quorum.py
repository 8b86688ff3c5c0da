"""DescribeQuorum (key 55), versions 0 and 1: who decides, since when, and how far the metadata has come.

There is no quorum of controllers here: the metadata is in the coordination store, and any living broker may
become the controller. The answer says the same things in the words of the protocol, so that
`tidelog cluster status` and Kafka's tools can show them.

    leader, leader epoch   the controller and its epoch
    high watermark         the number of the last metadata change that this broker has followed
    current voters         the living brokers, each of which may become the controller
    log end offset         known of this broker alone, -1 of the others

Version 2 (directory ids, endpoints of controllers) is not served: it would have nothing to say.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.cluster_answers import Fields
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

METADATA_TOPIC = "__cluster_metadata"
UNKNOWN = -1


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer from the image."""
    return {
        "error_code": ErrorCode.NONE,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _partition(broker, topic.topic_name, asked.partition_index) for asked in topic.partitions
                ],
            }
            for topic in request.body.topics
        ],
    }


def _partition(broker: "Broker", topic: str, index: int) -> Fields:
    if (topic, index) != (METADATA_TOPIC, 0):
        return {
            "partition_index": index,
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "leader_id": UNKNOWN,
            "leader_epoch": UNKNOWN,
            "high_watermark": UNKNOWN,
            "current_voters": [],
            "observers": [],
        }
    image, sequence = broker.image, broker.metadata.sequence
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "leader_id": image.controller_id,
        "leader_epoch": image.controller_epoch,
        "high_watermark": sequence,
        "current_voters": [
            {"replica_id": each, "log_end_offset": sequence if each == broker.node_id else UNKNOWN}
            for each in sorted(image.alive_brokers)
        ],
        "observers": [],
    }
