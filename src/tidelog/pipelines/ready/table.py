"""`table`: the latest value of each key of a topic, as Parquet files that are kept up to date.

A key always has the same bucket, and a bucket is one file. A micro-batch rewrites the buckets that it has
keys of: new files and the going of the old ones are one change (`file_batches`), so the table is never half
of a batch. A record without a value takes its key away. With `snapshot` the topic is read once, as a batch,
and the table is what it has now.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.file_batches import FileBatches, read_files
from tidelog.pipelines.file_store import FileStore, HadoopFiles
from tidelog.pipelines.pipeline_options import Option, Options, OptionType, check_one_topic
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import read_topic, stream_topic
from tidelog.pipelines.topic_uses import read_option
from tidelog.pipelines.work import BatchWork, StreamingWork, Work

QUERY = "table"
BUCKET = "bucket"
COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp")
SCHEMA = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP, bucket INT"
)


class Table:
    """The ready pipeline."""

    name = "table"
    summary = "The latest value of each key of a topic, as a table that is kept up to date."
    options = (
        Option(
            "topic",
            OptionType.TEXT,
            "The topic; each key belongs to one partition.",
            required=True,
            identity=True,
        ),
        Option(
            "path",
            OptionType.TEXT,
            "The folder of the table: a path, hdfs:// or s3a://.",
            required=True,
            identity=True,
            written_folder=True,
        ),
        Option(
            "buckets", OptionType.INTEGER, "Files of the table; a batch rewrites those it has keys of.", 8
        ),
        Option("snapshot", OptionType.FLAG, "Read the topic once, and end.", False),
        Option("batch_records", OptionType.INTEGER, "At most so many records in a micro-batch.", 1_000_000),
        Option("source", OptionType.MAP, "More options of the source.", {}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query, or one batch job."""
        check_one_topic(options, of=self.name)
        if options["buckets"] < 1:
            raise BadOption("buckets is at least 1, and stays the same for the life of a table")
        query = PlannedQuery(
            QUERY,
            reads=f"topic {options['topic']}" + (", what it has now" if options["snapshot"] else ""),
            writes=f"Parquet files in {options['path']}, {options['buckets']} buckets",
            does=("the record with the highest offset of each key stays; no value takes the key away",),
            checkpoint=None if options["snapshot"] else run.checkpoint_of(QUERY),
        )
        return Plan(self.name, run, options, (query,), uses=read_option(run, options, query=QUERY))

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query or the job."""
        options, run = plan.options, plan.run
        check_buckets(HadoopFiles(spark, options["path"]), options["path"], options["buckets"])
        if options["snapshot"]:
            return [BatchWork(QUERY, spark, lambda work: _snapshot(spark, plan, work))]
        limits = {"maxOffsetsPerTrigger": str(options["batch_records"]), **options["source"]}
        frame = stream_topic(spark, run, QUERY, options["topic"], limits)

        def handle(batch: Any, batch_id: int) -> None:
            _apply(batch, batch_id, options)

        writer = frame.writeStream.foreachBatch(handle).queryName(f"{run.name}-{QUERY}")
        writer = writer.option("checkpointLocation", run.checkpoint_of(QUERY))
        return [StreamingWork(QUERY, run.trigger.on(writer).start())]


pipeline = Table()


def check_buckets(store: FileStore, path: str, buckets: int, *, note: bool = False) -> None:
    """A key is looked for in its bucket alone, so their number stays; with `note`, as it is now.

    Raises BadOption.
    """
    place = f"{path.rstrip('/')}/_tidelog/buckets"
    text = store.read(place)
    if text is None:
        if note:
            store.write(place, str(buckets))
    elif int(text) != buckets:
        raise BadOption(
            f"the table in {path} has {text} buckets, not {buckets}: say buckets={text}, or another path"
        )


def latest(frame: Any) -> Any:
    """The row with the highest offset of each key."""
    from pyspark.sql import functions as sql

    row = sql.struct(*(sql.col(name) for name in frame.columns))
    newest = frame.groupBy("key").agg(sql.max_by(row, sql.col("offset")).alias("row"))
    return newest.select("row.*")


def _bucketed(frame: Any, options: Options) -> Any:
    from pyspark.sql import functions as sql

    bucket = sql.pmod(sql.hash("key"), sql.lit(options["buckets"])).alias(BUCKET)
    return frame.where("key IS NOT NULL").select(*COLUMNS, bucket)


def _save(frame: Any, folder: str) -> None:
    frame.where("value IS NOT NULL").repartition(BUCKET).write.partitionBy(BUCKET).parquet(folder)


def _apply(batch: Any, batch_id: int, options: Options) -> None:
    spark, path = batch.sparkSession, options["path"]
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    store = HadoopFiles(spark, path)
    files = FileBatches(store, path, query_id)
    check_buckets(store, path, options["buckets"], note=True)
    changed = latest(_bucketed(batch, options)).persist()
    try:
        buckets = {f"{BUCKET}={row[0]}" for row in changed.select(BUCKET).distinct().collect()}

        def old() -> list[str]:
            return [file.path for file in files.present() if file.path.split("/")[0] in buckets]

        def write(folder: str) -> None:
            before = old()
            rows = changed
            if before:
                root = path.rstrip("/")
                paths = [f"{root}/{one}" for one in before]
                kept = spark.read.schema(SCHEMA).option("basePath", root).parquet(*paths)
                rows = latest(kept.select(*COLUMNS, BUCKET).unionByName(changed))
            _save(rows, folder)

        files.write_batch(batch_id, write, lambda added: old())
    finally:
        changed.unpersist()


def _snapshot(spark: Any, plan: Plan, work: BatchWork) -> None:
    """The whole table anew, in place of what is there."""
    path, store = plan.options["path"], HadoopFiles(spark, plan.options["path"])
    check_buckets(store, path, plan.options["buckets"], note=True)
    files = FileBatches(store, path, f"snapshot-{plan.run.name}")
    frame = read_topic(spark, plan.run, plan.options["topic"], plan.options["source"])
    rows = latest(_bucketed(frame, plan.options))
    files.recover()
    before = [file.path for file in files.present()]
    number = files.last_batch_id() + 1
    files.write_batch(number, lambda folder: _save(rows, folder), lambda added: before)
    work.tell(read_table(spark, path).count(), message="the table is whole")


def read_table(spark: Any, path: str) -> Any:
    """The table as a frame, also while it is being written."""
    return read_files(spark, HadoopFiles(spark, path), path, SCHEMA).drop(BUCKET)
