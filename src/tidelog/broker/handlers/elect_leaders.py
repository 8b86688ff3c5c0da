"""ElectLeaders (key 43), versions 0 to 2: give leadership to the preferred replica, or to any that lives.

Version 0 knows preferred leaders alone. Election type 1 elects a replica that was not in sync where no other
lives (KIP-460): acknowledged records may be lost. A partition that needs no election is answered with
ELECTION_NOT_NEEDED; when null partitions ask for all, such partitions are left out.
"""

from typing import TYPE_CHECKING

from tidelog.broker.config_answers import error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import ElectionType, ElectLeaders, LeadersElected, Result
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request

ELECTION_TYPES = frozenset(ElectionType)


def handle(broker: "Broker", request: "Request") -> "Mapping[str, object] | Parked":
    """Have the controller elect and answer for every partition."""
    body = request.body
    election_type = getattr(body, "election_type", ElectionType.PREFERRED)
    partitions = None
    if body.topic_partitions is not None:
        partitions = tuple(
            dict.fromkeys(
                TopicPartition(topic.topic, index)
                for topic in body.topic_partitions
                for index in topic.partitions
            )
        )
    if election_type not in ELECTION_TYPES:
        refused = Refused(ErrorCode.INVALID_REQUEST, f"there is no election type {election_type}")
        return _answer(refused, partitions)
    parked = Parked()

    def elected(results: tuple[Result, ...]) -> None:
        parked.answer(_answer(results[0], partitions))

    broker.metadata.submit(ElectLeaders(ElectionType(election_type), partitions), elected)
    return parked


def _answer(result: Result, asked: tuple[TopicPartition, ...] | None) -> "Mapping[str, object]":
    """The outcomes by topic; a refusal of the whole is also told of each partition, for version 0."""
    outcomes: tuple[tuple[TopicPartition, Refused | None], ...]
    top_level = ErrorCode.NONE
    if isinstance(result, LeadersElected):
        outcomes = result.outcomes
    else:
        assert isinstance(result, Refused)
        top_level = result.code
        outcomes = tuple((place, result) for place in asked or ())
    by_topic: dict[str, list[dict[str, object]]] = {}
    for (topic, index), refused in outcomes:
        by_topic.setdefault(topic, []).append({"partition_id": index, **error_fields(refused)})
    return {
        "error_code": top_level,
        "replica_election_results": [
            {"topic": topic, "partition_result": rows} for topic, rows in by_topic.items()
        ],
    }
