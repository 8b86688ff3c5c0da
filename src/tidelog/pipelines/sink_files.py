"""A sink of files: each micro-batch is in the folder once, whoever reads it.

Spark's own file sink keeps the list of files that count in `_spark_metadata`, and only Spark reads that:
after a crash others see a batch twice. `file_batches` moves a batch in when it is decided, so every reader is
right. A folder that Spark's sink began before has that list, and stays with it: what it does not name Spark
would not see.
"""

from typing import Any

from tidelog.pipelines.file_batches import FileBatches
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.flow_parts import Sink

_SPARKS_LIST = "_spark_metadata"


def write_files(frame: Any, sink: Sink, batch: Any, batch_id: int) -> bool:
    """Inside foreachBatch: write a frame once, however often the batch is tried. False if it was there."""
    assert sink.path is not None
    writer = frame.write.mode("append").options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    session = batch.sparkSession
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    files = FileBatches(HadoopFiles(session, sink.path), sink.path, query_id)
    return files.write_batch(batch_id, lambda folder: writer.format(sink.format).save(folder))


def write_files_of_state(batch: Any, sink: Sink, batch_id: int) -> None:
    """The same of a plan that keeps state, which has to be computed in any case: its state goes on."""
    if not write_files(batch, sink, batch, batch_id):
        batch.write.format("noop").mode("append").save()


def has_sparks_list(spark: Any, path: str) -> bool:
    """Whether Spark's own sink has written to the folder."""
    folder = f"{path.rstrip('/')}/{_SPARKS_LIST}"
    return bool(HadoopFiles(spark, folder).files(folder))
