"""What is remembered of Produce requests, so that those like them take the fast path (`produce_fast_path`).

A producer sends the same request again and again: client id, acks, timeout, topic and partition stay, only
the correlation id and the records change. A connection remembers the templates of its requests for one
partition, by their bytes between the correlation id and the records. A request that starts with a remembered
template needs no decoding, and its answer is the earlier answer with other numbers in it. Everything unusual
(several partitions, tagged fields, acks=0, a refused batch) goes by the general path, through the decoder.

A template holds the partition it leads to, so it counts only as long as the cluster image is the same.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from uuid import UUID

from tidelog.broker.replicas.partition import Partition
from tidelog.model.identifiers import NO_TIMESTAMP
from tidelog.protocol.primitives import INT32, read_unsigned_varint
from tidelog.protocol.produce import FIRST_FLEXIBLE, PartitionProduced, encode_response

#: templates kept per connection; a producer has one per partition that it writes to alone
TEMPLATES_MAX = 4096
#: what a client may make a connection remember of one request, and of all
TEMPLATE_BYTES_MAX = 2048
TEMPLATES_BYTES_MAX = 512 << 10
#: what is kept of the templates that connections share
KNOWN_TEMPLATES_MAX = 4 * TEMPLATES_MAX
KNOWN_BYTES_MAX = 2 << 20
#: where the correlation id ends and the remembered bytes begin
TEMPLATE_START = 8
#: the last bytes of a flexible request: no tags of the partition, the topic, the request
NO_TAGS = b"\x00\x00\x00"
#: below version 7 the records' codec has to be looked at
FIRST_VERSION = 7

#: base offset, log append time, log start offset
OFFSETS = struct.Struct(">qqq")
_MARK = OFFSETS.pack(0x6D61726B6D61726B, 0x68657265686572, 0x6F6666736574)


@lru_cache(maxsize=256)
def _frame(size: bytes, head_length: int, tail: bytes) -> tuple[bytes, bytes, Callable[..., bytes]]:
    """What answers for many partitions have in common; with thousands of them, memory that stays near."""
    # size, correlation id, what is always the same, the three numbers, what is always the same
    return size, tail, struct.Struct(f">4si{head_length}sqqq{len(tail)}s").pack


class ProduceTemplate:
    """A Produce request for one partition, all but its records, and the answer, all but its numbers."""

    __slots__ = (
        "_answer",
        "_head",
        "_size",
        "_tail",
        "image_version",
        "partition",
        "replication_timeout_ms",
        "topic",
        "version",
    )

    def __init__(
        self,
        version: int,
        image_version: int,
        topic: str | UUID,
        partition: Partition,
        replication_timeout_ms: int | None,
    ) -> None:
        self.version = version
        #: how long an answer waits for the replicas; None if it does not wait for them
        self.replication_timeout_ms = replication_timeout_ms
        self.image_version = image_version
        self.topic = topic
        self.partition = partition
        produced = PartitionProduced(partition.index, 0, *OFFSETS.unpack(_MARK))
        head, tail = encode_response([(topic, [produced])], version, 0).split(_MARK)
        self._head = head[8:]
        self._size, self._tail, self._answer = _frame(head[:4], len(self._head), tail)

    def answer(self, correlation_id: int, base_offset: int, log_append_time_ms: int) -> bytes:
        """The response frame."""
        return self._answer(
            self._size,
            correlation_id,
            self._head,
            base_offset,
            log_append_time_ms,
            self.partition.log.log_start_offset,
            self._tail,
        )

    def answers(self, correlation_ids: Sequence[int], base_offsets: Sequence[int]) -> list[bytes]:
        """The response frames of requests whose records keep their own timestamps."""
        pack, size, head, tail = self._answer, self._size, self._head, self._tail
        log_start_offset = self.partition.log.log_start_offset
        return [
            pack(size, correlation_id, head, base_offset, NO_TIMESTAMP, log_start_offset, tail)
            for correlation_id, base_offset in zip(correlation_ids, base_offsets, strict=True)
        ]


class KnownTemplates:
    """The templates of all connections of a broker, so that those that are alike share one.

    With thousands of partitions and some connections to each, this is memory that stays near. A connection
    may use a template only if it remembers it itself: what is allowed is decided there.
    """

    __slots__ = ("_keys_bytes", "_templates", "image_version")

    def __init__(self) -> None:
        #: templates of requests, Fetch too, count if they were made under this image; -1: none does
        self.image_version = -1
        self._templates: dict[tuple[int, bytes], tuple[bytes, ProduceTemplate]] = {}
        self._keys_bytes = 0

    def find(
        self,
        key: bytes,
        version: int,
        image_version: int,
        topic: str | UUID,
        partition: Partition,
        replication_timeout_ms: int | None,
    ) -> tuple[bytes, ProduceTemplate]:
        """The template of this version and key, which say all the rest, and the key as others have it."""
        known = self._templates.get((version, key))
        if known is not None and known[1].partition is partition and known[1].image_version == image_version:
            return known
        if len(self._templates) >= KNOWN_TEMPLATES_MAX or self._keys_bytes > KNOWN_BYTES_MAX:
            self._clear()
        if (version, key) not in self._templates:
            self._keys_bytes += len(key)
        known = key, ProduceTemplate(version, image_version, topic, partition, replication_timeout_ms)
        self._templates[version, key] = known
        return known

    def follow(self, image_version: int) -> None:
        """There is another image: what templates lead to may be gone."""
        self._clear()
        self.image_version = image_version

    def forget(self) -> None:
        """No template counts before there is another image."""
        self.follow(-1)

    def _clear(self) -> None:
        self._templates.clear()
        self._keys_bytes = 0


def records_of(buffer: memoryview, position: int, stop: int, version: int) -> memoryview | None:
    """The records at `position`, None if what ends at `stop` is anything but these records."""
    if version >= FIRST_FLEXIBLE:
        byte = buffer[position]
        position += 1
        if byte >= 0x80:
            length, position = read_unsigned_varint(buffer, position - 1)
        else:
            length = byte
        stop -= 3
        if position + length - 1 != stop or buffer[stop : stop + 3] != NO_TAGS or length == 0:
            return None
        return buffer[position:stop]
    length = INT32.unpack_from(buffer, position)[0]
    position += 4
    if length < 0 or position + length != stop:
        return None
    return buffer[position:stop]


def template_end(frame: memoryview, version: int, records: memoryview) -> int:
    """Where the template of a request ends that was served; 0 if the request has not the usual form."""
    if version < FIRST_VERSION:
        return 0
    if version >= FIRST_FLEXIBLE:
        end = len(frame) - len(NO_TAGS) - len(records) - _varint_size(len(records) + 1)
    else:
        end = len(frame) - INT32.size - len(records)
    usual = TEMPLATE_START < end <= TEMPLATE_BYTES_MAX
    return end if usual and records_of(frame, end, len(frame), version) is not None else 0


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
