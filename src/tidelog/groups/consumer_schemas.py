"""The records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte Kafka's.

    key    version:int16, then
             3   group metadata            group:string
             4   partition metadata        group:string
             5   member metadata           group:string member:string
             6   target assignment epoch   group:string
             7   target of a member        group:string member:string
             8   current assignment        group:string member:string
             16  regular expression        group:string expression:string
    value  version:int16 = 0, then in Kafka's compact forms with tagged fields after each struct
             3   epoch:int32
             4   [topic_id:uuid name:string partition_count:int32 [partition:int32 racks:[string]]]
             5   instance_id:string? rack_id:string? client_id:string client_host:string
                 subscribed_topic_names:[string] subscribed_topic_regex:string? rebalance_timeout_ms:int32
                 server_assignor:string?
                 tag 0: session_timeout_ms:int32 [name:string metadata:bytes], of classic members only
             6   assignment_epoch:int32
             7   [topic_id:uuid partitions:[int32]]
             8   member_epoch:int32 previous_member_epoch:int32 state:int8
                 assigned:[topic_id:uuid partitions:[int32]] pending_revocation:[the same]
             16  topics:[string] version:int64 timestamp:int64

A missing value is a tombstone. Racks of partitions are read over and never written, as in Kafka 4.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from tidelog.records.stored_fields import Reader, UnreadableRecord, varint_field

Partition = tuple[UUID, int]
"""A partition by topic id and index."""

Partitions = frozenset[Partition]

NOTHING: Partitions = frozenset()

VALUE_VERSION = 0

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VALUE_HEAD = _INT16.pack(VALUE_VERSION)
_NO_TAGS = b"\x00"


class ConsumerRecordType(IntEnum):
    """The version in the key says what a record is about."""

    GROUP_METADATA = 3
    PARTITION_METADATA = 4
    MEMBER_METADATA = 5
    TARGET_ASSIGNMENT_METADATA = 6
    TARGET_ASSIGNMENT_MEMBER = 7
    CURRENT_MEMBER_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16


_TYPES_WITH_SUBJECT = frozenset(
    {
        ConsumerRecordType.MEMBER_METADATA,
        ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER,
        ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT,
        ConsumerRecordType.REGULAR_EXPRESSION,
    }
)
CONSUMER_KEY_VERSIONS = frozenset(int(record_type) for record_type in ConsumerRecordType)


class ConsumerKey(NamedTuple):
    """`subject` is the member or the expression, empty for records of the whole group."""

    record_type: ConsumerRecordType
    group_id: str
    subject: str = ""


class TopicMetadata(NamedTuple):
    """What a group knew of a topic when its epoch was set."""

    topic_id: UUID
    partition_count: int


class ClassicMetadata(NamedTuple):
    """What a member of a consumer group that speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberMetadata(NamedTuple):
    """Who a member is and what it wants to read."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMetadata | None = None


class MemberState(IntEnum):
    """How far a member is on the way to its target."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give partitions up before it may go on to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It is in the target's epoch and waits for partitions that others still hold."""
    UNKNOWN = 127
    """Written by a newer Kafka."""


class CurrentAssignment(NamedTuple):
    """What a member may read now, and what it is giving up."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    pending_revocation: Partitions = NOTHING


class ResolvedRegex(NamedTuple):
    """The topics an expression stood for in one version of the metadata."""

    topics: tuple[str, ...]
    metadata_version: int
    timestamp_ms: int


ConsumerValue = (
    int | dict[str, TopicMetadata] | MemberMetadata | frozenset[Partition] | CurrentAssignment | ResolvedRegex
)


# ---------------------------------------------------------------- writing


def string_field(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return varint_field(len(encoded) + 1) + encoded


def array_field(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return varint_field(len(parts) + 1) + b"".join(parts)


def by_topic(partitions: Partitions) -> list[tuple[UUID, list[int]]]:
    """Partitions under their topics, in a repeatable order."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return list(topics.items())


def partitions_field(partitions: Partitions) -> bytes:
    return array_field(
        topic_id.bytes + array_field(_INT32.pack(index) for index in indexes) + _NO_TAGS
        for topic_id, indexes in by_topic(partitions)
    )


def consumer_key(record_type: ConsumerRecordType, group_id: str, subject: str | None = None) -> bytes:
    parts = [_INT16.pack(record_type)]
    for text in (group_id,) if subject is None else (group_id, subject):
        encoded = text.encode()
        parts += (_INT16.pack(len(encoded)), encoded)
    return b"".join(parts)


def epoch_value(epoch: int) -> bytes:
    """The value of a group's epoch and of its assignment's epoch."""
    return _VALUE_HEAD + _INT32.pack(epoch) + _NO_TAGS


def partition_metadata_value(topics: dict[str, TopicMetadata]) -> bytes:
    encoded = array_field(
        topic.topic_id.bytes
        + string_field(name)
        + _INT32.pack(topic.partition_count)
        + array_field(())
        + _NO_TAGS
        for name, topic in sorted(topics.items())
    )
    return _VALUE_HEAD + encoded + _NO_TAGS


