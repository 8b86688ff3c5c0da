"""Offsets of many partitions, and what a query decides about them: pure functions on values.

Offsets travel in the form that Spark's Kafka source uses, `{"topic": {"0": 42}}`, so checkpoints and options
read alike. Spark compares offsets as text, so `to_json` always writes topics and partitions in order.

    parse_offsets        the option startingOffsets and its like
    limit_offsets        how far the next micro-batch goes, in proportion to what each partition has
    split_ranges         ranges cut into tasks
    compare_offsets      what is new, what is gone, what went backwards
"""

import heapq
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition

Offsets = dict[TopicPartition, int]


class OffsetRange(NamedTuple):
    """Records of one partition from `start` up to, not including, `end`."""

    where: TopicPartition
    start: int
    end: int

    @property
    def records_count(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.where} [{self.start}, {self.end})"


class Comparison(NamedTuple):
    """How the offsets of the cluster differ from those of the query."""

    appeared: tuple[TopicPartition, ...]
    gone: tuple[TopicPartition, ...]
    backwards: tuple[TopicPartition, ...]


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark stores them, in order."""
    topics: dict[str, dict[str, int]] = {}
    for where in sorted(offsets):
        topics.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return topics


def from_json(topics: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The reverse of `to_json`."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def parse_offsets(option: str, text: str) -> Offsets:
    """Offsets or timestamps written as JSON; raises BadOption."""
    example = f'{option} is written {{"topic":{{"0":23,"1":-2}}}}'
    try:
        topics = json.loads(text)
    except ValueError as fault:
        raise BadOption(f"{example}; this is no JSON: {fault}") from fault
    if not isinstance(topics, dict) or not all(isinstance(rows, dict) for rows in topics.values()):
        raise BadOption(f"{example}, not {text!r}")
    offsets: Offsets = {}
    for topic, rows in topics.items():
        for partition, offset in rows.items():
            if not partition.isdigit() or not isinstance(offset, int) or isinstance(offset, bool):
                raise BadOption(f"{example}, not {topic!r}: {{{partition!r}: {offset!r}}}")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """The option `assign`: `{"topic":[0,1]}`; raises BadOption."""
    example = 'assign is written {"topic":[0,1]}'
    try:
        topics: Any = json.loads(text)
    except ValueError as fault:
        raise BadOption(f"{example}; this is no JSON: {fault}") from fault
    if not isinstance(topics, dict) or not topics:
        raise BadOption(f"{example}, not {text!r}")
    assigned: list[TopicPartition] = []
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not all(
            isinstance(partition, int) and partition >= 0 for partition in partitions
        ):
            raise BadOption(f"{example}, not {topic!r}: {partitions!r}")
        assigned += [TopicPartition(topic, partition) for partition in partitions]
    return tuple(sorted(set(assigned)))


def compare_offsets(known: Collection[TopicPartition], start: Offsets, latest: Offsets) -> Comparison:
    """What has changed between a query's offsets and those of the cluster, whose partitions are `known`."""
    return Comparison(
        tuple(sorted(where for where in known if where not in start)),
        tuple(sorted(where for where in start if where not in known)),
        tuple(sorted(where for where in start if where in latest and latest[where] < start[where])),
    )


def limit_offsets(start: Offsets, latest: Offsets, records_max: int) -> Offsets:
    """Ends such that about `records_max` records lie before them, every partition having its share.

    A partition with something to read gets at least one record, so none starves.
    """
    counts = {where: max(0, latest[where] - start.get(where, 0)) for where in latest}
    total = sum(counts.values())
    if total <= records_max:
        return dict(latest)
    ends: Offsets = {}
    for where, end in latest.items():
        share = records_max * counts[where] / total
        taken = math.ceil(share) if share < 1 else math.floor(share)
        ends[where] = min(end, start.get(where, 0) + taken) if counts[where] else end
    return ends


def split_ranges(
    ranges: Sequence[OffsetRange], partitions_min: int | None, records_per_partition_max: int | None
) -> list[OffsetRange]:
    """Cut ranges into pieces for tasks, none larger than the maximum, at least so many where that can be."""
    pieces = [one for one in ranges if one.records_count]
    if records_per_partition_max is not None:
        pieces = [
            piece
            for one in pieces
            for piece in _cut(one, math.ceil(one.records_count / records_per_partition_max))
        ]
    if partitions_min is None or not pieces or len(pieces) >= partitions_min:
        return pieces
    # Again and again another task for the range whose tasks have most to do.
    parts = [1] * len(pieces)
    heap: list[tuple[float, int]] = [(-one.records_count, index) for index, one in enumerate(pieces)]
    heapq.heapify(heap)
    for _ in range(min(partitions_min, sum(one.records_count for one in pieces)) - len(pieces)):
        _, index = heap[0]
        parts[index] += 1
        heapq.heapreplace(heap, (-pieces[index].records_count / parts[index], index))
    return [piece for one, count in zip(pieces, parts, strict=True) for piece in _cut(one, count)]


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = max(1, min(parts, one.records_count))
    bounds = [one.start + one.records_count * index // parts for index in range(parts + 1)]
    return [OffsetRange(one.where, start, end) for start, end in itertools.pairwise(bounds)]
