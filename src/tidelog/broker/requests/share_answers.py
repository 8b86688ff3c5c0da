"""What the answers to ShareFetch and ShareAcknowledge have in common: rows by topic, who leads instead."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tidelog.broker.requests.current_leaders import KnownLeaders
from tidelog.model.errors import ErrorCode, Refused

#: answers that say who leads instead
_LED_ELSEWHERE = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}

Fields = Mapping[str, Any]
Place = tuple[UUID, int]


def refused_whole(refused: Refused) -> Fields:
    """A request that is refused as a whole."""
    return {
        "error_code": refused.code,
        "error_message": refused.message,
        "acquisition_lock_timeout": 0,
        "responses": (),
        "node_endpoints": (),
    }


def error_fields(refused: Refused | None) -> Fields:
    """How a partition's part went."""
    if refused is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": refused.code, "error_message": refused.message or refused.code.name}


def answer(rows: Mapping[Place, Fields], leaders: KnownLeaders, lock_duration_ms: int) -> Fields:
    """The rows by topics; where a partition is led elsewhere, its row says where."""
    topics: dict[UUID, list[Fields]] = {}
    for (topic_id, index), row in rows.items():
        found = {"partition_index": index, **row}
        if {row["error_code"], row.get("acknowledge_error_code")} & _LED_ELSEWHERE:
            found["current_leader"] = leaders.of(topic_id, index)._asdict()
        topics.setdefault(topic_id, []).append(found)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "acquisition_lock_timeout": lock_duration_ms,
        "responses": [{"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()],
        "node_endpoints": [endpoint._asdict() for endpoint in leaders.endpoints()],
    }