def member_metadata_value(member: MemberMetadata) -> bytes:
    parts = [
        _VALUE_HEAD,
        string_field(member.instance_id),
        string_field(member.rack_id),
        string_field(member.client_id),
        string_field(member.client_host),
        array_field(string_field(name) for name in member.subscribed_topic_names),
        string_field(member.subscribed_topic_regex),
        _INT32.pack(member.rebalance_timeout_ms),
        string_field(member.server_assignor),
    ]
    if member.classic is None:
        parts.append(_NO_TAGS)
    else:
        classic = _classic_metadata(member.classic)
        parts += (b"\x01\x00", varint_field(len(classic)), classic)
    return b"".join(parts)


def _classic_metadata(classic: ClassicMetadata) -> bytes:
    # A nullable struct starts with a byte that says whether it is there.
    protocols = array_field(
        string_field(name) + varint_field(len(metadata) + 1) + metadata + _NO_TAGS
        for name, metadata in classic.protocols
    )
    return b"\x01" + _INT32.pack(classic.session_timeout_ms) + protocols + _NO_TAGS


def target_assignment_value(partitions: Partitions) -> bytes:
    return _VALUE_HEAD + partitions_field(partitions) + _NO_TAGS


def current_assignment_value(current: CurrentAssignment) -> bytes:
    return b"".join(
        (
            _VALUE_HEAD,
            struct.pack(">iib", current.epoch, current.previous_epoch, current.state),
            partitions_field(current.assigned),
            partitions_field(current.pending_revocation),
            _NO_TAGS,
        )
    )


def regular_expression_value(resolved: ResolvedRegex) -> bytes:
    topics = array_field(string_field(name) for name in resolved.topics)
    numbers = _INT64.pack(resolved.metadata_version) + _INT64.pack(resolved.timestamp_ms)
    return _VALUE_HEAD + topics + numbers + _NO_TAGS


# ---------------------------------------------------------------- reading


def read_consumer_key(key: bytes) -> ConsumerKey:
    """Decode a key whose version is one of `CONSUMER_KEY_VERSIONS`."""
    reader = Reader(key)
    record_type = ConsumerRecordType(reader.int16())
    group_id = reader.string()
    return ConsumerKey(record_type, group_id, reader.string() if record_type in _TYPES_WITH_SUBJECT else "")


def read_consumer_value(record_type: ConsumerRecordType, value: bytes) -> ConsumerValue:
    reader = Reader(value)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise UnreadableRecord(f"{record_type.name} version {version}")
    reader.flexible = True
    match record_type:
        case ConsumerRecordType.GROUP_METADATA | ConsumerRecordType.TARGET_ASSIGNMENT_METADATA:
            return reader.int32()
        case ConsumerRecordType.PARTITION_METADATA:
            return dict(_read_topic(reader) for _ in range(reader.array_count()))
        case ConsumerRecordType.MEMBER_METADATA:
            return _read_member(reader)
        case ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER:
            return read_partitions(reader)
        case ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT:
            return _read_current(reader)
        case ConsumerRecordType.REGULAR_EXPRESSION:
            topics = tuple(reader.string() for _ in range(reader.array_count()))
            return ResolvedRegex(topics, reader.int64(), reader.int64())


def _read_topic(reader: Reader) -> tuple[str, TopicMetadata]:
    topic_id = UUID(bytes=reader.raw(16))
    name = reader.string()
    partition_count = reader.int32()
    for _ in range(reader.array_count()):
        reader.int32()
        for _ in range(reader.array_count()):
            reader.string()
        reader.tagged_fields()
    reader.tagged_fields()
    return name, TopicMetadata(topic_id, partition_count)


def read_partitions(reader: Reader) -> Partitions:
    partitions: list[Partition] = []
    for _ in range(reader.array_count()):
        topic_id = UUID(bytes=reader.raw(16))
        partitions += ((topic_id, reader.int32()) for _ in range(reader.array_count()))
        reader.tagged_fields()
    return frozenset(partitions)


def _read_member(reader: Reader) -> MemberMetadata:
    instance_id = reader.nullable_string()
    rack_id = reader.nullable_string()
    client_id = reader.string()
    client_host = reader.string()
    names = tuple(reader.string() for _ in range(reader.array_count()))
    regex = reader.nullable_string()
    rebalance_timeout_ms = reader.int32()
    server_assignor = reader.nullable_string()
    classic = None
    for _ in range(reader.unsigned_varint()):
        tag = reader.unsigned_varint()
        content = reader.raw(reader.unsigned_varint())
        if tag == 0:
            classic = _read_classic(content)
    return MemberMetadata(
        instance_id,
        rack_id,
        client_id,
        client_host,
        names,
        regex,
        rebalance_timeout_ms,
        server_assignor,
        classic,
    )


def _read_classic(content: bytes) -> ClassicMetadata | None:
    reader = Reader(content)
    reader.flexible = True
    if reader.raw(1) != b"\x01":
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.array_count()):
        protocols.append((reader.string(), reader.bytes()))
        reader.tagged_fields()
    return ClassicMetadata(session_timeout_ms, tuple(protocols))


def _read_current(reader: Reader) -> CurrentAssignment:
    epoch, previous_epoch = reader.int32(), reader.int32()
    number = reader.raw(1)[0]
    known = number in (
        MemberState.STABLE,
        MemberState.UNREVOKED_PARTITIONS,
        MemberState.UNRELEASED_PARTITIONS,
    )
    state = MemberState(number) if known else MemberState.UNKNOWN
    return CurrentAssignment(epoch, previous_epoch, state, read_partitions(reader), read_partitions(reader))
