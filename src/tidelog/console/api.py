"""The JSON API: what the pages show, for scripts. It only reads."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog.admin.snapshot import GroupView
from tidelog.admin.transactions import describe_open
from tidelog.console import pages_share_groups
from tidelog.console.console import Console
from tidelog.console.pages_cluster import access_facts, health_problems
from tidelog.console.pages_groups import SORTS, described_group, group_rows, lag_rows
from tidelog.console.pages_topics import partition_rows, readers_of, topic_list
from tidelog.console.parameters import choice
from tidelog.console.settings_view import settings_of_topic
from tidelog.console.watcher import TRAFFIC


def cluster(console: Console, request: Request) -> Response:
    snapshot = console.snapshot()
    return JSONResponse(
        {
            "cluster_id": snapshot.cluster_id,
            "bootstrap": console.settings.bootstrap,
            "controller": snapshot.controller,
            "healthy": snapshot.healthy,
            "problems": [text for _, text, _ in health_problems(snapshot)],
            "brokers": _brokers(console),
            "topics": len(snapshot.topics),
            "partitions": snapshot.partitions_count,
            "under_replicated": snapshot.under_replicated,
            "offline": snapshot.offline,
            "groups": len(snapshot.groups),
            "records_per_second": console.watcher.rate_history.latest(TRAFFIC),
            "taken_at": snapshot.taken_at,
            "stale": console.view.fault.message if console.view.fault is not None else None,
        }
    )


def _brokers(console: Console) -> list[dict[str, Any]]:
    snapshot = console.snapshot()
    load = snapshot.broker_load
    return [
        {**asdict(broker), "leads": load[broker.id][0], "replicas": load[broker.id][1]}
        for broker in snapshot.brokers.values()
    ]


def brokers(console: Console, request: Request) -> Response:
    return JSONResponse(_brokers(console))


def topics(console: Console, request: Request) -> Response:
    """The same search, sort and pages as the page of topics."""
    listed = topic_list(console, dict(request.query_params))
    return JSONResponse(
        {
            "topics": [
                {
                    "name": row.topic.name,
                    "partitions": len(row.topic.partitions),
                    "replication_factor": row.topic.replication_factor,
                    "under_replicated": row.topic.under_replicated,
                    "offline": row.topic.offline,
                    "records_per_second": row.rate,
                }
                for row in listed.rows
            ],
            "total": listed.total,
            "page": listed.page,
            "pages": listed.pages,
        }
    )


def topic(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    rows, sizes_fault = partition_rows(console, view)
    return JSONResponse(
        {
            "name": view.name,
            "partitions": [
                {
                    "partition": row.partition.number,
                    "leader": row.partition.leader,
                    "replicas": row.partition.replicas,
                    "isr": row.partition.isr,
                    "log_start_offset": row.start,
                    "high_watermark": row.end,
                    "last_stable_offset": row.last_stable,
                    "size_bytes": row.size_bytes,
                }
                for row in rows
            ],
            "sizes_fault": sizes_fault or None,
            "settings": [asdict(setting) for setting in settings_of_topic(console.wire, view.name)],
            "groups": [{"group": group, "lag": lag} for group, lag in readers_of(console, view.name)],
        }
    )


def groups(console: Console, request: Request) -> Response:
    fields = dict(request.query_params)
    rows = group_rows(console, fields.get("search", ""), choice(fields, "sort", SORTS))
    return JSONResponse(
        [
            {
                "group": row.group.id,
                "state": row.group.state,
                "type": row.group.type,
                "label": row.group.label,
                "members": len(row.group.members),
                "lag": row.lag,
            }
            for row in rows
        ]
    )


def group(console: Console, request: Request) -> Response:
    view: GroupView = described_group(console, request.path_params["group"])
    known = {
        **asdict(view),
        "label": view.label,
        "lag_history": console.watcher.lag_history.samples(view.id),
    }
    if view.type == "share":
        return JSONResponse({**known, **pages_share_groups.as_json(console, view)})
    rows = lag_rows(console, view)
    return JSONResponse(
        {
            **known,
            "lag": sum(row.lag or 0 for row in rows),
            "partitions": [
                {
                    "topic": row.topic,
                    "partition": row.partition,
                    "committed": row.committed,
                    "end": row.end,
                    "lag": row.lag,
                    "member": None if row.member is None else row.member.id,
                }
                for row in rows
            ],
        }
    )


def events(console: Console, request: Request) -> Response:
    return JSONResponse([event.as_json() for event in console.watcher.events])


def transactions(console: Console, request: Request) -> Response:
    return JSONResponse([asdict(item) for item in describe_open(console.wire)])


def access(console: Console, request: Request) -> Response:
    facts = access_facts(console)
    users = [
        {"name": user.name, "credentials": [str(one) for one in user.credentials]} for user in facts["users"]
    ]
    quotas = [{"entity": quota.entity, "limits": quota.limits} for quota in facts["quotas"]]
    return JSONResponse({**facts, "users": users, "quotas": quotas})
