"""A share group as a Spark source: the reader behind `readStream.format("tidelog").option("share.group", …)`.

The driver's side (which records, locks, acknowledgements) is in `queue_batches`; tasks read their offsets
from the log like those of any topic, so there may be more of them than partitions. Readers are pickled to the
executors: the member and its connections stay in the driver.
"""

import atexit
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidelog.client.cluster import Cluster
from tidelog.client.faults import BadOption
from tidelog.pipelines.queue_batches import QueueBatches
from tidelog.pipelines.queue_offsets import QueueTask
from tidelog.pipelines.queue_records import read_spans
from tidelog.pipelines.source_options import SourceOptions
from tidelog.pipelines.spark_api import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from tidelog.pipelines.decoded_values import Decoding


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: QueueTask) -> None:
        super().__init__(task)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a member of a share group."""

    def __init__(self, options: SourceOptions, decoding: "Decoding | None" = None) -> None:
        self.options = options
        self.decoding = decoding
        self._batches: QueueBatches | None = None
        self._initial: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "decoding": self.decoding, "_batches": None, "_initial": None}

    def _opened(self) -> QueueBatches:
        if self._batches is None:
            self._batches = QueueBatches(self.options, Cluster(self.options.client))
            # Spark never calls `stop`: the process ends.
            atexit.register(self._batches.close)
        return self._batches

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins; asked for more than once."""
        if self._initial is None:
            self._initial = QueueBatches.initial()
        return self._initial

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The limit of the options."""
        most = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is appended from now on is for the next run."""
        self._opened().stop_at_present()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; what lies before `start` has been processed, and is accepted."""
        return self._opened().next_end(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """None: how far a share group has to go is the group's to tell."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        return [QueuePartition(task) for task in self._opened().tasks(end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is left to do: see `latestOffset`."""

    def stop(self) -> None:
        """Leave the group."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        if not isinstance(partition, QueuePartition):
            # What Spark makes of a plan without tasks.
            return iter(())
        where, spans = partition.value
        batches = read_spans(self.options, QueueTask(where, spans))
        if self.decoding is None:
            return batches
        from tidelog.pipelines.decoded_values import decoder_of

        return map(decoder_of(self.decoding).decoded, batches)


def queue_reader(options: SourceOptions, decoding: "Decoding | None" = None) -> DataSourceStreamReader:
    """The reader for this Spark; raises BadOption where Spark does not say which micro-batch is done."""
    if not HAS_ADMISSION_CONTROL:
        raise BadOption(
            "share.group needs Spark 4.2 or later: earlier ones do not tell a source what has been processed"
        )
    return QueueStreamReader(options, decoding)
