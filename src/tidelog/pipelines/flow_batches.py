"""A flow without state: one query, whose micro-batches go through all steps to all sinks.

Failures of single records become dead letters and the rest goes on:
- what cannot be decoded or breaks a rule is told apart while decoding;
- what a function of one record raises, right behind the source, is told apart there, with its stack;
- when anything else fails (SQL, functions of frames), the records that do it are found by halving the batch.

What rules and functions say of a record is asked once and kept: sinks and dead letters are written from the
same rows, so a function that fails now and not the next time cannot take a record out of both.

Topics are written once for each batch id, files by `file_batches`, so a batch can be repeated at any point.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tidelog.pipelines.dead_letters import (
    ORIGIN,
    REASON,
    STACK,
    as_dead_letters,
    dead_rows,
    good_rows,
    marked,
    with_origin,
    write_dead_letters,
)
from tidelog.pipelines.definition import Definition
from tidelog.pipelines.flow import (
    FLOW,
    apply_steps,
    as_records,
    can_fail,
    check_stateless,
    query_name,
    run_each,
)
from tidelog.pipelines.flow_parts import FILE_FORMATS, Sink
from tidelog.pipelines.poison import Place, Poison, condition, find_poison, is_data_fault, without_task_logs
from tidelog.pipelines.sink_files import write_files
from tidelog.pipelines.topic_frames import batch_application, stream_topic, write_to_topic
from tidelog.pipelines.work import StreamingWork


def start_flow_batches(spark: Any, definition: Definition) -> StreamingWork:
    """Start the query; raises BadOption for steps that keep state."""
    (source,) = definition.sources
    run = definition.run
    stream = stream_topic(spark, run, source.name, source.topic, source.options)
    flow = FlowBatches(definition)
    check_stateless(definition, flow.tables(flow.stages(stream)))

    def handle(batch: Any, batch_id: int) -> None:
        flow.run_batch(batch, batch_id)

    writer = stream.writeStream.foreachBatch(handle).queryName(f"{run.name}-{FLOW}")
    writer = writer.option("checkpointLocation", run.checkpoint_of(FLOW))
    return StreamingWork(FLOW, run.trigger.on(writer).start(), lambda: flow.dead_letters)


@dataclass(frozen=True, slots=True)
class Stages:
    """What the source, and each function right behind it, made of records, by name.

    A frame has rows with `_origin`, and with `_reason` and `_stack` where the record has failed there.
    """

    frames: tuple[tuple[str, Any], ...]

    def good(self) -> dict[str, Any]:
        """The rows that go on, as tables."""
        return {name: good_rows(frame).drop(ORIGIN) for name, frame in self.frames}

    def dead(self) -> list[tuple[str, Any]]:
        """The records that have failed, and where."""
        return [(name, dead_rows(frame)) for name, frame in self.frames]

    def where(self, test: str) -> "Stages":
        return Stages(tuple((name, frame.where(test)) for name, frame in self.frames))


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

    def stages(self, records: Any) -> Stages:
        """What tells records apart, not yet computed."""
        source = self._source
        frame = marked(records, source.decode, source.schema, source.expect)
        frames = [(source.name, frame)]
        origin_type = frame.schema[ORIGIN].dataType.simpleString()
        for step in self._definition.steps[: self._inline]:
            frame = run_each(step, good_rows(frame), origin_type)
            frames.append((step.name, frame))
        return Stages(tuple(frames))

    def tables(self, stages: Stages) -> dict[str, Any]:
        """The tables of the flow, not yet computed."""
        tables = stages.good()
        session = next(iter(tables.values())).sparkSession
        return apply_steps(session, self._definition.steps[self._inline :], tables)

    def run_batch(self, batch: Any, batch_id: int) -> None:
        """Process one micro-batch; safe to repeat with the same id."""
        with ExitStack() as kept:
            records = keep(batch, kept)
            if self._has_dead_letters:
                # Spark counts what a task has read when it succeeds, and what is kept is read once: were a
                # record to fail the first task that reads, the progress would never see the rows.
                records.count()
            stages, broken = self._ask(records, kept)

            def write(poison: Sequence[Poison]) -> None:
                self._write_sinks(stages.where(but_for(poison, f"{ORIGIN}.")), batch, batch_id)

            def try_some(places: Sequence[Place]) -> None:
                made = self.tables(stages.where(condition(places, f"{ORIGIN}.")))
                for table in {sink.reads for sink in self._definition.sinks}:
                    compute(made[table])

            poison = self._go_without(records.where(but_for(broken)), write, try_some)
            if self._has_dead_letters and (self._tells_apart or poison):
                dead = stages.where(but_for(poison, f"{ORIGIN}.")).dead()
                self._write_dead(dead, poisoned(records, [*broken, *poison]), batch, batch_id)

    @property
    def _has_dead_letters(self) -> bool:
        return self._definition.run.dead_letters is not None

    def _ask(self, records: Any, kept: ExitStack) -> tuple[Stages, Sequence[Poison]]:
        """Rules and functions, asked once about each record; and the records on which the rules fail."""
        if not self._source.expect and not self._inline:
            # decoding says the same every time
            return self.stages(records), ()
        made: list[Stages] = []

        def ask(poison: Sequence[Poison]) -> None:
            stages = self.stages(records.where(but_for(poison)))
            for _, frame in stages.frames[0 if self._source.expect else 1 :]:
                keep(frame, kept)
            stages.frames[-1][1].count()
            made.append(stages)

        def try_some(places: Sequence[Place]) -> None:
            # What a function raises is told apart: it is the rules that fail.
            compute(self.stages(records.where(condition(places))).frames[0][1])

        poison = self._go_without(records, ask, try_some)
        return made[0], poison

    def _go_without(
        self,
        records: Any,
        work: Callable[[Sequence[Poison]], None],
        try_some: Callable[[Sequence[Place]], None],
    ) -> Sequence[Poison]:
        """Do the work, if need be a second time without the records that fail; returns those."""
        from pyspark.errors import PySparkException

        try:
            work(())
            return ()
        except PySparkException as fault:
            if not self._has_dead_letters or not is_data_fault(fault):
                raise
            with without_task_logs(records.sparkSession):
                poison = find_poison(records, try_some)
            if not poison:
                raise
            work(poison)
            return poison

    def _write_sinks(self, stages: Stages, batch: Any, batch_id: int) -> None:
        made = self.tables(stages)
        if not self._has_dead_letters and self._tells_apart:
            self._refuse_dead(stages.dead())
        sinks = self._definition.sinks
        with ExitStack() as kept:
            # With several sinks all must be computed before one is written: what fails in one goes to none.
            if len(sinks) > 1:
                for frame in {sink.reads: made[sink.reads] for sink in sinks}.values():
                    keep(frame, kept).count()
            for sink in sinks:
                self._write_sink(made[sink.reads], sink, batch, batch_id)

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
        if sink.format in FILE_FORMATS:
            write_files(frame, sink, batch, batch_id)
        elif sink.format == "noop":
            frame.write.mode("append").options(**sink.options).format(sink.format).save()
        else:
            frame.show(truncate=False)

    def _write_dead(
        self, dead: Sequence[tuple[str, Any]], poisoned: Sequence[Any], batch: Any, batch_id: int
    ) -> None:
        run = self._definition.run
        letters = [as_dead_letters(frame, run, step) for step, frame in dead]
        letters += [as_dead_letters(frame, run, "step") for frame in poisoned]
        every = letters[0]
        for more in letters[1:]:
            every = every.unionByName(more)
        with ExitStack() as kept:
            count = keep(every, kept).count()
            if count:
                write_dead_letters(every, run, batch, batch_id)
                self.dead_letters += count


def keep(frame: Any, kept: ExitStack) -> Any:
    """Have a frame computed once, until the stack is closed."""
    kept.callback(frame.unpersist)
    return frame.persist()


def compute(frame: Any) -> None:
    """All rows of a frame, for nothing but what they raise."""
    frame.write.format("noop").mode("append").save()


def but_for(poison: Sequence[Poison], of: str = "") -> str:
    """SQL that is true for all records but those that were found to fail; `of` as for `condition`."""
    return " AND ".join(f"NOT {condition([one.place], of)}" for one in poison) or "true"


def poisoned(records: Any, poison: Sequence[Poison]) -> list[Any]:
    """The records that were found to fail, with the reason of each."""
    from pyspark.sql import functions as sql

    return [
        with_origin(records.where(condition([one.place]))).select(
            ORIGIN, sql.lit(one.reason).alias(REASON), sql.lit(one.stack).alias(STACK)
        )
        for one in poison
    ]
