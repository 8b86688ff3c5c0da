"""The fast path for a Fetch request that looks like the one before it on the same connection.

A consumer of one partition without a session sends the same request again and again: only the correlation id
and the offset change. A connection remembers the last such request by its bytes around the offset. One that
is equal there needs no decoding, and its answer is the earlier answer with other numbers in it. Everything
unusual (sessions, followers, read_committed, quotas, racks, nothing to read yet, an error) takes the general
path.

A template holds the partition it leads to, so it counts only as long as the cluster image is the same; the
image has the rights of users too.
"""

import struct
from typing import cast

from tidelog.broker.replicas.partition import Partition
from tidelog.broker.requests.produce_templates import TEMPLATE_BYTES_MAX
from tidelog.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FIRST_FLEXIBLE,
    READ_COMMITTED,
    FetchRequest,
    PartitionFetched,
    encode_response,
    offset_position,
)
from tidelog.protocol.primitives import INT32, INT64, unsigned_varint
from tidelog.storage.readable_log import LogSlice

#: older answers do not have the log start offset
FIRST_VERSION = 5
#: high watermark, last stable offset, log start offset
OFFSETS = struct.Struct(">qqq")
_MARK = OFFSETS.pack(0x6D61726B6D61726B, 0x68657265686572, 0x6F6666736574)


class _NoRecords:
    """Stands for the records while the rest of the answer is encoded."""

    size_bytes = 0


class FetchTemplate:
    """A Fetch request for one partition, all but its offset, and the answer, all but its numbers."""

    __slots__ = (
        "_after",
        "_answer",
        "_before",
        "_flexible",
        "_head",
        "_length",
        "_max_bytes",
        "_middle",
        "_min_bytes",
        "_offset_at",
        "_partition",
        "_tail",
        "image_version",
        "version",
    )

    def __init__(
        self,
        image_version: int,
        partition: Partition | None,
        bytes_max: int,
        request: FetchRequest,
        version: int,
        frame: memoryview,
        position: int,
    ) -> None:
        """Remember a request whose body is at `position` of its frame; answers have at most `bytes_max`."""
        topic, [wanted] = request.topics[0]
        self.version = version
        self.image_version = image_version
        self._partition = partition
        self._min_bytes = request.min_bytes
        self._max_bytes = max(0, min(wanted.max_bytes, request.max_bytes, bytes_max))
        self._length = len(frame)
        self._offset_at = offset_at = offset_position(frame, position, version)
        self._before = bytes(frame[position:offset_at])
        self._after = bytes(frame[offset_at + INT64.size :])
        self._flexible = version >= FIRST_FLEXIBLE
        numbers = OFFSETS.unpack(_MARK)
        fetched = PartitionFetched(
            wanted.partition, 0, numbers[0], numbers[1], numbers[2], None, -1, _NoRecords()
        )
        first, _, *rest = encode_response([(topic, [fetched])], version, 0)
        head, middle = cast(bytes, first).split(_MARK)
        # The size of the frame and the correlation id come before the head, the length of the records last.
        self._head, self._middle = head[8:], middle[: -1 if self._flexible else -4]
        self._tail = b"".join(cast(list[bytes], rest))
        self._answer = struct.Struct(f">ii{len(self._head)}sqqq").pack

    def answer(
        self, image_version: int, correlation_id: int, frame: memoryview, position: int
    ) -> list[bytes | LogSlice] | None:
        """The response to a request of this version; None if it must be decoded after all."""
        offset_at = self._offset_at
        partition = self._partition
        if (
            len(frame) != self._length
            or partition is None
            or self.image_version != image_version
            or frame[position:offset_at] != self._before
            or frame[offset_at + 8 :] != self._after
        ):
            return None
        offset = INT64.unpack_from(frame, offset_at)[0]
        log = partition.log
        try:
            records = log.read(offset, self._max_bytes, partition.high_watermark)
        except OSError:
            return None  # the general path tells of it
        if records is None:
            return None
        size_bytes = records.size_bytes
        if size_bytes == 0 or size_bytes < self._min_bytes:
            return None
        partition.sent_bytes += size_bytes
        partition.sent_messages += records.next_offset - offset
        middle, tail = self._middle, self._tail
        length = unsigned_varint(size_bytes + 1) if self._flexible else INT32.pack(size_bytes)
        rest_bytes = 28 + len(self._head) + len(middle) + len(length) + len(tail)
        numbers = self._answer(
            rest_bytes + size_bytes,
            correlation_id,
            self._head,
            partition.high_watermark,
            partition.last_stable_offset,
            log.log_start_offset,
        )
        head = b"".join((numbers, middle, length))
        return [head, records, tail] if tail else [head, records]


def has_template(request: FetchRequest, version: int, frame_bytes: int, rack_aware: bool) -> bool:
    """Whether a request that was answered with records is one whose like can go by the fast path."""
    return (
        version >= FIRST_VERSION
        and frame_bytes <= TEMPLATE_BYTES_MAX
        and len(request.topics) == 1
        and len(request.topics[0][1]) == 1
        and request.replica_id == CONSUMER_REPLICA_ID
        and request.session_id == 0
        and request.session_epoch == -1
        and request.isolation != READ_COMMITTED
        and not request.forgotten
        and not (request.rack_id and rack_aware)
        and request.topics[0][1][0].last_fetched_epoch < 0
    )
