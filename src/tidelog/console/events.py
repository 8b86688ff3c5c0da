"""What changed between two looks at a cluster, as events with a sentence each; pure.

A poll every few seconds cannot see what came and went in between, so these tell of differences: a leader that
moved, a broker that is gone, an ISR that shrank, a group that has other members.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tidelog.admin.snapshot import GroupView, MemberView, Snapshot, TopicPartitionKey, TopicView

#: more changes of one kind in one topic are told in one sentence
DETAILED_PARTITIONS_MAX = 3


@dataclass(frozen=True, slots=True)
class ConsoleEvent:
    """Something that happened; `subject` is where to look, as (kind, name)."""

    at: float
    kind: str
    severity: str
    text: str
    subject_kind: str = ""
    subject: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def newest_first(events: Iterable[ConsoleEvent]) -> list[ConsoleEvent]:
    """The latest look first; the events of one look stay in their order, which begins with causes."""
    return sorted(events, key=lambda event: -event.at)


def changes(before: Snapshot, after: Snapshot) -> list[ConsoleEvent]:
    """The events between two snapshots, brokers first."""
    return [
        *_broker_events(before, after),
        *_topic_events(before, after),
        *_group_events(before, after),
    ]


def _broker_events(before: Snapshot, after: Snapshot) -> Iterator[ConsoleEvent]:
    at = after.taken_at
    for broker in sorted(set(before.brokers) - set(after.brokers)):
        yield ConsoleEvent(at, "broker-gone", "bad", f"Broker {broker} is gone", "broker", str(broker))
    for broker in sorted(set(after.brokers) - set(before.brokers)):
        yield ConsoleEvent(at, "broker-here", "good", f"Broker {broker} is here", "broker", str(broker))
    if before.controller != after.controller:
        text = f"The controller is broker {after.controller}, it was {before.controller}"
        if after.controller < 0:
            text = f"There is no controller, it was broker {before.controller}"
        yield ConsoleEvent(
            at, "controller", "bad" if after.controller < 0 else "note", text, "broker", str(after.controller)
        )


def _topic_events(before: Snapshot, after: Snapshot) -> Iterator[ConsoleEvent]:
    at = after.taken_at
    for name in sorted(set(after.topics) - set(before.topics)):
        count = len(after.topics[name].partitions)
        noun = "partition" if count == 1 else "partitions"
        yield ConsoleEvent(at, "topic-created", "note", f"Topic {name} has {count} {noun}", "topic", name)
    for name in sorted(set(before.topics) - set(after.topics)):
        yield ConsoleEvent(at, "topic-deleted", "note", f"Topic {name} was deleted", "topic", name)
    for name in sorted(set(before.topics) & set(after.topics)):
        old, new = before.topics[name], after.topics[name]
        if old is new or old == new:
            continue
        yield from _partition_events(at, old, new)


def _partition_events(at: float, old: TopicView, new: TopicView) -> Iterator[ConsoleEvent]:
    name = new.name
    if len(new.partitions) > len(old.partitions):
        text = f"Topic {name} grew from {len(old.partitions)} to {len(new.partitions)} partitions"
        yield ConsoleEvent(at, "topic-grown", "note", text, "topic", name)
    leaders: list[ConsoleEvent] = []
    isrs: list[ConsoleEvent] = []
    for first, second in zip(old.partitions, new.partitions, strict=False):
        where = f"{name}-{second.number}"
        if first.leader != second.leader:
            if second.offline:
                text, severity = f"{where} has no leader, it was broker {first.leader}", "bad"
            elif first.offline:
                text, severity = f"{where} is led by broker {second.leader} again", "good"
            else:
                text, severity = f"{where} is led by broker {second.leader}, before by {first.leader}", "note"
            leaders.append(ConsoleEvent(at, "leader", severity, text, "topic", name))
        lost, joined = set(first.isr) - set(second.isr), set(second.isr) - set(first.isr)
        if lost:
            text = f"{where} lost {_listed(lost)} from its in-sync replicas"
            isrs.append(ConsoleEvent(at, "isr-shrank", "warn", text, "topic", name))
        elif joined:
            text = f"{where} has {_listed(joined)} in sync again"
            isrs.append(ConsoleEvent(at, "isr-grew", "good", text, "topic", name))
    yield from _condensed(leaders, f"leaders of {name} moved")
    yield from _condensed(isrs, f"partitions of {name} changed their in-sync replicas")


def _condensed(events: list[ConsoleEvent], what: str) -> list[ConsoleEvent]:
    if len(events) <= DETAILED_PARTITIONS_MAX:
        return events
    worst = max(events, key=lambda event: ("good", "note", "warn", "bad").index(event.severity))
    text = f"{len(events)} {what}, first: {worst.text}"
    return [ConsoleEvent(worst.at, worst.kind, worst.severity, text, worst.subject_kind, worst.subject)]


def _listed(brokers: set[int]) -> str:
    noun = "broker" if len(brokers) == 1 else "brokers"
    return f"{noun} {', '.join(map(str, sorted(brokers)))}"


def _group_events(before: Snapshot, after: Snapshot) -> Iterator[ConsoleEvent]:
    at = after.taken_at
    for name in sorted(set(after.groups) - set(before.groups)):
        yield ConsoleEvent(
            at, "group-created", "note", f"Group {name} is here ({after.groups[name].state})", "group", name
        )
    for name in sorted(set(before.groups) - set(after.groups)):
        yield ConsoleEvent(at, "group-gone", "note", f"Group {name} is gone", "group", name)
    for name in sorted(set(before.groups) & set(after.groups)):
        yield from group_changes(at, before.groups[name], after.groups[name])


def _moves(at: float, old: GroupView, new: GroupView) -> Iterator[ConsoleEvent]:
    """Who got and who gave up which partitions: the steps of a rebalance that a look can see."""
    before = {item: member for member in old.members for item in member.assignment}
    after = {item: member for member in new.members for item in member.assignment}
    moved = [item for item in sorted(after) if before.get(item) is None or before[item].id != after[item].id]
    if moved:
        noun = "partition" if len(moved) == 1 else "partitions"
        shown = [_move(item, before.get(item), after[item]) for item in moved[:DETAILED_PARTITIONS_MAX]]
        more = f", and {len(moved) - len(shown)} more" if len(moved) > len(shown) else ""
        text = f"{len(moved)} {noun} of group {new.id} went to another member: {', '.join(shown)}{more}"
        yield ConsoleEvent(at, "reassigned", "note", text, "group", new.id)
    free = [item for item in sorted(before) if item not in after]
    if free:
        shown = [f"{topic}-{number}" for topic, number in free[:DETAILED_PARTITIONS_MAX]]
        more = f" and {len(free) - len(shown)} more" if len(free) > len(shown) else ""
        verb = "is" if len(free) == 1 else "are"
        text = f"{', '.join(shown)}{more} {verb} read by nobody in group {new.id}"
        yield ConsoleEvent(at, "unassigned", "warn", text, "group", new.id)


def _move(item: TopicPartitionKey, before: MemberView | None, after: MemberView) -> str:
    source = f" from {before.client_id}" if before is not None else ""
    return f"{item[0]}-{item[1]}{source} to {after.client_id}"


def group_changes(at: float, old: GroupView, new: GroupView) -> Iterator[ConsoleEvent]:
    """The rebalance story of one group: members that came and went, states, moved partitions."""
    if old.described and new.described:
        old_members = {member.id: member for member in old.members}
        new_members = {member.id: member for member in new.members}
        for member_id in sorted(set(new_members) - set(old_members)):
            member = new_members[member_id]
            text = f"{member.client_id} joined group {new.id} from {member.host}"
            yield ConsoleEvent(at, "member-joined", "note", text, "group", new.id)
        for member_id in sorted(set(old_members) - set(new_members)):
            text = f"{old_members[member_id].client_id} left group {new.id}"
            yield ConsoleEvent(at, "member-left", "warn", text, "group", new.id)
        if old.epoch is not None and new.epoch is not None and new.epoch > old.epoch:
            text = f"Group {new.id} is at epoch {new.epoch}, it was {old.epoch}"
            yield ConsoleEvent(at, "group-epoch", "note", text, "group", new.id)
        yield from _moves(at, old, new)
    if old.state != new.state:
        severity = "good" if new.state == "stable" else "warn" if "rebalanc" in new.state else "note"
        text = f"Group {new.id} is {new.state}, it was {old.state}"
        yield ConsoleEvent(at, "group-state", severity, text, "group", new.id)
