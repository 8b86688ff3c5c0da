"""DeleteRecords (key 21), versions 0 to 2: moves the start of the log forward.

Offset -1 means the high watermark. An offset beyond it, or below -1, is OFFSET_OUT_OF_RANGE; one below the
start of the log changes nothing. Compacted topics that do not also delete refuse with POLICY_VIOLATION, and
so do delay topics where a record before the offset was not forwarded yet.

The answer waits until every living replica has moved its start as well, up to the request's timeout: the low
watermark that it carries is the earliest offset that any of them still has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.broker.maintenance.log_maintenance import LogMaintenance
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import Replicas
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer, DelayedOperation, Purgatory, Watched
from tidelog.broker.runtime.turn import Turn
from tidelog.model.errors import ErrorCode
from tidelog.model.ports import Clock

TO_HIGH_WATERMARK = -1

Fields = Mapping[str, object]


class DeletionWaiter(DelayedOperation):
    """A DeleteRecords answer that waits for the replicas."""

    __slots__ = ("_metadata", "_rows", "_targets")

    def __init__(
        self, metadata: Metadata, rows: dict[str, dict[int, Fields]], targets: dict[Partition, int]
    ) -> None:
        super().__init__()
        self._metadata = metadata
        self._rows = rows
        self._targets = targets

    def ready(self, progressed: Watched) -> bool:
        return all(
            not partition.leads or self._low_watermark(partition) >= target
            for partition, target in self._targets.items()
        )

    def _low_watermark(self, partition: Partition) -> int:
        return partition.low_watermark(self._metadata.image.alive_brokers.__contains__)

    def complete(self, *, expired: bool) -> Any:
        for partition, target in self._targets.items():
            low_watermark = self._low_watermark(partition)
            if not partition.leads:
                fields = _refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif low_watermark < target:
                fields = _refused(ErrorCode.REQUEST_TIMED_OUT)
            else:
                fields = {"low_watermark": low_watermark}
            self._rows[partition.topic][partition.index] = fields
        return _answer(self._rows)


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each partition on its own, all of them together."""

    metadata: Metadata
    replicas: Replicas
    log_maintenance: LogMaintenance
    clock: Clock
    purgatory: Purgatory
    turn: Turn

    def handle(self, request: Request) -> Fields | DelayedAnswer:
        targets: dict[Partition, int] = {}
        rows: dict[str, dict[int, Fields]] = {}
        for topic in request.body.topics:
            row = rows.setdefault(topic.name, {})
            for wanted in topic.partitions:
                row[wanted.partition_index] = self._delete(
                    topic.name, wanted.partition_index, wanted.offset, targets
                )
        waiter = DeletionWaiter(self.metadata, rows, targets)
        if not targets or all(waiter.ready(partition) for partition in targets):
            answer: Fields = waiter.complete(expired=False)
            return answer
        timeout_ms = int(request.body.timeout.total_seconds() * 1000)
        self.purgatory.park(waiter, targets, self.clock.now_ms() + timeout_ms)
        return waiter

    def _delete(self, topic: str, index: int, offset: int, targets: dict[Partition, int]) -> Fields:
        partition, error = self.replicas.find(topic, index)
        if partition is None:
            return _refused(error)
        if partition.config.compacted and not partition.config.deletes:
            return _refused(ErrorCode.POLICY_VIOLATION)
        target = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
        if not 0 <= target <= partition.high_watermark:
            return _refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if partition.config.tidelog_delay_target and target > partition.kept_from:
            return _refused(ErrorCode.POLICY_VIOLATION)
        try:
            self.log_maintenance.advance_log_start(partition, target)
        except OSError as fault:
            partition.on_fault(fault, partition)
            return _refused(ErrorCode.KAFKA_STORAGE_ERROR)
        targets[partition] = target
        self.turn.note_progress(partition)  # followers hear of it at once
        return {}


def _answer(rows: Mapping[str, Mapping[int, Fields]]) -> Fields:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, **fields} for index, fields in row.items()],
            }
            for name, row in rows.items()
        ]
    }


def _refused(error: ErrorCode) -> Fields:
    return {"error_code": error, "low_watermark": -1}
