"""The records of one task of a query over a share group, as Arrow batches; without Spark."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidelog.client.share_requests import Span
from tidelog.pipelines.arrow_stream import Columns, read_range
from tidelog.pipelines.offset_planning import OffsetRange
from tidelog.pipelines.queue_offsets import QueueTask
from tidelog.pipelines.source_options import SourceOptions


def read_spans(options: SourceOptions, task: QueueTask) -> Iterator[pa.RecordBatch]:
    """The records of a task: all between its first and its last offset are fetched, its own are kept."""
    wanted = OffsetRange(task.where, task.spans[0][0], task.spans[-1][1] + 1)
    batches = read_range(
        options.client,
        wanted,
        Columns(options.include_headers, options.include_leader_epoch),
        patience_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    for batch in batches:
        kept = of_spans(batch, task.spans)
        if kept.num_rows:
            yield kept


def of_spans(batch: pa.RecordBatch, spans: Sequence[Span]) -> pa.RecordBatch:
    """The rows whose offsets are in the spans, which are in order."""
    offsets = batch.column("offset").to_numpy()
    firsts = np.array([first for first, _ in spans], dtype=np.int64)
    lasts = np.array([last for _, last in spans], dtype=np.int64)
    index = np.searchsorted(firsts, offsets, side="right") - 1
    inside = (index >= 0) & (offsets <= lasts[np.maximum(index, 0)])
    return batch if inside.all() else batch.filter(pa.array(inside))
