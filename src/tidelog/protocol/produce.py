"""Produce, versions 3 to 13, decoded without copying a record.

    request v3   transactional_id nullable_string, acks int16, timeout_ms int32,
                 [topic: name string, [partition: index int32, records bytes]]
    v9           flexible: compact types and tagged fields
    v13          topic id (uuid) instead of the name (KIP-516)

    response v3  [topic: name, [partition: index int32, error int16, base_offset int64,
                 log_append_time int64]], throttle_time_ms int32
    v5           log_start_offset int64 after log_append_time
    v8           record_errors [batch_index int32, message nullable_string], error_message nullable_string
    v10          tagged current leader (0) of a partition, node endpoints (0) of the answer (KIP-951)

The codec is written by hand because every byte of traffic passes through it: `records` are memoryviews of
the receive buffer, which the partition patches and appends in place.
"""

import struct
from typing import NamedTuple
from uuid import UUID

from tidelog.model.errors import ErrorCode
from tidelog.protocol.current_leaders import CurrentLeaders, endpoints_bytes, leader_bytes, tagged
from tidelog.protocol.headers import RESPONSE_PREFIX, RESPONSE_PREFIX_FLEXIBLE
from tidelog.protocol.primitives import (
    INT32,
    NO_TAGS,
    PRODUCED_PARTITIONS_MAX,
    MalformedRequest,
    checked_slice,
    compact_nullable_string,
    compact_string,
    malformed_if_fails,
    nullable_string,
    read_array_length,
    read_compact_array_length,
    read_compact_nullable_string,
    read_compact_string,
    read_nullable_string,
    read_string,
    read_unsigned_varint,
    read_uuid,
    skip_counted_tags,
    skip_tags,
    string,
    too_many_partitions,
    unsigned_varint,
)
from tidelog.protocol.slices import STEP, paced, pieces_of

FIRST_FLEXIBLE = 9
FIRST_TOPIC_ID = 13
FIRST_CURRENT_LEADER = 10
TAG_CURRENT_LEADER = 0
TAG_NODE_ENDPOINTS = 0

_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_LENGTH = struct.Struct(">ii")

#: a topic's name, or its id from version 13 on, and its partitions' records
ProduceTopic = tuple[str | UUID, list[tuple[int, memoryview | None]]]


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class PartitionProduced(NamedTuple):
    """What happened to one partition's batch."""

    partition: int
    error: int = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    error_message: str | None = None


ProducedTopic = tuple[str | UUID, list[PartitionProduced]]


