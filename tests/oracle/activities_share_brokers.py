"""Share groups on several brokers: partitions whose leader changes while records are acquired, brokers that
do not lead them, and the state of share partitions asked of one that does not keep it.
"""

from typing import Any

from tests.oracle.activities_brokers import elect
from tests.oracle.activities_share_admin import ask_state, state_row
from tests.oracle.activities_shares import (
    ACCEPT,
    NOTHING_MS,
    Held,
    a_group,
    a_member,
    acknowledge,
    disconnect,
    fetch_some,
    said,
    settle_some,
    share_fetch_fields,
    topic_row,
)
from tests.oracle.generator import Activity, Builder
from tests.oracle.session import name


def change_leader(b: Builder) -> None:
    """Another broker leads a topic that a group reads: members go there, and get what was left."""
    group = a_group(b)
    group.again = True
    member = a_member(b, group)
    topic = member.topic
    if topic.deleted:
        return
    fetch_some(b, group, member)
    if b.chance(0.7):
        settle_some(b, group, member)
    for one in group.members:
        if one.topic is topic:
            # what it has not said anything of is released before the leader changes
            disconnect(b, one)
    elect(b, topic, b.choose(*(broker for broker in b.brokers if broker != topic.leader)))
    fetch_some(b, group, member)
    if b.chance(0.5):
        settle_some(b, group, member)
        fetch_some(b, group, member)


def wrong_leader(b: Builder) -> None:
    """A member of its own fetches from, and acknowledges to, a broker that does not lead the partition."""
    group = a_group(b)
    member = a_member(b, group)
    if member.topic.deleted:
        return
    stranger = {"member_id": name(b.new("odd")), "max_wait": NOTHING_MS}
    place: dict[str, Any] = {"connection": "c1", "broker": member.topic.leader, "elsewhere": True}
    rows = [topic_row(member.topic, {b.choose(0, 0, 9): []})]
    fields = share_fetch_fields(b, group, member, **stranger, share_session_epoch=0, topics=rows)
    b.ask("ShareFetch", fields, **place)
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]}
    fields = {
        "group_id": name(group.alias),
        "member_id": stranger["member_id"],
        "share_session_epoch": b.choose(1, 1, 0, 2),
        "is_renew_ack": False,
        "topics": [topic_row(member.topic, {0: [batch]})],
    }
    b.ask("ShareAcknowledge", fields, **place)
    b.ask("ShareAcknowledge", {**fields, "share_session_epoch": -1, "topics": []}, **place)


def settle_elsewhere(b: Builder) -> None:
    """What is said of records to a broker where a member has no session; then to the right one."""
    group = a_group(b)
    member = a_member(b, group)
    if member.topic.deleted:
        return
    if not member.held:
        fetch_some(b, group, member)
    held = member.held[-1] if member.held else Held(["s0"], 0)
    batches = said(b, group, held, ACCEPT)
    fields = {
        "group_id": name(group.alias),
        "member_id": member.id,
        "share_session_epoch": member.session,
        "is_renew_ack": False,
        "topics": [topic_row(member.topic, {held.partition: batches})],
    }
    place: dict[str, Any] = {"connection": member.connection, "broker": member.topic.leader}
    b.ask("ShareAcknowledge", fields, **place, elsewhere=True)
    acknowledge(b, group, member, {held.partition: batches})


def state_elsewhere(b: Builder) -> None:
    """The state of a share partition, of a broker that does not coordinate it."""
    api = b.choose(
        "InitializeShareGroupState", "WriteShareGroupState", "ReadShareGroupState",
        "ReadShareGroupStateSummary", "DeleteShareGroupState",
    )  # fmt: skip
    topics = [{"topic_id": b.topic().id, "partitions": [state_row(b, api, 0)]}]
    ask_state(b, api, {"group_id": name("k0"), "topics": topics}, elsewhere=True)


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.5, change_leader),
    (1.0, wrong_leader),
    (0.8, settle_elsewhere),
    (0.4, state_elsewhere),
]
