"""Fetch, versions 4 to 18; the records of an answer stay file ranges.

    request v4   replica_id int32, max_wait_ms int32, min_bytes int32, max_bytes int32, isolation int8,
                 [topic: name, [partition: index int32, fetch_offset int64, partition_max_bytes int32]]
    v5           log_start_offset int64 before partition_max_bytes (followers)
    v7           session_id int32, session_epoch int32 after isolation; forgotten topics at the end (KIP-227)
    v9           current_leader_epoch int32 before fetch_offset (KIP-320)
    v11          rack_id at the end (KIP-392)
    v12          flexible; last_fetched_epoch int32 after fetch_offset; tagged cluster_id
    v13          topic id (uuid) instead of the name (KIP-516)
    v15          replica_id leaves the body; tagged replica state (id, epoch) (KIP-903)
    v17, v18     tagged replica directory id; tagged high watermark of the follower

    response v4  throttle_time_ms int32, [topic, [partition: index int32, error int16, high_watermark int64,
                 last_stable_offset int64, aborted [producer_id int64, first_offset int64], records bytes]]
    v5           log_start_offset int64 after last_stable_offset
    v7           error int16, session_id int32 after throttle_time_ms
    v11          preferred_read_replica int32 after aborted
    v12          flexible; tagged diverging epoch (0), current leader (1), snapshot id (2)
    v16          tagged node endpoints (0) of the current leaders; told to clients since then (KIP-951)

`encode_response` returns a list of chunks: bytes, and whatever range objects the caller gave as records. The
caller sends them in order; the frame size already counts the ranges.
"""

import struct
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.protocol.current_leaders import LeaderEndpoint, endpoints_bytes, leader_bytes, tagged
from tidelog.protocol.headers import RESPONSE_PREFIX, RESPONSE_PREFIX_FLEXIBLE
from tidelog.protocol.primitives import (
    INT32,
    NO_TAGS,
    PARTITIONS_MAX,
    checked_slice,
    compact_string,
    malformed_if_fails,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tags,
    read_uuid,
    skip_counted_tags,
    string,
    too_many_partitions,
    unsigned_varint,
)
from tidelog.protocol.slices import STEP, paced, pieces_of

FIRST_FLEXIBLE = 12
FIRST_TOPIC_ID = 13
FIRST_SESSION = 7
FIRST_CURRENT_LEADER = 16

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
CONSUMER_REPLICA_ID = -1

_TOP_V4 = struct.Struct(">iiib")
_TOP_V7 = struct.Struct(">iiibii")
_INT32_INT64 = struct.Struct(">iq")

TAG_REPLICA_STATE = 1
TAG_CURRENT_LEADER = 1
TAG_DIVERGING_EPOCH = 0
TAG_NODE_ENDPOINTS = 0


class FetchPartition(NamedTuple):
    """What a client asks of one partition."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """A decoded Fetch request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str | UUID, list[FetchPartition]]]
    forgotten: list[tuple[str | UUID, list[int]]]
    rack_id: str
    #: the life of the follower that fetches, as the controller counts them; -1 before version 15
    replica_epoch: int = -1


def _partition_layout(version: int) -> struct.Struct:
    """index, [current leader epoch], offset, [last fetched epoch], [log start offset], max bytes"""
    fields = "i" + ("i" if version >= 9 else "") + "q" + ("i" if version >= 12 else "")
    return struct.Struct(">" + fields + ("q" if version >= 5 else "") + "i")


#: what a request has of a partition
LAYOUTS = {version: _partition_layout(version) for version in range(4, 19)}


def _fetch_partition(values: tuple[int, ...], version: int) -> FetchPartition:
    if version >= 12:
        return FetchPartition._make(values)
    if version >= 9:
        index, leader_epoch, offset, log_start, max_bytes = values
        return FetchPartition(index, leader_epoch, offset, -1, log_start, max_bytes)
    if version >= 5:
        index, offset, log_start, max_bytes = values
        return FetchPartition(index, -1, offset, -1, log_start, max_bytes)
    index, offset, max_bytes = values
    return FetchPartition(index, -1, offset, -1, -1, max_bytes)


def decode_request(buffer: memoryview, position: int, version: int) -> FetchRequest:
    """Decode the body of a Fetch request that starts at `position` of its frame."""
    return malformed_if_fails(_decode, buffer, position, version)


