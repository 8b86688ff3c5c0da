"""Sources, steps and sinks of a file, as queries.

Steps that look at one record at a time run on the micro-batches of one query (`flow_batches`): all sinks
from one read, every failure of a record isolated. Steps with state (windows, joins) are streaming plans of
Spark, a query for each sink; there only what cannot be decoded, or breaks a rule of its source, becomes a
dead letter.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidelog.client.faults import BadOption
from tidelog.pipelines.dead_letters import (
    ORIGIN,
    REASON,
    STACK,
    dead_rows,
    good_rows,
    marked,
    start_dead_letters,
    strict_rows,
)
from tidelog.pipelines.definition import Definition
from tidelog.pipelines.flow_checks import flow_statements, flow_uses
from tidelog.pipelines.flow_parts import FILE_FORMATS, Sink, Source, Step
from tidelog.pipelines.pipeline_options import Options
from tidelog.pipelines.plan import DEFINITION, Plan, PlannedQuery
from tidelog.pipelines.sink_files import has_sparks_list, write_files_of_state
from tidelog.pipelines.topic_frames import start_to_topic, stream_topic
from tidelog.pipelines.work import StreamingWork, Work

log = logging.getLogger(__name__)

FLOW = "flow"
#: operators of Spark's plans that keep something between records
_STATEFUL_OPERATORS = (
    "Aggregate",
    "Join",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "Window",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
    "GlobalLimit",
)


def is_stateful(definition: Definition) -> bool:
    """Whether the flow is a streaming plan of Spark rather than a function of a micro-batch."""
    return len(definition.sources) > 1 or any(step.stateful for step in definition.steps)


def plan_flow(definition: Definition) -> Plan:
    """The queries of a flow; raises BadOption."""
    run = definition.run
    for step in definition.steps:
        for function in (step.python, step.each):
            if function is not None:
                function.load()
    does = tuple(step.words for step in definition.steps)
    rules = tuple(
        f"{source.name}: {name} ({condition})"
        for source in definition.sources
        for name, condition in source.expect.items()
    )
    queries: list[PlannedQuery] = []
    notes: list[str] = []
    reads = " and ".join(source.words for source in definition.sources)
    if is_stateful(definition):
        for sink in definition.sinks:
            if sink.format in FILE_FORMATS and sink.output_mode != "append":
                raise BadOption(
                    f"sink {sink.name}: files take rows once, so output_mode is append; to see every change "
                    "write to a topic"
                )
            name = query_name(sink)
            queries.append(
                PlannedQuery(name, reads, sink.words, rules + does, _delivery(sink), run.checkpoint_of(name))
            )
        if run.dead_letters is not None:
            queries += [_guard(source, definition) for source in definition.sources if can_fail(source)]
            notes.append(
                "a record that fails in a step with state stops the pipeline: decode and check before"
            )
        names = [query.name for query in queries]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadOption(f"two queries are called {twice[0]}: give a sink another name")
    else:
        writes = "; ".join(sink.words for sink in definition.sinks)
        worst = "; ".join(sorted({_delivery(sink) for sink in definition.sinks}))
        queries.append(PlannedQuery(FLOW, reads, writes, rules + does, worst, run.checkpoint_of(FLOW)))
    return Plan(
        FLOW,
        run,
        Options({}),
        tuple(queries),
        tuple(notes),
        {DEFINITION: replace(definition)},
        flow_uses(definition, _lag_queries(definition)),
        flow_statements(definition),
    )


def _lag_queries(definition: Definition) -> dict[str, str]:
    """For each source the query whose group shows its lag; of several sinks the first one's."""
    if not is_stateful(definition):
        return {source.name: source.name for source in definition.sources}
    first = query_name(definition.sinks[0])
    return {source.name: f"{first}-{source.name}" for source in definition.sources}


def query_name(sink: Sink) -> str:
    """The name of a sink's query, good for a folder."""
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in sink.name)


def _delivery(sink: Sink) -> str:
    return "exactly once" if sink.topic is not None or sink.format in FILE_FORMATS else "at least once"


