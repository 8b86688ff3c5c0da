"""`replay`: archived records, or a time range of a topic, into a topic as they were.

Key, value, headers, timestamp and the order within a partition are kept. The work is cut into chunks of
offsets before it starts, and the list of chunks is kept beside the progress: every chunk is written once,
however often the replay is stopped and started again.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.client.faults import BadOption
from tidelog.model.identifiers import TopicPartition
from tidelog.pipelines.file_store import FileStore, HadoopFiles
from tidelog.pipelines.pipeline_options import Option, Options, OptionType
from tidelog.pipelines.plan import Plan, PlannedQuery
from tidelog.pipelines.ready.archive import read_archive
from tidelog.pipelines.run_settings import RunSettings
from tidelog.pipelines.target_topics import client_settings, make_missing
from tidelog.pipelines.topic_frames import read_topic, write_to_topic
from tidelog.pipelines.topic_settings import (
    CHOICES,
    COPIED,
    COPY,
    LEAVE,
    POLICY,
    RETENTION_MS,
    OtherSettings,
    SettingsCopy,
    bring_in_step,
    read_memory,
    settings_for_missing,
    views_of,
    write_memory,
)
from tidelog.pipelines.topic_uses import TopicUse, reads
from tidelog.pipelines.work import BatchWork, Work

QUERY = "replay"
#: of a topic that is made for an archive, which may be older than anybody keeps records
ARCHIVED_SETTINGS = {POLICY: "delete", RETENTION_MS: "-1", "message.timestamp.type": "CreateTime"}
#: the first offset of a partition and the one behind the last: `{"orders": {"0": [0, 1000]}}`
Chunk = dict[str, dict[str, list[int]]]


class Replay:
    """The ready pipeline."""

    name = "replay"
    summary = "Archived records, or a time range of a topic, into a topic as they were."
    options = (
        Option("path", OptionType.TEXT, "The folder of an archive; this or topic.", identity=True),
        Option(
            "topic", OptionType.TEXT, "The topic to read, or which of the archive's topics.", identity=True
        ),
        Option("to", OptionType.TEXT, "The topic to write.", required=True, identity=True),
        Option(
            "since",
            OptionType.TEXT,
            "From this time on: 2026-01-31T12:00:00Z, or milliseconds.",
            identity=True,
        ),
        Option("until", OptionType.TEXT, "Before this time.", identity=True),
        Option(
            "keep_partitions",
            OptionType.FLAG,
            "Partition 3 goes to partition 3; else by key.",
            True,
            identity=True,
        ),
        Option("create", OptionType.FLAG, "Make the topic if it is missing.", True),
        Option(
            "settings",
            OptionType.TEXT,
            "The topic has the settings of the one that is read (copy; overwrite: also where it was there "
            "with others that lose records), or its own (leave).",
            COPY,
            choices=CHOICES,
        ),
        Option("chunk_records", OptionType.INTEGER, "About so many records in a transaction.", 1_000_000),
        Option("sink", OptionType.MAP, "More options of the sink.", {}),
    )

    def plan(self, options: Options, run: RunSettings) -> Plan:
        """One batch job."""
        if options["path"] is None and options["topic"] is None:
            raise BadOption("replay needs a path (an archive) or a topic")
        if options["path"] is None and options["topic"] == options["to"]:
            raise BadOption("a topic is not replayed into itself: it would never end")
        if options["chunk_records"] < 1:
            raise BadOption("chunk_records is at least 1")
        since, until = (
            None if options[name] is None else parse_time_ms(options[name]) for name in ("since", "until")
        )
        what = f"topic {options['topic']}" if options["path"] is None else f"archive {options['path']}"
        if options["path"] is not None and options["topic"] is not None:
            what += f", topic {options['topic']}"
        limits = [f"{name} {options[name]}" for name in ("since", "until") if options[name] is not None]
        query = PlannedQuery(
            QUERY,
            reads=" ".join([what, *limits]),
            writes=f"topic {options['to']}",
            does=(
                f"in order, {options['chunk_records']} records to a transaction",
                "partitions are kept" if options["keep_partitions"] else "partitions by key",
                *_settings_words(options),
            ),
            checkpoint=run.checkpoint_of(QUERY),
        )
        uses: tuple[TopicUse, ...] = ()
        if options["path"] is None:
            uses = reads(run, options["topic"], ("options", "topic"))
        target = TopicUse(
            options["to"], ("options", "to"), run.kafka, options["sink"], written=True, made=options["create"]
        )
        more = {"since_ms": since, "until_ms": until}
        copies: tuple[SettingsCopy, ...] = ()
        if options["path"] is None:
            mode = options["settings"]
            copies = (SettingsCopy(options["topic"], options["to"], run.kafka, run.kafka, mode=mode),)
        return Plan(self.name, run, options, (query,), more=more, uses=(*uses, target), copies=copies)

    def start(self, spark: Any, plan: Plan) -> list[Work]:
        """Start the job."""
        return [BatchWork(QUERY, spark, lambda work: _replay(spark, plan, work))]


pipeline = Replay()


def _settings_words(options: Options) -> tuple[str, ...]:
    if options["settings"] == LEAVE:
        return ()
    if options["path"] is None:
        return (f"settings of the source are copied: {', '.join(COPIED)}",)
    made = ", ".join(f"{name}={value}" for name, value in ARCHIVED_SETTINGS.items())
    return (f"if it is made, with {made}",) if options["create"] else ()


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970, of ISO time (UTC if it names no zone) or of milliseconds; raises BadOption."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"a time is 2026-01-31T12:00:00Z or milliseconds, not {text!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _replay(spark: Any, plan: Plan, work: BatchWork) -> None:
    options, run = plan.options, plan.run
    folder = run.checkpoint_of(QUERY)
    store = HadoopFiles(spark, folder)
    application, chunks = _chunks(spark, plan, store, f"{folder}/chunks.json")
    done = int(store.read(f"{folder}/done") or 0)
    if chunks:
        _prepare_target(spark, plan, store, chunks)
    rows = sum(map(chunk_size, chunks[:done]))
    if done == len(chunks):
        work.tell(rows, message="there is nothing left to write; another --name replays it once more")
    for number in range(done, len(chunks)):
        if work.stopping.is_set():
            return
        frame = _records(spark, plan, chunks[number])
        columns = ["key", "value", "headers", "timestamp"]
        if options["keep_partitions"]:
            columns.append("partition")
        write_to_topic(frame.select(*columns), run, application, number, options["to"], options["sink"])
        store.write(f"{folder}/done", str(number + 1))
        rows += chunk_size(chunks[number])
        work.tell(rows, message=f"chunk {number + 1} of {len(chunks)}")


def _chunks(spark: Any, plan: Plan, store: FileStore, path: str) -> tuple[str, list[Chunk]]:
    """The list of chunks: that of an earlier start, or a new one, kept before anything is written."""
    text = store.read(path)
    if text is None:
        archived = plan.options["path"] is not None
        ranges = _archived_ranges(spark, plan) if archived else _topic_ranges(plan)
        # The name makes the chunks' transactions; another checkpoint is another replay, also in one session.
        application = f"{plan.run.name}-{QUERY}-{uuid.uuid4().hex}"
        chunks = cut(ranges, plan.options["chunk_records"])
        text = json.dumps({"application": application, "chunks": chunks})
        store.write(path, text)
    content = json.loads(text)
    return content["application"], content["chunks"]


def cut(ranges: Mapping[TopicPartition, tuple[int, int]], records_max: int) -> list[Chunk]:
    """Cut ranges of offsets (first, end) into chunks, in which partitions take part by their size."""
    total = sum(end - first for first, end in ranges.values())
    count = -(-total // records_max)
    chunks: list[Chunk] = []
    for number in range(count):
        chunk: Chunk = {}
        for (topic, partition), (first, end) in sorted(ranges.items()):
            size = end - first
            low, high = first + size * number // count, first + size * (number + 1) // count
            if low < high:
                chunk.setdefault(topic, {})[str(partition)] = [low, high]
        chunks.append(chunk)
    return chunks


def chunk_size(chunk: Chunk) -> int:
    """How many offsets a chunk covers."""
    return sum(high - low for partitions in chunk.values() for low, high in partitions.values())


def _archived_ranges(spark: Any, plan: Plan) -> dict[TopicPartition, tuple[int, int]]:
    from pyspark.sql import functions as sql

    bounds = _archived(spark, plan).groupBy("topic", "partition").agg(sql.min("offset"), sql.max("offset"))
    return {TopicPartition(row[0], row[1]): (row[2], row[3] + 1) for row in bounds.collect()}


def _archived(spark: Any, plan: Plan) -> Any:
    from pyspark.sql import functions as sql

    frame = read_archive(spark, plan.options["path"])
    if plan.options["topic"] is not None:
        frame = frame.where(sql.col("topic") == plan.options["topic"])
    time_ms = sql.unix_millis("timestamp")
    if plan.more["since_ms"] is not None:
        frame = frame.where(time_ms >= plan.more["since_ms"])
    if plan.more["until_ms"] is not None:
        frame = frame.where(time_ms < plan.more["until_ms"])
    return frame


def _topic_ranges(plan: Plan) -> dict[TopicPartition, tuple[int, int]]:
    """Offsets by time, as `startingTimestamp` has them: from the first record at or after a time on."""
    topic, kafka = plan.options["topic"], plan.run.kafka
    with Cluster(client_settings(kafka)) as cluster:
        count = len(cluster.topic(topic).partitions)
        places = [TopicPartition(topic, partition) for partition in range(count)]
        ends = {
            place: one.offset for place, one in cluster.list_offsets(dict.fromkeys(places, LATEST)).items()
        }
        bounds = []
        for time_ms, other in ((plan.more["since_ms"], EARLIEST), (plan.more["until_ms"], LATEST)):
            asked = cluster.list_offsets(dict.fromkeys(places, other if time_ms is None else time_ms))
            bounds.append(
                {place: ends[place] if one.offset < 0 else one.offset for place, one in asked.items()}
            )
    return {place: (bounds[0][place], max(bounds[0][place], bounds[1][place])) for place in places}


def _records(spark: Any, plan: Plan, chunk: Chunk) -> Any:
    """The records of a chunk, those of a partition in one task and in order."""
    if plan.options["path"] is None:
        ends: Sequence[dict[str, dict[str, int]]] = [
            {
                topic: {partition: pair[side] for partition, pair in partitions.items()}
                for topic, partitions in chunk.items()
            }
            for side in (0, 1)
        ]
        assigned = {topic: [int(one) for one in partitions] for topic, partitions in chunk.items()}
        chosen = {
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(ends[0]),
            "endingOffsets": json.dumps(ends[1]),
        }
        return read_topic(spark, plan.run, plan.options["topic"], chosen)
    condition = " OR ".join(
        f"(topic = '{topic}' AND partition = {partition} AND offset >= {low} AND offset < {high})"
        for topic, partitions in chunk.items()
        for partition, (low, high) in partitions.items()
    )
    frame = _archived(spark, plan).where(condition)
    return frame.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")


def _prepare_target(spark: Any, plan: Plan, store: FileStore, chunks: Sequence[Chunk]) -> None:
    """A target with the partitions of the source, that keeps what the source keeps."""
    options, kafka, checkpoint = plan.options, plan.run.kafka, plan.run.checkpoint
    if options["path"] is not None:
        if options["settings"] == COPY and views_of(kafka, options["to"]) is not None:
            _check_retention(plan, _oldest_ms(spark, plan))
        if options["create"]:
            count = 1 + max(int(one) for chunk in chunks for parts in chunk.values() for one in parts)
            keeping = {} if options["settings"] == LEAVE else ARCHIVED_SETTINGS
            make_missing(kafka, kafka, {"": options["to"]}, {"": count}, lambda _: keeping)
        return
    (copy,) = plan.copies
    memory = read_memory(store, checkpoint)
    if copy.mode != LEAVE:
        bring_in_step(copy, memory)
    if options["create"]:
        names = {options["topic"]: options["to"]}
        is_left = copy.mode == LEAVE
        memory |= make_missing(
            kafka, kafka, names, settings=lambda _: {} if is_left else settings_for_missing(copy)
        )
    write_memory(store, checkpoint, memory)


def _oldest_ms(spark: Any, plan: Plan) -> int | None:
    from pyspark.sql import functions as sql

    row = _archived(spark, plan).agg(sql.min(sql.unix_millis("timestamp"))).first()
    return None if row is None or row[0] is None else int(row[0])


def _check_retention(plan: Plan, oldest_ms: int | None) -> None:
    """Nobody kept the settings of an archived topic: it must not lose the oldest record right away."""
    views = views_of(plan.run.kafka, plan.options["to"]) or {}
    retention_ms = int(views[RETENTION_MS].value or -1) if RETENTION_MS in views else -1
    deletes = POLICY not in views or "delete" in str(views[POLICY].value)
    if deletes and 0 <= retention_ms < time.time() * 1000 - (oldest_ms or 0):
        raise OtherSettings(
            f"topic {plan.options['to']} has retention.ms={retention_ms}, and the archive has older records, "
            f"which would be removed: tidelog topic alter {plan.options['to']} --set retention.ms=-1; or set "
            f"settings: {LEAVE}"
        )
