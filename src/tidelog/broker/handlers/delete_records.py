"""DeleteRecords (key 21), versions 0 to 2: moves the start of the log forward.

Offset -1 means the high watermark. An offset beyond it, or below -1, is OFFSET_OUT_OF_RANGE; one below the
start of the log changes nothing. Compacted topics that do not also delete refuse with POLICY_VIOLATION.

The answer waits until every living replica has moved its start as well, up to the request's timeout: the low
watermark that it carries is the earliest offset that any of them still has.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.parking import Parked, Waiter, Watched
from tidelog.broker.partition import Partition
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

TO_HIGH_WATERMARK = -1

Fields = Mapping[str, object]


class DeletionWaiter(Waiter):
    """A DeleteRecords answer that waits for the replicas."""

    __slots__ = ("_broker", "_rows", "_targets")

    def __init__(
        self, broker: "Broker", rows: dict[str, dict[int, Fields]], targets: dict[Partition, int]
    ) -> None:
        super().__init__()
        self._broker = broker
        self._rows = rows
        self._targets = targets

    def ready(self, progressed: Watched) -> bool:
        return all(
            not partition.leads or self._low_watermark(partition) >= target
            for partition, target in self._targets.items()
        )

    def _low_watermark(self, partition: Partition) -> int:
        return partition.low_watermark(self._broker.image.alive_brokers.__contains__)

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


def handle(broker: "Broker", request: "Request") -> Fields | Parked:
    """Answer each partition on its own, all of them together."""
    targets: dict[Partition, int] = {}
    rows: dict[str, dict[int, Fields]] = {}
    for topic in request.body.topics:
        row = rows.setdefault(topic.name, {})
        for wanted in topic.partitions:
            row[wanted.partition_index] = _delete(
                broker, topic.name, wanted.partition_index, wanted.offset, targets
            )
    waiter = DeletionWaiter(broker, rows, targets)
    if not targets or all(waiter.ready(partition) for partition in targets):
        answer: Fields = waiter.complete(expired=False)
        return answer
    timeout_ms = int(request.body.timeout.total_seconds() * 1000)
    broker.parking.park(waiter, targets, broker.clock.now_ms() + timeout_ms)
    return waiter


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


def _delete(broker: "Broker", topic: str, index: int, offset: int, targets: dict[Partition, int]) -> Fields:
    partition, error = broker.find_partition(topic, index)
    if partition is None:
        return _refused(error)
    if not partition.config.deletes:
        return _refused(ErrorCode.POLICY_VIOLATION)
    target = partition.high_watermark if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= target <= partition.high_watermark:
        return _refused(ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        broker.advance_log_start(partition, target)
    except OSError as fault:
        partition.on_fault(fault, partition)
        return _refused(ErrorCode.KAFKA_STORAGE_ERROR)
    targets[partition] = target
    if partition.waiters and not partition.progressing:
        broker.note_progress(partition)  # followers hear of it at once
    return {}
