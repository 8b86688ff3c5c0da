"""ListOffsets (key 2), versions 1 to 11.

Behaviour
- A timestamp of 0 or more: the first record at or after it, with its timestamp; offset -1 when there is none.
- Special timestamps: -1 the end (high watermark, or last stable offset for read_committed), -2 the start,
  -3 the record with the largest timestamp (v7, KIP-734), -4 the earliest local offset (v8), which is the
  start because nothing is tiered, -5 the last tiered offset (v9) and -6 the earliest pending upload (v11):
  none.
- A negative timestamp that the version does not know is UNSUPPORTED_VERSION, a partition that is named twice
  INVALID_REQUEST, whether they exist or not.
- Leader epochs are checked from v4 on (KIP-320).
- A new leader that does not know yet how far the one before it had committed has no end to tell:
  OFFSET_NOT_AVAILABLE, before v5 LEADER_NOT_AVAILABLE (KIP-207).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.request import Request
from tidelog.model.errors import ErrorCode
from tidelog.protocol.fetch import READ_COMMITTED

logger = logging.getLogger(__name__)

FIRST_OFFSET_NOT_AVAILABLE = 5
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
#: the first version that knows each special timestamp
_SPECIAL_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_UNKNOWN_EVERYWHERE = 1 << 15


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each partition on its own."""

    replicas: Replicas

    def handle(self, request: Request) -> Mapping[str, object]:
        read_committed = getattr(request.body, "isolation_level", 0) == READ_COMMITTED
        topics = []
        for topic in request.body.topics:
            rows: dict[int, Mapping[str, object]] = {}
            for wanted in topic.partitions:
                if wanted.partition_index in rows:
                    rows[wanted.partition_index] = {"error_code": ErrorCode.INVALID_REQUEST}
                else:
                    found = self._offset(topic.name, wanted, read_committed, request.version)
                    rows[wanted.partition_index] = found
            topics.append(
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": number, **row} for number, row in rows.items()],
                }
            )
        return {"topics": topics}

    def _offset(self, topic: str, wanted: Any, read_committed: bool, version: int) -> Mapping[str, object]:
        if wanted.timestamp < 0 and version < _SPECIAL_FROM.get(wanted.timestamp, _UNKNOWN_EVERYWHERE):
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
        leader_epoch = getattr(wanted, "current_leader_epoch", -1)
        partition, error = self.replicas.find_in_epoch(topic, wanted.partition_index, leader_epoch)
        if partition is None:
            return {"error_code": error}
        try:
            found = _look_up(partition, wanted.timestamp, read_committed)
        except OSError as fault:
            logger.error("%s could not be searched: %s", partition, fault)
            partition.on_fault(fault, partition)
            return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
        if found is None:
            known = version >= FIRST_OFFSET_NOT_AVAILABLE
            return {"error_code": ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE}
        return found


def _look_up(partition: Partition, timestamp: int, read_committed: bool) -> Mapping[str, object] | None:
    """The offset; None while the end of what is committed is not known."""
    log = partition.log
    if timestamp == LATEST:
        if not partition.knows_its_watermark:
            return None
        return {"offset": partition.readable_end(read_committed), "leader_epoch": partition.leader_epoch}
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return {"offset": start, "leader_epoch": log.leader_epochs.epoch_at(start)}
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return {"offset": -1}
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_by_timestamp(timestamp)
    if found is None:
        return {"offset": -1}
    if found.offset >= partition.readable_end(read_committed):
        return {"offset": -1} if partition.knows_its_watermark else None
    return {
        "offset": found.offset,
        "timestamp": found.timestamp_ms,
        "leader_epoch": log.leader_epochs.epoch_at(found.offset),
    }
