"""The offset of a query that reads a share group: which records a micro-batch has, and how they become tasks.

    {"batch": 3, "member": "W1x…",
     "taken": {"orders": {"id": "6fd1…", "partitions": {"0": [[0, 19], [25, 25]]}}}}

It stands in Spark's checkpoint before the micro-batch runs, so a micro-batch that is run again has the same
records, whoever holds them by then. `batch` grows, since Spark takes equal offsets for nothing new. `member`
is the member's id: a driver that is started again is the same member.

    QueueOffset.to_json, QueueOffset.read   there and back
    tasks_of                                ranges cut into tasks
    Processed                               what was processed and may come again all the same
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.client.faults import ClientFault
from tidelog.client.share_member import AcquiredRange
from tidelog.client.share_requests import Place, Span
from tidelog.model.identifiers import TopicPartition

#: one task does not read over more offsets that are not its own
GAP_MAX = 4_096
#: what was processed and not acknowledged is known again for so long
REMEMBERED_SECONDS = 900.0


class QueueTask(NamedTuple):
    """What one task reads: records of one partition, in order."""

    where: TopicPartition
    spans: tuple[Span, ...]


class QueueOffset(NamedTuple):
    """One offset of the query."""

    batch: int
    member_id: str
    ranges: tuple[AcquiredRange, ...]

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it, in order."""
        taken: dict[str, Any] = {}
        for one in sorted(self.ranges):
            topic = taken.setdefault(one.where.topic, {"id": str(one.topic_id), "partitions": {}})
            spans = topic["partitions"].setdefault(str(one.where.partition), [])
            if spans and spans[-1][1] + 1 == one.first:
                spans[-1][1] = one.last
            else:
                spans.append([one.first, one.last])
        return {"batch": self.batch, "member": self.member_id, "taken": taken}

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "QueueOffset":
        """The reverse; raises ClientFault for the checkpoint of a query that reads offsets."""
        try:
            ranges = tuple(
                AcquiredRange(TopicPartition(name, int(index)), UUID(topic["id"]), int(first), int(last), 0)
                for name, topic in written["taken"].items()
                for index, spans in topic["partitions"].items()
                for first, last in spans
            )
            return cls(int(written["batch"]), str(written["member"]), ranges)
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise ClientFault(
                "the checkpoint is that of a query without share.group: use another checkpoint"
            ) from fault


def tasks_of(
    ranges: Iterable[AcquiredRange], tasks_min: int | None, records_max: int | None
) -> list[QueueTask]:
    """At least so many tasks, if there are so many records; one for each partition by default."""
    by_partition: dict[TopicPartition, list[Span]] = {}
    for one in sorted(ranges):
        by_partition.setdefault(one.where, []).append((one.first, one.last))
    total = sum(last - first + 1 for spans in by_partition.values() for first, last in spans)
    portion = max(1, min(math.ceil(total / (tasks_min or 1)), records_max or total))
    return [
        QueueTask(where, piece) for where, spans in by_partition.items() for piece in _pieces(spans, portion)
    ]


def _pieces(spans: Iterable[Span], portion: int) -> Iterable[tuple[Span, ...]]:
    """Spans in pieces of about so many records, without long gaps inside."""
    piece: list[Span] = []
    room = portion
    for first, last in spans:
        begin = first
        while begin <= last:
            if piece and (room <= 0 or begin - piece[-1][1] > GAP_MAX):
                yield tuple(piece)
                piece, room = [], portion
            end = min(last, begin + room - 1)
            piece.append((begin, end))
            room -= end - begin + 1
            begin = end + 1
    if piece:
        yield tuple(piece)


class _Done(NamedTuple):
    """A record that was processed."""

    until: float
    deliveries_min: int


class Processed:
    """Records that committed micro-batches had, while nobody knows whether their acknowledgement counts.

    When one is delivered again it need only be accepted. A record that was acknowledged comes again only when
    somebody moves the group's start, and begins with its first delivery then: so what an earlier driver
    processed is known only from its second delivery on.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[Place, int], _Done] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, ranges: Iterable[AcquiredRange], now: float, deliveries_min: int = 1) -> None:
        """These were processed."""
        done = _Done(now + REMEMBERED_SECONDS, deliveries_min)
        for one in ranges:
            place = one.topic_id, one.where.partition
            self._records |= dict.fromkeys(
                ((place, offset) for offset in range(one.first, one.last + 1)), done
            )

    def known(self, acquired: Iterable[AcquiredRange], now: float) -> set[AcquiredRange]:
        """The ranges of which every record was processed, which are forgotten with that.

        A range with others in it is delivered again as a whole.
        """
        if not self._records:
            return set()
        found: set[AcquiredRange] = set()
        for one in acquired:
            place = one.topic_id, one.where.partition
            keys = [(place, offset) for offset in range(one.first, one.last + 1)]
            records = [self._records.get(key) for key in keys]
            if all(
                each is not None and each.until > now and one.delivery_count >= each.deliveries_min
                for each in records
            ):
                found.add(one)
                for key in keys:
                    del self._records[key]
        if all(each.until <= now for each in self._records.values()):
            self._records.clear()
        return found
