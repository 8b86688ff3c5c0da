"""What can be checked of a flow before Spark starts: its topics, and its SQL, columns and types."""

from collections.abc import Iterator

from tidelog.pipelines.definition import Definition
from tidelog.pipelines.flow_parts import Sink, Source, Step
from tidelog.pipelines.spark_analyser import quoted
from tidelog.pipelines.table_checks import (
    RECORD,
    RECORD_OWN,
    RECORD_TEXT,
    TIME_TYPES,
    Statement,
    expression,
)
from tidelog.pipelines.topic_uses import TopicUse, reads, writes

_HEADER_TYPES = ("ARRAY<STRUCT",)


def flow_uses(definition: Definition, queries: dict[str, str]) -> tuple[TopicUse, ...]:
    """The topics of a flow; `queries` has for each source the query that shows its lag."""
    run = definition.run
    found: list[TopicUse] = []
    for source in definition.sources:
        where = ("sources", source.name, "topic")
        found += reads(run, source.topic, where, source.options, queries.get(source.name))
    for number, sink in enumerate(definition.sinks):
        keyless = sink.key is None and sink.value is not None
        where_written = ("sinks", number, "topic")
        found += writes(run.kafka, (sink.topic,), where_written, sink.options, keyless=keyless)
    return tuple(found)


def flow_statements(definition: Definition) -> tuple[Statement, ...]:
    """What the analyser is asked, in the order of the file."""
    return tuple(_statements(definition))


def _statements(definition: Definition) -> Iterator[Statement]:
    for source in definition.sources:
        yield from _of_source(source)
    for number, step in enumerate(definition.steps):
        yield _of_step(step, number)
    for number, sink in enumerate(definition.sinks):
        yield from _of_sink(sink, number)


def _of_source(source: Source) -> Iterator[Statement]:
    where = ("sources", source.name)
    what = f"source {source.name}"
    if source.schema is not None:
        yield Statement((*where, "schema"), f"{what}: schema", source.name, source.schema, RECORD_OWN)
    else:
        columns = RECORD_TEXT if source.decode == "text" else RECORD
        yield Statement(where, what, source.name, columns=columns)
    for name, condition in source.expect.items():
        place = (*where, "expect", name)
        yield expression(place, f"{what}: rule {name}", condition, source.name, ("BOOLEAN",))
    if source.watermark is not None:
        column = quoted(source.watermark[0])
        yield expression(
            (*where, "watermark"), f"{what}: the watermark's column", column, source.name, TIME_TYPES
        )


def _of_step(step: Step, number: int) -> Statement:
    what, where = f"step {step.name}", ("steps", number)
    if step.sql is not None:
        return Statement((*where, "sql"), what, step.name, sql=step.sql)
    if step.schema is not None:
        return Statement((*where, "schema"), f"{what}: schema", step.name, step.schema)
    return Statement((*where, "python"), what, step.name, unknown=True)


def _of_sink(sink: Sink, number: int) -> Iterator[Statement]:
    what, where = f"sink {sink.name}", ("sinks", number)
    wanted = {"key": (), "value": (), "headers": _HEADER_TYPES, "timestamp": TIME_TYPES}
    for name, types in wanted.items():
        text = getattr(sink, name)
        if text is not None:
            yield expression((*where, name), f"{what}: {name}", text, sink.reads, types)
    for column in sink.partition_by:
        yield expression((*where, "partition_by"), f"{what}: partition_by", quoted(column), sink.reads)
