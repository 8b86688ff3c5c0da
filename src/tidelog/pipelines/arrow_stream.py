"""A range of offsets as Arrow record batches with the columns of Spark's Kafka source.

    key binary, value binary, topic string, partition int, offset long, timestamp, timestampType int
    headers array<struct<key string, value binary>>      with includeHeaders; null where a record has none
    leaderEpoch int                                      with includeLeaderEpoch

What one Fetch brought is cut into pieces of whole batches before it is decoded, because compressed records
may be many times as large as what was fetched. Connections are kept from task to task: a Python worker of
Spark serves many.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.client.client_settings import READ_COMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, Cluster
from tidelog.client.faults import Refusal
from tidelog.client.partition_reader import NothingArrived, PartitionReader, Slice
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.data_loss import report_loss
from tidelog.pipelines.offset_planning import OffsetRange
from tidelog.pipelines.record_columns import AbortedTransaction, RecordColumns, decode
from tidelog.pipelines.shared_clusters import cluster_of
from tidelog.records.batch import BatchHeader, iterate_headers

#: records that become one Arrow batch: at most, and while their size is not known
BATCH_RECORDS_MAX = 128 << 10
BATCH_RECORDS_FIRST = 8 << 10
#: the size that an Arrow batch should have: large enough for Spark, small enough for caches
BATCH_BYTES = 8 << 20
#: bytes as fetched that become one Arrow batch: records compressed 100-fold still fit Arrow's 32-bit offsets
COMPRESSED_BYTES_MAX = 4 << 20

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Columns(NamedTuple):
    """The columns that were asked for beyond the usual ones."""

    headers: bool = False
    leader_epoch: bool = False

    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches; the same as Spark makes of its own."""
        fields: list[tuple[str, pa.DataType]] = [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
        if self.headers:
            fields.append(("headers", HEADERS))
        if self.leader_epoch:
            fields.append(("leaderEpoch", pa.int32()))
        return pa.schema(fields)


def read_range(
    settings: ClientSettings,
    wanted: OffsetRange,
    columns: Columns,
    *,
    patience_ms: int,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """The records of a range; raises DataLoss for those that are gone, or passes over them."""
    cluster = cluster_of(settings)
    reader = PartitionReader(cluster, wanted.where)
    offset = wanted.start
    portion = _Portion()
    while offset < wanted.end:
        try:
            for fetched in reader.slices(offset, wanted.end, patience_ms):
                for piece in _pieces(fetched, wanted.end, portion):
                    batch = _decoded(piece, offset, wanted, columns, settings)
                    if batch.num_rows:
                        portion.learn(batch)
                        yield batch
                offset = fetched.next_offset
        except Refusal as refusal:
            if refusal.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = _after_the_gap(cluster, wanted, offset, fail_on_data_loss)
                continue
            if refusal.code not in _UNKNOWN or not _is_gone(cluster, wanted.where):
                raise
            what = f"{wanted.where} is gone; the query had still to read from {offset} to {wanted.end}"
            report_loss(what, fail=fail_on_data_loss)
            return
        except NothingArrived as silence:
            if silence.readable_end >= wanted.end:
                raise
            what = (
                f"{wanted.where}: records up to offset {wanted.end} were announced, but the log now ends"
                f" at {silence.readable_end}"
            )
            report_loss(what, fail=fail_on_data_loss)
            return


def _is_gone(cluster: Cluster, where: TopicPartition) -> bool:
    """Whether the cluster as a whole does not know the partition; a single broker may be behind."""
    found = cluster.topics([where.topic]).get(where.topic)
    return found is None or where.partition not in {row.partition for row in found.partitions}


def _after_the_gap(cluster: Cluster, wanted: OffsetRange, offset: int, fail_on_data_loss: bool) -> int:
    """Where to go on when the log does not hold `offset`."""
    earliest = cluster.list_offsets({wanted.where: EARLIEST})[wanted.where].offset
    what = (
        f"{wanted.where}: offset {offset} is not in the log, which begins at {earliest};"
        f" the query had still to read up to {wanted.end}"
    )
    report_loss(what, fail=fail_on_data_loss)
    # A log that begins before the offset ends before it too: there is nothing to come.
    return min(wanted.end, earliest) if earliest > offset else wanted.end


class _Piece(NamedTuple):
    """Whole batches, and the transactions that were aborted and had not ended before them."""

    records: memoryview
    aborted: Sequence[AbortedTransaction] | None


class _Portion:
    """How many records become one Arrow batch, from the size of those before."""

    __slots__ = ("records_max",)

    def __init__(self) -> None:
        self.records_max = BATCH_RECORDS_FIRST

    def learn(self, batch: pa.RecordBatch) -> None:
        fitting = BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)
        self.records_max = min(BATCH_RECORDS_MAX, max(1, fitting))


def _pieces(fetched: Slice, end_offset: int, portion: _Portion) -> Iterator[_Piece]:
    aborted = None if fetched.aborted is None else [AbortedTransaction(*row) for row in fetched.aborted]
    begin = end = records_count = 0
    ended: list[BatchHeader] = []
    for position, header in iterate_headers(fetched.records):
        if header.base_offset >= end_offset:
            break
        end = position + header.size_bytes
        records_count += header.records_count
        if header.control:
            ended.append(header)
        if records_count >= portion.records_max or end - begin >= COMPRESSED_BYTES_MAX:
            yield _Piece(fetched.records[begin:end], aborted)
            if aborted is not None:
                aborted = _without_ended(aborted, ended)
            begin, records_count = end, 0
            ended.clear()
    if end > begin:
        yield _Piece(fetched.records[begin:end], aborted)


def _without_ended(
    aborted: Sequence[AbortedTransaction], markers: Sequence[BatchHeader]
) -> list[AbortedTransaction]:
    """The aborted transactions whose end is still to come; what their producers write later is another."""
    return [
        transaction
        for transaction in aborted
        if not any(
            marker.producer_id == transaction.producer_id and marker.base_offset >= transaction.first_offset
            for marker in markers
        )
    ]


def _decoded(
    piece: _Piece, offset: int, wanted: OffsetRange, columns: Columns, settings: ClientSettings
) -> pa.RecordBatch:
    committed_only = settings.isolation_level == READ_COMMITTED
    decoded, _ = decode(
        piece.records,
        offset,
        wanted.end,
        aborted=(piece.aborted or ()) if committed_only else None,
        with_headers=columns.headers,
        check_crc=settings.check_crcs,
    )
    return to_record_batch(decoded, wanted.where, columns)


def to_record_batch(decoded: RecordColumns, where: TopicPartition, columns: Columns) -> pa.RecordBatch:
    """Decoded columns under the names and types of the source."""
    count = len(decoded)
    # Milliseconds become microseconds; -1, "no timestamp", stays what Spark's source shows for it.
    timestamps = pa.array(decoded.timestamps_ms * 1000).cast(pa.timestamp("us", tz="UTC"))
    arrays: list[pa.Array] = [
        decoded.keys,
        decoded.values,
        _repeated(where.topic, count),
        pa.array(np.full(count, where.partition, dtype=np.int32)),
        pa.array(decoded.offsets),
        timestamps,
        pa.array(decoded.timestamp_types),
    ]
    if columns.headers:
        assert decoded.headers is not None
        arrays.append(_null_if_empty(decoded.headers))
    if columns.leader_epoch:
        arrays.append(pa.array(decoded.leader_epochs))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow_schema())


def _repeated(text: str, count: int) -> pa.Array:
    """The same text for every record."""
    data = text.encode()
    bounds = np.arange(0, (count + 1) * len(data), max(1, len(data)), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data * count)])


def _null_if_empty(headers: pa.Array) -> pa.Array:
    lengths = np.diff(headers.offsets.to_numpy())
    cast = headers.cast(HEADERS)
    if not len(cast) or (lengths > 0).all():
        return cast
    return pa.ListArray.from_arrays(cast.offsets, cast.values, type=HEADERS, mask=pa.array(lengths == 0))
