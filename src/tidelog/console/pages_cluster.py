"""Pages about the whole cluster: overview, brokers, transactions, access, events."""

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tidelog.admin import access as access_lists
from tidelog.admin.access import QuotaView
from tidelog.admin.log_dirs import log_dirs
from tidelog.admin.snapshot import Snapshot
from tidelog.admin.transactions import describe_open
from tidelog.console.console import Console
from tidelog.console.events import ConsoleEvent, newest_first
from tidelog.console.faults import NOT_FOUND, ConsoleFault
from tidelog.console.parameters import choice, integer
from tidelog.console.setting_meanings import broker_meaning
from tidelog.console.settings_view import settings_of_broker
from tidelog.console.watcher import PARTITIONS_SAMPLED_MAX, TRAFFIC

OVERVIEW_EVENTS = 8
OVERVIEW_TOPICS = 6
OVERVIEW_GROUPS = 6
SEVERITIES = ("all", "bad", "warn", "good", "note")

Result = TypeVar("Result")


def attempted(ask: Callable[[], Result], otherwise: Any) -> tuple[Result, str]:
    """A part that a page can do without: its answer, or the fault in words."""
    try:
        return ask(), ""
    except ConsoleFault as fault:
        return otherwise, fault.message


def recent_events(console: Console, count: int) -> list[ConsoleEvent]:
    """The latest events, the newest first."""
    return newest_first(list(console.watcher.events))[:count]


def health_problems(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """What is wrong, as (severity, sentence, where to look)."""
    found: list[tuple[str, str, str]] = []
    for broker in snapshot.missing_brokers:
        found.append(("bad", f"Broker {broker} is away but holds replicas", "/brokers"))
    if snapshot.offline:
        found.append(("bad", f"{snapshot.offline} partitions have no leader", "/topics?health=offline"))
    if snapshot.under_replicated:
        text = f"{snapshot.under_replicated} partitions have replicas that are not in sync"
        found.append(("warn", text, "/topics?health=under-replicated"))
    if snapshot.controller < 0:
        found.append(("warn", "No controller is known", "/brokers"))
    found += [("warn", problem, "") for problem in snapshot.problems]
    return found


def overview(console: Console, request: Request) -> Response:
    snapshot = console.snapshot()
    watcher = console.watcher
    topics = [topic for topic in snapshot.topics.values() if not topic.internal]
    rates = {topic.name: watcher.rate_history.latest(topic.name) for topic in topics}
    busiest = sorted(topics, key=lambda topic: (-(rates[topic.name] or 0.0), topic.name))[:OVERVIEW_TOPICS]
    behind = sorted(
        snapshot.groups.values(),
        key=lambda group: (-(watcher.lag[group.id].total if group.id in watcher.lag else 0), group.id),
    )[:OVERVIEW_GROUPS]
    return console.page(
        request,
        "overview.html",
        "overview",
        "Overview",
        snapshot=snapshot,
        problems=health_problems(snapshot),
        topics_count=len(topics),
        rates=rates,
        busiest=busiest,
        behind=behind,
        lag=watcher.lag,
        lag_history=watcher.lag_history,
        rate_history=watcher.rate_history,
        traffic=watcher.rate_history.samples(TRAFFIC),
        traffic_now=watcher.rate_history.latest(TRAFFIC),
        events=recent_events(console, OVERVIEW_EVENTS),
    )


def events(console: Console, request: Request) -> Response:
    severity = choice(dict(request.query_params), "severity", SEVERITIES)
    shown = [
        event
        for event in recent_events(console, len(console.watcher.events))
        if severity in ("all", event.severity)
    ]
    return console.page(
        request, "events.html", "events", "Events", events=shown, severity=severity, severities=SEVERITIES
    )


def _sized_topics(snapshot: Snapshot) -> dict[str, list[int]] | None:
    """Whose sizes to ask for with the folders: all (None), or none where that would be seconds of work."""
    return None if snapshot.partitions_count <= PARTITIONS_SAMPLED_MAX else {}


def brokers(console: Console, request: Request) -> Response:
    snapshot = console.snapshot()
    (folders, _), fault = attempted(
        lambda: log_dirs(console.wire, sorted(snapshot.brokers), _sized_topics(snapshot)), ([], [])
    )
    return console.page(
        request,
        "brokers.html",
        "brokers",
        "Brokers",
        snapshot=snapshot,
        folders=folders,
        folders_fault=fault,
        load=snapshot.broker_load,
    )


def broker(console: Console, request: Request) -> Response:
    snapshot = console.snapshot()
    broker_id = integer(request.path_params, "broker", -1)
    found = snapshot.brokers.get(broker_id)
    if found is None:
        raise ConsoleFault(
            f"broker {broker_id} is not there", "The list of brokers shows those that are.", NOT_FOUND
        )
    settings, settings_fault = attempted(lambda: settings_of_broker(console.wire, broker_id), [])
    (folders, sizes), folders_fault = attempted(
        lambda: log_dirs(console.wire, [broker_id], _sized_topics(snapshot)), ([], [])
    )
    largest = sorted(sizes, key=lambda size: -size.size_bytes)[:20]
    return console.page(
        request,
        "broker.html",
        "brokers",
        f"Broker {broker_id}",
        snapshot=snapshot,
        broker=found,
        settings=settings,
        meaning=broker_meaning,
        settings_fault=settings_fault,
        folders=folders,
        folders_fault=folders_fault,
        largest=largest,
        load=snapshot.broker_load.get(broker_id, (0, 0)),
    )


def transactions(console: Console, request: Request) -> Response:
    found, fault = attempted(lambda: describe_open(console.wire), [])
    return console.page(
        request, "transactions.html", "transactions", "Transactions", transactions=found, fault=fault
    )


def access_facts(console: Console) -> dict[str, Any]:
    """Users, ACLs and quotas, each with the reason where it cannot be read."""
    users, users_fault = attempted(lambda: access_lists.users(console.wire), [])
    acls, acls_fault = attempted(lambda: _acls(console), [])
    quotas, quotas_fault = attempted(lambda: _quotas(console), [])
    return {
        "users": users,
        "users_fault": users_fault,
        "acls": acls,
        "acls_fault": acls_fault,
        "quotas": quotas,
        "quotas_fault": quotas_fault,
    }


def access(console: Console, request: Request) -> Response:
    return console.page(request, "access.html", "access", "Access", **access_facts(console))


def _quotas(console: Console) -> list[QuotaView]:
    return sorted(access_lists.quotas(console.wire), key=lambda quota: quota.entity)


def _acls(console: Console) -> list[dict[str, Any]]:
    rows = [
        {
            name: value if isinstance(value, str) else value.name.lower()
            for name, value in acl._asdict().items()
        }
        for acl in access_lists.acls(console.wire)
    ]
    return sorted(rows, key=lambda row: tuple(row.values()))
