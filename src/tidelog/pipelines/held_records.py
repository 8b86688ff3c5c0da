"""Records that no reader sees because their transactions were aborted: are all in the log, and once more.

A batch's `Records` say between which offsets it has written and how many records each attempt wrote. An
attempt has a producer id of its own, so its batches are told from all others by their headers, and nothing
has to be decoded: a batch is written again as it is, under another producer and sequence number.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.client.cluster import EARLIEST, Cluster
from tidelog.client.partition_reader import NothingArrived, PartitionReader
from tidelog.model.identifiers import NO_EPOCH, TopicPartition
from tidelog.pipelines.commit_protocol import Driver, PublishPosition, Records, Transaction
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER,
    INT32_MAX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    iterate_headers,
)
from tidelog.records.checksum import crc32c

READ_PATIENCE_MS = 30_000


class HeldBatch(NamedTuple):
    """One batch, and how far publishing is with it."""

    place: TopicPartition
    header: BatchHeader
    data: memoryview
    position: PublishPosition


class HeldRecords:
    """The records of some transactions of a batch. The cluster's settings must be read_uncommitted."""

    def __init__(self, cluster: Cluster, records: Records, transactions: Sequence[Transaction]) -> None:
        self._cluster = cluster
        self._records = records
        self._producer_ids = frozenset(transaction.producer_id for transaction in transactions)

    def batches(self, position: PublishPosition) -> Iterator[HeldBatch]:
        """All from a position on, partition by partition, in the order of the log."""
        spans = self._records.spans
        places = [TopicPartition(span.topic, span.partition) for span in spans]
        starts = self._cluster.list_offsets(dict.fromkeys(places[position.span :], EARLIEST))
        count = position.records
        for number in range(position.span, len(spans)):
            place, span = places[number], spans[number]
            first = max(span.first_offset, starts[place].offset)
            if number == position.span:
                first = max(first, position.offset)
            for header, data in self._read(place, first, span.end_offset):
                count += header.records_count
                yield HeldBatch(place, header, data, PublishPosition(number, header.next_offset, count))

    def _read(self, place: TopicPartition, first: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        reader = PartitionReader(self._cluster, place)
        try:
            for piece in reader.slices(first, end, READ_PATIENCE_MS):
                for index, header in iterate_headers(piece.records):
                    is_ours = header.producer_id in self._producer_ids and not header.control
                    if is_ours and first <= header.base_offset < end:
                        yield header, piece.records[index : index + header.size_bytes]
        except NothingArrived:
            # The log ends before the span does, or its end was cleaned away: whoever counts will notice.
            return

    def missing_count(self) -> int:
        """How many of the records are not in the log any more."""
        found = dict.fromkeys(self._producer_ids, 0)
        for batch in self.batches(PublishPosition(0, 0, 0)):
            found[batch.header.producer_id] += batch.header.records_count
        return sum(abs(self._records.counts.get(one, 0) - count) for one, count in found.items())


def written_by(batch: HeldBatch, driver: Driver, base_sequence: int) -> bytearray:
    """The same batch as of another producer, to be appended anywhere."""
    header = batch.header._replace(
        base_offset=0,
        partition_leader_epoch=NO_EPOCH,
        crc=0,
        # The broker puts its own time, or a delete horizon, again where the topic wants it.
        attributes=(batch.header.attributes & CODEC_MASK) | TRANSACTIONAL_BIT,
        producer_id=driver.producer_id,
        producer_epoch=driver.producer_epoch,
        base_sequence=base_sequence,
    )
    data = bytearray(batch.data)
    HEADER.pack_into(data, 0, *header)
    checksum = crc32c(memoryview(data)[ATTRIBUTES_POSITION:])
    data[CRC_POSITION:ATTRIBUTES_POSITION] = checksum.to_bytes(4, "big")
    return data


def sequence_after(sequence: int, batch: HeldBatch) -> int:
    """The sequence number of the next batch; they wrap from 2**31 - 1 to 0."""
    return (sequence + batch.header.last_offset_delta + 1) & INT32_MAX
