"""Pages about groups: the list, one group with its lag over time, resets with a preview, deletion."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidelog.admin.offset_reset import LogEnds, ResetPlan, Target, TargetKind, parse_offsets_csv, plan_reset
from tidelog.admin.offsets import known_offsets
from tidelog.admin.snapshot import GroupView, MemberView, TopicPartitionKey
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.console.console import Console
from tidelog.console.events import newest_first
from tidelog.console.faults import NOT_FOUND, ConsoleFault
from tidelog.console.pages_share_groups import share_group
from tidelog.console.parameters import choice, integer, moment_ms
from tidelog.console.rendering import path_part, plural

PAGE_GROUPS = 200
SORTS = ("lag", "name", "state", "members", "type")
TARGETS = ("earliest", "latest", "time", "offset", "shift")
GROUP_EVENTS = 30


@dataclass(frozen=True, slots=True)
class GroupRow:
    group: GroupView
    lag: int | None

    def key(self, sort: str) -> Any:
        keys: dict[str, Any] = {
            "lag": (-(self.lag if self.lag is not None else -1), self.group.id),
            "name": (self.group.id,),
            "state": (self.group.state, self.group.id),
            "members": (-len(self.group.members), self.group.id),
            "type": (self.group.label, self.group.id),
        }
        return keys[sort]


def group_rows(console: Console, search: str, sort: str) -> list[GroupRow]:
    """The groups of the last snapshot that match, sorted."""
    lag = console.watcher.lag
    rows = [
        GroupRow(group, lag[group.id].total if group.id in lag else None)
        for group in console.snapshot().groups.values()
        if search.lower() in group.id.lower()
    ]
    return sorted(rows, key=lambda row: row.key(sort))


def groups(console: Console, request: Request) -> Response:
    fields = dict(request.query_params)
    search = fields.get("search", "").strip()[:200]
    sort = choice(fields, "sort", SORTS)
    rows = group_rows(console, search, sort)
    page = integer(fields, "page", 1, 1, 1_000_000)
    pages = max(1, -(-len(rows) // PAGE_GROUPS))
    page = min(page, pages)
    return console.page(
        request,
        "groups.html",
        "groups",
        "Groups",
        rows=rows[(page - 1) * PAGE_GROUPS : page * PAGE_GROUPS],
        total=len(rows),
        search=search,
        sort=sort,
        number=page,
        pages=pages,
        lag_history=console.watcher.lag_history,
    )


@dataclass(frozen=True, slots=True)
class LagRow:
    """A partition of a group; None where nothing is committed or the log's end is not known."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: MemberView | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


def lag_rows(console: Console, group: GroupView) -> list[LagRow]:
    """Every partition that a group has committed or is assigned, asked for now."""
    committed = console.groups.committed([group.id]).get(group.id, {})
    owners = {item: member for member in group.members for item in member.assignment}
    keys = sorted(set(committed) | set(owners))
    known = console.snapshot().topics
    # A group can remember a topic that was deleted; it has no end to lag behind.
    alive = [key for key in keys if key[0] in known]
    ends = known_offsets(console.wire, alive, LATEST)
    return [LagRow(*key, committed.get(key), ends.get(key), owners.get(key)) for key in keys]


def group_id_of(fields: Mapping[str, str]) -> str:
    """The group that a query or a form names (ids may have any character, so they are no part of paths)."""
    group_id = fields.get("id", "")
    if not group_id:
        raise ConsoleFault("no group was named", "The list of groups links to each of them.")
    return group_id


def described_group(console: Console, group_id: str) -> GroupView:
    """A group asked for now, in the way that its kind is asked for."""
    known = console.snapshot().groups.get(group_id)
    found = console.groups.describe(group_id, "" if known is None else known.type)
    if found is None:
        raise ConsoleFault(
            f"there is no group {group_id!r}", "The list of groups shows those that are.", NOT_FOUND
        )
    return found


def group(console: Console, request: Request) -> Response:
    view = described_group(console, group_id_of(request.query_params))
    if view.type == "share":
        return share_group(console, request, view)
    rows = lag_rows(console, view)
    story = [
        event
        for event in newest_first(list(console.watcher.events))
        if event.subject_kind == "group" and event.subject == view.id
    ]
    return console.page(
        request,
        "group.html",
        "groups",
        view.id,
        group=view,
        rows=rows,
        total=sum(row.lag or 0 for row in rows),
        largest=max((row.lag or 0 for row in rows), default=0),
        samples=console.watcher.lag_history.samples(view.id),
        story=story[:GROUP_EVENTS],
    )


