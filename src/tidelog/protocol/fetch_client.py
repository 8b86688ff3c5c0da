"""Fetch from the side of those who ask: consumers (by topic names, to version 12) and followers (by ids, 17).

The layouts are drawn in `protocol.fetch`, which has the broker's side and the values that both share. Nothing
is copied of an answer: its records are memoryviews of the buffer that it came in.
"""

import struct
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from tidelog.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FIRST_FLEXIBLE,
    FIRST_SESSION,
    FIRST_TOPIC_ID,
    LAYOUTS,
    TAG_CURRENT_LEADER,
    TAG_DIVERGING_EPOCH,
    TAG_REPLICA_STATE,
    FetchPartition,
    FetchRequest,
)
from tidelog.protocol.primitives import (
    INT16,
    INT32,
    NO_TAGS,
    MalformedRequest,
    checked_slice,
    compact_string,
    malformed_if_fails,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tags,
    read_unsigned_varint,
    read_uuid,
    skip_tags,
    string,
    unsigned_varint,
)

#: what consumers speak: version 4 came with transactions (Kafka 0.11), 12 is the last one with names (2.7)
CONSUMER_VERSION_MIN = 4
CONSUMER_VERSION_MAX = 12
FOLLOWER_VERSION = 17

_NO_SESSION_ID, _NO_SESSION_EPOCH = 0, -1
_FIRST_LOG_START, _FIRST_LEADER_EPOCH, _FIRST_RACK, _LAST_REPLICA_ID = 5, 9, 11, 14
_REPLICA_STATE = _EPOCH_AND_OFFSET = struct.Struct(">iq")
_LEADER_AND_EPOCH = struct.Struct(">ii")
#: max wait, min bytes, max bytes, isolation; session id, session epoch
_TOP, _SESSION = struct.Struct(">iiib"), struct.Struct(">ii")
#: index, error, high watermark, last stable offset, log start offset
_ANSWERED_V4, _ANSWERED_V5 = struct.Struct(">ihqq"), struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_NO_RECORDS = memoryview(b"")

T = TypeVar("T")


class AnsweredPartition(NamedTuple, Generic[T]):
    """What a broker answered about one partition, of a topic by name or by id."""

    topic: T
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    #: (producer id, first offset) of aborted transactions; None for read_uncommitted
    aborted: list[tuple[int, int]] | None
    #: -1, or the replica that is closer to the reader
    preferred_read_replica: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class FetchAnswer(NamedTuple, Generic[T]):
    """A decoded Fetch response."""

    error: int
    session_id: int
    throttle_time_ms: int
    partitions: list[AnsweredPartition[T]]


def consumer_request(
    topic: str,
    partition: int,
    offset: int,
    partition_max_bytes: int,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    rack_id: str = "",
) -> FetchRequest:
    """What a consumer of one partition asks that has no session."""
    wanted = FetchPartition(partition, -1, offset, -1, -1, partition_max_bytes)
    return FetchRequest(
        CONSUMER_REPLICA_ID,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        _NO_SESSION_ID,
        _NO_SESSION_EPOCH,
        [(topic, [wanted])],
        [],
        rack_id,
    )


