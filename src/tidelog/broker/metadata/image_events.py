"""Domain events that changes of the metadata bring: elections, ISR changes, brokers that come and go.

Every broker sees every change; so that each is told once, the controller tells of elections and brokers, and
the leader of a partition of its ISR. Both hold for the image that the change leads to. All events of one
change have its number as their cause id, on whichever broker they are told.
"""

from typing import TYPE_CHECKING

from tidelog.model.events import (
    BROKER_CAME,
    BROKER_WENT,
    CONTROLLER_ELECTED,
    ISR_EXPANDED,
    ISR_SHRANK,
    LEADER_ELECTED,
    LEADER_ELECTED_UNCLEANLY,
    LEADER_LOST,
)
from tidelog.model.identifiers import NO_LEADER

if TYPE_CHECKING:
    from tidelog.broker.runtime.events import Events
    from tidelog.model.image import ClusterImage, PartitionImage


def tell(
    events: "Events", node_id: int, old: "ClusterImage", new: "ClusterImage", *, sequence: int, decides: bool
) -> None:
    """Tell what differs between two images; `decides`: this broker is the controller."""
    cause_id = f"change-{sequence}"
    if new.controller_id == node_id and old.controller_id != node_id:
        events.emit(CONTROLLER_ELECTED, {"controller": node_id}, cause_id=cause_id)
    if decides and old.brokers is not new.brokers:
        _tell_of_brokers(events, old, new, cause_id)
    if old.topics is new.topics:
        return
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        if (
            before is None
            or before.partitions is topic.partitions
            or before is topic
            or before.topic_id != topic.topic_id
        ):
            continue
        for index, (was, now) in enumerate(zip(before.partitions, topic.partitions, strict=False)):
            if was is now:
                continue
            fields = {"topic": name, "partition": index}
            if decides and was.leader != now.leader:
                _tell_of_election(events, fields, was, now, cause_id)
            if now.leader == node_id and was.isr != now.isr:
                _tell_of_isr(events, fields, was, now, cause_id)


def _tell_of_brokers(events: "Events", old: "ClusterImage", new: "ClusterImage", cause_id: str) -> None:
    for broker_id in sorted(old.alive_brokers.keys() - new.alive_brokers.keys()):
        planned = old.alive_brokers[broker_id].shutting_down
        cause = "it was stopped" if planned else "its session ended"
        events.emit(BROKER_WENT, {"id": broker_id}, cause=cause, cause_id=cause_id)
    for broker_id, broker in sorted(new.alive_brokers.items()):
        before = old.alive_brokers.get(broker_id)
        if before is None or before.incarnation != broker.incarnation:
            events.emit(BROKER_CAME, {"id": broker_id, "epoch": broker.epoch}, cause_id=cause_id)


def _tell_of_election(
    events: "Events",
    fields: dict[str, object],
    was: "PartitionImage",
    now: "PartitionImage",
    cause_id: str,
) -> None:
    told = {**fields, "from": was.leader, "to": now.leader, "leader_epoch": now.leader_epoch}
    if now.leader == NO_LEADER:
        events.emit(LEADER_LOST, told, cause="no replica in sync is there", cause_id=cause_id)
    elif now.unclean_leader_epoch == now.leader_epoch:
        events.emit(LEADER_ELECTED_UNCLEANLY, told, cause="no replica was in sync", cause_id=cause_id)
    else:
        events.emit(LEADER_ELECTED, told, cause_id=cause_id)


def _tell_of_isr(
    events: "Events",
    fields: dict[str, object],
    was: "PartitionImage",
    now: "PartitionImage",
    cause_id: str,
) -> None:
    before, after = set(was.isr), set(now.isr)
    told = {**fields, "isr": now.isr, "replicas": now.replicas}
    if gone := sorted(before - after):
        events.emit(ISR_SHRANK, {**told, "gone": gone}, cause_id=cause_id)
    if came := sorted(after - before):
        events.emit(ISR_EXPANDED, {**told, "came": came}, cause_id=cause_id)
