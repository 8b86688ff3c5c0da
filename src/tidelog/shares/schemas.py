"""The records of `__share_group_state`, byte for byte Kafka's.

key    type:int16 group:string topic_id:uuid partition:int32
         0   ShareSnapshot    all there is of the share partition; no value: it is deleted
         1   ShareUpdate      what has changed since
value  version:int16 = 0, then in Kafka's compact forms with tagged fields after each struct
         0   snapshot_epoch:int32 state_epoch:int32 leader_epoch:int32 start_offset:int64
             create_timestamp:int64 write_timestamp:int64 [StateBatch]
         1   snapshot_epoch:int32 leader_epoch:int32 start_offset:int64 [StateBatch]
             a start offset of -1 in an update says nothing of it
             tag 0, of both: delivery_complete_count:int32 (KIP-1226)
       StateBatch  first_offset:int64 last_offset:int64 delivery_state:int8 delivery_count:int16
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from tidelog.records.stored_fields import Reader, UnreadableRecord, varint_field
from tidelog.shares.state_batches import StateBatch
from tidelog.shares.states import RecordState

SNAPSHOT_KEY = 0
UPDATE_KEY = 1
VALUE_VERSION = 0
UNINITIALIZED_OFFSET = -1
UNINITIALIZED_COUNT = -1

_KEY_TAIL = struct.Struct(">16si")
_SNAPSHOT_HEAD = struct.Struct(">hiiiqqq")
_UPDATE_HEAD = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbhx")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_COUNT_TAG = b"\x01\x00\x04"
_NO_TAGS = b"\x00"


class ShareKey(NamedTuple):
    """A share partition: what one group has of one partition of a topic."""

    group_id: str
    topic_id: UUID
    partition: int


class ShareSnapshot(NamedTuple):
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_timestamp_ms: int
    write_timestamp_ms: int
    batches: tuple[StateBatch, ...]


class ShareUpdate(NamedTuple):
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


# ---------------------------------------------------------------- writing


def _key(key_type: int, key: ShareKey) -> bytes:
    group = key.group_id.encode()
    head = _INT16.pack(key_type) + _INT16.pack(len(group))
    return head + group + _KEY_TAIL.pack(key.topic_id.bytes, key.partition)


def snapshot_key(key: ShareKey) -> bytes:
    return _key(SNAPSHOT_KEY, key)


def update_key(key: ShareKey) -> bytes:
    return _key(UPDATE_KEY, key)


def _tail(batches: Iterable[StateBatch], delivery_complete_count: int) -> bytes:
    # The zero byte after each packed batch says that it has no tagged fields.
    packed = [_BATCH.pack(*batch) for batch in batches]
    parts = [varint_field(len(packed) + 1), *packed]
    if delivery_complete_count == UNINITIALIZED_COUNT:
        parts.append(_NO_TAGS)
    else:
        parts += (_COUNT_TAG, _INT32.pack(delivery_complete_count))
    return b"".join(parts)


def snapshot_value(snapshot: ShareSnapshot) -> bytes:
    head = _SNAPSHOT_HEAD.pack(
        VALUE_VERSION,
        snapshot.snapshot_epoch,
        snapshot.state_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        snapshot.create_timestamp_ms,
        snapshot.write_timestamp_ms,
    )
    return head + _tail(snapshot.batches, snapshot.delivery_complete_count)


def update_value(update: ShareUpdate) -> bytes:
    head = _UPDATE_HEAD.pack(VALUE_VERSION, update.snapshot_epoch, update.leader_epoch, update.start_offset)
    return head + _tail(update.batches, update.delivery_complete_count)


# ---------------------------------------------------------------- reading


def read_key(key: bytes) -> tuple[int, ShareKey] | None:
    """The type of a key and what it is about; None for a type of a newer Kafka."""
    reader = Reader(key)
    key_type = reader.int16()
    if key_type not in (SNAPSHOT_KEY, UPDATE_KEY):
        return None
    return key_type, ShareKey(reader.string(), UUID(bytes=reader.raw(16)), reader.int32())


def _opened(value: bytes, what: str) -> Reader:
    reader = Reader(value)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise UnreadableRecord(f"{what} version {version}")
    reader.flexible = True
    return reader


def _read_tail(reader: Reader) -> tuple[tuple[StateBatch, ...], int]:
    batches = []
    for _ in range(reader.array_count()):
        first, last, state, count = reader.int64(), reader.int64(), reader.int8(), reader.int16()
        if state not in _STATES or last < first:
            raise UnreadableRecord(f"a batch from {first} to {last} in state {state}")
        batches.append(StateBatch(first, last, RecordState(state), count))
        reader.tagged_fields()
    tagged = reader.tagged_fields().get(0)
    complete_count = UNINITIALIZED_COUNT if tagged is None else Reader(tagged).int32()
    return tuple(batches), complete_count


def read_snapshot(value: bytes) -> ShareSnapshot:
    reader = _opened(value, "ShareSnapshot")
    epochs = reader.int32(), reader.int32(), reader.int32()
    start_offset = reader.int64()
    created_ms, written_ms = reader.int64(), reader.int64()
    batches, complete_count = _read_tail(reader)
    return ShareSnapshot(*epochs, start_offset, complete_count, created_ms, written_ms, batches)


def read_update(value: bytes) -> ShareUpdate:
    reader = _opened(value, "ShareUpdate")
    snapshot_epoch, leader_epoch, start_offset = reader.int32(), reader.int32(), reader.int64()
    batches, complete_count = _read_tail(reader)
    return ShareUpdate(snapshot_epoch, leader_epoch, start_offset, complete_count, batches)


_STATES = frozenset(int(state) for state in RecordState)
