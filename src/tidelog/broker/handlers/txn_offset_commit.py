"""TxnOffsetCommit (key 28), versions 0 to 5: store how far a group has read, as part of a transaction.

The offsets are written at once and count when the transaction commits. Version 3 (KIP-447) names the member,
whose generation is then checked as for OffsetCommit. The coordinator of the transactional id is asked first
whether the group's partition of `__consumer_offsets` is in the transaction; for version 5 (transactions v2)
it adds it. Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION. Versions 0 and 1 are told
COORDINATOR_NOT_AVAILABLE while the coordinator loads (KAFKA-7296).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.broker.parking import Parked
from tidelog.broker.transaction_verification import Asked, Results
from tidelog.groups.commands import CommitOffsets, OffsetToCommit
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

LOADING_SINCE_VERSION = 2
ABORTABLE_SINCE_VERSION = 4
TRANSACTIONS_V2_SINCE_VERSION = 5


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Ask the transaction's coordinator, then the group's."""
    body, version = request.body, request.version
    offsets: list[OffsetToCommit] = []
    refused: dict[tuple[str, int], ErrorCode] = {}
    for topic in body.topics:
        for part in topic.partitions:
            if broker.image.partition(topic.name, part.partition_index) is None:
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
    parked = Parked()
    place = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_for(body.group_id))

    def verified(results: Results) -> None:
        error = _shown(results[place], version)
        if error:
            refused.update({(offset.topic, offset.partition): error for offset in offsets})
            parked.answer(_answer(body, version, refused))
        else:
            _commit(broker, request, tuple(offsets), refused, parked)

    client_version = 2 if version >= TRANSACTIONS_V2_SINCE_VERSION else 0
    asked = Asked(
        body.transactional_id, body.producer_id, body.producer_epoch, frozenset({place}), client_version
    )
    broker.transactions.verification.verify_or_add(asked, verified)
    return parked


def _commit(
    broker: "Broker",
    request: "Request",
    offsets: tuple[OffsetToCommit, ...],
    refused: dict[tuple[str, int], ErrorCode],
    parked: Parked,
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
        parked.answer(_answer(body, request.version, refused))

    error = broker.groups.ask(body.group_id, command, answer)
    if error:
        refused.update({(offset.topic, offset.partition): error for offset in offsets})
        parked.answer(_answer(body, request.version, refused))


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
