"""DescribeQuorum (key 55), versions 0 to 2: who decides, since when, and how far the metadata has come.

There is no quorum of controllers here: the metadata is in the coordination store, and any living broker may
become the controller. The answer says the same things in the words of the protocol, so that
`tidelog cluster status` and Kafka's tools can show them.

    leader, leader epoch   the controller and its epoch
    high watermark         the number of the last metadata change that this broker has followed
    current voters         the living brokers, each of which may become the controller
    log end offset         known of this broker alone, -1 of the others
    directory id           none: the metadata lies in no directory of a broker (version 2)
    nodes                  the voters, with their address on the listener that was asked (version 2)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.cluster_answers import Fields
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode

METADATA_TOPIC = "__cluster_metadata"
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer from the image."""

    metadata: Metadata
    node_id: int

    def handle(self, request: Request) -> Mapping[str, object]:
        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "nodes": self._nodes(request.context.listener_name),
            "topics": [
                {
                    "topic_name": topic.topic_name,
                    "partitions": [
                        self._partition(topic.topic_name, asked.partition_index) for asked in topic.partitions
                    ],
                }
                for topic in request.body.topics
            ],
        }

    def _nodes(self, listener_name: str) -> list[Fields]:
        image = self.metadata.image
        return [
            {
                "node_id": each,
                "listeners": [
                    {"name": name, "host": endpoint.host, "port": endpoint.port}
                    for name, endpoint in image.brokers[each].endpoints.items()
                    if name == listener_name
                ],
            }
            for each in sorted(image.alive_brokers)
        ]

    def _partition(self, topic: str, index: int) -> Fields:
        if (topic, index) != (METADATA_TOPIC, 0):
            return {
                "partition_index": index,
                "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "error_message": f"only partition 0 of {METADATA_TOPIC} has a quorum",
                "leader_id": UNKNOWN,
                "leader_epoch": UNKNOWN,
                "high_watermark": UNKNOWN,
                "current_voters": [],
                "observers": [],
            }
        image, sequence = self.metadata.image, self.metadata.sequence
        return {
            "partition_index": index,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "leader_id": image.controller_id,
            "leader_epoch": image.controller_epoch,
            "high_watermark": sequence,
            "current_voters": [
                {
                    "replica_id": each,
                    "replica_directory_id": None,
                    "log_end_offset": sequence if each == self.node_id else UNKNOWN,
                }
                for each in sorted(image.alive_brokers)
            ],
            "observers": [],
        }