def encode_request(version: int, request: FetchRequest) -> bytes:
    """Encode the body of a Fetch request."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [_TOP.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation)]
    if version <= _LAST_REPLICA_ID:
        parts.insert(0, INT32.pack(request.replica_id))
    if version >= FIRST_SESSION:
        parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    layout = LAYOUTS[version]
    parts.append(_count(len(request.topics), flexible))
    for topic, partitions in request.topics:
        parts += _topic_key(topic, flexible), _count(len(partitions), flexible)
        if flexible:
            for wanted in partitions:
                parts += layout.pack(*wanted), NO_TAGS
            parts.append(NO_TAGS)
        else:
            parts += [layout.pack(*_fields(wanted, version)) for wanted in partitions]
    if version >= FIRST_SESSION:
        parts.append(_count(len(request.forgotten), flexible))
        for topic, indexes in request.forgotten:
            parts += _topic_key(topic, flexible), _count(len(indexes), flexible)
            parts += struct.pack(f">{len(indexes)}i", *indexes), NO_TAGS if flexible else b""
    if version >= _FIRST_RACK:
        parts.append(compact_string(request.rack_id) if flexible else string(request.rack_id))
    if version > _LAST_REPLICA_ID and request.replica_id != CONSUMER_REPLICA_ID:
        state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch) + NO_TAGS
        # One tagged field.
        parts += b"\x01", unsigned_varint(TAG_REPLICA_STATE), unsigned_varint(len(state)), state
    elif flexible:
        parts.append(NO_TAGS)
    return b"".join(parts)


def _count(count: int, flexible: bool) -> bytes:
    return unsigned_varint(count + 1) if flexible else INT32.pack(count)


def _topic_key(topic: str | UUID, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return compact_string(topic) if flexible else string(topic)


def _fields(wanted: FetchPartition, version: int) -> tuple[int, ...]:
    """What a version that is not flexible has of a partition, in its order."""
    index, leader_epoch, offset, _, log_start, max_bytes = wanted
    if version >= _FIRST_LEADER_EPOCH:
        return index, leader_epoch, offset, log_start, max_bytes
    if version >= _FIRST_LOG_START:
        return index, offset, log_start, max_bytes
    return index, offset, max_bytes


def decode_response(version: int, body: memoryview) -> FetchAnswer[Any]:
    """Decode the body of a response; raises `MalformedRequest` if it does not follow the schema."""
    return malformed_if_fails(_decode, version, body)


def _decode(version: int, body: memoryview) -> FetchAnswer[Any]:
    flexible = version >= FIRST_FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    read_topic: Any = read_compact_string if flexible else read_string
    if version >= FIRST_TOPIC_ID:
        read_topic = read_uuid
    throttle_time_ms, position = INT32.unpack_from(body)[0], 4
    error, session_id = 0, _NO_SESSION_ID
    if version >= FIRST_SESSION:
        error, session_id = INT16.unpack_from(body, position)[0], INT32.unpack_from(body, position + 2)[0]
        position += 6
    partitions: list[AnsweredPartition[Any]] = []
    topic_count, position = read_length(body, position)
    for _ in range(topic_count):
        topic, position = read_topic(body, position)
        partition_count, position = read_length(body, position)
        for _ in range(partition_count):
            answered, position = _decode_partition(version, body, position, topic)
            partitions.append(answered)
        if flexible:
            position = skip_tags(body, position)
    return FetchAnswer(error, session_id, throttle_time_ms, partitions)


def _decode_partition(
    version: int, body: memoryview, position: int, topic: T
) -> tuple[AnsweredPartition[T], int]:
    flexible = version >= FIRST_FLEXIBLE
    log_start_offset = -1
    if version >= _FIRST_LOG_START:
        index, error, high_watermark, stable, log_start_offset = _ANSWERED_V5.unpack_from(body, position)
        position += _ANSWERED_V5.size
    else:
        index, error, high_watermark, stable = _ANSWERED_V4.unpack_from(body, position)
        position += _ANSWERED_V4.size
    aborted: list[tuple[int, int]] | None = None
    if flexible and not body[position]:
        position += 1
    else:
        aborted, position = _decode_aborted(flexible, body, position)
    preferred_read_replica = -1
    if version >= _FIRST_RACK:
        preferred_read_replica = INT32.unpack_from(body, position)[0]
        position += 4
    if flexible:
        length, position = read_unsigned_varint(body, position)
        length -= 1
    else:
        length, position = INT32.unpack_from(body, position)[0], position + 4
    records = checked_slice(body, position, length) if length > 0 else _NO_RECORDS
    position += max(0, length)
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    if flexible and body[position]:
        tags, position = read_tags(body, position)
        if TAG_DIVERGING_EPOCH in tags:
            diverging_epoch = _EPOCH_AND_OFFSET.unpack_from(tags[TAG_DIVERGING_EPOCH])
        if TAG_CURRENT_LEADER in tags:
            current_leader = _LEADER_AND_EPOCH.unpack_from(tags[TAG_CURRENT_LEADER])
    elif flexible:
        position += 1
    answered = AnsweredPartition(
        topic,
        index,
        error,
        high_watermark,
        stable,
        log_start_offset,
        aborted,
        preferred_read_replica,
        records,
        diverging_epoch,
        current_leader,
    )
    return answered, position


def _decode_aborted(
    flexible: bool, body: memoryview, position: int
) -> tuple[list[tuple[int, int]] | None, int]:
    if flexible:
        count, position = read_unsigned_varint(body, position)
        count -= 1
    else:
        count, position = INT32.unpack_from(body, position)[0], position + 4
    if count < 0:
        return None, position
    if count * _ABORTED.size > len(body) - position:
        raise MalformedRequest(f"{count} aborted transactions in {len(body) - position} bytes")
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(body, position))
        position += _ABORTED.size
        if flexible:
            position = skip_tags(body, position)
    return aborted, position