def can_fail(source: Source) -> bool:
    """Whether some records of a source may not get through to the steps."""
    return source.decode == "json" or bool(source.expect)


def guard_name(source: Source) -> str:
    """The name of the query for a source's dead letters."""
    return f"{source.name}-dead"


def _guard(source: Source, definition: Definition) -> PlannedQuery:
    name = guard_name(source)
    return PlannedQuery(
        name,
        source.words,
        f"topic {definition.run.dead_letters}",
        ("what cannot be decoded, or breaks a rule",),
        checkpoint=definition.run.checkpoint_of(name),
    )


def start_flow(spark: Any, plan: Plan) -> list[Work]:
    """Start the queries of a flow; raises BadOption for steps that keep state without saying so."""
    definition: Definition = plan.more[DEFINITION]
    share_functions(definition)
    if not is_stateful(definition):
        # here, because flow_batches stands on this module
        from tidelog.pipelines.flow_batches import start_flow_batches

        return [start_flow_batches(spark, definition)]
    # Everything is planned before anything starts, and every query reads for itself: see `stream_topic`.
    made = [
        (sink, _sink_table(spark, definition, sink, beside=sink is not definition.sinks[0]))
        for sink in definition.sinks
    ]
    works: list[Work] = []
    for source in definition.sources:
        if can_fail(source) and definition.run.dead_letters is not None:
            name = guard_name(source)
            both = _decoded_stream(spark, definition, source, name, beside=True)
            guarded = start_dead_letters(dead_rows(both), definition.run, name, source.name)
            works += [] if guarded is None else [guarded]
    return works + [_start_sink(frame, sink, definition) for sink, frame in made]


def _sink_table(spark: Any, definition: Definition, sink: Sink, *, beside: bool) -> Any:
    """The table of a sink, with state, from sources that no other query has."""
    tables: dict[str, Any] = {}
    for source in definition.sources:
        both = _decoded_stream(spark, definition, source, f"{query_name(sink)}-{source.name}", beside=beside)
        rows = strict_rows(both) if definition.run.dead_letters is None else good_rows(both).drop(ORIGIN)
        tables[source.name] = _with_watermark(rows, source)
    return apply_steps(spark, definition.steps, tables)[sink.reads]


def _decoded_stream(spark: Any, definition: Definition, source: Source, query: str, *, beside: bool) -> Any:
    frame = stream_topic(spark, definition.run, query, source.topic, source.options, beside=beside)
    return marked(frame, source.decode, source.schema, source.expect)


def share_functions(definition: Definition) -> None:
    """Have the functions of the file travel to the executors as they are: the file is not there."""
    import sys

    from pyspark import cloudpickle

    for step in definition.steps:
        for function in (step.python, step.each):
            if function is not None:
                module = sys.modules.get(function.load().__module__)
                if module is None or module.__name__ == "__main__":
                    continue
                # Python itself, with functions such as `dict`, is everywhere.
                if module.__name__.partition(".")[0] not in sys.stdlib_module_names:
                    cloudpickle.register_pickle_by_value(module)


def _with_watermark(frame: Any, source: Source) -> Any:
    if source.watermark is None:
        return frame
    column, delay = source.watermark
    return frame.withWatermark(column, delay)


