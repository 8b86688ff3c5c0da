"""What a member of a share group asks brokers (KIP-932): the fields of its requests, without input or output.

Acknowledgements are ranges of offsets with one type each. Version 2 of ShareFetch and ShareAcknowledge has
locks that can be renewed (KIP-1222) and exact limits (KIP-1206); both are in Apache Kafka since 4.2.
"""

import base64
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ACCEPT, RELEASE, RENEW = 1, 2, 4
SHARE_VERSION = 2
HEARTBEAT_VERSION = 1
JOINING_EPOCH, LEAVING_EPOCH = 0, -1
SESSION_OPENS, SESSION_CLOSES, _SESSION_EPOCH_MAX = 0, -1, 2**31 - 1
_RECORD_LIMIT = 1

Place = tuple[uuid.UUID, int]
"""A partition by topic id and index."""
Span = tuple[int, int]
"""Offsets from the first to the last."""


class FetchSize(NamedTuple):
    """How much one ShareFetch may bring, and how long it may wait for something."""

    records_max: int
    bytes_max: int
    wait_ms: int


def new_member_id() -> str:
    """A member makes its id up, in the form of Kafka's."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def next_session_epoch(epoch: int) -> int:
    """The epoch of the request after one with `epoch`."""
    return 1 if epoch == _SESSION_EPOCH_MAX else epoch + 1


def heartbeat_fields(group_id: str, member_id: str, epoch: int, topics: Iterable[str]) -> dict[str, Any]:
    """A ShareGroupHeartbeat; who joins says what it reads."""
    return {
        "group_id": group_id,
        "member_id": member_id,
        "member_epoch": epoch,
        "rack_id": None,
        "subscribed_topic_names": sorted(topics) if epoch == JOINING_EPOCH else None,
    }


def fetch_fields(
    group_id: str,
    member_id: str,
    session_epoch: int,
    size: FetchSize,
    added: Iterable[Place],
    forgotten: Iterable[Place],
) -> dict[str, Any]:
    """A ShareFetch that says nothing of records."""
    gone: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(forgotten):
        gone.setdefault(topic_id, []).append(index)
    return {
        "group_id": group_id,
        "member_id": member_id,
        "share_session_epoch": session_epoch,
        "max_wait": size.wait_ms,
        "min_bytes": 1,
        "max_bytes": size.bytes_max,
        "max_records": size.records_max,
        "batch_size": size.records_max,
        "share_acquire_mode": _RECORD_LIMIT,
        "topics": _topics(dict.fromkeys(added, ()), 0),
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in gone.items()
        ],
    }


def acknowledge_fields(
    group_id: str,
    member_id: str,
    session_epoch: int,
    kind: int,
    spans: Mapping[Place, Iterable[Span]],
) -> dict[str, Any]:
    """A ShareAcknowledge that says the same of all these records."""
    return {
        "group_id": group_id,
        "member_id": member_id,
        "share_session_epoch": session_epoch,
        "is_renew_ack": kind == RENEW,
        "topics": _topics(spans, kind),
    }


def _topics(spans: Mapping[Place, Iterable[Span]], kind: int) -> list[dict[str, Any]]:
    topics: dict[uuid.UUID, list[dict[str, Any]]] = {}
    for (topic_id, index), those in sorted(spans.items()):
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]} for first, last in those
        ]
        row = {"partition_index": index, "acknowledgement_batches": batches}
        topics.setdefault(topic_id, []).append(row)
    return [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()]
