"""What classic consumers put into JoinGroup and SyncGroup: Kafka's embedded "consumer" protocol.

    subscription  version:int16 topics:[string] user_data:bytes? [owned:[topic:string partitions:[int32]] v1+]
                  [generation:int32 v2+] [rack_id:string? v3+]
    assignment    version:int16 assigned:[topic:string partitions:[int32]] user_data:bytes?

The coordinator reads it only where classic members meet the consumer protocol (KIP-848's migration).
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.records.stored_fields import Reader, UnreadableRecord

NamedPartitions = tuple[tuple[str, tuple[int, ...]], ...]

HIGHEST_VERSION = 3
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NULL = _INT32.pack(-1)


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: NamedPartitions = ()
    rack_id: str | None = None


def _nullable_bytes(reader: Reader) -> None:
    size = reader.int32()
    if size != -1:
        reader.raw(size)


def _named_partitions(reader: Reader) -> NamedPartitions:
    return tuple(
        (reader.string(), tuple(reader.int32() for _ in range(reader.array_count())))
        for _ in range(reader.array_count())
    )


def read_subscription(metadata: bytes) -> Subscription:
    """Raises `UnreadableRecord` if it is not one."""
    reader = Reader(metadata)
    version = reader.int16()
    if version < 0:
        raise UnreadableRecord(f"subscription version {version}")
    topics = tuple(reader.string() for _ in range(reader.array_count()))
    _nullable_bytes(reader)
    owned = _named_partitions(reader) if version >= 1 else ()
    if version >= 2:
        reader.int32()
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(min(version, HIGHEST_VERSION), topics, owned, rack_id)


def read_assignment(assignment: bytes) -> NamedPartitions:
    """No bytes at all are an empty assignment."""
    if not assignment:
        return ()
    reader = Reader(assignment)
    if reader.int16() < 0:
        raise UnreadableRecord("an assignment of a negative version")
    return _named_partitions(reader)


def assignment(version: int, partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    parts = [_INT16.pack(version)]
    topics = [(name.encode(), list(indexes)) for name, indexes in partitions]
    parts.append(_INT32.pack(len(topics)))
    for name, indexes in topics:
        parts += (_INT16.pack(len(name)), name, _INT32.pack(len(indexes)))
        parts += (_INT32.pack(index) for index in indexes)
    return b"".join((*parts, _NULL))
