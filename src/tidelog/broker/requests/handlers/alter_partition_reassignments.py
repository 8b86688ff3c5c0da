"""AlterPartitionReassignments (key 45), versions 0 and 1: move partitions to other replicas, or take a move
back (KIP-455).

Null replicas take back what is under way: NO_REASSIGNMENT_IN_PROGRESS where nothing is. From version 1 on a
client may forbid a change of the replication factor. The answer comes when the moves are begun, not when they
are done: ListPartitionReassignments shows those under way.
"""

from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AlterReassignments, Reassignment, Result
from tidelog.model.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller begin the moves and answer for every partition in order."""

    metadata: Metadata

    def handle(self, request: Request) -> DelayedAnswer:
        body = request.body
        items = tuple(
            Reassignment(
                topic.name, one.partition_index, None if one.replicas is None else tuple(one.replicas)
            )
            for topic in body.topics
            for one in topic.partitions
        )
        factor_may_change = getattr(body, "allow_replication_factor_change", True)
        delayed = DelayedAnswer()

        def altered(results: tuple[Result, ...]) -> None:
            rows = iter(results)
            responses = [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": one.partition_index, **error_fields(next(rows))}
                        for one in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
            delayed.answer(
                {
                    "allow_replication_factor_change": factor_may_change,
                    "error_code": ErrorCode.NONE,
                    "error_message": None,
                    "responses": responses,
                }
            )

        self.metadata.submit(AlterReassignments(items, factor_may_change), altered)
        return delayed
