"""`order`: many partitions into one, in the order of event time.

A record waits until one that is newer by `lateness` was seen: what comes later than that cannot be put in
its place any more. Such a record goes to `late_to`, else to the dead-letter topic, else it stops the
pipeline. Records of the same time stand in the order of partition and offset. The output has one partition
in use, number 0.

What waits is kept as Parquet below the checkpoint, a folder for each micro-batch:

    <checkpoint>/order-waiting/<batch id>/records    what waits after that batch
    <checkpoint>/order-waiting/<batch id>/bound      one row: up to which time records were written

A batch begins with the folder of the batch before it, which it does not change, and writes to the topic
once for its id. So a batch that is repeated after a crash does the same again, and what it had written is
not written twice. The folder of the batch before that goes when a batch is done.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.dead_letters import REASON, STACK, as_dead_letters, with_origin
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.table_checks import RECORD, TIME_TYPES, Statement, expression
from tidelog.pipelines.topic_frames import batch_application, stream_topic, write_to_topic
from tidelog.pipelines.topic_uses import read_option, write_option, writes
from tidelog.pipelines.work import StreamingWork, Work

#: the time of a record in microseconds, and where it came from
ORDER_COLUMNS = ("_event_us", "topic", "partition", "offset")
KEPT_COLUMNS = ("key", "value", "headers", "timestamp")


class TooLate(ValueError):
    """A record cannot be put in its place, and there is no topic for such records."""


class Order:
    """See the module."""

    name = "order"
    summary = "Many partitions into one, in the order of event time."
    options = (
        Option(
            "topic", OptionType.TEXT, "The topic to read; several with commas.", required=True, identity=True
        ),
        Option(
            "to", OptionType.TEXT, "The topic to write, to its partition 0.", required=True, identity=True
        ),
        Option(
            "event_time",
            OptionType.TEXT,
            "The time of a record, in SQL over its columns, such as "
            "to_timestamp(get_json_object(CAST(value AS STRING), '$.ordered_at')).",
            default="timestamp",
        ),
        Option(
            "lateness",
            OptionType.DURATION,
            "How much older than the newest record one may come.",
            default="1 minute",
        ),
        Option("late_to", OptionType.TEXT, "The topic for records that come later; default: dead letters."),
        Option("source", OptionType.MAP, "More options of the source.", default={}),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from topic to topic."""
        if options["to"] in options["topic"].split(","):
            raise BadOption(f"order: topic and to are both {options['to']}; write to another topic")
        late = options["late_to"] or run.dead_letters
        query = PlannedQuery(
            "order",
            reads=f"topic {options['topic']}",
            does=(
                f"wait until a record newer by {options['lateness']} was seen",
                f"put in the order of {options['event_time']}",
            ),
            writes=f"topic {options['to']}, partition 0",
            checkpoint=run.checkpoint_of("order"),
        )
        note = f"records that come too late go to {late}" if late else "a record that comes too late stops it"
        uses = (*read_option(run, options, query="order"), *write_option(run, options))
        uses += writes(run.kafka, (options["late_to"],), ("options", "late_to"), options["sink"])
        time = expression(
            ("options", "event_time"), "event_time", options["event_time"], "record", TIME_TYPES
        )
        statements = (Statement(("options", "topic"), "the record", "record", columns=RECORD), time)
        return Plan(self.name, run, options, (query,), (note,), uses=uses, statements=statements)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        options, run = plan.options, plan.run
        frame = stream_topic(spark, run, "order", options["topic"], options["source"]).selectExpr(
            *KEPT_COLUMNS,
            "topic",
            "partition",
            "offset",
            f"unix_micros({options['event_time']}) AS _event_us",
        )
        interval = f"SELECT unix_micros(timestamp_micros(0) + INTERVAL {options['lateness']})"
        ordering = _Ordering(plan, int(spark.sql(interval).first()[0]))
        writer = (
            frame.writeStream.queryName(f"{run.name}-order")
            .option("checkpointLocation", run.checkpoint_of("order"))
            .foreachBatch(ordering.batch)
        )
        return [StreamingWork("order", run.trigger.on(writer).start())]


class _Ordering:
    """What is done with each micro-batch."""

    def __init__(self, plan: Plan, lateness_us: int) -> None:
        self._options, self._run = plan.options, plan.run
        self._late_to = plan.options["late_to"] or plan.run.dead_letters
        self._lateness_us = lateness_us
        self._folder = plan.run.checkpoint_of("order-waiting")

    def batch(self, frame: Any, batch_id: int) -> None:
        """Write what has its place, keep what has not."""
        from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

        spark = frame.sparkSession
        fresh = frame.persist()
        try:
            newest_us = fresh.agg(F.max("_event_us")).first()[0]
            waiting, written_us = self._before(spark, batch_id)
            bounds = [written_us, None if newest_us is None else newest_us - self._lateness_us]
            bound_us = max((bound for bound in bounds if bound is not None), default=None)
            late = F.col("_event_us").isNull()
            if written_us is not None:
                late = late | (F.col("_event_us") < written_us)
            self._write_late(fresh, late, batch_id)
            records = fresh.where(~late)
            if waiting is not None:
                records = records.unionByName(waiting)
            due = F.lit(False) if bound_us is None else F.col("_event_us") <= bound_us
            self._write(frame, records.where(due), batch_id)
            place = f"{self._folder}/{batch_id}"
            records.where(~due).write.mode("overwrite").parquet(f"{place}/records")
            bound = spark.createDataFrame([(bound_us,)], "bound_us LONG")
            bound.coalesce(1).write.mode("overwrite").parquet(f"{place}/bound")
        finally:
            fresh.unpersist()
        HadoopFiles(spark, self._folder).delete(f"{self._folder}/{batch_id - 2}")

    def _before(self, spark: Any, batch_id: int) -> tuple[Any, int | None]:
        """What waited after the batch before, and up to which time records had been written."""
        if batch_id == 0:
            return None, None
        place = f"{self._folder}/{batch_id - 1}"
        return spark.read.parquet(f"{place}/records"), spark.read.parquet(f"{place}/bound").first()[0]

    def _write(self, frame: Any, records: Any, batch_id: int) -> None:
        """One task, so that one transaction has all of them in their order."""
        in_order = records.repartition(1).sortWithinPartitions(*ORDER_COLUMNS)
        rows = in_order.selectExpr(*KEPT_COLUMNS, "0 AS partition")
        application = batch_application(frame, self._run, "ordered")
        write_to_topic(rows, self._run, application, batch_id, self._options["to"], self._options["sink"])

    def _write_late(self, fresh: Any, late: Any, batch_id: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        found = fresh.where(late)
        first = found.select("topic", "partition", "offset").head()
        if first is None:
            return
        reason = f"it came more than {self._options['lateness']} late, or has no time"
        if self._late_to is None:
            raise TooLate(
                f"the record {first.topic}-{first.partition}@{first.offset} has no place: {reason}, and what "
                "comes after it is written. Name a topic for such records in late_to and start again; more "
                "lateness helps a pipeline that begins anew, with another --name and another topic to write"
            )
        dead = with_origin(found).withColumns({REASON: F.lit(reason), STACK: F.lit(None).cast("string")})
        letters = as_dead_letters(dead, self._run, "order")
        application = batch_application(fresh, self._run, "late")
        write_to_topic(letters, self._run, application, batch_id, self._late_to, self._options["sink"])


pipeline = Order()