def _decode(buffer: memoryview, position: int, version: int) -> FetchRequest:
    replica_id, replica_epoch = CONSUMER_REPLICA_ID, -1
    if version <= 14:
        replica_id = INT32.unpack_from(buffer, position)[0]
        position += 4
    session_id, session_epoch = 0, -1
    if version >= FIRST_SESSION:
        max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch = _TOP_V7.unpack_from(
            buffer, position
        )
        position += _TOP_V7.size
    else:
        max_wait, min_bytes, max_bytes, isolation = _TOP_V4.unpack_from(buffer, position)
        position += _TOP_V4.size
    topics, position = _decode_topics(buffer, position, version)
    forgotten: list[tuple[str | UUID, list[int]]] = []
    if version >= FIRST_SESSION:
        forgotten, position = _decode_forgotten(buffer, position, version)
    rack_id = ""
    if version >= FIRST_FLEXIBLE:
        rack_id, position = read_compact_string(buffer, position)
        tags, position = read_tags(buffer, position)
        if version >= 15 and TAG_REPLICA_STATE in tags:
            replica_id, replica_epoch = _INT32_INT64.unpack_from(tags[TAG_REPLICA_STATE])
    elif version >= 11:
        rack_id, position = read_string(buffer, position)
    return FetchRequest(
        replica_id,
        max_wait,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_epoch,
    )


def offset_position(buffer: memoryview, position: int, version: int) -> int:
    """Where the offset of the first partition lies, in a request that was decoded before."""
    position += (4 if version <= 14 else 0) + (_TOP_V7 if version >= FIRST_SESSION else _TOP_V4).size
    read_length = read_compact_array_length if version >= FIRST_FLEXIBLE else read_array_length
    _, position = read_length(buffer, position)
    _, position = _decode_topic_key(buffer, position, version)
    _, position = read_length(buffer, position)
    # index, [current leader epoch]
    return position + (8 if version >= 9 else 4)


def _decode_topic_key(buffer: memoryview, position: int, version: int) -> tuple[str | UUID, int]:
    if version >= FIRST_TOPIC_ID:
        return read_uuid(buffer, position)
    if version >= FIRST_FLEXIBLE:
        return read_compact_string(buffer, position)
    return read_string(buffer, position)


def _decode_topics(
    buffer: memoryview, position: int, version: int
) -> tuple[list[tuple[str | UUID, list[FetchPartition]]], int]:
    flexible = version >= FIRST_FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    layout = LAYOUTS[version]
    topics: list[tuple[str | UUID, list[FetchPartition]]] = []
    count, position = read_length(buffer, position)
    left = PARTITIONS_MAX - count
    for _ in paced(range(count)):
        topic, position = _decode_topic_key(buffer, position, version)
        partition_count, position = read_length(buffer, position)
        left -= partition_count
        if left < 0:
            raise too_many_partitions()
        partitions: list[FetchPartition] = []
        for _ in paced(range(partition_count)):
            partitions.append(_fetch_partition(layout.unpack_from(buffer, position), version))
            position += layout.size
            if flexible:
                if buffer[position] == 0:
                    position += 1
                else:
                    position, left = skip_counted_tags(buffer, position, left)
        topics.append((topic, partitions))
        if flexible:
            if buffer[position] == 0:
                position += 1
            else:
                position, left = skip_counted_tags(buffer, position, left)
    return topics, position


def _decode_forgotten(
    buffer: memoryview, position: int, version: int
) -> tuple[list[tuple[str | UUID, list[int]]], int]:
    flexible = version >= FIRST_FLEXIBLE
    read_length = read_compact_array_length if flexible else read_array_length
    forgotten: list[tuple[str | UUID, list[int]]] = []
    count, position = read_length(buffer, position)
    left = PARTITIONS_MAX - count
    for _ in paced(range(count)):
        topic, position = _decode_topic_key(buffer, position, version)
        partition_count, position = read_length(buffer, position)
        left -= partition_count
        if left < 0:
            raise too_many_partitions()
        indexes = checked_slice(buffer, position, 4 * partition_count)
        forgotten.append((topic, list(struct.unpack(f">{partition_count}i", indexes))))
        position += 4 * partition_count
        if flexible:
            position, left = skip_counted_tags(buffer, position, left)
    return forgotten, position


class Sized(Protocol):
    """Records to send: anything that knows its size in bytes (a range of a file)."""

    @property
    def size_bytes(self) -> int: ...


R = TypeVar("R", bound=Sized)


class PartitionFetched(NamedTuple, Generic[R]):
    """The answer for one partition; `records` is None for an empty one."""

    partition: int
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: R | None = None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")


