"""`file-sink`: a topic into files.

Without a schema values are written as lines, as they are. With one, JSON values are read by it and become
rows of `json`, `csv` or `parquet` files; values that do not fit it are dead letters. `archive` is the
pipeline that keeps records whole, with key, headers and offset.

Every record is in the files once for those who read the folder with Spark, which knows by the list in
`_spark_metadata` which files count. After a crash other readers may see files that it does not list.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.ready.json_rows import json_rows
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_analyser import quoted
from tidelog.pipelines.table_checks import Statement, expression
from tidelog.pipelines.topic_frames import stream_topic
from tidelog.pipelines.topic_uses import read_option
from tidelog.pipelines.work import StreamingWork, Work


class FileSink:
    """See the module."""

    name = "file-sink"
    summary = "A topic into files."
    options = (
        Option("topic", OptionType.TEXT, "The topic to read.", required=True, identity=True),
        Option(
            "path",
            OptionType.TEXT,
            "The folder, or any address that Spark writes.",
            required=True,
            identity=True,
            written_folder=True,
        ),
        Option(
            "format",
            OptionType.TEXT,
            "How files are written.",
            default="text",
            choices=("text", "json", "csv", "parquet"),
        ),
        Option("schema", OptionType.TEXT, "The fields of JSON values: 'order BIGINT, country STRING'."),
        Option("partition_by", OptionType.LIST, "Fields that become folders: country=DE/.", default=()),
        Option(
            "write", OptionType.MAP, "More options of Spark's writer: header, compression, ….", default={}
        ),
        Option("source", OptionType.MAP, "More options of the source.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from a topic to files, and one for dead letters."""
        kind, schema = options["format"], options["schema"]
        if kind != "text" and not schema:
            raise BadOption(f"file-sink: {kind} needs a schema, such as 'order BIGINT, country STRING'")
        if kind == "text" and (schema or options["partition_by"]):
            raise BadOption("file-sink: text writes values as they are; for fields use json, csv or parquet")
        query = PlannedQuery(
            "file-sink",
            reads=f"topic {options['topic']}",
            does=("values as lines",) if kind == "text" else (f"JSON values as {schema}",),
            writes=f"{kind} files in {options['path']}",
            delivery="exactly once for readers that know Spark's list of files",
            checkpoint=run.checkpoint_of("file-sink"),
        )
        statements: tuple[Statement, ...] = ()
        if schema:
            statements = (
                Statement(("options", "schema"), "schema", "values", schema),
                *(
                    expression(("options", "partition_by"), "partition_by", quoted(column), "values")
                    for column in options["partition_by"]
                ),
            )
        uses = read_option(run, options, query="file-sink")
        return Plan(self.name, run, options, (query,), uses=uses, statements=statements)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the queries."""
        options, run = plan.options, plan.run
        topic, source = options["topic"], options["source"]
        dead: list[Work] = []
        if options["format"] == "text":
            frame = stream_topic(spark, run, "file-sink", topic, source)
            rows = frame.selectExpr("CAST(value AS STRING) AS value")
        else:
            read = json_rows(spark, run, "file-sink", topic, source, options["schema"])
            rows, dead = read.without_own_columns(), read.dead
        writer = rows.writeStream.format(options["format"]).options(**options["write"])
        if options["partition_by"]:
            writer = writer.partitionBy(*options["partition_by"])
        writer = (
            writer.queryName(f"{run.name}-file-sink")
            .option("path", options["path"])
            .option("checkpointLocation", run.checkpoint_of("file-sink"))
        )
        return [StreamingWork("file-sink", run.trigger.on(writer).start()), *dead]


pipeline = FileSink()
