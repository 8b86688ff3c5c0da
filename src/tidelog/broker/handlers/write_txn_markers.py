"""WriteTxnMarkers (key 27), versions 1 and 2: write the ends of transactions to partitions led here.

The coordinators of other brokers send it, and administrators to end a transaction that hangs. Version 2 says
which transaction version the marker is for: from 2 on its epoch is one above the transaction's, and a late
copy is refused when the next transaction is open (KIP-1228).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.transaction_markers import Marker, write_marker
from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object]:
    """Answer each marker and partition on its own."""
    return {"markers": [_write(broker, asked) for asked in request.body.markers]}


def _write(broker: "Broker", asked: Any) -> Mapping[str, object]:
    marker = Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.transaction_result,
        asked.coordinator_epoch,
        getattr(asked, "transaction_version", 0),
    )
    topics = []
    for topic in asked.topics:
        rows = [
            {
                "partition_index": index,
                "error_code": write_marker(broker, TopicPartition(topic.name, index), marker),
            }
            for index in topic.partition_indexes
        ]
        topics.append({"name": topic.name, "partitions": rows})
    return {"producer_id": asked.producer_id, "topics": topics}
