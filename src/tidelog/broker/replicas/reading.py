"""Reads one replica for a Fetch request: the one place where leader epoch, divergence and range are checked.

Consumers read to the high watermark, or to the last stable offset (`read_committed`); followers to the end
of the log, and only those that the leader knows. A follower is told where the log starts also when it is
refused.
"""

import logging

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import check_leader_epoch
from tidelog.model.errors import ErrorCode
from tidelog.protocol.fetch import FetchPartition, PartitionFetched
from tidelog.storage.readable_log import LogSlice

logger = logging.getLogger(__name__)

Fetched = PartitionFetched[LogSlice]
_UNKNOWN_OFFSET = -1


def read_for_consumer(
    partition: Partition,
    wanted: FetchPartition,
    remaining_bytes: int,
    read_committed: bool,
    *,
    at_least_one: bool,
) -> Fetched:
    """What a consumer gets: whole batches of what is committed."""
    stable_offset = partition.last_stable_offset
    end_offset = stable_offset if read_committed else partition.high_watermark
    return _read(
        partition, wanted, remaining_bytes, at_least_one, end_offset, stable_offset, read_committed, None
    )


def read_for_follower(
    partition: Partition,
    follower_id: int,
    wanted: FetchPartition,
    remaining_bytes: int,
    *,
    at_least_one: bool,
) -> Fetched:
    """What a follower gets: whole batches of all there is."""
    # Followers know the last stable offset from their own logs.
    end_offset, stable_offset = partition.log.log_end_offset, _UNKNOWN_OFFSET
    return _read(
        partition, wanted, remaining_bytes, at_least_one, end_offset, stable_offset, False, follower_id
    )


def divergence(partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's log parts from this one (KIP-595); None if its log is a beginning of this one."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.log.epoch_end_offset(wanted.last_fetched_epoch)
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


def _read(
    partition: Partition,
    wanted: FetchPartition,
    remaining_bytes: int,
    at_least_one: bool,
    end_offset: int,
    stable_offset: int,
    read_committed: bool,
    follower_id: int | None,
) -> Fetched:
    index, epoch, offset = wanted.partition, wanted.current_leader_epoch, wanted.fetch_offset
    log, high_watermark = partition.log, partition.high_watermark
    start_offset = log.log_start_offset
    if epoch >= 0 and epoch != partition.leader_epoch:
        return PartitionFetched(index, check_leader_epoch(partition, epoch))
    if follower_id is not None and not _is_replica(partition, follower_id):
        # It knows of an assignment that we have not heard of yet, or the other way round.
        return PartitionFetched(index, ErrorCode.UNKNOWN_LEADER_EPOCH)
    diverging = None if wanted.last_fetched_epoch < 0 else divergence(partition, wanted)
    if diverging is not None and diverging[0] >= 0:
        return PartitionFetched(
            index, 0, high_watermark, stable_offset, start_offset, diverging_epoch=diverging
        )
    if diverging is not None or offset < start_offset or offset > log.log_end_offset:
        told = _UNKNOWN_OFFSET if follower_id is None else start_offset
        return PartitionFetched(index, ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=told)
    records: LogSlice | None = None
    max_bytes = min(wanted.max_bytes, remaining_bytes)
    if offset < end_offset and (max_bytes > 0 or at_least_one):
        try:
            records = log.read(offset, max(max_bytes, 0), end_offset, at_least_one=at_least_one)
        except OSError as fault:
            logger.error("%s could not be read at offset %d: %s", partition, offset, fault)
            partition.on_fault(fault, partition)
            return PartitionFetched(index, ErrorCode.KAFKA_STORAGE_ERROR)
        if records is not None and records.size_bytes == 0:
            records = None
    aborted: list[tuple[int, int]] | None = None
    # A batch is there that does not fit: Kafka has no list then, as it has none for read_uncommitted.
    too_large = records is None and offset < end_offset and max_bytes > 0
    if read_committed and not too_large:
        found = () if records is None else log.aborted_transactions(offset, records.next_offset)
        aborted = [(each.producer_id, each.first_offset) for each in found]
    return PartitionFetched(index, 0, high_watermark, stable_offset, start_offset, aborted, -1, records)


def _is_replica(partition: Partition, broker_id: int) -> bool:
    return partition.replicas is not None and broker_id in partition.replicas.followers
