"""The records of `__transaction_state`, byte for byte Kafka's.

    key    version:int16 = 0, transactional_id:string
    value  version:int16, then
           v0  producer_id:int64 producer_epoch:int16 timeout_ms:int32 state:int8
               partitions:[topic:string [partition:int32]]? last_update_ms:int64 start_ms:int64
           v1  the same fields with compact strings and arrays and tagged fields after each struct;
               tag 0 previous_producer_id:int64, 1 next_producer_id:int64, 2 client_version:int16,
               each left out where it is -1, -1, 0

A string is int16 length and UTF-8, an array int32 count; the compact forms begin with an unsigned varint of
length plus one. The partitions are null in the state Empty. A missing value is a tombstone. Version 1 is
written when the feature `transaction.version` is at least 1; both are read.
"""

import struct
from collections.abc import Iterable

from tidelog.model.identifiers import NO_PRODUCER_ID, TopicPartition
from tidelog.records.stored_fields import Reader, UnreadableRecord, varint_field
from tidelog.transactions.states import TransactionState
from tidelog.transactions.transaction import Transaction

KEY_VERSION = 0
FIRST_FLEXIBLE_VALUE_VERSION = 1
HIGHEST_VALUE_VERSION = 1

_PREVIOUS_PRODUCER_ID_TAG = 0
_NEXT_PRODUCER_ID_TAG = 1
_CLIENT_VERSION_TAG = 2

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TAIL = struct.Struct(">qq")


# ---------------------------------------------------------------- writing


def transaction_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return _INT16.pack(KEY_VERSION) + _INT16.pack(len(encoded)) + encoded


def transaction_value(transaction: Transaction, version: int) -> bytes:
    flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
    head = _HEAD.pack(
        version,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        transaction.state,
    )
    tail = _TAIL.pack(transaction.update_ms, transaction.start_ms)
    if transaction.state is TransactionState.EMPTY:
        partitions = b"\x00" if flexible else _INT32.pack(-1)
    else:
        partitions = _partitions(transaction.partitions, flexible)
    return head + partitions + tail + (_tags(transaction) if flexible else b"")


def _partitions(partitions: Iterable[TopicPartition], flexible: bool) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [varint_field(len(by_topic) + 1) if flexible else _INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        if flexible:
            parts += (varint_field(len(name) + 1), name, varint_field(len(numbers) + 1))
        else:
            parts += (_INT16.pack(len(name)), name, _INT32.pack(len(numbers)))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
        if flexible:
            parts.append(b"\x00")
    return b"".join(parts)


def _tags(transaction: Transaction) -> bytes:
    tags: list[tuple[int, bytes]] = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags.append((_PREVIOUS_PRODUCER_ID_TAG, _INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append((_NEXT_PRODUCER_ID_TAG, _INT64.pack(transaction.next_producer_id)))
    if transaction.client_version != 0:
        tags.append((_CLIENT_VERSION_TAG, _INT16.pack(transaction.client_version)))
    return varint_field(len(tags)) + b"".join(
        varint_field(tag) + varint_field(len(data)) + data for tag, data in tags
    )


# ---------------------------------------------------------------- reading


def read_key(key: bytes) -> str | None:
    """The transactional id, or None for a key version that a newer Kafka may have written."""
    reader = Reader(key)
    return reader.string() if reader.int16() == KEY_VERSION else None


def read_value(transactional_id: str, value: bytes) -> Transaction:
    """What the record says; the last producer epoch is not stored."""
    reader = Reader(value)
    version = reader.int16()
    if not 0 <= version <= HIGHEST_VALUE_VERSION:
        raise UnreadableRecord(f"TransactionLogValue version {version}")
    reader.flexible = version >= FIRST_FLEXIBLE_VALUE_VERSION
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    number = reader.int8()
    if number not in TransactionState.__members__.values():
        raise UnreadableRecord(f"there is no transaction state {number}")
    partitions = _read_partitions(reader)
    update_ms = reader.int64()
    start_ms = reader.int64()
    tags = reader.tagged_fields()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState(number),
        partitions=partitions,
        start_ms=start_ms,
        update_ms=update_ms,
        previous_producer_id=_tagged(tags, _PREVIOUS_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        next_producer_id=_tagged(tags, _NEXT_PRODUCER_ID_TAG, NO_PRODUCER_ID),
        client_version=_tagged(tags, _CLIENT_VERSION_TAG, 0),
    )


def _read_partitions(reader: Reader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.nullable_array_count()):
        topic = reader.string()
        for _ in range(reader.nullable_array_count()):
            found.add(TopicPartition(topic, reader.int32()))
        reader.tagged_fields()
    return frozenset(found)


def _tagged(tags: dict[int, bytes], tag: int, otherwise: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else otherwise
