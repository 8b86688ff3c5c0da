"""OffsetDelete (key 47), version 0: forget committed offsets of topics that the group does not read any more.

A topic the group is subscribed to gets GROUP_SUBSCRIBED_TO_TOPIC, a partition that does not exist
UNKNOWN_TOPIC_OR_PARTITION. Members of a type other than "consumer" may read anything: NON_EMPTY_GROUP.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.parking import Parked
from tidelog.groups.commands import DeleteOffsets
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Delete what can be deleted; answer when it is."""
    body = request.body
    wanted: list[tuple[str, tuple[int, ...]]] = []
    unknown: dict[str, list[Mapping[str, object]]] = {}
    for topic in body.topics:
        indexes = [part.partition_index for part in topic.partitions]
        known = tuple(index for index in indexes if broker.image.partition(topic.name, index) is not None)
        if known:
            wanted.append((topic.name, known))
        for index in indexes:
            if index not in known:
                row = {"partition_index": index, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                unknown.setdefault(topic.name, []).append(row)
    parked = Parked()

    def answer(response: Mapping[str, object]) -> None:
        topics = response["topics"]
        assert isinstance(topics, tuple)
        rows = {topic["name"]: list(topic["partitions"]) for topic in topics}
        if not response["error_code"]:
            for name, parts in unknown.items():
                rows.setdefault(name, []).extend(parts)
        answered = [{"name": name, "partitions": parts} for name, parts in rows.items()]
        parked.answer({**response, "topics": answered})

    error = broker.groups.ask(
        body.group_id, lambda token: DeleteOffsets(token, body.group_id, tuple(wanted)), answer
    )
    return {"error_code": error, "topics": ()} if error else parked
