"""`aggregate`: event-time windows over a topic, by SQL.

The topic's JSON values are a table called `records` (or as `table` says) with the fields of the schema and
the record's own columns with `_` before their names. Its event time has a watermark, so Spark knows when a
window is complete.

    SELECT window.start AS start, country, count(*) AS orders, sum(amount) AS amount
    FROM records GROUP BY window(ordered_at, '5 minutes'), country

Any query that Spark can run on a stream will do: `window`, sliding windows, `session_window`. With
`output: append` a window is written once, when the watermark has passed it; with `update`, whenever it
changed. Records that come after their window was closed are left out of it.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.ready.json_rows import as_records, json_rows
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_analyser import quoted
from tidelog.pipelines.table_checks import RECORD_OWN, TIME_TYPES, Statement, expression
from tidelog.pipelines.topic_frames import start_to_topic
from tidelog.pipelines.topic_uses import read_option, write_option
from tidelog.pipelines.work import Work


class Aggregate:
    """See the module."""

    name = "aggregate"
    summary = "Event-time windows over a topic, by SQL."
    options = (
        Option("topic", OptionType.TEXT, "The topic to read.", required=True, identity=True),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option(
            "schema",
            OptionType.TEXT,
            "The fields of the values: 'country STRING, amount BIGINT, ordered_at TIMESTAMP'.",
            required=True,
        ),
        Option("sql", OptionType.TEXT, "The query over the table.", required=True),
        Option("table", OptionType.TEXT, "What the table is called in the query.", default="records"),
        Option("event_time", OptionType.TEXT, "The column with the event time.", default="_timestamp"),
        Option("watermark", OptionType.DURATION, "How late records may come.", default="10 minutes"),
        Option("key", OptionType.LIST, "Columns of the result that become the key.", default=()),
        Option(
            "output",
            OptionType.TEXT,
            "Windows once, when complete (append), or whenever they change (update).",
            default="append",
            choices=("append", "update"),
        ),
        Option("source", OptionType.MAP, "More options of the source.", default={}),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from topic to topic, and one for dead letters."""
        if options["table"] not in options["sql"]:
            raise BadOption(f"aggregate: the query reads FROM {options['table']}, which it does not name")
        query = PlannedQuery(
            "aggregate",
            reads=f"topic {options['topic']} as {options['table']}",
            does=(
                f"watermark {options['watermark']} on {options['event_time']}",
                " ".join(options["sql"].split()),
            ),
            writes=f"topic {options['to']}, {options['output']}",
            checkpoint=run.checkpoint_of("aggregate"),
        )
        keyless = not options["key"]
        uses = (*read_option(run, options, query=self.name), *write_option(run, options, keyless=keyless))
        return Plan(self.name, run, options, (query,), uses=uses, statements=_statements(options))

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the queries."""
        options, run = plan.options, plan.run
        rows = json_rows(spark, run, "aggregate", options["topic"], options["source"], options["schema"])
        timed = rows.frame.withWatermark(options["event_time"], options["watermark"])
        timed.createOrReplaceTempView(options["table"])
        records = as_records(spark.sql(options["sql"]), options["key"])
        written = start_to_topic(
            records, run, "aggregate", options["to"], options["sink"], output_mode=options["output"]
        )
        return [written, *rows.dead]


def _statements(options: Options) -> tuple[Statement, ...]:
    table = options["table"]
    keys = (expression(("options", "key"), "key", quoted(column), "result") for column in options["key"])
    return (
        Statement(("options", "schema"), "schema", table, options["schema"], RECORD_OWN),
        expression(("options", "event_time"), "event_time", options["event_time"], table, TIME_TYPES),
        Statement(("options", "sql"), "the query", "result", sql=options["sql"]),
        *keys,
    )


pipeline = Aggregate()
