"""A flow without state: one query, whose micro-batches go through all steps to all sinks.

Failures of single records become dead letters and the rest goes on:
- what cannot be decoded or breaks a rule is told apart while decoding;
- what a function of one record raises, right behind the source, is told apart there, with its stack;
- when anything else fails (SQL, functions of frames), the records that do it are found by halving the batch.

Topics are written once for each batch id, files by `file_batches`, so a batch can be repeated at any point.
"""

from collections.abc import Sequence
from typing import Any

from tidelog.pipelines.dead_letters import (
    ORIGIN,
    REASON,
    STACK,
    as_dead_letters,
    decoded,
    write_dead_letters,
)
from tidelog.pipelines.definition import Definition
from tidelog.pipelines.file_batches import FileBatches
from tidelog.pipelines.file_store import HadoopFiles
from tidelog.pipelines.flow import (
    FLOW,
    apply_steps,
    as_records,
    can_fail,
    check_stateless,
    query_name,
    run_each,
    source_stream,
)
from tidelog.pipelines.flow_parts import FILE_FORMATS, Sink
from tidelog.pipelines.poison import Poison, find_poison, is_data_fault, without_task_logs
from tidelog.pipelines.topic_frames import batch_application, write_to_topic
from tidelog.pipelines.work import StreamingWork


def start_flow_batches(spark: Any, definition: Definition) -> StreamingWork:
    """Start the query; raises BadOption for steps that keep state."""
    (source,) = definition.sources
    run = definition.run
    stream = source_stream(spark, definition, source)
    flow = FlowBatches(definition)
    check_stateless(definition, flow.tables(stream)[0])

    def handle(batch: Any, batch_id: int) -> None:
        flow.run_batch(batch, batch_id)

    writer = stream.writeStream.foreachBatch(handle).queryName(f"{run.name}-{FLOW}")
    writer = writer.option("checkpointLocation", run.checkpoint_of(FLOW))
    return StreamingWork(FLOW, run.trigger.on(writer).start(), lambda: flow.dead_letters)


class FlowBatches:
    """What is done with each micro-batch."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        (self._source,) = definition.sources
        self.dead_letters = 0
        steps = definition.steps
        #: functions of a record right behind the source still know the record
        self._inline = 0
        before = self._source.name
        while self._inline < len(steps) and steps[self._inline].each and steps[self._inline].reads == before:
            before = steps[self._inline].name
            self._inline += 1
        #: whether there is anything that tells records that fail apart
        self._tells_apart = can_fail(self._source) or self._inline > 0

    def tables(self, records: Any) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """The tables of the flow, and what failed in which step, both not yet computed."""
        source, steps = self._source, self._definition.steps
        split = decoded(records, source.decode, source.schema, source.expect, keep_origin=True)
        dead = [(source.name, split.dead)]
        frame = split.good
        tables = {source.name: frame.drop(ORIGIN)}
        for step in steps[: self._inline]:
            ran = run_each(step, frame, frame.schema[ORIGIN].dataType.simpleString())
            dead.append((step.name, ran.where(f"{REASON} IS NOT NULL").select(ORIGIN, REASON, STACK)))
            frame = ran.where(f"{REASON} IS NULL").drop(REASON, STACK)
            tables[step.name] = frame.drop(ORIGIN)
        made = apply_steps(records.sparkSession, steps[self._inline :], tables)
        return made, dead

    def run_batch(self, batch: Any, batch_id: int) -> None:
        """Process one micro-batch; safe to repeat with the same id."""
        from pyspark.errors import PySparkException

        has_dead_letters = self._definition.run.dead_letters is not None
        records = batch.persist()
        try:
            if has_dead_letters:
                # Spark counts what a task has read when it succeeds, and what is kept is read once: were a
                # record to fail the first task that reads, the progress would never see the rows.
                records.count()
            try:
                self._write_sinks(records, batch, batch_id)
                poison: Sequence[Poison] = ()
            except PySparkException as fault:
                if not has_dead_letters or not is_data_fault(fault):
                    raise
                with without_task_logs(batch.sparkSession):
                    poison = find_poison(records, self._try_tables)
                if not poison:
                    raise
                self._write_sinks(without(records, poison), batch, batch_id)
            if has_dead_letters and (self._tells_apart or poison):
                self._write_dead(records, poison, batch, batch_id)
        finally:
            records.unpersist()

    def _try_tables(self, records: Any) -> None:
        made, _ = self.tables(records)
        for table in {sink.reads for sink in self._definition.sinks}:
            made[table].write.format("noop").mode("append").save()

    def _write_sinks(self, records: Any, batch: Any, batch_id: int) -> None:
        made, dead = self.tables(records)
        if self._definition.run.dead_letters is None and self._tells_apart:
            self._refuse_dead(dead)
        sinks = self._definition.sinks
        kept = {sink.reads: made[sink.reads].persist() for sink in sinks} if len(sinks) > 1 else {}
        try:
            # With several sinks all must be computed before one is written: what fails in one goes to none.
            for frame in kept.values():
                frame.count()
            for sink in sinks:
                self._write_sink(kept.get(sink.reads, made[sink.reads]), sink, batch, batch_id)
        finally:
            for frame in kept.values():
                frame.unpersist()

    def _refuse_dead(self, dead: Sequence[tuple[str, Any]]) -> None:
        for step, frame in dead:
            for row in frame.limit(1).collect():
                origin = row[ORIGIN]
                place = f"{origin['topic']}-{origin['partition']} at offset {origin['offset']}"
                raise ValueError(f"{step}: record {place}: {row[REASON]}; set dead_letters to go on without")

    def _write_sink(self, frame: Any, sink: Sink, batch: Any, batch_id: int) -> None:
        run = self._definition.run
        if sink.topic is not None:
            application = batch_application(batch, run, query_name(sink))
            records = as_records(frame, sink)
            write_to_topic(records, run, application, batch_id, sink.topic, sink.options)
            return
        writer = frame.write.mode("append").options(**sink.options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if sink.format not in FILE_FORMATS:
            writer.format(sink.format).save() if sink.format == "noop" else frame.show(truncate=False)
            return
        assert sink.path is not None
        session = batch.sparkSession
        query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        files = FileBatches(HadoopFiles(session, sink.path), sink.path, query_id)
        files.write_batch(batch_id, lambda folder: writer.format(sink.format).save(folder))

    def _write_dead(self, records: Any, poison: Sequence[Poison], batch: Any, batch_id: int) -> None:
        run = self._definition.run
        _, dead = self.tables(without(records, poison))
        letters = [as_dead_letters(frame, run, step) for step, frame in dead]
        letters += [as_dead_letters(frame, run, "step") for frame in poisoned(records, poison)]
        every = letters[0]
        for more in letters[1:]:
            every = every.unionByName(more)
        every = every.persist()
        count = every.count()
        if count:
            write_dead_letters(every, run, batch, batch_id)
            self.dead_letters += count
        every.unpersist()


def without(records: Any, poison: Sequence[Poison]) -> Any:
    """The records but for those that were found to fail."""
    for one in poison:
        records = records.where(f"NOT ({one.condition})")
    return records


def poisoned(records: Any, poison: Sequence[Poison]) -> list[Any]:
    """The records that were found to fail, with the reason of each."""
    from pyspark.sql import functions as sql

    from tidelog.pipelines.dead_letters import with_origin

    return [
        with_origin(records.where(one.condition)).select(
            ORIGIN, sql.lit(one.reason).alias(REASON), sql.lit(one.stack).alias(STACK)
        )
        for one in poison
    ]