def decode_request(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode the body of a Produce request that starts at `position` of its frame."""
    return malformed_if_fails(_decode, buffer, position, version)


def _decode(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    if version >= FIRST_FLEXIBLE:
        return _decode_flexible(buffer, position, version)
    transactional_id, position = read_nullable_string(buffer, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    topic_count, position = read_array_length(buffer, position + 6)
    topics: list[ProduceTopic] = []
    left = PRODUCED_PARTITIONS_MAX - topic_count
    for _ in paced(range(topic_count)):
        name, position = read_string(buffer, position)
        partition_count, position = read_array_length(buffer, position)
        left -= partition_count
        if left < 0:
            raise too_many_partitions()
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in paced(range(partition_count)):
            index, length = _INDEX_LENGTH.unpack_from(buffer, position)
            position += 8
            if length < 0:
                partitions.append((index, None))
                continue
            partitions.append((index, checked_slice(buffer, position, length)))
            position += length
        topics.append((name, partitions))
    if position != len(buffer):
        raise MalformedRequest(f"{len(buffer) - position} bytes after the end of a Produce request")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(buffer: memoryview, position: int, version: int) -> ProduceRequest:
    transactional_id, position = read_compact_nullable_string(buffer, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, position)
    topic_count, position = read_compact_array_length(buffer, position + 6)
    topics: list[ProduceTopic] = []
    topic: str | UUID
    left = PRODUCED_PARTITIONS_MAX - topic_count
    size, unpack_index = len(buffer), INT32.unpack_from
    for _ in paced(range(topic_count)):
        if version >= FIRST_TOPIC_ID:
            topic, position = read_uuid(buffer, position)
        else:
            topic, position = read_compact_string(buffer, position)
        partition_count, position = read_compact_array_length(buffer, position)
        left -= partition_count
        if left < 0:
            raise too_many_partitions()
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in paced(range(partition_count)):
            (index,) = unpack_index(buffer, position)
            length, position = read_unsigned_varint(buffer, position + 4)
            if length == 0:
                partitions.append((index, None))
            else:
                start = position
                position += length - 1
                if position >= size:  # there are tags behind
                    raise MalformedRequest(f"records of {length - 1} bytes do not fit the frame")
                partitions.append((index, buffer[start:position]))
            if buffer[position] == 0:
                position += 1
            else:
                position, left = skip_counted_tags(buffer, position, left)
        topics.append((topic, partitions))
        if buffer[position] == 0:
            position += 1
        else:
            position, left = skip_counted_tags(buffer, position, left)
    position = skip_tags(buffer, position)
    if position != len(buffer):
        raise MalformedRequest(f"{len(buffer) - position} bytes after the end of a Produce request")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_V3_PARTITION = struct.Struct(">ihqq")
_V5_PARTITION = struct.Struct(">ihqqq")
_V9_PARTITION = struct.Struct(">ihqqqBH")  # without record errors, message and tags
_V8_CLEAN_TAIL = b"\x00\x00\x00\x00\xff\xff"  # no record errors, no message


def _partition_tail(produced: PartitionProduced, version: int, tags: bytes = NO_TAGS) -> bytes:
    """Record errors, message and tagged fields of one partition, from version 8 on."""
    flexible = version >= FIRST_FLEXIBLE
    if not flexible and not produced.record_errors and produced.error_message is None:
        return _V8_CLEAN_TAIL
    text = compact_nullable_string if flexible else nullable_string
    count = len(produced.record_errors)
    parts = [unsigned_varint(count + 1) if flexible else INT32.pack(count)]
    for index, message in produced.record_errors:
        parts.append(INT32.pack(index) + text(message))
        if flexible:
            parts.append(b"\x00")
    parts.append(text(produced.error_message))
    if flexible:
        parts.append(tags)
    return b"".join(parts)


def encode_response(
    topics: list[ProducedTopic],
    version: int,
    correlation_id: int,
    throttle_time_ms: int = 0,
    *,
    leaders: CurrentLeaders | None = None,
) -> bytes:
    """Encode a whole response frame; `leaders` is needed where a partition may be led elsewhere."""
    return b"".join(_response_parts(topics, version, correlation_id, throttle_time_ms, leaders))


def encode_response_pieces(
    topics: list[ProducedTopic],
    version: int,
    correlation_id: int,
    throttle_time_ms: int = 0,
    *,
    leaders: CurrentLeaders | None = None,
) -> bytes | list[bytes]:
    """The same for any number of topics: a large one is in pieces, and so is one that names endpoints.

    The last of the pieces is `throttle_time_ms` and what is behind it.
    """
    parts = _response_parts(topics, version, correlation_id, throttle_time_ms, leaders)
    flexible = version >= FIRST_FLEXIBLE
    if len(parts) <= STEP and (not flexible or parts[-1] == NO_TAGS):
        return b"".join(parts)
    last = 2 if flexible else 1
    return [*pieces_of(parts[:-last]), b"".join(parts[-last:])]


def with_throttle_time(
    answer: bytes | list[bytes], version: int, throttle_time_ms: int
) -> bytes | list[bytes]:
    """An answer of `encode_response_pieces` with another time to wait."""
    if isinstance(answer, list):
        return [*answer[:-1], INT32.pack(throttle_time_ms) + answer[-1][INT32.size :]]
    position = len(answer) - INT32.size - (len(NO_TAGS) if version >= FIRST_FLEXIBLE else 0)
    return answer[:position] + INT32.pack(throttle_time_ms) + answer[position + INT32.size :]


def _response_parts(
    topics: list[ProducedTopic],
    version: int,
    correlation_id: int,
    throttle_time_ms: int,
    leaders: CurrentLeaders | None,
) -> list[bytes]:
    flexible = version >= FIRST_FLEXIBLE
    if version < FIRST_CURRENT_LEADER:
        leaders = None
    pack_clean = _V9_PARTITION.pack
    parts: list[bytes] = [b"", unsigned_varint(len(topics) + 1) if flexible else INT32.pack(len(topics))]
    for topic, partitions in paced(topics):
        count = len(partitions)
        if not flexible:
            assert isinstance(topic, str)
            parts.append(string(topic) + INT32.pack(count))
        elif isinstance(topic, str):
            parts.append(compact_string(topic) + unsigned_varint(count + 1))
        else:
            parts.append(topic.bytes + unsigned_varint(count + 1))
        for produced in paced(partitions):
            index, error, base_offset, log_append_time_ms, log_start_offset, record_errors, message = produced
            if leaders is not None and error == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                tags = tagged([(TAG_CURRENT_LEADER, leader_bytes(leaders.of(topic, index)))])
                parts += (_V5_PARTITION.pack(*produced[:5]), _partition_tail(produced, version, tags))
            elif flexible and not record_errors and message is None:
                row = pack_clean(index, error, base_offset, log_append_time_ms, log_start_offset, 1, 0)
                parts.append(row)
            elif version >= 5:
                parts.append(_V5_PARTITION.pack(*produced[:5]))
                if version >= 8:
                    parts.append(_partition_tail(produced, version))
            else:
                parts.append(_V3_PARTITION.pack(*produced[:4]))
        if flexible:
            parts.append(b"\x00")
    parts.append(INT32.pack(throttle_time_ms))
    if flexible:
        endpoints = [] if leaders is None else leaders.endpoints()
        parts.append(tagged([(TAG_NODE_ENDPOINTS, endpoints_bytes(endpoints))]) if endpoints else NO_TAGS)
    size = sum(map(len, parts))
    if flexible:
        parts[0] = RESPONSE_PREFIX_FLEXIBLE.pack(size + 5, correlation_id, 0)
    else:
        parts[0] = RESPONSE_PREFIX.pack(size + 4, correlation_id)
    return parts
