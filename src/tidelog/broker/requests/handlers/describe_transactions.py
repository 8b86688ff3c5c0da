"""DescribeTransactions (key 65), version 0: state, producer and open partitions of transactional ids.

Of a transaction whose markers are being written only the partitions without a marker are shown, as in Kafka.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions


EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each id on its own."""

    transactions: "Deferred[Transactions]"

    def handle(self, request: Request) -> Mapping[str, object]:
        # One that is named again is not described again.
        return {"transaction_states": list(map(cache(self._describe), request.body.transactional_ids))}

    def _describe(self, transactional_id: str) -> Mapping[str, object]:
        if not transactional_id:
            return {"transactional_id": transactional_id, "error_code": ErrorCode.INVALID_REQUEST}
        machine = self.transactions.get().coordinator.machine_for(transactional_id)
        if isinstance(machine, ErrorCode):
            return {"transactional_id": transactional_id, "error_code": machine}
        transaction = machine.transactions.get(transactional_id)
        if transaction is None:
            return {"transactional_id": transactional_id, "error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(machine.unmarked(transactional_id)):
            by_topic.setdefault(topic, []).append(index)
        return {
            "transactional_id": transactional_id,
            "error_code": ErrorCode.NONE,
            "transaction_state": str(transaction.state),
            "transaction_timeout": transaction.timeout_ms,
            "transaction_start_time": EPOCH + timedelta(milliseconds=transaction.start_ms),
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()],
        }
