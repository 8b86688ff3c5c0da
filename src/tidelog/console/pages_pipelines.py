"""The page of pipelines: of this machine, of the cluster's team, and Spark queries that commit to a group."""

import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tidelog.admin.shared_pipelines import shared_pipelines
from tidelog.client.pipeline_metrics import CONTENT_TYPE, exposition
from tidelog.console.console import Console
from tidelog.console.faults import ConsoleFault
from tidelog.console.pages_groups import GroupRow, group_rows
from tidelog.console.pipeline_files import PipelineView, read_pipelines, shared_views


def spark_queries(console: Console) -> list[GroupRow]:
    """The groups that Spark queries report their progress in, by lag."""
    return [row for row in group_rows(console, "", "lag") if row.group.label == "spark"]


def seen_pipelines(console: Console) -> list[PipelineView]:
    """Those of this machine, then those that the cluster's team shares."""
    own = read_pipelines(console.settings.pipelines_folder)
    try:
        shared = console.wire.asked_once("the shared pipelines cannot be read", shared_pipelines)
    except ConsoleFault:
        # The page is for those of this machine, too; the cluster's trouble is told on others.
        return own
    return own + shared_views(shared, (view.name for view in own), time.time() * 1000)


def pipelines(console: Console, request: Request) -> Response:
    return console.page(
        request,
        "pipelines.html",
        "pipelines",
        "Pipelines",
        pipelines=seen_pipelines(console),
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
            for view in seen_pipelines(console)
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


def pipelines_metrics(console: Console, request: Request) -> Response:
    """For Prometheus: every pipeline that the page shows."""
    views = seen_pipelines(console)
    return PlainTextResponse(exposition(view.as_status() for view in views), media_type=CONTENT_TYPE)
