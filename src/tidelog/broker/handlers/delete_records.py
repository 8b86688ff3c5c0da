"""DeleteRecords (key 21), versions 0 to 2: moves the start of the log forward.

Offset -1 means the high watermark. An offset beyond it, or below -1, is OFFSET_OUT_OF_RANGE; one below the
start of the log changes nothing. Compacted topics that do not also delete refuse with POLICY_VIOLATION.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

TO_HIGH_WATERMARK = -1


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer each partition on its own."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": wanted.partition_index,
                        **_delete(broker, topic.name, wanted.partition_index, wanted.offset),
                    }
                    for wanted in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _delete(broker: "Broker", topic: str, index: int, offset: int) -> Mapping[str, object]:
    partition, error = broker.find_partition(topic, index)
    if partition is None:
        return {"error_code": error, "low_watermark": -1}
    if not partition.config.deletes:
        return {"error_code": ErrorCode.POLICY_VIOLATION, "low_watermark": -1}
    target = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= target <= partition.high_watermark:
        return {"error_code": ErrorCode.OFFSET_OUT_OF_RANGE, "low_watermark": -1}
    try:
        broker.advance_log_start(partition, target)
    except OSError:
        return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "low_watermark": -1}
    return {"low_watermark": partition.log.log_start_offset}
