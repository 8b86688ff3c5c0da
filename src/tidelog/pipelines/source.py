"""Topics as a Spark source, batch and streaming: the readers behind `format("tidelog")`.

The driver's side (partitions, offsets, limits) is in `query_offsets`, the executors' side (a range of offsets
as Arrow batches) in `arrow_stream`; here they meet Spark's Python Data Source API. Readers are pickled to
the executors, so connections are made where they are used, never in a constructor.

Spark calls `latestOffset` with the end of the last completed micro-batch, also when there is nothing new and
at the end of an AvailableNow run, so that is where progress is committed: `commit` would come a batch late.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.cluster import Cluster
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.decoded_types import decoded_field
from tidelog.pipelines.offset_planning import OffsetRange, Offsets, from_json, to_json
from tidelog.pipelines.progress import OffsetCommitter, announce, group_of
from tidelog.pipelines.query_offsets import QueryOffsets
from tidelog.pipelines.shared_clusters import cluster_of
from tidelog.pipelines.source_options import SourceOptions
from tidelog.pipelines.spark_api import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from tidelog.pipelines.spark_versions import WITHOUT_LIMITS

if TYPE_CHECKING:
    from tidelog.pipelines.decoded_values import Decoding

log = logging.getLogger(__name__)
OffsetJson = dict[str, dict[str, int]]

QUERY_ID_PROPERTY = "sql.streaming.queryId"


def source_schema(
    include_headers: bool, include_leader_epoch: bool, decoding: "Decoding | None" = None
) -> StructType:
    """The columns of the source: those of Spark's Kafka source, and what was asked for beyond."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()) if decoding is None else decoded_field(decoding),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    if include_leader_epoch:
        fields.append(StructField("leaderEpoch", IntegerType()))
    if decoding is not None and decoding.options.permissive:
        from tidelog.pipelines.decoded_values import BYTES_COLUMN, FAULT_COLUMN

        fields += [StructField(BYTES_COLUMN, BinaryType()), StructField(FAULT_COLUMN, StringType())]
    return StructType(fields)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: OffsetRange, token: str | None = None) -> None:
        # A plain tuple: that is all that travels to the executor.
        super().__init__((wanted.where.topic, wanted.where.partition, wanted.start, wanted.end))
        #: set for the task that tells the driver the query's group
        self.token = token

    @property
    def wanted(self) -> OffsetRange:
        topic, partition, start, end = self.value
        return OffsetRange(TopicPartition(topic, partition), start, end)


