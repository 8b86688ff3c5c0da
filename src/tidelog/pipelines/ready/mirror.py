"""`mirror`: topics into topics of the same or another cluster, exactly once.

Key, value, headers and timestamp are kept, and with them the order: a partition is written by one task at a
time, to the partition of the same number. Offsets in the copy are others. Target topics that are missing
are made with as many partitions as the source has, and with its settings, which are kept in step
(`topic_settings`).
"""

from dataclasses import replace
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.begun_with import TARGET_CLUSTER
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.run_settings import RunSettings, kafka_options
from tidelog.pipelines.settings_in_step import SettingsInStep
from tidelog.pipelines.target_topics import make_missing
from tidelog.pipelines.topic_frames import stream_topic
from tidelog.pipelines.topic_settings import (
    CHOICES,
    COPY,
    LEAVE,
    WORDS,
    SettingsCopy,
    bring_in_step,
    read_memory,
    settings_for_missing,
    write_memory,
)
from tidelog.pipelines.topic_uses import TopicUse, read_option
from tidelog.pipelines.work import Progress, StreamingWork, Work

QUERY = "mirror"


class Mirror:
    """The ready pipeline."""

    name = "mirror"
    summary = "Topics into topics of the same or another cluster, exactly once."
    options = (
        Option("topic", OptionType.TEXT, "The topic, or topics with commas.", required=True, identity=True),
        Option("to", OptionType.TEXT, "The topic to write, when one topic is read.", identity=True),
        Option("prefix", OptionType.TEXT, "Goes before the name of a topic in the copy.", "", identity=True),
        Option(
            "to_bootstrap", OptionType.TEXT, "Brokers of the other cluster; without it, the same cluster."
        ),
        Option("to_kafka", OptionType.MAP, "Client properties for the other cluster.", {}),
        Option("keep_partitions", OptionType.FLAG, "Partition 3 goes to partition 3; else by key.", True),
        Option("create", OptionType.FLAG, "Make topics that are missing.", True),
        Option(
            "settings",
            OptionType.TEXT,
            "Copies have the settings of their sources (copy; overwrite: also where a topic was there with "
            "others that lose records), or keep their own (leave).",
            COPY,
            choices=CHOICES,
        ),
        Option("batch_records", OptionType.INTEGER, "At most so many records in a micro-batch.", 1_000_000),
        Option("source", OptionType.MAP, "More options of the source.", {}),
        Option("sink", OptionType.MAP, "More options of the sink.", {}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One query: topics to topics."""
        topics = [topic.strip() for topic in options["topic"].split(",")]
        if options["to"] is not None and len(topics) > 1:
            raise BadOption("to names one topic; for several use prefix")
        names = {topic: options["to"] or options["prefix"] + topic for topic in topics}
        other = options["to_bootstrap"] is not None
        same = [topic for topic, name in names.items() if topic == name]
        if same and not other:
            raise BadOption(f"{same[0]} would be copied to itself: set to, prefix or to_bootstrap")
        target = dict(run.kafka)
        if other:
            target = kafka_options({"bootstrap.servers": options["to_bootstrap"], **options["to_kafka"]})
        at = f" at {options['to_bootstrap']}" if other else ""
        does = ["partitions are kept" if options["keep_partitions"] else "partitions by key"]
        if options["create"]:
            does.append("topics that are missing are made")
        if options["settings"] != LEAVE:
            does.append(WORDS)
        query = PlannedQuery(
            QUERY,
            reads=f"topic {', '.join(topics)}",
            writes=f"topic {', '.join(names.values())}{at}",
            does=tuple(does),
            checkpoint=run.checkpoint_of(QUERY),
        )
        uses = read_option(run, options, query=QUERY)
        for topic, name in names.items():
            use = TopicUse(
                name, ("options", "to"), target, options["sink"], written=True, made=options["create"]
            )
            uses += (replace(use, partitions_of=topic if options["keep_partitions"] else None),)
        where = ("options", "prefix" if options["to"] is None else "to")
        copies = tuple(
            SettingsCopy(topic, name, run.kafka, target, where, options["settings"])
            for topic, name in names.items()
        )
        more = {"names": names, TARGET_CLUSTER: target}
        return Plan(self.name, run, options, (query,), more=more, uses=uses, copies=copies)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the query."""
        from pyspark.sql import functions as sql

        options, run, names = plan.options, plan.run, plan.more["names"]
        in_step = _settings_in_step(spark, plan)
        limits = {"maxOffsetsPerTrigger": str(options["batch_records"]), **options["source"]}
        frame = stream_topic(spark, run, QUERY, options["topic"], limits)
        renamed = sql.lit(None).cast("string")
        for topic, name in names.items():
            renamed = sql.when(sql.col("topic") == topic, sql.lit(name)).otherwise(renamed)
        columns = ["key", "value", "headers", "timestamp"]
        if options["keep_partitions"]:
            columns.append("partition")
        copied = frame.select(*columns, renamed.alias("topic"))
        chosen = {
            **plan.more[TARGET_CLUSTER],
            **options["sink"],
            "checkpointLocation": run.checkpoint_of(QUERY),
        }
        writer = copied.writeStream.format("tidelog").queryName(f"{run.name}-{QUERY}").options(**chosen)
        return [MirrorWork(run.trigger.on(writer).start(), in_step)]


def _settings_in_step(spark: Any, plan: Plan) -> SettingsInStep:
    """Make what is missing, give what is there its source's settings, and follow them."""
    store, checkpoint = HadoopFiles(spark, plan.run.checkpoint), plan.run.checkpoint
    memory = read_memory(store, checkpoint)
    copies = [copy for copy in plan.copies if copy.mode != LEAVE]
    for copy in copies:
        bring_in_step(copy, memory)
    if plan.options["create"]:
        by_topic = {copy.topic: copy for copy in copies}
        memory |= make_missing(
            plan.run.kafka,
            plan.more[TARGET_CLUSTER],
            plan.more["names"],
            settings=lambda topic: settings_for_missing(by_topic[topic]) if by_topic else {},
        )
    if copies:
        write_memory(store, checkpoint, memory)
    return SettingsInStep(copies, memory, store, checkpoint)


class MirrorWork(StreamingWork):
    """The query, and what follows the settings of its topics."""

    def __init__(self, query: Any, in_step: SettingsInStep) -> None:
        super().__init__(QUERY, query)
        self._in_step = in_step
        in_step.start()

    def progress(self) -> Progress:
        found = super().progress()
        return replace(found, message=self._in_step.message) if self._in_step.message else found

    def stop(self) -> None:
        self._in_step.close()
        super().stop()


pipeline = Mirror()
