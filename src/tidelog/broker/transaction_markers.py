"""The ends of transactions in partitions: one marker, one partition, one error code.

The coordinator of this node writes through here, and so does WriteTxnMarkers, which carries the same order
from the coordinator of another node or from an administrator. A marker for a partition of
`__consumer_offsets` goes through the group coordinator, so that the offsets of the transaction count from
there on.
"""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class Marker(NamedTuple):
    """How a transaction of a producer ended, and which coordinator says so."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


def write_marker(broker: "Broker", place: TopicPartition, marker: Marker) -> ErrorCode:
    """Append a marker to a partition led here; readers that waited for the end of the transaction wake."""
    partition = broker.partition(*place)
    if partition is None:
        known = broker.image.partition(*place) is not None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if place.topic == GROUP_METADATA_TOPIC:
        error = broker.groups.end_transaction(
            place.partition,
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
    else:
        refused = partition.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            now_ms=broker.clock.now_ms(),
        )
        error = ErrorCode.NONE if refused is None else refused.code
    if error:
        return error
    if partition.flushes and partition.unflushed_messages >= partition.config.flush_messages:
        # Started, not waited for: the answer of EndTxn does not promise that markers are on the disk.
        broker.flusher.request(partition)
    if partition.waiters and not partition.progressing:
        broker.note_progress(partition)
    return error
