"""OffsetCommit (key 8), versions 2 to 10: store how far a group has read.

Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID from version 10 on, which
names topics by id), the rest is stored together. Versions 2 to 4 carry a retention time of their own.
Version 6 brings leader epochs, 7 static members, 9 GROUP_ID_NOT_FOUND for unknown groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.group_answers import milliseconds, topic_name, with_topic_ids
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.deferred import Deferred
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.groups.commands import NO_RETENTION, CommitOffsets, OffsetToCommit
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordinators.group_coordinator import GroupCoordinator

TOPIC_IDS_SINCE_VERSION = 10


@dataclass(frozen=True, slots=True)
class Handler:
    """Store what can be stored; answer when it is."""

    metadata: Metadata
    groups: "Deferred[GroupCoordinator]"

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body, version = request.body, request.version
        by_id = version >= TOPIC_IDS_SINCE_VERSION
        refused: list[Mapping[str, object]] = []
        offsets: list[OffsetToCommit] = []
        for topic in body.topics:
            name = topic_name(self.metadata.image, topic)
            unknown = []
            for part in topic.partitions:
                if name is None or self.metadata.image.partition(name, part.partition_index) is None:
                    unknown.append(part.partition_index)
                    continue
                leader_epoch = getattr(part, "committed_leader_epoch", -1)
                offsets.append(
                    OffsetToCommit(
                        name,
                        part.partition_index,
                        part.committed_offset,
                        leader_epoch,
                        part.committed_metadata,
                    )
                )
            if unknown:
                error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                parts = [{"partition_index": index, "error_code": error} for index in unknown]
                refused.append(
                    {"name": name, "topic_id": getattr(topic, "topic_id", None), "partitions": parts}
                )
        if not offsets:
            return {"topics": refused}
        retention = getattr(body, "retention_time", None)
        retention_ms = NO_RETENTION if retention is None else milliseconds(retention)
        delayed = DelayedAnswer()

        def command(token: int) -> CommitOffsets:
            return CommitOffsets(
                token=token,
                group_id=body.group_id,
                member_id=body.member_id,
                group_instance_id=getattr(body, "group_instance_id", None),
                generation=body.generation_id_or_member_epoch,
                offsets=tuple(offsets),
                retention_ms=retention_ms,
                api_version=version,
            )

        def answer(response: Mapping[str, object]) -> None:
            stored = with_topic_ids(self.metadata.image, response["topics"], wanted=by_id)
            delayed.answer({"topics": _merged(stored, refused)})

        error = self.groups.get().ask(body.group_id, command, answer)
        if error:
            by_topic: dict[str, list[object]] = {}
            for offset in offsets:
                row = {"partition_index": offset.partition, "error_code": error}
                by_topic.setdefault(offset.topic, []).append(row)
            failed = [{"name": name, "partitions": rows} for name, rows in by_topic.items()]
            return {"topics": _merged(with_topic_ids(self.metadata.image, failed, wanted=by_id), refused)}
        return delayed


def _merged(
    stored: list[Mapping[str, object]], refused: list[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """One entry for a topic of which some partitions exist and some do not."""
    merged: dict[object, list[object]] = {}
    ids: dict[object, object] = {}
    for topic in [*stored, *refused]:
        key = topic["name"] if topic["name"] is not None else topic["topic_id"]
        partitions = topic["partitions"]
        assert isinstance(partitions, list | tuple)
        merged.setdefault(key, []).extend(partitions)
        ids[key] = topic.get("topic_id")
    return [{"name": key, "topic_id": ids[key], "partitions": parts} for key, parts in merged.items()]
