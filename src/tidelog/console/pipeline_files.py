"""Pipelines of this machine, from the files in which they say how they are (`client.pipeline_places`).

Files of other programs are not trusted: sizes and counts are bounded, and what has another form than expected
is left out. Options of a pipeline are never shown, for they may hold passwords.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tidelog.admin.shared_pipelines import SharedPipeline
from tidelog.client.pipeline_places import ALIVE, DIED, STATUS_FILE, runs

PIPELINES_MAX = 200
STATUS_BYTES_MAX = 1 << 20
QUERIES_MAX = 50
PHASES_MAX = 12
#: Spark's name for all phases together
_WHOLE_BATCH = "triggerExecution"


@dataclass(frozen=True, slots=True)
class SourceView:
    """One source of a query, with the fields that it is told with."""

    name: str
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    lag: int | None
    min_offsets_behind_latest: int | None
    max_offsets_behind_latest: int | None
    avg_offsets_behind_latest: float | None


@dataclass(frozen=True, slots=True)
class QueryView:
    """One query of a pipeline; figures are None where it has not told any."""

    name: str
    reads: str
    writes: str
    does: tuple[str, ...]
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    lag: int | None
    batch_id: int | None
    batch_ms: int | None
    rows: int
    dead_letters: int
    sources: tuple[SourceView, ...]
    #: phases of the last batch by Spark's names, the longest first, without that of the whole
    phases_ms: dict[str, int]
    state_rows: int | None
    state_bytes: int | None
    watermark_ms: int | None
    rows_dropped: int
    commits: int
    aborts: int

    @property
    def rows_per_second(self) -> float | None:
        return self.processed_rows_per_second


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline that runs or ran on this machine."""

    name: str
    kind: str
    state: str
    bootstrap: str
    started_ms: int
    updated_ms: int
    failure: str
    dead_letter_topic: str
    queries: tuple[QueryView, ...]
    #: the machine of one that is shared, where that is not this one's file
    host: str = ""

    @property
    def lag(self) -> int | None:
        known = [query.lag for query in self.queries if query.lag is not None]
        return sum(known) if known else None

    @property
    def rows_per_second(self) -> float | None:
        known = [query.rows_per_second for query in self.queries if query.rows_per_second is not None]
        return sum(known) if known and self.state in ALIVE else None

    @property
    def dead_letters(self) -> int:
        return sum(query.dead_letters for query in self.queries)

    def as_status(self) -> dict[str, Any]:
        """As far as metrics go, the document that the pipeline told."""
        progress = [asdict(query) for query in self.queries]
        return {
            "name": self.name,
            "state": self.state,
            "updated_ms": self.updated_ms,
            "progress": progress,
        }


def read_pipelines(folder: Path) -> list[PipelineView]:
    """The pipelines of a folder, those that run first; none where there is no folder."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())[:PIPELINES_MAX]
    except OSError:
        return []
    found = [view for name in names if (view := _read(folder / name)) is not None]
    return sorted(found, key=lambda view: (view.state not in ALIVE, view.name))


def _read(folder: Path) -> PipelineView | None:
    try:
        with (folder / STATUS_FILE).open("rb") as file:
            content = json.loads(file.read(STATUS_BYTES_MAX))
        view = _pipeline(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if view.state in ALIVE and not runs(folder):
        return PipelineView(**{**{name: getattr(view, name) for name in view.__slots__}, "state": DIED})
    return view


def shared_views(shared: Iterable[SharedPipeline], known: Iterable[str], now_ms: float) -> list[PipelineView]:
    """Those of the cluster that no file of this machine tells of, by the names in `known`."""
    found = []
    of_this_machine = set(known)
    for one in shared:
        if one.name in of_this_machine:
            continue
        try:
            found.append(replace(_pipeline(one.seen(now_ms)), host=one.host))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return sorted(found, key=lambda view: (view.state not in ALIVE, view.name))[:PIPELINES_MAX]


def _pipeline(content: dict[str, Any]) -> PipelineView:
    plan = content.get("plan") or {}
    planned = {str(query["name"]): query for query in plan.get("queries", ())[:QUERIES_MAX]}
    told = {str(one["name"]): one for one in content.get("progress", ())[:QUERIES_MAX]}
    return PipelineView(
        str(content["name"]),
        str(content.get("kind", "")),
        str(content["state"]),
        str(plan.get("bootstrap", "")),
        int(content["started_ms"]),
        int(content["updated_ms"]),
        str(content.get("cause") or content.get("failure") or "")[:2_000],
        str(content.get("dead_letters") or ""),
        tuple(_query(name, planned.get(name, {}), told.get(name, {})) for name in {**planned, **told}),
    )


def _query(name: str, plan: dict[str, Any], progress: dict[str, Any]) -> QueryView:
    return QueryView(
        name,
        str(plan.get("reads") or ""),
        str(plan.get("writes") or ""),
        tuple(str(step) for step in (plan.get("does") or ())[:QUERIES_MAX]),
        _number(progress, "input_rows_per_second"),
        _number(progress, "processed_rows_per_second"),
        _whole(progress, "lag"),
        _whole(progress, "batch_id"),
        _whole(progress, "batch_ms"),
        _whole(progress, "rows") or 0,
        _whole(progress, "dead_letters") or 0,
        tuple(_source(one) for one in (progress.get("sources") or ())[:QUERIES_MAX]),
        _phases(progress.get("phases_ms") or {}),
        _whole(progress, "state_rows"),
        _whole(progress, "state_bytes"),
        _whole(progress, "watermark_ms"),
        _whole(progress, "rows_dropped") or 0,
        _whole(progress, "commits") or 0,
        _whole(progress, "aborts") or 0,
    )


def _source(told: dict[str, Any]) -> SourceView:
    return SourceView(
        str(told["name"]),
        _number(told, "input_rows_per_second"),
        _number(told, "processed_rows_per_second"),
        _whole(told, "lag"),
        _whole(told, "min_offsets_behind_latest"),
        _whole(told, "max_offsets_behind_latest"),
        _number(told, "avg_offsets_behind_latest"),
    )


def _phases(told: dict[str, Any]) -> dict[str, int]:
    known = {str(name): int(ms) for name, ms in told.items() if name != _WHOLE_BATCH}
    longest = sorted(known.items(), key=lambda phase: -phase[1])
    return dict(longest[:PHASES_MAX])


def _number(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else float(value)


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return None if value is None else int(value)
