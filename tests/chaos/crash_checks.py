"""What must hold after a restart: the checks of the crash test.

Contents are read through the protocol; index files are read from the folder and compared with a scan of the
segment by `struct`, without the broker's own code.
"""

import random
import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests.chaos.crash_load import (
    BASE_TIMESTAMP_MS,
    Acknowledged,
    ClientWriter,
    Committer,
    Writer,
    key_of,
    value_of,
)
from tests.chaos.kafka_wire import WireClient
from tidelog.model.errors import ErrorCode
from tidelog.records.batch import iterate_headers
from tidelog.records.record import Record, iterate_records

EARLIEST, LATEST = -2, -1
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
LOOKUPS = 6


class Violation(Exception):
    """A promise was broken."""


def read_partition(client: WireClient, topic: str, partition: int, offset: int) -> Iterator[Record]:
    """Every record from an offset to the end."""
    end = client.list_offset(topic, partition, LATEST).offset
    while offset < end:
        fetched = client.fetch(topic, partition, offset)
        if fetched.error:
            raise Violation(f"{topic}-{partition}: fetch at {offset} failed: {ErrorCode(fetched.error).name}")
        if not fetched.records:
            raise Violation(f"{topic}-{partition}: nothing at {offset}, but the end is {end}")
        view = memoryview(fetched.records)
        for position, header in iterate_headers(view):
            for record in iterate_records(view[position : position + header.size_bytes], header):
                if record.offset >= offset:
                    yield record
            offset = header.next_offset


class Checker:
    """Checks one writer's partition, first the new part, from time to time all of it."""

    def __init__(self, writer: Writer | ClientWriter) -> None:
        self.plan = writer.plan
        self.memory = writer.memory
        self._checked_to = 0
        self._checked_batches = 0
        self._last_number = -1

    @property
    def exactly_once(self) -> bool:
        return self.plan.idempotent

    def check(self, client: WireClient, *, everything: bool) -> int:
        """Compare the partition with the memory; return how many records were read."""
        if self.plan.compacted:
            return self._check_table(client)
        plan = self.plan
        # confluent-kafka goes on delivering what it has queued, so this is noted before reading.
        acknowledged = list(self.memory.acknowledged)
        start = client.list_offset(plan.topic, plan.partition, EARLIEST).offset
        if everything:
            self._checked_to, self._checked_batches, self._last_number = start, 0, -1
        elif self._checked_to < start:
            self._checked_to = start
        numbers: dict[int, int] = {}
        expected_offset = self._checked_to
        count = 0
        for record in read_partition(client, plan.topic, plan.partition, self._checked_to):
            if record.offset != expected_offset:
                raise Violation(f"{plan.name}: offset {record.offset} follows {expected_offset - 1}")
            expected_offset += 1
            numbers[record.offset] = self._check_record(record, start)
            count += 1
        self._check_acknowledged(acknowledged, numbers, start)
        self._checked_to = expected_offset
        return count

    def _check_record(self, record: Record, start: int) -> int:
        """Whether a record is what its writer wrote, and in order; return its number."""
        name = self.plan.name
        number = record.timestamp_ms - BASE_TIMESTAMP_MS
        if record.key != key_of(number) or record.value != value_of(name, number, self.plan.compacted):
            raise Violation(f"{name}: record {number} at {record.offset} has a foreign content: {record!r}")
        if number <= self._last_number:
            raise Violation(f"{name}: record {number} at {record.offset} comes after {self._last_number}")
        gap = number != self._last_number + 1 and (self._last_number >= 0 or start == 0)
        if self.exactly_once and gap:
            raise Violation(f"{name}: record {number} at {record.offset} follows {self._last_number}")
        self._last_number = number
        return number

    def _check_acknowledged(
        self, acknowledged: list[Acknowledged], numbers: dict[int, int], start: int
    ) -> None:
        for base_offset, first, count in acknowledged[self._checked_batches :]:
            for index in range(count):
                offset = base_offset + index
                if offset < start or (offset < self._checked_to and offset not in numbers):
                    continue  # deleted by retention, or seen before the answer came
                if numbers.get(offset) != first + index:
                    raise Violation(
                        f"{self.plan.name}: record {first + index} was acknowledged at {offset}, "
                        f"where {numbers.get(offset)} is"
                    )
        self._checked_batches = len(acknowledged)

    def _check_table(self, client: WireClient) -> int:
        """A compacted partition: the last acknowledged value of every key, and no offset changed."""
        plan = self.plan
        numbers: dict[int, int] = {}
        newest: dict[bytes, int] = {}
        self._last_number = -1
        start = client.list_offset(plan.topic, plan.partition, EARLIEST).offset
        for record in read_partition(client, plan.topic, plan.partition, start):
            number = self._check_record(record, start)
            numbers[record.offset] = number
            newest[key_of(number)] = number
        wanted: dict[bytes, int] = {}
        for base_offset, first, count in self.memory.acknowledged:
            for number in range(first, first + count):
                wanted[key_of(number)] = number
                if numbers.get(base_offset + number - first, number) != number:
                    raise Violation(f"{plan.name}: another record is at the offset of {number}")
        unanswered = {
            key_of(n): n for n in range(self.memory.attempted) if value_of(plan.name, n, True) is None
        }
        for key, number in wanted.items():
            found = newest.get(key, -1)
            deleted = value_of(plan.name, number, True) is None or unanswered.get(key, -1) > number
            if found < number and not (deleted and found < 0):
                raise Violation(f"{plan.name}: {key!r} should be at record {number}, it is at {found}")
        return len(numbers)

    def check_lookups(self, client: WireClient, generator: random.Random) -> int:
        """Single records by offset and by timestamp."""
        plan = self.plan
        start = client.list_offset(plan.topic, plan.partition, EARLIEST).offset
        candidates = [batch for batch in self.memory.acknowledged if batch.base_offset >= start]
        if plan.compacted or not candidates:
            return 0
        for base_offset, first, count in generator.choices(candidates, k=LOOKUPS):
            index = generator.randrange(count)
            offset, timestamp_ms = base_offset + index, BASE_TIMESTAMP_MS + first + index
            fetched = client.fetch(plan.topic, plan.partition, offset, partition_max_bytes=1)
            found = next((r for r in _records(fetched.records) if r.offset >= offset), None)
            if found is None or (found.offset, found.timestamp_ms) != (offset, timestamp_ms):
                raise Violation(f"{plan.name}: a fetch at {offset} gave {found!r}")
            listed = client.list_offset(plan.topic, plan.partition, timestamp_ms)
            if int(listed.error_code) or listed.offset != offset:
                raise Violation(f"{plan.name}: the timestamp of {offset} led to {listed!r}")
        return LOOKUPS


