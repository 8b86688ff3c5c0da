"""OffsetDelete (key 47), version 0: forget committed offsets of topics that the group does not read any more.

A topic the group is subscribed to gets GROUP_SUBSCRIBED_TO_TOPIC, a partition that does not exist
UNKNOWN_TOPIC_OR_PARTITION. Members of a type other than "consumer" may read anything: NON_EMPTY_GROUP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import DeleteOffsets
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Handler:
    """Delete what can be deleted; answer when it is."""

    metadata: Metadata
    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        wanted: list[tuple[str, tuple[int, ...]]] = []
        unknown: dict[str, list[Mapping[str, object]]] = {}
        for topic in body.topics:
            indexes = [part.partition_index for part in topic.partitions]
            known = tuple(
                index for index in indexes if self.metadata.image.partition(topic.name, index) is not None
            )
            if known:
                wanted.append((topic.name, known))
            for index in indexes:
                if index not in known:
                    row = {"partition_index": index, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                    unknown.setdefault(topic.name, []).append(row)
        delayed = DelayedAnswer()

        def answer(response: Mapping[str, object]) -> None:
            topics = response["topics"]
            assert isinstance(topics, tuple)
            rows = {topic["name"]: list(topic["partitions"]) for topic in topics}
            if not response["error_code"]:
                for name, parts in unknown.items():
                    rows.setdefault(name, []).extend(parts)
            answered = [{"name": name, "partitions": parts} for name, parts in rows.items()]
            delayed.answer({**response, "topics": answered})

        error = self.groups.get().ask(
            body.group_id, lambda token: DeleteOffsets(token, body.group_id, tuple(wanted)), answer
        )
        return {"error_code": error, "topics": ()} if error else delayed
