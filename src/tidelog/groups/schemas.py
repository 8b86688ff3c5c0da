"""The records of `__consumer_offsets`, byte for byte Kafka's.

    key    version:int16, then
             0, 1  OffsetCommitKey    group:string topic:string partition:int32
             2     GroupMetadataKey   group:string
             3…    records of consumer groups: consumer_schemas; others are not read
    value  version:int16, then
           OffsetCommitValue          offset:int64 [leader_epoch:int32 v3+] metadata:string
                                      commit_timestamp:int64 [expire_timestamp:int64 v1]
           GroupMetadataValue         protocol_type:string generation:int32 protocol:string? leader:string?
                                      [current_state_timestamp:int64 v2+] members:[MemberMetadata]
           MemberMetadata             member_id:string [group_instance_id:string? v3+] client_id:string
                                      client_host:string [rebalance_timeout:int32 v1+] session_timeout:int32
                                      subscription:bytes assignment:bytes

A string is int16 length and UTF-8, bytes are int32 length and content, an array is int32 count; from value
version 4 on these are Kafka's compact forms (unsigned varint of length plus one) with tagged fields after
each struct. A missing value is a tombstone. Like Kafka we write value version 3 (offsets with an expiry of
their own: version 1) and read 0 to 4.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.records.stored_fields import Reader, UnreadableRecord, text

NO_EXPIRY = -1
NO_STATE_TIMESTAMP = -1

OFFSET_COMMIT_KEY_VERSION = 1
OFFSET_COMMIT_KEY_VERSIONS = (0, 1)
GROUP_METADATA_KEY_VERSION = 2
OFFSET_COMMIT_VALUE_VERSION = 3
OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_METADATA_VALUE_VERSION = 3
HIGHEST_VALUE_VERSION = 4
FIRST_FLEXIBLE_VALUE_VERSION = 4

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_STRING_HEAD = struct.Struct(">hh")
_OFFSET_VALUE_HEAD = struct.Struct(">hqih")
_CURRENT_OFFSET_VALUE = _INT16.pack(OFFSET_COMMIT_VALUE_VERSION)


class OffsetCommitKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    group_id: str


class OffsetCommitValue(NamedTuple):
    """A committed offset; `expire_timestamp_ms` only for clients old enough to ask for a retention of
    their own.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """A generation of a classic group whose assignment is stored, or of an empty group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


# ---------------------------------------------------------------- writing


def _string(content: str | None) -> bytes:
    if content is None:
        return b"\xff\xff"
    encoded = content.encode()
    return _INT16.pack(len(encoded)) + encoded


def _bytes(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content


def offset_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    group = group_id.encode()
    return b"".join(
        (
            _STRING_HEAD.pack(OFFSET_COMMIT_KEY_VERSION, len(group)),
            group,
            _string(topic),
            _INT32.pack(partition),
        )
    )


def group_metadata_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_METADATA_KEY_VERSION) + _string(group_id)


def offset_commit_value(value: OffsetCommitValue) -> bytes:
    offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms = value
    if expire_timestamp_ms != NO_EXPIRY:
        head = struct.pack(">hq", OFFSET_COMMIT_VALUE_VERSION_WITH_EXPIRY, offset)
        return head + _string(metadata) + struct.pack(">qq", commit_timestamp_ms, expire_timestamp_ms)
    encoded = metadata.encode()
    head = _OFFSET_VALUE_HEAD.pack(OFFSET_COMMIT_VALUE_VERSION, offset, leader_epoch, len(encoded))
    return head + encoded + _INT64.pack(commit_timestamp_ms)


def group_metadata_value(value: GroupMetadataValue) -> bytes:
    parts = [
        _INT16.pack(GROUP_METADATA_VALUE_VERSION),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _string(value.protocol),
        _string(value.leader),
        _INT64.pack(value.current_state_timestamp_ms),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


# ---------------------------------------------------------------- reading


def read_key(key: bytes) -> OffsetCommitKey | GroupMetadataKey | None:
    """Decode a key, or return None for a version that belongs to another kind of group or a newer Kafka."""
    # Written out rather than through Reader: loading reads one key for every record of the log.
    try:
        version, group_size = _STRING_HEAD.unpack_from(key)
        if version not in (*OFFSET_COMMIT_KEY_VERSIONS, GROUP_METADATA_KEY_VERSION):
            return None
        group_end = _STRING_HEAD.size + group_size
        group_id = key[_STRING_HEAD.size : group_end].decode()
        if version == GROUP_METADATA_KEY_VERSION:
            topic, partition, end = "", 0, group_end
        else:
            (topic_size,) = _INT16.unpack_from(key, group_end)
            topic_end = group_end + _INT16.size + topic_size
            topic = key[group_end + _INT16.size : topic_end].decode()
            (partition,) = _INT32.unpack_from(key, topic_end)
            end = topic_end + _INT32.size
    except (struct.error, UnicodeDecodeError) as error:
        raise UnreadableRecord(f"a key of {len(key)} bytes: {error}") from error
    if end > len(key):
        raise UnreadableRecord(f"a key of {len(key)} bytes ends too early")
    if version == GROUP_METADATA_KEY_VERSION:
        return GroupMetadataKey(group_id)
    return OffsetCommitKey(group_id, topic, partition)


def _value_reader(value: bytes, kind: str) -> tuple[Reader, int]:
    reader = Reader(value)
    version = reader.int16()
    if not 0 <= version <= HIGHEST_VALUE_VERSION:
        raise UnreadableRecord(f"{kind} version {version}")
    reader.flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
    return reader, version


def read_offset_commit_value(value: bytes) -> OffsetCommitValue:
    if value[:2] == _CURRENT_OFFSET_VALUE and len(value) >= _OFFSET_VALUE_HEAD.size:
        _, offset, leader_epoch, size = _OFFSET_VALUE_HEAD.unpack_from(value)
        end = _OFFSET_VALUE_HEAD.size + size
        if size >= 0 and len(value) >= end + _INT64.size:
            metadata = text(value[_OFFSET_VALUE_HEAD.size : end])
            return OffsetCommitValue(offset, leader_epoch, metadata, _INT64.unpack_from(value, end)[0])
    reader, version = _value_reader(value, "OffsetCommitValue")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else NO_EXPIRY
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def read_group_metadata_value(value: bytes) -> GroupMetadataValue:
    reader, version = _value_reader(value, "GroupMetadataValue")
    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    timestamp_ms = reader.int64() if version >= 2 else NO_STATE_TIMESTAMP
    members = tuple(_read_member(reader, version) for _ in range(reader.array_count()))
    return GroupMetadataValue(protocol_type, generation, protocol, leader, timestamp_ms, members)


def _read_member(reader: Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription = reader.bytes()
    assignment = reader.bytes()
    reader.tagged_fields()
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    return MemberMetadata(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a consumer's embedded subscription, or None if the bytes are not one.

    Version 0 (int16 version, array of topic names) is a prefix of every later version.
    """
    reader = Reader(subscription)
    try:
        if reader.int16() < 0:
            return None
        return frozenset(reader.string() for _ in range(reader.array_count()))
    except UnreadableRecord:
        return None
