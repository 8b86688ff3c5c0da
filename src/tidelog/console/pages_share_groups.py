"""The page of a share group: members and what they have, where it is in each partition, records in flight and
deliveries over time, its dead letters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidelog.admin.configs import ConfigResource, describe_configs
from tidelog.admin.share_groups import SharePartitionOffsets
from tidelog.admin.shares_in_flight import (
    GroupCounts,
    PartitionInFlight,
    SharesInFlight,
    completed,
    shares_in_flight,
)
from tidelog.admin.snapshot import GroupView
from tidelog.console.console import Console
from tidelog.console.events import newest_first
from tidelog.console.faults import ConsoleFault

GROUP_EVENTS = 30
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A partition; `flight` is None where no leader tells what is in flight."""

    offsets: SharePartitionOffsets
    flight: PartitionInFlight | None


def share_rows(console: Console, view: GroupView) -> tuple[list[ShareRow], SharesInFlight | None]:
    """Every partition that a share group has begun or is assigned, asked for now."""
    rows = console.shares.offsets(view)
    told = shares_in_flight(console.wire, view.id, [(row.topic, row.partition) for row in rows])
    rows = completed(rows, view.id, told)
    flights = {} if told is None else told.partitions
    return [ShareRow(row, flights.get((view.id, row.topic, row.partition))) for row in rows], told


def held_by(rows: Iterable[ShareRow]) -> dict[str, int]:
    """How many records each member has."""
    held: dict[str, int] = {}
    for row in rows:
        if row.flight is not None:
            for member, count in row.flight.members.items():
                held[member] = held.get(member, 0) + count
    return held


def deliveries_of(rows: Iterable[ShareRow]) -> dict[int, int]:
    """Of the records in flight that are not done with: how many were delivered how often."""
    found: dict[int, int] = {}
    for row in rows:
        if row.flight is not None:
            for count, records in row.flight.deliveries.items():
                found[count] = found.get(count, 0) + records
    return dict(sorted(found.items()))


def dead_letter_topic(console: Console, group_id: str) -> str | None:
    """Where a share group's dead letters go; None where it has no topic, or we may not know."""
    try:
        settings = describe_configs(console.wire, ConfigResource.GROUP, group_id)
    except ConsoleFault:
        return None
    return next((one.value for one in settings if one.name == DEAD_LETTER_TOPIC and one.value), None)


def share_group(console: Console, request: Request, view: GroupView) -> Response:
    rows, told = share_rows(console, view)
    watch = console.watcher.shares
    story = [
        event
        for event in newest_first(list(console.watcher.events))
        if event.subject_kind == "group" and event.subject == view.id
    ]
    return console.page(
        request,
        "share_group.html",
        "groups",
        view.id,
        group=view,
        rows=rows,
        is_told=told is not None,
        counts=GroupCounts() if told is None else told.groups.get(view.id, GroupCounts()),
        total=sum(row.offsets.lag or 0 for row in rows),
        acquired=sum(row.flight.acquired for row in rows if row.flight is not None),
        held=held_by(rows),
        deliveries=deliveries_of(rows),
        letters=dead_letter_topic(console, view.id),
        topics=console.snapshot().topics,
        charts=(
            ("Lag over time", console.watcher.lag_history.samples(view.id)),
            ("Records that members have", watch.acquired_history.samples(view.id)),
            ("First deliveries per second", watch.first_history.samples(view.id)),
            ("Later deliveries per second", watch.again_history.samples(view.id)),
        ),
        story=story[:GROUP_EVENTS],
    )


def as_json(console: Console, view: GroupView) -> dict[str, Any]:
    """What the API tells of a share group beside what it tells of every group."""
    rows, told = share_rows(console, view)
    return {
        "lag": sum(row.offsets.lag or 0 for row in rows),
        "partitions": [
            {
                "topic": row.offsets.topic,
                "partition": row.offsets.partition,
                "start": row.offsets.start,
                "end": row.offsets.latest,
                "done": row.offsets.done,
                "lag": row.offsets.lag,
                "members": row.offsets.members,
                "acquired": None if row.flight is None else row.flight.acquired,
                "available": None if row.flight is None else row.flight.available,
                "deliveries": None if row.flight is None else row.flight.deliveries,
            }
            for row in rows
        ],
        "dead_letter_topic": dead_letter_topic(console, view.id),
        "is_in_flight_told": told is not None,
    }
