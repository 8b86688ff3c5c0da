"""Pages about topics: the list, one topic's partitions, settings and readers; create, grow, alter, delete."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidelog.admin.configs import ConfigResource, alter_configs
from tidelog.admin.log_dirs import log_dirs
from tidelog.admin.offsets import known_offsets
from tidelog.admin.snapshot import PartitionView, TopicView
from tidelog.client.client_settings import READ_COMMITTED
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.console.console import Console
from tidelog.console.faults import ConsoleFault
from tidelog.console.pages_cluster import attempted
from tidelog.console.parameters import assignments, choice, integer, optional_integer
from tidelog.console.rendering import path_part, plural
from tidelog.console.setting_meanings import topic_choices, topic_meaning
from tidelog.console.settings_view import settings_of_topic

PAGE_TOPICS = 100
SORTS = ("name", "partitions", "replication", "records", "rate", "health")
HEALTHS = ("any", "under-replicated", "offline")
PARTITIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list; records and rate are None where ends of logs are not sampled."""

    topic: TopicView
    records: int | None
    rate: float | None

    def key(self, sort: str) -> Any:
        keys: dict[str, Any] = {
            "name": self.topic.name,
            "partitions": len(self.topic.partitions),
            "replication": self.topic.replication_factor,
            "records": -1 if self.records is None else self.records,
            "rate": -1.0 if self.rate is None else self.rate,
            "health": (self.topic.offline, self.topic.under_replicated),
        }
        return keys[sort]


@dataclass(frozen=True, slots=True)
class TopicList:
    """A page of the list of topics and how it was asked for."""

    rows: list[TopicRow]
    total: int
    page: int
    pages: int
    search: str
    sort: str
    descending: bool
    internal: bool
    health: str

    def link(self, **changed: Any) -> str:
        """The address of this list with some of the question changed."""
        fields: dict[str, Any] = {
            "search": self.search,
            "sort": self.sort,
            "order": "desc" if self.descending else "asc",
            "internal": "1" if self.internal else "",
            "health": self.health,
            "page": self.page,
            **changed,
        }
        kept = {"sort": "name", "order": "asc", "health": "any", "page": 1, "search": "", "internal": ""}
        return "/topics?" + "&".join(
            f"{name}={path_part(value)}" for name, value in fields.items() if value != kept[name]
        )

    def sort_link(self, column: str) -> str:
        descending = not self.descending if self.sort == column else column != "name"
        return self.link(sort=column, order="desc" if descending else "asc", page=1)


