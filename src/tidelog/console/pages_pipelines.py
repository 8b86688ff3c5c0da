"""The page of pipelines: those of this machine, and every Spark query that commits to a group."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog.console.console import Console
from tidelog.console.pages_groups import GroupRow, group_rows
from tidelog.console.pipeline_files import read_pipelines


def spark_queries(console: Console) -> list[GroupRow]:
    """The groups that Spark queries report their progress in, by lag."""
    return [row for row in group_rows(console, "", "lag") if row.group.label == "spark"]


def pipelines(console: Console, request: Request) -> Response:
    return console.page(
        request,
        "pipelines.html",
        "pipelines",
        "Pipelines",
        pipelines=read_pipelines(console.settings.pipelines_folder),
        folder=console.settings.pipelines_folder,
        queries=spark_queries(console),
        lag_history=console.watcher.lag_history,
        consumed_history=console.watcher.consumed_history,
        topics=console.snapshot().topics,
    )


def pipelines_json(console: Console, request: Request) -> Response:
    found: dict[str, Any] = {
        "pipelines": [
            {**asdict(view), "lag": view.lag, "rows_per_second": view.rows_per_second}
            for view in read_pipelines(console.settings.pipelines_folder)
        ],
        "spark_groups": [
            {
                "group": row.group.id,
                "lag": row.lag,
                "records_per_second": console.watcher.consumed_history.latest(row.group.id),
            }
            for row in spark_queries(console)
        ],
    }
    return JSONResponse(found)
