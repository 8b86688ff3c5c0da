"""`dedupe`: a topic without the records that came before.

Records are the same when they have the same key, the same value, or the same fields of a JSON value
(`by`). The first of them is kept, as it was: key, value, headers, timestamp.

How long a record is remembered is counted in one of two times:

- `arrival`: since the record was read. No record is ever taken for late, so nothing but repetitions is
  left out; after a pause of the pipeline longer than `within` a repetition of a record from before passes.
- `event`: by the records' timestamps, exact in replays and after pauses. Spark leaves out records that are
  older than the newest one seen by more than `within`: use it where lateness is bounded.
"""

from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.topic_frames import start_to_topic, stream_topic
from tidelog.pipelines.topic_uses import read_option, write_option
from tidelog.pipelines.work import Work

WHOLE_COLUMNS = ("key", "value")


class Dedupe:
    """See the module."""

    name = "dedupe"
    summary = "A topic without the records that came before."
    options = (
        Option("topic", OptionType.TEXT, "The topic to read.", required=True, identity=True),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option(
            "by",
            OptionType.LIST,
            "What makes records the same: key, value, or fields of a JSON value ('order', 'customer.id').",
            default=("key",),
            identity=True,
        ),
        Option("within", OptionType.DURATION, "How long a record is remembered.", default="1 hour"),
        Option(
            "time",
            OptionType.TEXT,
            "What `within` counts: the time of arrival, or event, the records' timestamps.",
            default="arrival",
            choices=("arrival", "event"),
        ),
        Option("source", OptionType.MAP, "More options of the source.", default={}),
        Option("sink", OptionType.MAP, "More options of the sink.", default={}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query from topic to topic."""
        if not options["by"]:
            raise BadOption("dedupe: name in `by` what makes records the same, such as key")
        fields = ", ".join(options["by"])
        query = PlannedQuery(
            "dedupe",
            reads=f"topic {options['topic']}",
            does=(
                f"leave out records whose {fields} came within {options['within']} ({options['time']} time)",
            ),
            writes=f"topic {options['to']}",
            checkpoint=run.checkpoint_of("dedupe"),
        )
        notes = []
        if options["time"] == "event":
            notes.append(f"records more than {options['within']} older than the newest are left out")
        uses = (*read_option(run, options, query="dedupe"), *write_option(run, options))
        return Plan(self.name, run, options, (query,), tuple(notes), uses=uses)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

        options, run = plan.options, plan.run
        frame = stream_topic(spark, run, "dedupe", options["topic"], options["source"])
        names = []
        for number, field in enumerate(options["by"]):
            names.append(f"_by_{number}")
            text = F.col("value").cast("string")
            same = F.col(field) if field in WHOLE_COLUMNS else F.get_json_object(text, f"$.{field}")
            frame = frame.withColumn(names[-1], same)
        # The time of a micro-batch is in the checkpoint: a batch that is repeated has the same.
        moment = F.current_timestamp() if options["time"] == "arrival" else F.col("timestamp")
        kept = (
            frame.withColumn("_seen_at", moment)
            .withWatermark("_seen_at", options["within"])
            .dropDuplicatesWithinWatermark(names)
            .select("key", "value", "headers", "timestamp")
        )
        return [start_to_topic(kept, run, "dedupe", options["to"], options["sink"])]


pipeline = Dedupe()
