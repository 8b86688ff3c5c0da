"""`file-source`: files of a folder into a topic, each once.

A file is read when it appears in the folder; it must appear whole (written elsewhere, then renamed). Which
files were read is in the checkpoint. Lines of `text` and `json` files become values as they are; rows of
`csv` and `parquet` files become JSON objects. The header `file` of a record names the file.

Records of one file reach a partition in the order of the file unless the file is large enough for Spark to
read it in several tasks (`spark.sql.files.maxPartitionBytes`, 128 MB).
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_analyser import quoted
from tidelog.pipelines.table_checks import Statement, expression
from tidelog.pipelines.topic_frames import start_to_topic
from tidelog.pipelines.topic_uses import write_option
from tidelog.pipelines.work import Work

LINES = ("text", "json")
# Spark passes over files that are a week older than the newest it has seen, without a word.
FILE_AGE_MAX = "36500d"


class FileSource:
    """See the module."""

    name = "file-source"
    summary = "Files of a folder into a topic."
    options = (
        Option(
            "path",
            OptionType.TEXT,
            "The folder, or any address that Spark reads.",
            required=True,
            identity=True,
        ),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option(
            "format",
            OptionType.TEXT,
            "How files are read.",
            default="json",
            choices=(*LINES, "csv", "parquet"),
        ),
        Option("schema", OptionType.TEXT, "The columns of csv: 'order BIGINT, country STRING'."),
        Option("key", OptionType.TEXT, "The field or column that becomes the key."),
        Option("glob", OptionType.TEXT, "Only files whose name fits: '*.json'."),
        Option("files_per_batch", OptionType.INTEGER, "At most so many files in a micro-batch.", default=100),
        Option(
            "when_done",
            OptionType.TEXT,
            "What becomes of a file that was read.",
            default="keep",
            choices=("keep", "archive", "delete"),
        ),
        Option(
            "archive_path",
            OptionType.TEXT,
            "Where files go with `when_done: archive`.",
            written_folder=True,
        ),
        Option("read", OptionType.MAP, "More options of Spark's reader: header, sep, ….", default={}),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from files to a topic."""
        kind = options["format"]
        if kind == "csv" and not options["schema"]:
            raise BadOption("file-source: csv needs a schema, such as 'order BIGINT, country STRING'")
        if options["key"] and kind == "text":
            raise BadOption("file-source: lines of text have no fields, so there is no key; use format json")
        if options["when_done"] == "archive" and not options["archive_path"]:
            raise BadOption("file-source: when_done archive needs archive_path, a folder beside the path")
        does = [f"{'lines as they are' if kind in LINES else 'rows as JSON'}"]
        if options["key"]:
            does.append(f"key = {options['key']}")
        query = PlannedQuery(
            "file-source",
            reads=f"{kind} files of {options['path']}",
            does=tuple(does),
            writes=f"topic {options['to']}",
            checkpoint=run.checkpoint_of("file-source"),
        )
        note = f"a file that was read: {options['when_done']}"
        statements: tuple[Statement, ...] = ()
        if options["schema"]:
            statements = (Statement(("options", "schema"), "schema", "rows", options["schema"]),)
            if options["key"]:
                key = quoted(options["key"])
                statements += (expression(("options", "key"), "key", key, "rows"),)
        uses = write_option(run, options, keyless=not options["key"])
        return Plan(self.name, run, options, (query,), (note,), uses=uses, statements=statements)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        options, run = plan.options, plan.run
        records = _records(_files(spark, options), options)
        return [start_to_topic(records, run, "file-source", options["to"], options["sink"])]


def _files(spark: Any, options: Options) -> Any:
    kind = options["format"]
    reader = spark.readStream.format("text" if kind in LINES else kind)
    reader = reader.option("maxFileAge", FILE_AGE_MAX).options(**options["read"])
    reader = reader.option("maxFilesPerTrigger", options["files_per_batch"])
    if options["glob"]:
        reader = reader.option("pathGlobFilter", options["glob"])
    if options["when_done"] != "keep":
        reader = reader.option("cleanSource", options["when_done"])
    if options["archive_path"]:
        reader = reader.option("sourceArchiveDir", options["archive_path"])
    if kind == "parquet":
        # Files say their columns themselves; a stream has to know them before.
        schema = options["schema"] or spark.read.parquet(options["path"]).schema
        reader = reader.schema(schema)
    elif kind == "csv":
        reader = reader.schema(options["schema"])
    return reader.load(options["path"])


def _records(frame: Any, options: Options) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    columns = list(frame.columns)
    lines = options["format"] in LINES
    value = F.col("value") if lines else F.to_json(F.struct(*columns))
    key = F.lit(None).cast("string")
    if options["key"]:
        field = options["key"]
        key = F.get_json_object("value", f"$.{field}") if lines else F.col(field).cast("string")
    origin = F.expr("array(named_struct('key', 'file', 'value', CAST(_metadata.file_path AS BINARY)))")
    return frame.select(key.alias("key"), value.alias("value"), origin.alias("headers"))


pipeline = FileSource()