class _RangeReader:
    """The executors' side, alike for batch and stream."""

    options: SourceOptions
    decoding: "Decoding | None"

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task's range."""
        if not isinstance(partition, RangePartition):
            # What Spark makes of a plan without tasks.
            return iter(())
        if partition.token is not None:
            self._announce(partition.wanted, partition.token)
        options = self.options
        batches = read_range(
            options.client,
            partition.wanted,
            Columns(options.include_headers, options.include_leader_epoch),
            patience_ms=options.poll_timeout_ms,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        if self.decoding is None:
            return batches
        from tidelog.pipelines.decoded_values import decoder_of

        return map(decoder_of(self.decoding).decoded, batches)

    def _announce(self, wanted: OffsetRange, token: str) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
        if query_id:
            group_id = group_of(self.options.group_id_prefix, query_id)
            announce(cluster_of(self.options.client), group_id, wanted.where, wanted.start, token)


class TidelogReader(_RangeReader, DataSourceReader):
    """Reads a bounded range of topics: `spark.read.format("tidelog")`."""

    def __init__(self, options: SourceOptions, decoding: "Decoding | None" = None) -> None:
        self.options = options
        self.decoding = decoding

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each partition, or for pieces of them."""
        with Cluster(self.options.client) as cluster:
            offsets = QueryOffsets(self.options, cluster)
            return [RangePartition(one) for one in offsets.ranges(offsets.starting(), offsets.ending())]


class _StreamReader(_RangeReader):
    """What stream readers do whatever Spark's version is."""

    def __init__(self, options: SourceOptions, decoding: "Decoding | None" = None) -> None:
        self.options = options
        self.decoding = decoding
        self._driver: tuple[QueryOffsets, OffsetCommitter] | None = None
        self._initial: OffsetJson | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections stay in the driver.
        return {"options": self.options, "decoding": self.decoding, "_driver": None, "_initial": None}

    def _opened(self) -> tuple[QueryOffsets, OffsetCommitter]:
        if self._driver is None:
            cluster = Cluster(self.options.client)
            progress = OffsetCommitter(cluster, self.options.group_id, self.options.group_id_prefix)
            self._driver = QueryOffsets(self.options, cluster), progress
        return self._driver

    def initialOffset(self) -> OffsetJson:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins.

        Spark asks to plan the first micro-batch and again to run it: `latest` must not move in between.
        """
        if self._initial is None:
            self._initial = to_json(self._opened()[0].starting())
        return self._initial

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        offsets, progress = self._opened()
        ranges = offsets.batch_ranges(from_json(start), from_json(end))
        announced = progress.announcement(ranges) if self.options.commit_offsets else None
        return [
            RangePartition(one, announced[1] if announced is not None and one is announced[0] else None)
            for one in ranges
        ]

    def stop(self) -> None:
        """Close the driver's connections."""
        if self._driver is not None:
            self._driver[0].cluster.close()
            self._driver = None


class TidelogStreamReader(_StreamReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow: `spark.readStream.format("tidelog")`."""

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limits of the options; a trigger that wants everything goes without."""
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.offsets_per_trigger_min is not None:
            return ReadMinRows(self.options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is appended from now on is for the next run."""
        self._opened()[0].stop_at_present()

    def latestOffset(self, start: OffsetJson, limit: Any) -> OffsetJson:  # noqa: N802
        """Where the next micro-batch ends; what lies before `start` has been processed."""
        offsets, progress = self._opened()
        begin = from_json(start)
        if self.options.commit_offsets:
            progress.processed(begin)
        return to_json(offsets.next_end(begin, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """The ends of the partitions, for the query's progress report."""
        return to_json(self._opened()[0].latest())

    def commit(self, end: OffsetJson) -> None:
        """Nothing is left to do: see `latestOffset`."""


class UnlimitedStreamReader(_StreamReader, DataSourceStreamReader):
    """The same for Spark 4.0 and 4.1, which say neither where a batch begins nor how large it may be.

    A batch takes all there is: with a limit, Trigger.AvailableNow would end before what was there is read.
    Where the query has come to is known from the batches that it was asked to plan; after a restart, that is
    from the second one on, so what was lost before that is found when the batch is read.
    """

    def __init__(self, options: SourceOptions, decoding: "Decoding | None" = None) -> None:
        super().__init__(options, decoding)
        self._end: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_end": None}

    def latestOffset(self) -> OffsetJson:  # noqa: N802
        """Where the next micro-batch ends: at the ends of all partitions."""
        offsets = self._opened()[0]
        if self._end is None:
            return to_json(offsets.latest())
        return to_json(offsets.next_end(self._end, limited=False))

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """The tasks of one micro-batch; the next begins where it ends."""
        ranges = super().partitions(start, end)
        self._end = from_json(end)
        return ranges

    def commit(self, end: OffsetJson) -> None:
        """A batch is complete: Spark says so when it plans the next."""
        if self.options.commit_offsets:
            self._opened()[1].processed(from_json(end))


def stream_reader(options: SourceOptions, decoding: "Decoding | None" = None) -> DataSourceStreamReader:
    """The reader for this Spark; limits that it cannot keep are a warning."""
    if HAS_ADMISSION_CONTROL:
        return TidelogStreamReader(options, decoding)
    limits = {
        "maxOffsetsPerTrigger": options.offsets_per_trigger_max,
        "minOffsetsPerTrigger": options.offsets_per_trigger_min,
    }
    given = [name for name, value in limits.items() if value is not None]
    if given:
        log.warning(WITHOUT_LIMITS.format(options=" and ".join(given)))
    return UnlimitedStreamReader(options, decoding)
