"""TxnOffsetCommit (key 28), versions 0 to 5: store how far a group has read, as part of a transaction.

The offsets are written at once and count when the transaction commits. Version 3 (KIP-447) names the member,
whose generation is then checked as for OffsetCommit. A broker that coordinates the group asks the coordinator
of the transactional id first whether the group's partition of `__consumer_offsets` is in the transaction; for
version 5 (transactions v2) that one adds it. Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION.
Versions 0 and 1 are told COORDINATOR_NOT_AVAILABLE while the coordinator loads (KAFKA-7296).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.broker.coordinators.internal_topic import InternalTopic
from tidelog.broker.coordinators.transaction_verification import Asked, Results
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import CommitOffsets, OffsetToCommit
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.transactions import Transactions

LOADING_SINCE_VERSION = 2
ABORTABLE_SINCE_VERSION = 4
TRANSACTIONS_V2_SINCE_VERSION = 5


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the transaction's coordinator, then the group's."""

    metadata: Metadata
    groups: "Deferred[GroupCoordinator]"
    transactions: "Deferred[Transactions]"
    group_topic: InternalTopic

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version = request.body, request.version
        offsets: list[OffsetToCommit] = []
        refused: dict[tuple[str, int], ErrorCode] = {}
        for topic in body.topics:
            for part in topic.partitions:
                if self.metadata.image.partition(topic.name, part.partition_index) is None:
                    refused[topic.name, part.partition_index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                leader_epoch = getattr(part, "committed_leader_epoch", -1)
                offsets.append(
                    OffsetToCommit(
                        topic.name,
                        part.partition_index,
                        part.committed_offset,
                        leader_epoch,
                        part.committed_metadata,
                    )
                )
        if not offsets:
            return _answer(body, version, refused)
        if fault := self._group_fault(body.group_id):
            refused.update({(each.topic, each.partition): fault for each in offsets})
            return _answer(body, version, refused)
        delayed = DelayedAnswer()
        place = TopicPartition(GROUP_METADATA_TOPIC, self.group_topic.partition_for(body.group_id))

        def verified(results: Results) -> None:
            error = _shown(results[place], version)
            if error:
                refused.update({(offset.topic, offset.partition): error for offset in offsets})
                delayed.answer(_answer(body, version, refused))
            else:
                self._commit(request, tuple(offsets), refused, delayed)

        client_version = 2 if version >= TRANSACTIONS_V2_SINCE_VERSION else 0
        asked = Asked(
            body.transactional_id, body.producer_id, body.producer_epoch, frozenset({place}), client_version
        )
        self.transactions.get().verification.verify_or_add(asked, verified)
        return delayed

    def _group_fault(self, group_id: str) -> ErrorCode:
        """Why nothing of this group is written here, so that nothing may be added to the transaction."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        absent = self.groups.get().machine_for(group_id) is ErrorCode.NOT_COORDINATOR
        return ErrorCode.NOT_COORDINATOR if absent else ErrorCode.NONE

    def _commit(
        self,
        request: Request,
        offsets: tuple[OffsetToCommit, ...],
        refused: dict[tuple[str, int], ErrorCode],
        delayed: DelayedAnswer,
    ) -> None:
        body = request.body

        def command(token: int) -> CommitOffsets:
            return CommitOffsets(
                token=token,
                group_id=body.group_id,
                member_id=getattr(body, "member_id", ""),
                group_instance_id=getattr(body, "group_instance_id", None),
                generation=getattr(body, "generation_id", -1),
                offsets=offsets,
                producer_id=body.producer_id,
                producer_epoch=body.producer_epoch,
            )

        def answer(response: Mapping[str, Any]) -> None:
            for topic in response["topics"]:
                for part in topic["partitions"]:
                    refused[topic["name"], part["partition_index"]] = part["error_code"]
            delayed.answer(_answer(body, request.version, refused))

        error = self.groups.get().ask(body.group_id, command, answer)
        if error:
            refused.update({(offset.topic, offset.partition): error for offset in offsets})
            delayed.answer(_answer(body, request.version, refused))


def _shown(error: ErrorCode, version: int) -> ErrorCode:
    """The verdict on the transaction in words this version knows."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < TRANSACTIONS_V2_SINCE_VERSION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION):
        # The first names the group's coordinator to the client, which it has found already; the second it may
        # not know how to retry.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    return error


def _answer(body: Any, version: int, errors: Mapping[tuple[str, int], ErrorCode]) -> Mapping[str, object]:
    def error_of(topic: str, index: int) -> ErrorCode:
        error = errors[topic, index]
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE_VERSION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        # Producers know generations only, also of groups that count by member epochs (KIP-848).
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error

    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": error_of(topic.name, part.partition_index),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }
