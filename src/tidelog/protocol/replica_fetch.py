"""Fetch as a follower speaks it: version 17, topic ids, a session; the answer's records stay views.

The layouts are drawn in `protocol.fetch`, which has the leader's side. `decode_response` copies nothing: the
records of an answer are memoryviews of the buffer it came in.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog.protocol.fetch import TAG_CURRENT_LEADER, TAG_DIVERGING_EPOCH, TAG_REPLICA_STATE
from tidelog.protocol.primitives import (
    INT32,
    NO_TAGS,
    checked_slice,
    malformed_if_fails,
    read_compact_array_length,
    read_tags,
    read_unsigned_varint,
    read_uuid,
    skip_tags,
    unsigned_varint,
)

FETCH_VERSION = 17
READ_UNCOMMITTED = 0

#: max wait, min bytes, max bytes, isolation, session id, session epoch
_TOP = struct.Struct(">iiibii")
#: index, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes
_WANTED = struct.Struct(">iiqiqi")
#: replica id, replica epoch
_REPLICA_STATE = struct.Struct(">iq")
#: throttle time, error, session id
_RESPONSE_TOP = struct.Struct(">ihi")
#: index, error, high watermark, last stable offset, log start offset
_ANSWERED = struct.Struct(">ihqqq")
_EPOCH_AND_OFFSET = struct.Struct(">iq")
_LEADER_AND_EPOCH = struct.Struct(">ii")
_ABORTED_BYTES = 16
_NO_RECORDS = memoryview(b"")


class WantedPartition(NamedTuple):
    """What a follower asks of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class AnsweredPartition(NamedTuple):
    """What a leader answered about one partition."""

    topic_id: UUID
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None
    current_leader: tuple[int, int] | None


class FetchAnswer(NamedTuple):
    """A decoded Fetch response."""

    error: int
    session_id: int
    throttle_time_ms: int
    partitions: list[AnsweredPartition]


def encode_request(
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
    session_id: int,
    session_epoch: int,
    topics: Sequence[tuple[UUID, Sequence[WantedPartition]]],
    forgotten: Sequence[tuple[UUID, Sequence[int]]],
) -> bytes:
    """Encode the body of a Fetch request of a follower."""
    top = _TOP.pack(max_wait_ms, min_bytes, max_bytes, READ_UNCOMMITTED, session_id, session_epoch)
    parts = [top, unsigned_varint(len(topics) + 1)]
    for topic_id, partitions in topics:
        parts += topic_id.bytes, unsigned_varint(len(partitions) + 1)
        for wanted in partitions:
            parts += _WANTED.pack(*wanted, partition_max_bytes), NO_TAGS
        parts.append(NO_TAGS)
    parts.append(unsigned_varint(len(forgotten) + 1))
    for topic_id, indexes in forgotten:
        parts += topic_id.bytes, unsigned_varint(len(indexes) + 1)
        parts += struct.pack(f">{len(indexes)}i", *indexes), NO_TAGS
    replica_state = _REPLICA_STATE.pack(replica_id, replica_epoch) + NO_TAGS
    # No rack, then one tagged field.
    parts += b"\x01", b"\x01", unsigned_varint(TAG_REPLICA_STATE), unsigned_varint(len(replica_state))
    parts.append(replica_state)
    return b"".join(parts)


def decode_response(body: memoryview) -> FetchAnswer:
    """Decode the body of a response; raises `MalformedRequest` if it does not follow the schema."""
    return malformed_if_fails(_decode, body)


def _decode(body: memoryview) -> FetchAnswer:
    throttle_time_ms, error, session_id = _RESPONSE_TOP.unpack_from(body)
    position = _RESPONSE_TOP.size
    partitions: list[AnsweredPartition] = []
    topic_count, position = read_compact_array_length(body, position)
    for _ in range(topic_count):
        topic_id, position = read_uuid(body, position)
        partition_count, position = read_compact_array_length(body, position)
        for _ in range(partition_count):
            answered, position = _decode_partition(body, position, topic_id)
            partitions.append(answered)
        position = skip_tags(body, position)
    return FetchAnswer(error, session_id, throttle_time_ms, partitions)


def _decode_partition(body: memoryview, position: int, topic_id: UUID) -> tuple[AnsweredPartition, int]:
    index, error, high_watermark, _, log_start_offset = _ANSWERED.unpack_from(body, position)
    position += _ANSWERED.size
    aborted_count, position = read_compact_array_length(body, position)
    for _ in range(aborted_count):
        position = skip_tags(body, position + _ABORTED_BYTES)
    position += INT32.size  # the preferred read replica is for consumers
    length, position = read_unsigned_varint(body, position)
    records = checked_slice(body, position, length - 1) if length > 1 else _NO_RECORDS
    position += max(0, length - 1)
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    if body[position] == 0:
        position += 1
    else:
        tags, position = read_tags(body, position)
        if TAG_DIVERGING_EPOCH in tags:
            diverging_epoch = _EPOCH_AND_OFFSET.unpack_from(tags[TAG_DIVERGING_EPOCH])
        if TAG_CURRENT_LEADER in tags:
            current_leader = _LEADER_AND_EPOCH.unpack_from(tags[TAG_CURRENT_LEADER])
    answered = AnsweredPartition(
        topic_id, index, error, high_watermark, log_start_offset, records, diverging_epoch, current_leader
    )
    return answered, position
