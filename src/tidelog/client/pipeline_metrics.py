"""The metrics of pipelines: one table, out of the statuses in which pipelines say how they are.

A status is the document of `pipelines.running.Status`, as JSON has it. `exposition` writes Prometheus' text:
the driver of a pipeline serves its own, the console those of all pipelines that it sees.

`METRICS` is what docs/pipelines-metrics.md documents; a test compares the two.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client.pipeline_places import ALIVE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family: its samples of one status, as labels and a value."""

    name: str
    type: str
    sentence: str
    samples: Callable[[Mapping[str, Any]], Iterator[Sample]]
    #: what Spark's own metrics system calls it, with the query before it; None: it has one of its own
    spark_name: str | None = None


def _of_queries(field: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], Iterator[Sample]]:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for query in status["progress"]:
            value = query.get(field)
            if value is not None:
                yield {"query": str(query["name"])}, float(value) * scale

    return samples


def _of_sources(field: str) -> Callable[[Mapping[str, Any]], Iterator[Sample]]:
    def samples(status: Mapping[str, Any]) -> Iterator[Sample]:
        for query in status["progress"]:
            for source in query.get("sources", ()):
                value = source.get(field)
                if value is not None:
                    yield {"query": str(query["name"]), "source": str(source["name"])}, float(value)

    return samples


def _phases(status: Mapping[str, Any]) -> Iterator[Sample]:
    for query in status["progress"]:
        for phase, ms in query.get("phases_ms", {}).items():
            yield {"query": str(query["name"]), "phase": str(phase)}, float(ms) / 1000


def _up(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield {}, float(status["state"] in ALIVE)


def _reported(status: Mapping[str, Any]) -> Iterator[Sample]:
    yield {}, float(status["updated_ms"]) / 1000


METRICS = (
    Metric("tidelog_pipeline_up", "gauge", "1 while the pipeline runs, else 0.", _up),
    Metric("tidelog_pipeline_reported_seconds", "gauge", "When it last said how it is.", _reported),
    Metric(
        "tidelog_pipeline_input_rows_per_second",
        "gauge",
        "Spark's inputRowsPerSecond.",
        _of_queries("input_rows_per_second"),
    ),
    Metric(
        "tidelog_pipeline_processed_rows_per_second",
        "gauge",
        "Spark's processedRowsPerSecond.",
        _of_queries("processed_rows_per_second"),
    ),
    Metric("tidelog_pipeline_rows_total", "counter", "Rows read since the start.", _of_queries("rows")),
    Metric(
        "tidelog_pipeline_batch", "gauge", "The number of the micro-batch (batchId).", _of_queries("batch_id")
    ),
    Metric(
        "tidelog_pipeline_batch_seconds",
        "gauge",
        "How long the last trigger took (triggerExecution).",
        _of_queries("batch_ms", 0.001),
    ),
    Metric(
        "tidelog_pipeline_batch_phase_seconds",
        "gauge",
        "The phases of the last batch, by Spark's names (durationMs).",
        _phases,
    ),
    Metric(
        "tidelog_pipeline_source_input_rows_per_second",
        "gauge",
        "The same for each source.",
        _of_sources("input_rows_per_second"),
    ),
    Metric(
        "tidelog_pipeline_source_processed_rows_per_second",
        "gauge",
        "The same for each source.",
        _of_sources("processed_rows_per_second"),
    ),
    Metric(
        "tidelog_pipeline_lag",
        "gauge",
        "Records that a source has still to read, in all partitions.",
        _of_sources("lag"),
        "lag",
    ),
    Metric(
        "tidelog_pipeline_min_offsets_behind_latest",
        "gauge",
        "minOffsetsBehindLatest of Spark's Kafka source: the partition that is least behind.",
        _of_sources("min_offsets_behind_latest"),
        "minOffsetsBehindLatest",
    ),
    Metric(
        "tidelog_pipeline_max_offsets_behind_latest",
        "gauge",
        "maxOffsetsBehindLatest: the partition that is most behind.",
        _of_sources("max_offsets_behind_latest"),
        "maxOffsetsBehindLatest",
    ),
    Metric(
        "tidelog_pipeline_avg_offsets_behind_latest",
        "gauge",
        "avgOffsetsBehindLatest: the mean over partitions.",
        _of_sources("avg_offsets_behind_latest"),
        "avgOffsetsBehindLatest",
    ),
    Metric(
        "tidelog_pipeline_state_rows",
        "gauge",
        "Rows that stateful operators keep (numRowsTotal).",
        _of_queries("state_rows"),
    ),
    Metric(
        "tidelog_pipeline_state_bytes",
        "gauge",
        "Memory of the state (memoryUsedBytes).",
        _of_queries("state_bytes"),
    ),
    Metric(
        "tidelog_pipeline_watermark_seconds",
        "gauge",
        "The watermark, as seconds since 1970.",
        _of_queries("watermark_ms", 0.001),
    ),
    Metric(
        "tidelog_pipeline_rows_dropped_total",
        "counter",
        "Rows older than the watermark (numRowsDroppedByWatermark).",
        _of_queries("rows_dropped"),
        "numRowsDroppedByWatermark",
    ),
    Metric(
        "tidelog_pipeline_dead_letters_total",
        "counter",
        "Records in the dead-letter topic since the start.",
        _of_queries("dead_letters"),
        "deadLetters",
    ),
    Metric(
        "tidelog_pipeline_commits_total",
        "counter",
        "Transactions that the sink has committed since the start.",
        _of_queries("commits"),
        "commits",
    ),
    Metric(
        "tidelog_pipeline_aborts_total",
        "counter",
        "Transactions that the sink has aborted since the start.",
        _of_queries("aborts"),
        "aborts",
    ),
)


def exposition(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Prometheus' text for pipelines, every family once."""
    known = list(statuses)
    lines: list[str] = []
    for metric in METRICS:
        rows = [
            (f'pipeline="{_escaped(str(status["name"]))}"', labels, value)
            for status in known
            for labels, value in metric.samples(status)
        ]
        if not rows:
            continue
        lines += [f"# HELP {metric.name} {metric.sentence}", f"# TYPE {metric.name} {metric.type}"]
        for pipeline, labels, value in rows:
            more = "".join(f',{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{pipeline}{more}}} {value:.15g}")
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
