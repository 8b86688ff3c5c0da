"""What Spark reports of a query, as figures: rates, lag of each source, phases of a batch, state, watermark.

Pure functions over the document of a `StreamingQueryProgress` (its JSON). Lag has the names that users of
Spark's Kafka source know: that source reports them as its metrics, a source in Python cannot, so they are
worked out from the offsets in the same document. `latestOffset` is in it from Spark 4.2 on.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

#: a query counts its dead letters as an observation of this name, with one column `count`
DEAD_LETTERS = "dead_letters"
#: a report has this phase if there was a batch
_BATCH_PHASE = "addBatch"
#: Spark's watermark before there is one
_NO_WATERMARK_MS = 0


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of a query. What is not known is None."""

    #: the topics
    name: str
    input_rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    #: records that are still to be read, in all partitions
    lag: int | None = None
    min_offsets_behind_latest: int | None = None
    max_offsets_behind_latest: int | None = None
    avg_offsets_behind_latest: float | None = None


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What one report says of its batch and its state."""

    phases_ms: Mapping[str, int] = field(default_factory=dict)
    state_rows: int | None = None
    state_bytes: int | None = None
    #: milliseconds since 1970
    watermark_ms: int | None = None


def had_batch(progress: Mapping[str, Any]) -> bool:
    """Whether a batch was run; an idle query reports too, with the id of the batch that is to come."""
    return _BATCH_PHASE in progress["durationMs"]


def batch_figures(progress: Mapping[str, Any]) -> BatchFigures:
    """The phases of the batch, and what its stateful operators keep, all of them together."""
    operators = progress.get("stateOperators") or ()
    watermark = (progress.get("eventTime") or {}).get("watermark")
    return BatchFigures(
        {name: int(ms) for name, ms in progress["durationMs"].items()},
        sum(int(one["numRowsTotal"]) for one in operators) if operators else None,
        sum(int(one["memoryUsedBytes"]) for one in operators) if operators else None,
        None if watermark is None else _time_ms(watermark),
    )


def rows_dropped(progress: Mapping[str, Any]) -> int:
    """The rows that were older than the watermark in this batch."""
    return sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in progress.get("stateOperators") or ())


def dead_letters(progress: Mapping[str, Any]) -> int:
    """What the query itself counted in this batch."""
    row = (progress.get("observedMetrics") or {}).get(DEAD_LETTERS)
    if row is None:
        return 0
    return int(row["count"] if isinstance(row, Mapping) else row.asDict()["count"])


def source_progress(progress: Mapping[str, Any]) -> tuple[SourceProgress, ...]:
    """The sources of a report that have offsets of topics."""
    return tuple(found for one in progress["sources"] if (found := _source(one)) is not None)


def rate(value: Any) -> float | None:
    """A rate; Spark says 'NaN' of a batch that took no time."""
    return None if value is None or value != value or isinstance(value, str) else float(value)


def lag(sources: Iterable[SourceProgress]) -> int | None:
    """The records that all sources have still to read."""
    known = [one.lag for one in sources if one.lag is not None]
    return sum(known) if known else None


def _source(source: Mapping[str, Any]) -> SourceProgress | None:
    done = _offsets(source["endOffset"])
    if done is None:
        return None
    ends = _offsets(source.get("latestOffset"))
    behind = []
    for topic, partitions in (ends or {}).items():
        behind += [max(0, end - done.get(topic, {}).get(number, 0)) for number, end in partitions.items()]
    return SourceProgress(
        ", ".join(sorted(done)),
        int(source["numInputRows"]),
        rate(source.get("inputRowsPerSecond")),
        rate(source.get("processedRowsPerSecond")),
        sum(behind) if ends else None,
        min(behind, default=None),
        max(behind, default=None),
        sum(behind) / len(behind) if behind else None,
    )


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """Offsets by topic and partition; None of a source that has others."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if not isinstance(found, Mapping) or not found:
        return None
    if not all(isinstance(partitions, Mapping) for partitions in found.values()):
        return None
    return {
        topic: {number: int(offset) for number, offset in partitions.items()}
        for topic, partitions in found.items()
    }


def _time_ms(text: str) -> int | None:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    ms = int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    return None if ms == _NO_WATERMARK_MS else ms
