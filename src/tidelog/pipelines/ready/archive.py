"""`archive`: topics into Parquet files by date, exactly once, with small files merged.

Every micro-batch is one change of the folder (`file_batches`). A row has all that a record has: `replay`
brings it back as it was. When a date has enough small files they are merged, ordered by topic, partition and
offset, in one change more.
"""

from collections import defaultdict
from typing import Any

from tidelog.pipelines.file_batches import FileBatches, read_files
from tidelog.pipelines.file_store import HadoopFiles, StoredFile
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import RECORD_COLUMNS, stream_topic
from tidelog.pipelines.topic_uses import read_option
from tidelog.pipelines.work import StreamingWork, Work

QUERY = "archive"
DATE = "date"
#: of the files, and the folder's column at the end
SCHEMA = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, "
    "partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, date DATE"
)
_MEGABYTE = 1 << 20


class Archive:
    """The ready pipeline."""

    name = "archive"
    summary = "A topic into Parquet files by date, exactly once, small files merged."
    options = (
        Option("topic", OptionType.TEXT, "The topic, or topics with commas.", required=True, identity=True),
        Option(
            "path",
            OptionType.TEXT,
            "The folder of the files: a path, hdfs:// or s3a://.",
            required=True,
            identity=True,
            written_folder=True,
        ),
        Option(
            "batch_records",
            OptionType.INTEGER,
            "At most so many records in a micro-batch.",
            default=1_000_000,
        ),
        Option(
            "compression",
            OptionType.TEXT,
            "The codec of the files.",
            "zstd",
            choices=("none", "snappy", "gzip", "lz4", "zstd"),
        ),
        Option(
            "compact_files",
            OptionType.INTEGER,
            "Merge the small files of a date when there are so many; 0: never.",
            8,
        ),
        Option("file_megabytes", OptionType.INTEGER, "A file of this size is no longer small.", 128),
        Option("source", OptionType.MAP, "More options of the source.", {}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query: topic to files."""
        does = [f"the record's timestamp gives the date, in UTC; {options['compression']}"]
        if options["compact_files"]:
            does.append(
                f"{options['compact_files']} files below {options['file_megabytes']} MB in a date are merged"
            )
        query = PlannedQuery(
            QUERY,
            reads=f"topic {options['topic']}",
            writes=f"Parquet files in {options['path']}/{DATE}=…",
            does=tuple(does),
            checkpoint=run.checkpoint_of(QUERY),
        )
        return Plan(self.name, run, options, (query,), uses=read_option(run, options, query=QUERY))

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        options, run = plan.options, plan.run
        limits = {"maxOffsetsPerTrigger": str(options["batch_records"]), **options["source"]}
        frame = stream_topic(spark, run, QUERY, options["topic"], limits)

        def handle(batch: Any, batch_id: int) -> None:
            _write(batch, batch_id, options)

        writer = frame.writeStream.foreachBatch(handle).queryName(f"{run.name}-{QUERY}")
        writer = writer.option("checkpointLocation", run.checkpoint_of(QUERY))
        return [StreamingWork(QUERY, run.trigger.on(writer).start())]


def _write(batch: Any, batch_id: int, options: Options) -> None:
    from pyspark.sql import functions as sql

    spark = batch.sparkSession
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    store = HadoopFiles(spark, options["path"])
    files = FileBatches(store, options["path"], query_id)

    def write(folder: str) -> None:
        dated = batch.select(*RECORD_COLUMNS, sql.to_date("timestamp").alias(DATE))
        _save(dated, folder, options)

    files.write_batch(batch_id, write)
    if options["compact_files"]:
        crowded = small_files(
            files.present(), options["compact_files"], options["file_megabytes"] * _MEGABYTE
        )
        if crowded:
            _merge(spark, files, crowded, batch_id, options)


def _save(frame: Any, folder: str, options: Options) -> None:
    writer = frame.write.mode("overwrite").option("compression", options["compression"])
    writer.partitionBy(DATE).parquet(folder)


def small_files(present: list[StoredFile], count: int, size_bytes: int) -> list[str]:
    """The files to merge: those below a size, of dates that have at least `count` of them."""
    by_date: dict[str, list[str]] = defaultdict(list)
    for file in present:
        if file.size_bytes < size_bytes:
            by_date[file.path.split("/")[0]].append(file.path)
    return [path for small in by_date.values() if len(small) >= max(2, count) for path in small]


def _merge(spark: Any, files: FileBatches, small: list[str], batch_id: int, options: Options) -> None:
    root = options["path"].rstrip("/")

    def write(folder: str) -> None:
        paths = [f"{root}/{one}" for one in small]
        frame = spark.read.schema(SCHEMA).option("basePath", root).parquet(*paths)
        # One task for a date makes one file of it.
        dated = frame.repartition(DATE).sortWithinPartitions(DATE, "topic", "partition", "offset")
        _save(dated, folder, options)

    files.rewrite(f"merge-{batch_id:09d}", write, small)


def read_archive(spark: Any, path: str) -> Any:
    """The records of an archive as a frame, also while it is being written."""
    return read_files(spark, HadoopFiles(spark, path), path, SCHEMA)


pipeline = Archive()