def positions_of(console: Console, view: GroupView) -> dict[TopicPartitionKey, int]:
    """What a group has committed; where it starts, of a share group."""
    if view.type != "share":
        return console.groups.committed([view.id]).get(view.id, {})
    return {key: start for key, (start, _) in console.shares.starts(view.id).items() if start is not None}


def planned_reset(console: Console, view: GroupView, fields: Mapping[str, str]) -> ResetPlan:
    """The plan that a form describes, made from what the cluster says now; nothing is changed."""
    kind = choice(fields, "to", TARGETS)
    target = _target(kind, fields)
    committed = positions_of(console, view)
    topic = fields.get("topic", "")
    keys: list[TopicPartitionKey] = sorted(key for key in committed if not topic or key[0] == topic)
    known = console.snapshot().topics
    if topic and topic in known:
        keys = [(topic, partition.number) for partition in known[topic].partitions]
    keys = [key for key in keys if key[0] in known]
    if not keys:
        raise ConsoleFault(
            f"group {view.id!r} has committed nothing there", "Name a topic to give it offsets for."
        )
    ends = _ends(console, keys, target.number if kind == "time" else None)
    return plan_reset(view.id, target, committed, ends)


def _ends(
    console: Console, partitions: Iterable[TopicPartitionKey], timestamp_ms: int | None = None
) -> dict[TopicPartitionKey, LogEnds]:
    keys = list(partitions)
    first = known_offsets(console.wire, keys, EARLIEST)
    last = known_offsets(console.wire, keys, LATEST)
    at_time = {} if timestamp_ms is None else known_offsets(console.wire, keys, timestamp_ms)
    return {
        key: LogEnds(first[key], last[key], at_time[key] if at_time.get(key, -1) >= 0 else None)
        for key in keys
        if key in first and key in last
    }


def _target(kind: str, fields: Mapping[str, str]) -> Target:
    value = fields.get("value", "")
    match kind:
        case "earliest":
            return Target(TargetKind.EARLIEST)
        case "latest":
            return Target(TargetKind.LATEST)
        case "time":
            return Target(TargetKind.TIMESTAMP, moment_ms(value))
        case "offset":
            return Target(TargetKind.OFFSET, integer(fields, "value"))
        case _:
            return Target(TargetKind.SHIFT, integer(fields, "value", None, -(2**63)))


def reset_page(console: Console, request: Request) -> Response:
    fields = dict(request.query_params)
    view = described_group(console, group_id_of(fields))
    plan = planned_reset(console, view, fields) if fields.get("preview") else None
    committed = positions_of(console, view)
    return console.page(
        request,
        "group_reset.html",
        "groups",
        f"Reset {view.id}",
        group=view,
        plan=plan,
        fields={name: fields.get(name, "") for name in ("to", "value", "topic")},
        targets=TARGETS,
        topics=sorted({topic for topic, _ in committed}),
        changed=0 if plan is None else _changed(view, plan),
    )


def _changed(view: GroupView, plan: ResetPlan) -> int:
    """How many partitions a plan changes: of a share group all, for it forgets what it acknowledged."""
    return len(plan.moves) if view.type == "share" else sum(move.changes for move in plan.moves)


def reset_group(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    """Carry out exactly the offsets that the preview showed, though the logs may have grown since."""
    group_id = group_id_of(form)
    try:
        offsets = parse_offsets_csv(form.get("offsets", ""))
    except ValueError as fault:
        raise ConsoleFault(f"the previewed offsets cannot be read: {fault}", "Preview again.") from fault
    view = described_group(console, group_id)
    committed = positions_of(console, view)
    plan = plan_reset(group_id, Target(TargetKind.FILE, offsets=offsets), committed, _ends(console, offsets))
    try:
        count = console.shares.reset(plan) if view.type == "share" else console.groups.reset(plan)
    except ConsoleFault as fault:
        hint = "Stop the members of the group first: a group that reads keeps its own offsets."
        raise ConsoleFault(fault.message, fault.hint or hint, fault.status) from fault
    return console.done(f"/group?id={path_part(group_id)}", f"{plural(count, 'offset')} of {group_id} moved.")


def delete_group(console: Console, request: Request, form: Mapping[str, str]) -> Response:
    group_id = group_id_of(form)
    if form.get("confirmation", "") != group_id:
        raise ConsoleFault("the name that was typed is not the group's", "Type it exactly as it is shown.")
    console.groups.delete(group_id)
    return console.done("/groups", f"Group {group_id} was deleted.")
