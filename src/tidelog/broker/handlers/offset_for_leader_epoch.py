"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where the log of a leader epoch ended (KIP-101, KIP-320).

Clients and followers find with it the point where their history and the leader's part.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer each partition on its own."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    {"partition": wanted.partition, **_end_offset(broker, topic.topic, wanted)}
                    for wanted in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _end_offset(broker: "Broker", topic: str, wanted: Any) -> Mapping[str, object]:
    partition, error = broker.find_partition(topic, wanted.partition)
    if partition is not None:
        error = broker.check_leader_epoch(partition, wanted.current_leader_epoch)
    if partition is None or error:
        return {"error_code": error}
    epoch, end_offset = partition.log.epoch_end_offset(wanted.leader_epoch)
    return {"leader_epoch": epoch, "end_offset": end_offset}
