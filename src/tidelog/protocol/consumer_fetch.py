"""Fetch as a consumer speaks it: versions 4 to 12, topics by name, no session; records stay views.

The layouts are drawn in `protocol.fetch`, which has the broker's side. Version 4 is what Kafka 0.11 brought
with transactions, and version 12 the last one with names, spoken by every broker since 2.7. `decode_response`
copies nothing: records are memoryviews of the buffer that the answer came in.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidelog.protocol.fetch import CONSUMER_REPLICA_ID, FIRST_FLEXIBLE, FIRST_SESSION
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
    read_unsigned_varint,
    skip_tags,
    string,
    unsigned_varint,
)

VERSION_MIN = 4
VERSION_MAX = 12

_NO_SESSION_ID = 0
_NO_SESSION_EPOCH = -1
_FIRST_RACK = 11
#: replica id, max wait, min bytes, max bytes, isolation
_TOP = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
_ABORTED = struct.Struct(">qq")
_NO_RECORDS = memoryview(b"")


class WantedPartition(NamedTuple):
    """What a consumer asks of one partition."""

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int


class AnsweredPartition(NamedTuple):
    """What a broker answered about one partition."""

    topic: str
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


class FetchAnswer(NamedTuple):
    """A decoded Fetch response."""

    error: int
    throttle_time_ms: int
    partitions: list[AnsweredPartition]


def encode_request(
    version: int,
    wanted: Sequence[WantedPartition],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int,
    rack_id: str = "",
) -> bytes:
    """Encode the body of a Fetch request of a consumer without a session."""
    assert VERSION_MIN <= version <= VERSION_MAX, version
    flexible = version >= FIRST_FLEXIBLE
    parts = [_TOP.pack(CONSUMER_REPLICA_ID, max_wait_ms, min_bytes, max_bytes, isolation)]
    if version >= FIRST_SESSION:
        parts.append(_SESSION.pack(_NO_SESSION_ID, _NO_SESSION_EPOCH))
    by_topic: dict[str, list[WantedPartition]] = {}
    for one in wanted:
        by_topic.setdefault(one.topic, []).append(one)
    parts.append(_count(len(by_topic), flexible))
    for topic, partitions in by_topic.items():
        parts += compact_string(topic) if flexible else string(topic), _count(len(partitions), flexible)
        parts += [_wanted(one, version) for one in partitions]
        if flexible:
            parts.append(NO_TAGS)
    if version >= FIRST_SESSION:
        parts.append(_count(0, flexible))
    if version >= _FIRST_RACK:
        parts.append(compact_string(rack_id) if flexible else string(rack_id))
    if flexible:
        parts.append(NO_TAGS)
    return b"".join(parts)


def _count(count: int, flexible: bool) -> bytes:
    return unsigned_varint(count + 1) if flexible else INT32.pack(count)


def _wanted(one: WantedPartition, version: int) -> bytes:
    """index, [current leader epoch], offset, [last fetched epoch], [log start offset], max bytes"""
    parts = [INT32.pack(one.partition)]
    if version >= 9:
        parts.append(INT32.pack(-1))
    parts.append(struct.pack(">q", one.fetch_offset))
    if version >= 12:
        parts.append(INT32.pack(-1))
    if version >= 5:
        parts.append(struct.pack(">q", -1))
    parts.append(INT32.pack(one.max_bytes))
    if version >= FIRST_FLEXIBLE:
        parts.append(NO_TAGS)
    return b"".join(parts)


def decode_response(version: int, body: memoryview) -> FetchAnswer:
    """Decode the body of a response; raises `MalformedRequest` if it does not follow the schema."""
    return malformed_if_fails(_decode, version, body)


def _decode(version: int, body: memoryview) -> FetchAnswer:
    flexible = version >= FIRST_FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    throttle_time_ms, position = INT32.unpack_from(body)[0], 4
    error = 0
    if version >= FIRST_SESSION:
        error = INT16.unpack_from(body, position)[0]
        position += 2 + 4  # the session id is that of none
    partitions: list[AnsweredPartition] = []
    topic_count, position = read_length(body, position)
    for _ in range(topic_count):
        topic, position = (read_compact_string if flexible else read_string)(body, position)
        partition_count, position = read_length(body, position)
        for _ in range(partition_count):
            answered, position = _decode_partition(version, body, position, topic)
            partitions.append(answered)
        if flexible:
            position = skip_tags(body, position)
    return FetchAnswer(error, throttle_time_ms, partitions)


_ANSWERED_V4 = struct.Struct(">ihqq")
_ANSWERED_V5 = struct.Struct(">ihqqq")


def _decode_partition(
    version: int, body: memoryview, position: int, topic: str
) -> tuple[AnsweredPartition, int]:
    log_start_offset = -1
    if version >= 5:
        index, error, high_watermark, stable, log_start_offset = _ANSWERED_V5.unpack_from(body, position)
        position += _ANSWERED_V5.size
    else:
        index, error, high_watermark, stable = _ANSWERED_V4.unpack_from(body, position)
        position += _ANSWERED_V4.size
    aborted, position = _decode_aborted(version, body, position)
    preferred_read_replica = -1
    if version >= _FIRST_RACK:
        preferred_read_replica = INT32.unpack_from(body, position)[0]
        position += 4
    if version >= FIRST_FLEXIBLE:
        length, position = read_unsigned_varint(body, position)
        length -= 1
    else:
        length, position = INT32.unpack_from(body, position)[0], position + 4
    records = checked_slice(body, position, length) if length > 0 else _NO_RECORDS
    position += max(0, length)
    if version >= FIRST_FLEXIBLE:
        position = skip_tags(body, position)
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
    )
    return answered, position


def _decode_aborted(
    version: int, body: memoryview, position: int
) -> tuple[list[tuple[int, int]] | None, int]:
    flexible = version >= FIRST_FLEXIBLE
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
