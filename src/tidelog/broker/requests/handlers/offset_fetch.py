"""OffsetFetch (key 9), versions 1 to 10: what a group has committed.

A partition or a whole group without a commit has offset -1 and no error. Version 2 brings "all partitions"
(null topics) and the error of the whole answer, 7 require-stable (KIP-447: partitions with an open
transaction's offsets get UNSTABLE_OFFSET_COMMIT), 8 several groups at once (KIP-709), 9 the member and its
epoch (KIP-848: STALE_MEMBER_EPOCH; ignored for classic groups), 10 topic ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.group_answers import Gathered, topic_name, with_topic_ids
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import NO_GENERATION, FetchOffsets
from tidelog.groups.offset_requests import fetch_answer
from tidelog.groups.responses import no_offset
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

GROUP_ERROR_SINCE_VERSION = 2
BATCHED_SINCE_VERSION = 8
TOPIC_IDS_SINCE_VERSION = 10


@dataclass(frozen=True, slots=True)
class Handler:
    """Ask each group's coordinator and put the answers together."""

    metadata: Metadata
    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version = request.body, request.version
        require_stable = getattr(body, "require_stable", False)
        groups = body.groups if version >= BATCHED_SINCE_VERSION else (body,)

        def finish(parts: list[Any]) -> Mapping[str, object]:
            if version >= BATCHED_SINCE_VERSION:
                return {"groups": parts}
            return _single(parts[0], body, version)

        gathered = Gathered(len(groups), finish)
        asked: dict[Any, list[int]] = {}  # what is asked for again gets the same answer
        for index, group in enumerate(groups):
            asked.setdefault(group, []).append(index)
        for group, indexes in asked.items():
            self._ask(group, require_stable, version, partial(_put_all, gathered, indexes))
        return gathered.delayed

    def _ask(self, group: Any, require_stable: bool, version: int, put: Any) -> None:
        by_id = version >= TOPIC_IDS_SINCE_VERSION
        topics: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        unknown: list[Mapping[str, object]] = []
        if group.topics is not None:
            named = [(topic, topic_name(self.metadata.image, topic)) for topic in group.topics]
            topics = tuple(
                (name, tuple(topic.partition_indexes)) for topic, name in named if name is not None
            )
            unknown = [
                {
                    "topic_id": topic.topic_id,
                    "partitions": [no_offset(i, ErrorCode.UNKNOWN_TOPIC_ID) for i in topic.partition_indexes],
                }
                for topic, name in named
                if name is None
            ]

        def answer(response: Mapping[str, object]) -> None:
            found = with_topic_ids(self.metadata.image, response["topics"], wanted=by_id)
            if by_id:
                # Offsets of a topic that is gone cannot be named by id any more.
                found = [topic for topic in found if topic["topic_id"] is not None]
            put({**response, "topics": [*found, *unknown]})

        error = self.groups.get().ask(
            group.group_id,
            lambda token: FetchOffsets(
                token,
                group.group_id,
                topics,
                require_stable,
                getattr(group, "member_id", None),
                getattr(group, "member_epoch", NO_GENERATION),
            ),
            answer,
        )
        if error:
            put(fetch_answer(group.group_id, error, ()))


def _put_all(gathered: Gathered, indexes: Sequence[int], answer: Mapping[str, object]) -> None:
    for index in indexes:
        gathered.put(index, answer)


def _single(answer: Mapping[str, object], body: Any, version: int) -> Mapping[str, object]:
    error = answer["error_code"]
    if not error or version >= GROUP_ERROR_SINCE_VERSION:
        return {"error_code": error, "topics": answer["topics"]}
    assert isinstance(error, ErrorCode)
    return {
        "topics": [
            {"name": topic.name, "partitions": [no_offset(i, error) for i in topic.partition_indexes]}
            for topic in body.topics
        ]
    }