def _records(data: bytes) -> Iterator[Record]:
    view = memoryview(data)
    for position, header in iterate_headers(view):
        yield from iterate_records(view[position : position + header.size_bytes], header)


def check_committed(client: WireClient, committer: Committer, topic: str) -> None:
    """The group's offset is the last acknowledged one, or a later one that had no answer."""
    if committer.acknowledged < 0:
        return
    answer = client.ask(
        "offset_fetch", 5, group_id=Committer.GROUP, topics=[{"name": topic, "partition_indexes": [0]}]
    )
    partition = answer.topics[0].partitions[0]
    if (
        int(partition.error_code)
        or not committer.acknowledged <= partition.committed_offset <= committer.attempted
    ):
        raise Violation(
            f"the group committed {committer.acknowledged} and attempted {committer.attempted}, "
            f"but the broker has {partition!r}"
        )


class ScannedBatch(NamedTuple):
    """A batch of a segment as an independent scan sees it."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int


def scan_segment(data: bytes, path: Path) -> list[ScannedBatch]:
    """Every batch of a segment file; the file must consist of whole ones."""
    batches = []
    position = 0
    while position < len(data):
        if position + BATCH_HEADER.size > len(data):
            raise Violation(f"{path}: {len(data) - position} stray bytes at {position}")
        fields = BATCH_HEADER.unpack_from(data, position)
        base_offset, length, magic, delta, max_timestamp_ms = (
            fields[0],
            fields[1],
            fields[3],
            fields[6],
            fields[8],
        )
        if magic != 2 or position + 12 + length > len(data):
            raise Violation(f"{path}: a broken batch at {position}")
        batches.append(ScannedBatch(position, base_offset, base_offset + delta, max_timestamp_ms))
        position += 12 + length
    return batches


def check_indexes(folder: Path, generator: random.Random, *, everything: bool) -> int:
    """Compare the indexes of a partition's segments with its batches; return the number of entries seen.

    Not everything: the newest segments, which recovery works on, and some of the others.
    """
    entries = 0
    paths = sorted(folder.glob("*.log"))
    if not everything and len(paths) > 6:
        paths = paths[-3:] + generator.sample(paths[:-3], 3)
    for log_path in paths:
        index = _read(log_path.with_suffix(".index"))
        times = _read(log_path.with_suffix(".timeindex"))
        data = _read(log_path)
        if data is None:
            continue
        base_offset = int(log_path.stem)
        batches = scan_segment(data, log_path)
        entries += _check_offset_index(index or b"", batches, base_offset, log_path)
        entries += _check_time_index(times or b"", batches, base_offset, log_path)
    return entries


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _check_offset_index(index: bytes, batches: list[ScannedBatch], base_offset: int, path: Path) -> int:
    if len(index) % OFFSET_ENTRY.size:
        raise Violation(f"{path}: an offset index of {len(index)} bytes")
    by_position = {batch.position: batch for batch in batches}
    last = (-1, -1)
    for relative_offset, position in OFFSET_ENTRY.iter_unpack(index):
        offset = base_offset + relative_offset
        batch = by_position.get(position)
        if batch is None or not batch.base_offset <= offset <= batch.last_offset:
            raise Violation(f"{path}: the index says {offset} is at {position}, where {batch} is")
        if (offset, position) <= last:
            raise Violation(f"{path}: index entry {(offset, position)} after {last}")
        last = (offset, position)
    return len(index) // OFFSET_ENTRY.size


def _check_time_index(times: bytes, batches: list[ScannedBatch], base_offset: int, path: Path) -> int:
    if len(times) % TIME_ENTRY.size:
        raise Violation(f"{path}: a time index of {len(times)} bytes")
    last = (-1, -1)
    base_offsets = [batch.base_offset for batch in batches]
    largest_up_to = list(accumulate((batch.max_timestamp_ms for batch in batches), max))
    for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(times):
        offset = base_offset + relative_offset
        place = bisect_right(base_offsets, offset) - 1
        largest_ms = largest_up_to[place] if place >= 0 else None
        if largest_ms != timestamp_ms:
            raise Violation(
                f"{path}: the time index says {timestamp_ms} up to {offset}, the batches {largest_ms}"
            )
        if timestamp_ms < last[0] or offset < last[1]:
            raise Violation(f"{path}: time index entry {(timestamp_ms, offset)} after {last}")
        last = (timestamp_ms, offset)
    return len(times) // TIME_ENTRY.size