def _partition_head(fetched: "PartitionFetched[R]", version: int) -> bytes:
    """Everything of a partition's answer up to and including the length of its records."""
    flexible = version >= FIRST_FLEXIBLE
    size = 0 if fetched.records is None else fetched.records.size_bytes
    head = (_PARTITION_V5.pack(*fetched[:5])) if version >= 5 else _PARTITION_V4.pack(*fetched[:4])
    if flexible:
        if fetched.aborted is None:
            head += b"\x00"
        else:
            head += unsigned_varint(len(fetched.aborted) + 1)
            head += b"".join(_ABORTED.pack(*pair) + b"\x00" for pair in fetched.aborted)
    elif fetched.aborted is None:
        head += b"\xff\xff\xff\xff"
    else:
        head += INT32.pack(len(fetched.aborted)) + b"".join(_ABORTED.pack(*p) for p in fetched.aborted)
    if version >= 11:
        head += INT32.pack(fetched.preferred_read_replica)
    return head + (unsigned_varint(size + 1) if flexible else INT32.pack(size))


def _partition_tags(fetched: "PartitionFetched[R]") -> bytes:
    tags = []
    if fetched.diverging_epoch is not None:
        tags.append((TAG_DIVERGING_EPOCH, _INT32_INT64.pack(*fetched.diverging_epoch) + b"\x00"))
    if fetched.current_leader is not None:
        tags.append((TAG_CURRENT_LEADER, leader_bytes(fetched.current_leader)))
    return tagged(tags)


#: throttle time, error, session id
_TOP_RESPONSE = struct.Struct(">ihi")


def _plain_count(count: int) -> bytes:
    return INT32.pack(count)


def _joined(parts: list[bytes]) -> list[bytes]:
    """The parts as one piece; many may be large together, for names of topics are long."""
    return [b"".join(parts)] if len(parts) <= STEP else pieces_of(parts)


def encode_response(
    topics: Sequence[tuple[str | UUID, Sequence["PartitionFetched[R]"]]],
    version: int,
    correlation_id: int,
    *,
    session_id: int = 0,
    error: int = ErrorCode.NONE,
    throttle_time_ms: int = 0,
    endpoints: list[LeaderEndpoint] | None = None,
) -> list[bytes | R]:
    """Encode a response frame as chunks of bytes and ranges; `endpoints` from `FIRST_CURRENT_LEADER` on."""
    flexible = version >= FIRST_FLEXIBLE
    count = unsigned_varint if flexible else _plain_count
    parts = [_TOP_RESPONSE.pack(throttle_time_ms, error, session_id)]
    if version < FIRST_SESSION:
        parts = [INT32.pack(throttle_time_ms)]
    parts.append(count(len(topics) + flexible))
    chunks: list[bytes | R] = []
    ranges_bytes = 0
    for topic, partitions in paced(topics):
        if isinstance(topic, UUID):
            parts.append(topic.bytes)
        else:
            parts.append(compact_string(topic) if flexible else string(topic))
        parts.append(count(len(partitions) + flexible))
        for fetched in paced(partitions):
            parts.append(_partition_head(fetched, version))
            if fetched.records is not None:
                ranges_bytes += fetched.records.size_bytes
                chunks += _joined(parts)
                chunks.append(fetched.records)
                parts = []
            if flexible:
                if fetched.diverging_epoch is None and fetched.current_leader is None:
                    parts.append(NO_TAGS)
                else:
                    parts.append(_partition_tags(fetched))
        if flexible:
            parts.append(NO_TAGS)
    if endpoints:
        parts.append(tagged([(TAG_NODE_ENDPOINTS, endpoints_bytes(endpoints))]))
    elif flexible:
        parts.append(NO_TAGS)
    if parts:
        chunks += _joined(parts)
    size = ranges_bytes
    for chunk in chunks:
        if isinstance(chunk, bytes):
            size += len(chunk)
    if flexible:
        prefix = RESPONSE_PREFIX_FLEXIBLE.pack(size + 5, correlation_id, 0)
    else:
        prefix = RESPONSE_PREFIX.pack(size + 4, correlation_id)
    chunks[0] = prefix + chunks[0]  # type: ignore[operator]  # the first chunk is always bytes
    return chunks


def with_throttle_time(answer: list[bytes | R], version: int, throttle_time_ms: int) -> list[bytes | R]:
    """An answer of `encode_response`; its time to wait is this one, unless that was longer."""
    head = answer[0]
    assert isinstance(head, bytes)
    position = (RESPONSE_PREFIX_FLEXIBLE if version >= FIRST_FLEXIBLE else RESPONSE_PREFIX).size
    longest_ms = max(throttle_time_ms, INT32.unpack_from(head, position)[0])
    return [head[:position] + INT32.pack(longest_ms) + head[position + INT32.size :], *answer[1:]]
