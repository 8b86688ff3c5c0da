"""DescribeShareGroupOffsets (key 90), versions 0 and 1: where share groups start in partitions (KIP-932).

Without topics all partitions of which the group has state are described, none of a group that is not there;
of others the start offset is -1.
Version 1 tells how many records are still to be dealt with (KIP-1226), -1 where that is not known: the end of
the partition is asked of its leader, here or on another broker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.group_answers import Gathered
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.errors import ErrorCode, Refused
from tidelog.shares.coordinator_commands import ReadSummary
from tidelog.shares.redelivery import lag
from tidelog.shares.schemas import UNINITIALIZED_OFFSET, ShareKey

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator
    from tidelog.broker.coordinators.share_state_requests import StateAnswer
    from tidelog.broker.coordinators.sharing import Sharing

#: a partition of a topic by its name and id
Place = tuple[str, UUID, int]
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask the share coordinators of each group's partitions, then the leaders."""

    metadata: Metadata
    groups: "Deferred[GroupCoordinator]"
    shares: "Deferred[Sharing]"

    def handle(self, request: Request) -> DelayedAnswer:
        groups = request.body.groups
        gathered = Gathered(len(groups), lambda rows: {"groups": rows})
        for number, group in enumerate(groups):
            put = partial(gathered.put, number)
            if not group.group_id:
                put(_refused(group.group_id, Refused(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")))
            elif group.topics is None:
                self._describe_all(group.group_id, put)
            else:
                self._describe_named(group.group_id, group.topics, put)
        return gathered.delayed

    def _describe_all(self, group_id: str, put: Callable[[Fields], None]) -> None:
        machine = self.groups.get().machine_for(group_id)
        if isinstance(machine, ErrorCode):
            put(_refused(group_id, Refused(machine, machine.name)))
            return
        names = self.metadata.image.topic_names_by_id
        places = [
            (names[topic_id], topic_id, index)
            for topic_id, index in sorted(machine.share_partitions(group_id))
            if topic_id in names
        ]
        self._describe(group_id, places, [], put)

    def _describe_named(self, group_id: str, topics: Any, put: Callable[[Fields], None]) -> None:
        places: list[Place] = []
        unknown: list[Fields] = []
        for asked in topics:
            topic = self.metadata.image.topics.get(asked.topic_name)
            if topic is None:
                unknown.append(_unknown_topic(asked))
            else:
                places += ((topic.name, topic.topic_id, index) for index in asked.partitions)
        self._describe(group_id, list(dict.fromkeys(places)), unknown, put)

    def _describe(
        self, group_id: str, places: list[Place], others: list[Fields], put: Callable[[Fields], None]
    ) -> None:
        answers: dict[Place, StateAnswer] = {}

        def answered(place: Place, answer: "StateAnswer") -> None:
            answers[place] = answer
            if len(answers) == len(places):
                known = [place for place in places if _start_of(answers[place]) != UNINITIALIZED_OFFSET]
                self.shares.get().log_ends.ask({(name, index) for name, _, index in known}, finish)

        def finish(ends: Mapping[tuple[str, int], int]) -> None:
            topics: dict[tuple[str, UUID], list[Fields]] = {}
            for place in places:
                name, topic_id, index = place
                row = _row(index, answers[place], ends.get((name, index), -1))
                topics.setdefault((name, topic_id), []).append(row)
            rows = [
                {"topic_name": name, "topic_id": topic_id, "partitions": found}
                for (name, topic_id), found in topics.items()
            ]
            put(
                {
                    "group_id": group_id,
                    "topics": [*rows, *others],
                    "error_code": ErrorCode.NONE,
                    "error_message": None,
                }
            )

        if not places:
            finish({})
            return
        persister = self.shares.get().persister
        for place in places:
            _, topic_id, index = place
            persister.ask(ReadSummary(-1, ShareKey(group_id, topic_id, index)), partial(answered, place))


def _start_of(answer: "StateAnswer") -> int:
    return answer.start_offset if answer.error is ErrorCode.NONE else UNINITIALIZED_OFFSET


def _row(index: int, answer: "StateAnswer", end_offset: int) -> Fields:
    known = answer.error is ErrorCode.NONE and end_offset >= 0
    return {
        "partition_index": index,
        "start_offset": _start_of(answer),
        "leader_epoch": answer.leader_epoch,
        "lag": lag(end_offset, answer.start_offset, answer.delivery_complete_count) if known else -1,
        "error_code": answer.error,
        "error_message": None if answer.error is ErrorCode.NONE else answer.message or answer.error.name,
    }


def _unknown_topic(asked: Any) -> Fields:
    """A topic that is not there has no start, as one of which nothing is stored."""
    rows = [
        {
            "partition_index": index,
            "start_offset": UNINITIALIZED_OFFSET,
            "leader_epoch": 0,
            "lag": -1,
            "error_code": ErrorCode.NONE,
            "error_message": None,
        }
        for index in asked.partitions
    ]
    return {"topic_name": asked.topic_name, "topic_id": None, "partitions": rows}


def _refused(group_id: str, refused: Refused) -> Fields:
    return {
        "group_id": group_id,
        "topics": (),
        "error_code": refused.code,
        "error_message": refused.message,
    }
