"""Pipelines of this machine, from the files in which they say how they are (`client.pipeline_places`).

Files of other programs are not trusted: sizes and counts are bounded, and what has another form than expected
is left out. Options of a pipeline are never shown, for they may hold passwords.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.client.pipeline_places import ALIVE, DIED, STATUS_FILE, runs

PIPELINES_MAX = 200
STATUS_BYTES_MAX = 1 << 20
QUERIES_MAX = 50


@dataclass(frozen=True, slots=True)
class QueryView:
    """One query of a pipeline; figures are None where it has not told any."""

    name: str
    reads: str
    writes: str
    does: tuple[str, ...]
    rows_per_second: float | None
    lag: int | None
    batch_id: int | None
    batch_ms: int | None
    rows: int
    dead_letters: int


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
        str(content.get("failure") or "")[:2_000],
        str(content.get("dead_letters") or ""),
        tuple(_query(name, planned.get(name, {}), told.get(name, {})) for name in {**planned, **told}),
    )


def _query(name: str, plan: dict[str, Any], progress: dict[str, Any]) -> QueryView:
    rate = progress.get("processed_rows_per_second")
    return QueryView(
        name,
        str(plan.get("reads") or ""),
        str(plan.get("writes") or ""),
        tuple(str(step) for step in (plan.get("does") or ())[:QUERIES_MAX]),
        None if rate is None else float(rate),
        _whole(progress, "lag"),
        _whole(progress, "batch_id"),
        _whole(progress, "batch_ms"),
        _whole(progress, "rows") or 0,
        _whole(progress, "dead_letters") or 0,
    )


def _whole(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return None if value is None else int(value)
