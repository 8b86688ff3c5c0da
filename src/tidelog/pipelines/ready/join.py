"""`join`: two topics joined, as streams by fields and time, or a stream with a table.

Both topics hold JSON objects. The result is `{"left": {…}, "right": {…}}`, where a side that met nothing
is left out, or what `select` says in SQL over `l` and `r`. Its key is the fields of `on`.

- `with: stream`: `on` names fields that both have; records meet when these are the same and their event
  times are no more than `within` apart. Spark keeps records for that long and the watermark. With `type:
  left` (or right, full) a record that met nothing is written too, once nothing can come for it any more.
- `with: table`: the right topic is a table, the latest value of each key (a null value takes the key
  away), as it is when a micro-batch runs. `on` is one field of the left, which is held against the key of
  the right records.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.ready.json_rows import OWN_PREFIX, JsonRows, as_records, json_rows
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.spark_analyser import quoted
from tidelog.pipelines.table_checks import RECORD_OWN, TIME_TYPES, Statement, expression
from tidelog.pipelines.topic_frames import (
    batch_application,
    read_topic,
    start_to_topic,
    write_to_topic,
)
from tidelog.pipelines.topic_uses import read_option, write_option
from tidelog.pipelines.work import StreamingWork, Work

TABLE_TYPES = ("inner", "left")
ALIASES = {"left": "l", "right": "r"}
#: a column that a row of this side always has
MARKS = {"left": "_left_at", "right": "_right_at"}


class Join:
    """See the module."""

    name = "join"
    summary = "Two topics joined by key and time."
    options = (
        Option("left", OptionType.TEXT, "The topic on the left.", required=True, identity=True),
        Option("right", OptionType.TEXT, "The topic on the right.", required=True, identity=True),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option("left_schema", OptionType.TEXT, "The fields of the left values.", required=True),
        Option("right_schema", OptionType.TEXT, "The fields of the right values.", required=True),
        Option("on", OptionType.LIST, "The fields that must be the same.", required=True),
        Option(
            "with",
            OptionType.TEXT,
            "What the right is.",
            default="stream",
            choices=("stream", "table"),
            identity=True,
        ),
        Option(
            "type",
            OptionType.TEXT,
            "Which records without a partner are written.",
            default="inner",
            choices=("inner", "left", "right", "full"),
        ),
        Option("left_time", OptionType.TEXT, "The event time on the left.", default="_timestamp"),
        Option("right_time", OptionType.TEXT, "The event time on the right.", default="_timestamp"),
        Option("within", OptionType.DURATION, "How far apart two records may be.", default="1 hour"),
        Option("watermark", OptionType.DURATION, "How late records may come.", default="10 minutes"),
        Option("select", OptionType.LIST, "Columns of the result, each in SQL over l and r.", default=()),
        Option("source", OptionType.MAP, "More options of the sources.", default={}),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from two topics to one, and one for each side's dead letters."""
        table = options["with"] == "table"
        if table and options["type"] not in TABLE_TYPES:
            raise BadOption(f"join: with a table the type is inner or left, not {options['type']}")
        if table and len(options["on"]) != 1:
            raise BadOption("join: with a table `on` is one field, which is the key of the right topic")
        fields = ", ".join(options["on"])
        rule = f"{fields} is the table's key" if table else f"same {fields}, within {options['within']}"
        query = PlannedQuery(
            "join",
            reads=f"topic {options['left']} and {options['with']} {options['right']}",
            does=(f"{options['type']} join: {rule}",),
            writes=f"topic {options['to']}",
            checkpoint=run.checkpoint_of("join"),
        )
        notes = ("the table is read whole for each micro-batch",) if table else ()
        uses = (*read_option(run, options, "left", "join-left"), *read_option(run, options, "right"))
        uses += write_option(run, options)
        return Plan(self.name, run, options, (query,), notes, uses=uses, statements=_statements(options))

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the queries."""
        return _start_table(spark, plan) if plan.options["with"] == "table" else _start_streams(spark, plan)


def _statements(options: Options) -> tuple[Statement, ...]:
    """Both sides, the fields that they share, their times, and what is selected of them."""
    sides = ("left",) if options["with"] == "table" else ("left", "right")
    found = [
        Statement(
            ("options", f"{side}_schema"), f"{side}_schema", alias, options[f"{side}_schema"], RECORD_OWN
        )
        for side, alias in ALIASES.items()
    ]
    for side in sides:
        alias = ALIASES[side]
        for name in options["on"]:
            found.append(expression(("options", "on"), f"on: the {side} side", quoted(name), alias))
        if "right" in sides:
            name = f"{side}_time"
            found.append(expression(("options", name), name, options[name], alias, TIME_TYPES))
    for part in options["select"]:
        sql = f"SELECT {part}\nFROM l CROSS JOIN r"
        found.append(Statement(("options", "select"), "select", sql=sql))
    return tuple(found)


def _start_streams(spark: Any, plan: Plan) -> list[Work]:
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    options, run = plan.options, plan.run
    sides, dead = {}, []
    for side, alias in ALIASES.items():
        rows = _side(spark, run, side, options)
        dead += rows.dead
        # The time under a name of its own: both sides may call it alike.
        timed = rows.frame.withColumn(MARKS[side], F.col(options[f"{side}_time"]))
        sides[side] = timed.withWatermark(MARKS[side], options["watermark"]).alias(alias)
    within = f"INTERVAL {options['within']}"
    condition = F.expr(f"r._right_at BETWEEN l._left_at - {within} AND l._left_at + {within}")
    for name in options["on"]:
        condition = condition & (F.col(f"l.{name}") == F.col(f"r.{name}"))
    kind = options["type"] if options["type"] == "inner" else f"{options['type']}_outer"
    joined = sides["left"].join(sides["right"], condition, kind)
    keys = [F.coalesce(f"l.{name}", f"r.{name}").alias(f"_on_{name}") for name in options["on"]]
    records = _records(joined, keys, options, sides)
    return [start_to_topic(records, run, "join", options["to"], options["sink"]), *dead]


def _start_table(spark: Any, plan: Plan) -> list[Work]:
    from pyspark.sql import functions as F  # noqa: N812

    options, run = plan.options, plan.run
    rows = _side(spark, run, "left", options)
    (field,) = options["on"]

    def batch(left_rows: Any, batch_id: int) -> None:
        left = left_rows.withColumn(MARKS["left"], F.lit(True)).alias("l")
        table = _table(left_rows.sparkSession, run, options).alias("r")
        same = F.col(f"l.{field}").cast("string") == F.col("r._key")
        joined = left.join(table, same, "inner" if options["type"] == "inner" else "left_outer")
        keys = [F.col(f"l.{field}").alias(f"_on_{field}")]
        records = _records(joined, keys, options, {"left": left, "right": table})
        application = batch_application(left_rows, run, "joined")
        write_to_topic(records, run, application, batch_id, options["to"], options["sink"])

    writer = (
        rows.frame.writeStream.queryName(f"{run.name}-join")
        .option("checkpointLocation", run.checkpoint_of("join"))
        .foreachBatch(batch)
    )
    return [StreamingWork("join", run.trigger.on(writer).start()), *rows.dead]


def _side(spark: Any, run: RunSettings, side: str, options: Options) -> JsonRows:
    return json_rows(spark, run, f"join-{side}", options[side], options["source"], options[f"{side}_schema"])


def _table(spark: Any, run: RunSettings, options: Options) -> Any:
    """The latest value of each key of the right topic, as it is now."""
    from pyspark.sql import functions as F  # noqa: N812

    # A key is always in the same partition, so its newest record is the one with the highest offset.
    records = read_topic(spark, run, options["right"]).where(F.col("key").isNotNull())
    latest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    return (
        latest.where(F.col("value").isNotNull())
        .select(
            F.col("key").cast("string").alias("_key"),
            F.lit(True).alias(MARKS["right"]),
            F.from_json(F.col("value").cast("string"), options["right_schema"]).alias("_data"),
        )
        .select("_key", MARKS["right"], "_data.*")
    )


def _records(joined: Any, keys: list[Any], options: Options, sides: dict[str, Any]) -> Any:
    """Records of the joined rows."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen = [F.expr(part) for part in options["select"]]
    if not chosen:
        for side, alias in ALIASES.items():
            fields = [name for name in sides[side].columns if not name.startswith(OWN_PREFIX)]
            whole = F.struct(*(F.col(f"{alias}.{name}") for name in fields))
            chosen.append(F.when(F.col(f"{alias}.{MARKS[side]}").isNotNull(), whole).alias(side))
    rows = joined.select(*keys, *chosen)
    key_names = rows.columns[: len(keys)]
    return as_records(rows, key_names, rows.columns[len(keys) :])


pipeline = Join()
