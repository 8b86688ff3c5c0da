"""Topics as data frames of a pipeline: read them, write them, with the run's client options.

Everything goes through `format("tidelog")`. Nothing of Spark is imported: the session is an argument.
"""

from collections.abc import Mapping
from typing import Any

from tidelog.pipelines.began_at import with_noted_start
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.work import StreamingWork

#: what a record is, in the order in which pipelines keep it
RECORD_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType")


def stream_topic(
    spark: Any,
    run: RunSettings,
    query: str,
    topic: str,
    options: Mapping[str, str] | None = None,
    *,
    beside: bool = False,
) -> Any:
    """A streaming frame of a topic (or topics, with commas), from its beginning, with headers.

    `query` names the consumer group that shows the lag; `options` are options of the source and go first.

    A frame is for one query: queries that share one commit to one group, which then shows the lag of none.
    `beside` is a query that reads what another does: a group that the options name is the other's.
    """
    chosen = {
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "group.id": run.group_of(query),
        **run.kafka,
        **(options or {}),
    }
    if not {"subscribe", "subscribePattern", "assign"} & set(chosen):
        chosen["subscribe"] = topic
    if beside and any(name.lower() == "group.id" for name in options or {}):
        chosen["commitOffsets"] = "false"
    chosen = with_noted_start(chosen, run.checkpoint, lambda: HadoopFiles(spark, run.checkpoint))
    return spark.readStream.format("tidelog").options(**chosen).load()


def read_topic(spark: Any, run: RunSettings, topic: str, options: Mapping[str, str] | None = None) -> Any:
    """A frame of what a topic has now, with headers."""
    chosen = {"includeHeaders": "true", **run.kafka, **(options or {})}
    if not {"subscribe", "subscribePattern", "assign"} & set(chosen):
        chosen["subscribe"] = topic
    return spark.read.format("tidelog").options(**chosen).load()


def start_to_topic(
    frame: Any,
    run: RunSettings,
    query: str,
    topic: str | None,
    options: Mapping[str, str] | None = None,
    *,
    output_mode: str = "append",
) -> StreamingWork:
    """Start a query that writes a streaming frame to a topic, exactly once.

    Without `topic` the column of that name says where each row goes.
    """
    writer = frame.writeStream.queryName(f"{run.name}-{query}").outputMode(output_mode)
    writer = writer.option("checkpointLocation", run.checkpoint_of(query))
    if output_mode == "append":
        chosen = {**run.kafka, **(options or {})}
        if topic is not None:
            chosen["topic"] = topic
        writer = writer.format("tidelog").options(**chosen)
    else:
        # Spark lets sinks written in Python append only: what changed goes batch by batch, each once.
        def write_batch(batch: Any, batch_id: int) -> None:
            write_to_topic(batch, run, batch_application(batch, run, query), batch_id, topic, options)

        writer = writer.foreachBatch(write_batch)
    return StreamingWork(query, run.trigger.on(writer).start())


def write_to_topic(
    frame: Any,
    run: RunSettings,
    application: str,
    version: int,
    topic: str | None,
    options: Mapping[str, str] | None = None,
) -> None:
    """Write a frame once, however often this is tried with the same application and version.

    For `foreachBatch`: the version is the batch id, and the application has the query's id in it
    (`batch_application`), because a new checkpoint counts its batches from 0 again.
    """
    chosen = {**run.kafka, **(options or {}), "txnAppId": application, "txnVersion": str(version)}
    if topic is not None:
        chosen["topic"] = topic
    frame.write.format("tidelog").options(**chosen).mode("append").save()


def batch_application(frame: Any, run: RunSettings, output: str) -> str:
    """The name for `write_to_topic` inside foreachBatch; `frame` is the one that foreachBatch was given."""
    query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query_id, "Spark names the query in foreachBatch"
    return f"{run.name}-{output}-{query_id}"