def apply_steps(spark: Any, steps: tuple[Step, ...], tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables after the steps; a record that fails in a step raises when the table is read."""
    made = dict(tables)
    for name, frame in made.items():
        frame.createOrReplaceTempView(name)
    for step in steps:
        if step.sql is not None:
            frame = spark.sql(step.sql)
        elif step.python is not None:
            assert step.reads is not None
            frame = step.python.load()(made[step.reads])
        else:
            frame = _each_record(step, made)
        made[step.name] = frame
        frame.createOrReplaceTempView(step.name)
    return made


def _each_record(step: Step, made: Mapping[str, Any]) -> Any:
    """A function of a record on a frame that has lost where its rows are from: failures raise."""
    from pyspark.sql import functions as sql

    assert step.reads is not None and step.schema is not None
    frame = made[step.reads].withColumn(ORIGIN, sql.lit(None).cast("int"))
    ran = run_each(step, frame, "int")
    failed = sql.raise_error(sql.concat_ws("\n", sql.col(REASON), sql.col(STACK)))
    checked = ran.where(sql.when(sql.col(REASON).isNull(), sql.lit(True)).otherwise(failed.isNull()))
    return checked.drop(ORIGIN, REASON, STACK)


def run_each(step: Step, frame: Any, origin_type: str) -> Any:
    """The rows that a function makes of a frame's, and the columns of origin, reason and stack."""
    from pyspark.sql.types import StructType

    from tidelog.pipelines.record_functions import over_batches
    from tidelog.pipelines.spark_api import arrow_schema

    assert step.each is not None
    whole = f"{step.schema}, {ORIGIN} {origin_type}, {REASON} STRING, {STACK} STRING"
    schema = StructType.fromDDL(whole)
    function = over_batches(step.each.load(), arrow_schema(schema), origin=ORIGIN, reason=REASON, stack=STACK)
    return frame.mapInArrow(function, schema)


def stateful_operators(frame: Any) -> list[str]:
    """The operators in a frame's plan that keep something between records."""
    text = str(frame._jdf.queryExecution().analyzed().toString())
    words = (line.lstrip(" :+-~!'").split(" ", 1)[0].rstrip("(") for line in text.splitlines())
    return [word for word in words if word in _STATEFUL_OPERATORS]


def check_stateless(definition: Definition, tables: Mapping[str, Any]) -> None:
    """Raises BadOption for a step that would give a result for every micro-batch by itself."""
    for step in definition.steps:
        found = stateful_operators(tables[step.name])
        if found:
            raise BadOption(f"step {step.name} keeps state ({found[0]}): say stateful: true in it")


def as_records(frame: Any, sink: Sink) -> Any:
    """The columns of records, by the sink's expressions; without `value` the row goes as JSON."""
    from pyspark.sql import functions as sql

    given = {name: getattr(sink, name) for name in ("key", "value", "headers", "timestamp")}
    chosen = [sql.expr(text).alias(name) for name, text in given.items() if text is not None]
    if sink.value is None:
        if "value" in frame.columns:
            chosen.append(sql.col("value"))
        else:
            own = [name for name in frame.columns if not name.startswith("_")]
            chosen.append(sql.to_json(sql.struct(*(sql.col(name) for name in own))).alias("value"))
    for name in ("key", "headers", "timestamp"):
        if given[name] is None and sink.value is None and "value" in frame.columns and name in frame.columns:
            chosen.append(sql.col(name))
    records = frame.select(*chosen)
    for name in ("key", "value"):
        if name in records.columns and dict(records.dtypes)[name] not in ("binary", "string"):
            records = records.withColumn(name, sql.col(name).cast("string"))
    return records


def _start_sink(frame: Any, sink: Sink, definition: Definition) -> StreamingWork:
    run, name = definition.run, query_name(sink)
    if sink.topic is not None:
        records = as_records(frame, sink)
        return start_to_topic(records, run, name, sink.topic, sink.options, output_mode=sink.output_mode)
    writer = frame.writeStream.queryName(f"{run.name}-{name}").outputMode(sink.output_mode)
    writer = writer.option("checkpointLocation", run.checkpoint_of(name))
    if sink.format in FILE_FORMATS and sink.path is not None:
        if not has_sparks_list(frame.sparkSession, sink.path):
            writer = writer.foreachBatch(lambda batch, number: write_files_of_state(batch, sink, number))
            return StreamingWork(name, run.trigger.on(writer).start())
        log.warning(
            "%s was begun by Spark's own sink: only readers that know its list see each row once", name
        )
    writer = writer.format(sink.format).options(**sink.options)
    if sink.path is not None:
        writer = writer.option("path", sink.path)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return StreamingWork(name, run.trigger.on(writer).start())
