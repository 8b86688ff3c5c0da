"""WriteTxnMarkers (key 27), versions 1 and 2: write the ends of transactions to partitions led here.

The coordinators of other brokers send it, and administrators to end a transaction that hangs. Version 2 says
which transaction version the marker is for: from 2 on its epoch is one above the transaction's, and a late
copy is refused when the next transaction is open (KIP-1228).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinators.marker import Marker
from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.coordinators.transactions import Transactions


@dataclass(frozen=True, slots=True)
class Handler:
    """Answer each marker and partition on its own, when the last of them is replicated or refused."""

    transactions: "Deferred[Transactions]"

    def handle(self, request: Request) -> DelayedAnswer:
        wanted = [
            (_marker(asked), TopicPartition(topic.name, index))
            for asked in request.body.markers
            for topic in asked.topics
            for index in topic.partition_indexes
        ]
        gathered = Gathered(len(wanted), lambda errors: _answer(request.body, errors))
        write = self.transactions.get().marker_writer.write
        for number, (marker, place) in enumerate(wanted):
            write(place, marker, partial(gathered.put, number))
        return gathered.delayed


def _marker(asked: Any) -> Marker:
    return Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.transaction_result,
        asked.coordinator_epoch,
        getattr(asked, "transaction_version", 0),
    )


def _answer(body: Any, errors: list[ErrorCode]) -> Mapping[str, object]:
    """The errors, in the order of the request, under their markers and topics."""
    left = iter(errors)
    return {
        "markers": [
            {
                "producer_id": asked.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": next(left)}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in asked.topics
                ],
            }
            for asked in body.markers
        ]
    }
