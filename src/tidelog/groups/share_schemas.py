"""The records of share groups (KIP-932) in `__consumer_offsets`, byte for byte Kafka's.

    key    version:int16, then
             10  member metadata           group:string member:string
             11  group metadata            group:string
             12  target assignment epoch   group:string
             13  target of a member        group:string member:string
             14  current assignment        group:string member:string
             15  state partition metadata  group:string
    value  version:int16 = 0, then in Kafka's compact forms with tagged fields after each struct
             10  rack_id:string? client_id:string client_host:string subscribed_topic_names:[string]
             11  epoch:int32 metadata_hash:int64
             12  assignment_epoch:int32        tag 0: assignment_timestamp:int64, read over
             13  [topic_id:uuid partitions:[int32]]
             14  member_epoch:int32 previous_member_epoch:int32 state:int8
                 assigned:[topic_id:uuid partitions:[int32]]
             15  initializing:[topic_id:uuid topic_name:string partitions:[int32]] initialized:[the same]
                 deleting:[topic_id:uuid topic_name:string]

A missing value is a tombstone. The metadata hash only says whether topics have changed; ours is not Kafka's.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from tidelog.groups.consumer_schemas import (
    NOTHING,
    Partition,
    Partitions,
    array_field,
    partitions_field,
    read_partitions,
    string_field,
)
from tidelog.records.stored_fields import Reader, UnreadableRecord

VALUE_VERSION = 0
_VALUE_HEAD = struct.pack(">h", VALUE_VERSION)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NO_TAGS = b"\x00"
#: of `MemberState` only this one occurs: members of share groups have nothing to give up first
_STABLE = 0


class ShareRecordType(IntEnum):
    """The version in the key says what a record is about."""

    MEMBER_METADATA = 10
    GROUP_METADATA = 11
    TARGET_ASSIGNMENT_METADATA = 12
    TARGET_ASSIGNMENT_MEMBER = 13
    CURRENT_MEMBER_ASSIGNMENT = 14
    STATE_PARTITION_METADATA = 15


_TYPES_WITH_MEMBER = frozenset(
    {
        ShareRecordType.MEMBER_METADATA,
        ShareRecordType.TARGET_ASSIGNMENT_MEMBER,
        ShareRecordType.CURRENT_MEMBER_ASSIGNMENT,
    }
)
SHARE_KEY_VERSIONS = frozenset(int(record_type) for record_type in ShareRecordType)


class ShareKey(NamedTuple):
    """`member_id` is empty for records of the whole group."""

    record_type: ShareRecordType
    group_id: str
    member_id: str = ""


class ShareMemberMetadata(NamedTuple):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


class ShareGroupMetadata(NamedTuple):
    epoch: int = 0
    metadata_hash: int = 0


class ShareAssignment(NamedTuple):
    """What a member may fetch now."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = NOTHING


class TopicState(NamedTuple):
    """Partitions of a topic of which there is, or will be, state at share coordinators."""

    name: str
    partitions: frozenset[int]


class StatePartitions(NamedTuple):
    """Of which partitions a group has state at share coordinators."""

    initializing: Mapping[UUID, TopicState] = {}
    initialized: Mapping[UUID, TopicState] = {}
    deleting: Mapping[UUID, str] = {}

    @property
    def assignable(self) -> Partitions:
        return frozenset(
            (topic_id, index) for topic_id, state in self.initialized.items() for index in state.partitions
        )


ShareValue = (
    ShareMemberMetadata | ShareGroupMetadata | int | frozenset[Partition] | ShareAssignment | StatePartitions
)


# ---------------------------------------------------------------- writing


def share_key(record_type: ShareRecordType, group_id: str, member_id: str | None = None) -> bytes:
    parts = [_INT16.pack(record_type)]
    for text in (group_id,) if member_id is None else (group_id, member_id):
        encoded = text.encode()
        parts += (_INT16.pack(len(encoded)), encoded)
    return b"".join(parts)


def share_value(value: ShareValue) -> bytes:
    """What is stored of a value; its type says which record it is of."""
    match value:
        case ShareMemberMetadata():
            said = (value.rack_id, value.client_id, value.client_host)
            names = array_field(string_field(name) for name in value.subscribed_topic_names)
            fields = b"".join(string_field(text) for text in said) + names
        case ShareGroupMetadata():
            fields = struct.pack(">iq", value.epoch, value.metadata_hash)
        case ShareAssignment():
            epochs = struct.pack(">iib", value.epoch, value.previous_epoch, _STABLE)
            fields = epochs + partitions_field(value.assigned)
        case StatePartitions():
            deleting = sorted(value.deleting.items())
            names = array_field(topic_id.bytes + string_field(name) + _NO_TAGS for topic_id, name in deleting)
            fields = _topic_states(value.initializing) + _topic_states(value.initialized) + names
        case int():
            fields = _INT32.pack(value)
        case _:
            fields = partitions_field(value)
    return _VALUE_HEAD + fields + _NO_TAGS


def _topic_states(topics: Mapping[UUID, TopicState]) -> bytes:
    return array_field(
        topic_id.bytes
        + string_field(state.name)
        + array_field(_INT32.pack(index) for index in sorted(state.partitions))
        + _NO_TAGS
        for topic_id, state in sorted(topics.items())
    )


# ---------------------------------------------------------------- reading


def read_share_key(key: bytes) -> ShareKey:
    """Decode a key whose version is one of `SHARE_KEY_VERSIONS`."""
    reader = Reader(key)
    record_type = ShareRecordType(reader.int16())
    group_id = reader.string()
    return ShareKey(record_type, group_id, reader.string() if record_type in _TYPES_WITH_MEMBER else "")


def read_share_value(record_type: ShareRecordType, value: bytes) -> ShareValue:
    reader = Reader(value)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise UnreadableRecord(f"{record_type.name} version {version}")
    reader.flexible = True
    match record_type:
        case ShareRecordType.MEMBER_METADATA:
            rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
            names = tuple(reader.string() for _ in range(reader.array_count()))
            return ShareMemberMetadata(rack_id, client_id, client_host, names)
        case ShareRecordType.GROUP_METADATA:
            return ShareGroupMetadata(reader.int32(), reader.int64())
        case ShareRecordType.TARGET_ASSIGNMENT_METADATA:
            return reader.int32()
        case ShareRecordType.TARGET_ASSIGNMENT_MEMBER:
            return read_partitions(reader)
        case ShareRecordType.CURRENT_MEMBER_ASSIGNMENT:
            epochs = reader.int32(), reader.int32()
            reader.int8()
            return ShareAssignment(*epochs, read_partitions(reader))
        case ShareRecordType.STATE_PARTITION_METADATA:
            states = _read_topic_states(reader), _read_topic_states(reader)
            return StatePartitions(*states, _read_topic_names(reader))


def _read_topic_states(reader: Reader) -> dict[UUID, TopicState]:
    found = {}
    for _ in range(reader.array_count()):
        topic_id, name = UUID(bytes=reader.raw(16)), reader.string()
        found[topic_id] = TopicState(name, frozenset(reader.int32() for _ in range(reader.array_count())))
        reader.tagged_fields()
    return found


def _read_topic_names(reader: Reader) -> dict[UUID, str]:
    found = {}
    for _ in range(reader.array_count()):
        topic_id = UUID(bytes=reader.raw(16))
        found[topic_id] = reader.string()
        reader.tagged_fields()
    return found