def topic_list(console: Console, fields: Mapping[str, str]) -> TopicList:
    """The topics that a query asks for, from the last snapshot."""
    snapshot = console.snapshot()
    search = fields.get("search", "").strip()[:200]
    sort = choice(fields, "sort", SORTS)
    descending = fields.get("order", "asc") == "desc"
    internal = fields.get("internal", "") == "1"
    health = choice(fields, "health", HEALTHS)
    chosen = [
        topic
        for topic in snapshot.topics.values()
        if (internal or not topic.internal)
        and (not search or search.lower() in topic.name.lower())
        and (health != "offline" or topic.offline)
        and (health != "under-replicated" or topic.under_replicated)
    ]
    rows = [_row(console, topic) for topic in chosen]
    if sort != "name" or descending:
        rows.sort(key=lambda row: row.key(sort), reverse=descending)
    pages = max(1, -(-len(rows) // PAGE_TOPICS))
    page = min(integer(fields, "page", 1, 1, 1_000_000), pages)
    shown = rows[(page - 1) * PAGE_TOPICS : page * PAGE_TOPICS]
    return TopicList(shown, len(rows), page, pages, search, sort, descending, internal, health)


def _row(console: Console, topic: TopicView) -> TopicRow:
    watcher = console.watcher
    ends = [watcher.end_offset(topic.name, partition.number) for partition in topic.partitions]
    known = [end for end in ends if end is not None]
    records = sum(known) if len(known) == len(ends) else None
    return TopicRow(topic, records, watcher.rate_history.latest(topic.name))


def topics(console: Console, request: Request) -> Response:
    listed = topic_list(console, dict(request.query_params))
    return console.page(request, "topics.html", "topics", "Topics", listed=listed, healths=HEALTHS)


def new_topic(console: Console, request: Request) -> Response:
    return console.page(
        request, "topic_new.html", "topics", "New topic", brokers_count=len(console.snapshot().brokers)
    )


def create_topic(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    name = form.get("name", "").strip()
    if not name:
        raise ConsoleFault("the topic needs a name")
    partitions = optional_integer(form, "partitions", 1, PARTITIONS_MAX)
    replication = optional_integer(form, "replication_factor", 1, 1000)
    console.changes.create_topic(name, partitions, replication, assignments(form.get("settings", "")))
    return console.done(f"/topics/{path_part(name)}", f"Topic {name} was created.")


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition with its offsets and size; None is what could not be asked."""

    partition: PartitionView
    start: int | None
    end: int | None
    last_stable: int | None
    size_bytes: int | None

    @property
    def records(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


def partition_rows(console: Console, view: TopicView) -> tuple[list[PartitionRow], str]:
    """Every partition of a topic with figures asked for now, and the fault of the sizes if any."""
    keys = [(view.name, partition.number) for partition in view.partitions if not partition.offline]
    starts, _ = attempted(lambda: known_offsets(console.wire, keys, EARLIEST), {})
    ends, _ = attempted(lambda: known_offsets(console.wire, keys, LATEST), {})
    stable, _ = attempted(lambda: known_offsets(console.wire, keys, LATEST, READ_COMMITTED), {})
    brokers = sorted(console.snapshot().brokers)
    asked = {view.name: [partition.number for partition in view.partitions]}
    (_, sizes), fault = attempted(lambda: log_dirs(console.wire, brokers, asked), ([], []))
    by_partition: dict[int, dict[int, int]] = {}
    for size in sizes:
        by_partition.setdefault(size.partition, {})[size.broker] = size.size_bytes
    rows = []
    for partition in view.partitions:
        key = (view.name, partition.number)
        replicas = by_partition.get(partition.number, {})
        rows.append(
            PartitionRow(
                partition,
                starts.get(key),
                ends.get(key),
                stable.get(key),
                replicas.get(partition.leader),
            )
        )
    return rows, fault


def readers_of(console: Console, name: str) -> list[tuple[str, int | None]]:
    """The groups that have committed in a topic or are assigned to it, with their lag there."""
    found: list[tuple[str, int | None]] = []
    for group in console.snapshot().groups.values():
        lag = console.watcher.lag.get(group.id)
        rows = [row for (topic, _), row in lag.partitions.items() if topic == name] if lag is not None else []
        assigned = any(topic == name for member in group.members for topic, _ in member.assignment)
        if rows or assigned:
            known = [max(0, end - offset) for offset, end in rows if end is not None]
            found.append((group.id, sum(known) if known else None))
    return sorted(found, key=lambda item: (-(item[1] or 0), item[0]))


def topic(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    rows, sizes_fault = partition_rows(console, view)
    known = [row.size_bytes for row in rows if row.size_bytes is not None]
    return console.page(
        request,
        "topic.html",
        "topics",
        view.name,
        tab="partitions",
        topic=view,
        rows=rows,
        records=sum(row.records or 0 for row in rows),
        size_bytes=sum(known) if known else None,
        sizes_fault=sizes_fault,
        readers=readers_of(console, view.name),
        snapshot=console.snapshot(),
        rates=console.watcher.rate_history.samples(view.name),
        rate_now=console.watcher.rate_history.latest(view.name),
    )


def topic_settings(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    settings = settings_of_topic(console.wire, view.name)
    editing = request.query_params.get("edit", "")
    return console.page(
        request,
        "topic_settings.html",
        "topics",
        view.name,
        tab="settings",
        topic=view,
        settings=sorted(settings, key=lambda setting: (not setting.overridden, setting.name)),
        editing=editing,
        meaning=topic_meaning,
        choices=topic_choices,
    )


def alter_topic(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    name = request.path_params["topic"]
    setting = form.get("setting", "").strip()
    if not setting:
        raise ConsoleFault("no setting was named")
    value = None if form.get("action") == "unset" else form.get("value", "").strip()
    values, removed = ({}, (setting,)) if value is None else ({setting: value}, ())
    alter_configs(console.wire, ConfigResource.TOPIC, name, values, removed)
    said = f"{setting} is back at its default." if value is None else f"{setting} is {value} now."
    return console.done(f"/topics/{path_part(name)}/settings", said)


def grow_topic(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    name = request.path_params["topic"]
    count = integer(form, "partitions", None, 1, PARTITIONS_MAX)
    console.changes.add_partitions(name, count)
    return console.done(f"/topics/{path_part(name)}", f"Topic {name} has {plural(count, 'partition')} now.")


def delete_page(console: Console, request: Request) -> Response:
    view = console.topic(request.path_params["topic"])
    return console.page(
        request,
        "topic_delete.html",
        "topics",
        f"Delete {view.name}",
        tab="delete",
        topic=view,
        readers=readers_of(console, view.name),
    )


def delete_topic(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    name = request.path_params["topic"]
    if form.get("confirmation", "") != name:
        raise ConsoleFault("the name that was typed is not the topic's", "Type it exactly as it is shown.")
    console.changes.delete_topic(name)
    return console.done("/topics", f"Topic {name} was deleted.")
