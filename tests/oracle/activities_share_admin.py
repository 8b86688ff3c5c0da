"""Share groups as administrators and brokers see them: described, deleted, offsets and settings changed; and
the state of share partitions, asked of share coordinators as brokers do.
"""

from typing import Any

from tests.oracle.activities_shares import (
    GROUPS_MAX,
    Shared,
    a_group,
    fetch_some,
    leave,
    own_topic,
    set_group,
    share_fetch_fields,
    shares,
    where,
    write,
)
from tests.oracle.generator import UNKNOWN_ID, Activity, Builder, Topic
from tests.oracle.runner import share_coordinator
from tests.oracle.session import Json, name

_SETTINGS = (
    ("share.auto.offset.reset", ("earliest", "latest", "by_duration:PT1H", "by_duration:-PT1H", "none", "")),
    ("share.isolation.level", ("read_committed", "read_uncommitted", "READ_COMMITTED", "x")),
    ("share.record.lock.duration.ms", ("1000", "999", "60000", "60001", "x")),
    ("share.delivery.count.limit", ("2", "1", "10", "11", "0")),
    ("share.partition.max.record.locks", ("100", "99", "4000", "4001")),
    ("share.renew.acknowledge.enable", ("true", "false", "yes")),
    ("share.heartbeat.interval.ms", ("5000", "1", "15001")),
    ("share.session.timeout.ms", ("45000", "60000", "60001", "1")),
    ("share.no.such.setting", ("1",)),
)


def describe(b: Builder) -> None:
    known = b.together([*(name(group.alias) for group in shares(b)), name("gabsent"), ""])
    kind = b.choose("share", "share", "list", "other")
    if kind == "share":
        fields = {"group_ids": known, "include_authorized_operations": b.chance(0.5)}
        b.ask("ShareGroupDescribe", fields)
    elif kind == "list":
        fields = {
            "states_filter": b.choose([], ["Stable"], ["Empty"], ["Dead"]),
            "types_filter": b.choose([], ["share"], ["Share"], ["consumer"]),
        }
        b.ask("ListGroups", fields)
    else:
        others = [name(alias) for alias in b.groups]
        fields = {"group_ids": b.together([*others, name("g0")]), "include_authorized_operations": False}
        b.ask("ShareGroupDescribe", fields)


def _topic_names(b: Builder, group: Shared) -> list[Json]:
    return [name(topic.alias) for topic in group.topics]


def describe_offsets(b: Builder) -> None:
    """Where groups start: in all partitions, in some, of groups that nobody has."""
    group = a_group(b)
    topics: Json = None
    if b.chance(0.5):
        # of a partition that is not there Kafka never answers
        rows = [{"topic_name": one, "partitions": [0]} for one in _topic_names(b, group)]
        rows += b.choose(
            [], [{"topic_name": name("absent"), "partitions": [0]}], [{"topic_name": "", "partitions": [0]}]
        )
        topics = b.choose(rows, rows, [])
    groups = [{"group_id": name(group.alias), "topics": topics}]
    if b.chance(0.4):
        other = b.choose(name("gabsent"), name("g0"), name("c0"), name("m0"))
        rows = [{"topic_name": name(group.topics[0].alias), "partitions": [0]}]
        groups.append({"group_id": other, "topics": b.choose(None, rows)})
    b.ask("DescribeShareGroupOffsets", {"groups": b.together(groups)})


def empty(b: Builder, group: Shared) -> None:
    """Every member goes, its session first."""
    for member in list(group.members):
        leave(b, group, member)
    group.begun.clear()


def _offset_rows(b: Builder, group: Shared) -> list[Json]:
    rows = [
        {
            "topic_name": one,
            "partitions": [
                {"partition_index": number, "start_offset": b.choose(0, 0, 1, 3, 100)}
                for number in b.choose([0], [0], [0, 1], [0, 9])
            ],
        }
        for one in _topic_names(b, group)
    ]
    if b.chance(0.2):
        odd = {"partition_index": 0, "start_offset": 0}
        rows.append({"topic_name": b.choose(name("absent"), ""), "partitions": [odd]})
    if b.chance(0.1):
        rows[0]["partitions"][0]["start_offset"] = b.choose(-1, -2, 1 << 40)
    return rows


def alter_offsets(b: Builder) -> None:
    """A group begins elsewhere, if nobody is in it; then somebody reads from there."""
    group = a_group(b)
    if b.chance(0.8):
        empty(b, group)
    fields = {
        "group_id": name(group.alias) if b.chance(0.9) else b.choose("", name("c0"), name("g0")),
        "topics": _offset_rows(b, group),
    }
    b.ask("AlterShareGroupOffsets", fields)
    describe_group_offsets(b, group)
    if b.chance(0.6):
        fetch_some(b, group)


def describe_group_offsets(b: Builder, group: Shared) -> None:
    b.ask(
        "DescribeShareGroupOffsets",
        {"groups": [{"group_id": name(group.alias), "topics": None}]},
        version=b.version("DescribeShareGroupOffsets"),
    )


def new_by_offsets(b: Builder) -> None:
    """A group that begins with its offsets, before it has members."""
    if len(shares(b)) >= GROUPS_MAX:
        return
    group = Shared(b.new("s"), [own_topic(b)])
    rows = _offset_rows(b, group)
    b.ask("AlterShareGroupOffsets", {"group_id": name(group.alias), "topics": rows})
    b.groups[group.alias] = group
    b.ask("ShareGroupDescribe", {"group_ids": [name(group.alias)], "include_authorized_operations": False})
    describe_group_offsets(b, group)


def delete_offsets(b: Builder) -> None:
    group = a_group(b)
    if b.chance(0.8):
        empty(b, group)
    names = _topic_names(b, group)[: b.choose(1, 2)]
    names += b.choose([], [], [name("absent")], [""])
    group_id = name(group.alias) if b.chance(0.9) else b.choose("", name("gabsent"), name("c0"))
    fields = {"group_id": group_id, "topics": [{"topic_name": one} for one in names]}
    b.ask("DeleteShareGroupOffsets", fields)
    describe_group_offsets(b, group)
    if b.chance(0.3):
        b.ask("DeleteShareGroupOffsets", fields)


def delete_group(b: Builder) -> None:
    """A group goes, if nobody is in it; and may come again."""
    group = a_group(b)
    if b.chance(0.8):
        empty(b, group)
    b.ask("DeleteGroups", {"groups_names": [name(group.alias)]})
    b.ask("ShareGroupDescribe", {"group_ids": [name(group.alias)], "include_authorized_operations": False})
    describe_group_offsets(b, group)
    if b.chance(0.4):
        write(b, group)
        fetch_some(b, group)


def settings(b: Builder) -> None:
    """Settings of a group that are right and wrong, and what they are then."""
    group = a_group(b)
    key, values = b.choose(*_SETTINGS)
    value = b.choose(*values)
    if value == "yes" or key == "share.no.such.setting" or b.chance(0.8):
        set_group(b, group, {key: value})
    else:
        set_group(b, group, {key: None})
    resource = {
        "resource_type": 32,
        "resource_name": name(group.alias),
        "configuration_keys": b.choose(None, [one for one, _ in _SETTINGS]),
    }
    fields = {"resources": [resource], "include_synonyms": b.chance(0.5), "include_documentation": False}
    b.ask("DescribeConfigs", fields)


def forgotten_topic(b: Builder) -> None:
    """A topic that a group reads goes."""
    group = a_group(b)
    topic = b.choose(*group.topics)
    if topic.deleted:
        return
    row = {"name": name(topic.alias), "topic_id": None}
    b.ask("DeleteTopics", {"topics": [row], "topic_names": [name(topic.alias)], "timeout": 10_000})
    topic.deleted = True
    asked = {"topics": [{"name": name(topic.alias)}], "allow_auto_topic_creation": False}
    gone = {"path": ["topics", 0, "error_code"], "in": [3]}
    b.ask(
        "Metadata",
        asked,
        version=b.version("Metadata", 10),
        until=gone,
        **({"broker": 1} if b.several else {}),
    )
    b.everywhere("Metadata", asked, version=12, until=gone)
    for member in group.members:
        fields = share_fetch_fields(b, group, member, max_wait=100)
        if member.session:
            b.ask("ShareFetch", fields, **where(b, member))
            member.session += 1
    if all(topic.deleted for topic in group.topics):
        # the coordinator of the group hears of it a little later
        b.ask(
            "DescribeShareGroupOffsets",
            {"groups": [{"group_id": name(group.alias), "topics": None}]},
            until={"path": ["groups", 0, "topics"], "in": [[]]},
        )


def coordinator(b: Builder) -> None:
    """Who keeps the state of a share partition."""
    topic = b.topic()
    right = {"$share": ["s0", topic.id, b.choose(0, 0, 1)]}
    key = right if b.chance(0.6) else b.choose("", name("s0"), "a:b:c", name("s0:x:0"), "a:b", ":::")
    fields = {"key_type": 2, "coordinator_keys": [key]}
    b.ask("FindCoordinator", fields, version=b.version("FindCoordinator", b.choose(4, 6)))


# The state of share partitions. Its groups are nobody's: what a live group has stored, and when, is each
# system's own matter.


def _state_topics(topic: Topic, rows: list[Json], topic_id: Json = None) -> list[Json]:
    return [{"topic_id": topic_id or topic.id, "partitions": rows}]


def ask_state(b: Builder, api: str, fields: dict[str, Json], **options: Any) -> None:
    """Ask the broker that keeps it."""
    b.ask(api, fields, **({"broker": share_coordinator(len(b.brokers))} if b.several else {}), **options)


def _batches(b: Builder, start: int) -> list[Json]:
    rows = []
    offset = start + b.choose(0, 5)
    for _ in range(b.choose(0, 1, 2, 3)):
        last = offset + b.choose(0, 2, 9)
        rows.append(
            {
                "first_offset": offset,
                "last_offset": last,
                "delivery_state": b.choose(0, 0, 2, 4),
                "delivery_count": b.choose(1, 2),
            }
        )
        offset = last + b.choose(1, 1, 4, 0)
    return rows


def state(b: Builder) -> None:
    """A share partition of a group of nobody: begun, written, read, forgotten; in epochs right and older."""
    topic = b.topic()
    group: Json = name(b.choose("k0", "k0", "k1"))
    partition = b.choose(0, 0, 0, 0, 9, -1)
    topic_id: Json = topic.id
    if b.chance(0.07):
        topic_id = b.choose(UNKNOWN_ID, None)
    if b.chance(0.07):
        group = b.choose("", name("k9"))
    for _ in range(b.choose(1, 2, 4)):
        api = b.choose(
            "InitializeShareGroupState", "WriteShareGroupState", "WriteShareGroupState",
            "ReadShareGroupState", "ReadShareGroupState", "ReadShareGroupStateSummary",
            "DeleteShareGroupState",
        )  # fmt: skip
        row = state_row(b, api, partition)
        topics = [{"topic_id": topic_id, "partitions": [row]}] if b.chance(0.97) else []
        ask_state(b, api, {"group_id": group, "topics": topics})


def state_row(b: Builder, api: str, partition: int) -> dict[str, Json]:
    """What is asked of a partition."""
    # Epochs and starts only grow, but for those that are refused: here they never go back.
    now = int(b.new("k")[1:]) + 10
    reads = api == "ReadShareGroupState"
    row: dict[str, Json] = {
        "partition": partition,
        "state_epoch": b.choose(now, now, now - 5),
        "leader_epoch": b.choose(now, now, -1) if reads else b.choose(now, -1),
        "start_offset": b.choose(now, now, -1),
        "delivery_complete_count": b.choose(0, 2, -1),
        "state_batches": _batches(b, now),
    }
    if not reads:
        # a write in a later epoch than that of the last read: see MEANT
        row["leader_epoch"] = -1
    return row


def as_user(b: Builder) -> None:
    """What somebody without rights is told."""
    group = a_group(b)
    user = b.choose("alice", "alice", "bob")
    topic = group.topics[0]
    rows: list[Json] = [{"partition": 0, "leader_epoch": 0}]
    kind = b.choose("beat", "describe", "fetch", "acknowledge", "offsets", "alter", "delete", "state", "find")
    if kind == "beat":
        fields: dict[str, Json] = {
            "group_id": name(group.alias),
            "member_id": name("stranger"),
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": [name(topic.alias)],
        }
        b.ask("ShareGroupHeartbeat", fields, connection=user)
        b.ask("ShareGroupHeartbeat", {**fields, "member_epoch": -1}, connection=user)
    elif kind == "describe":
        fields = {"group_ids": [name(group.alias)], "include_authorized_operations": True}
        b.ask("ShareGroupDescribe", fields, connection=user)
    elif kind in ("fetch", "acknowledge"):
        part = {"partition_index": 0, "acknowledgement_batches": []}
        fields = {
            "group_id": name(group.alias),
            "member_id": name("stranger"),
            "share_session_epoch": 0,
            "max_wait": 200,
            "min_bytes": 1,
            "max_records": 1,
            "batch_size": 1,
            "topics": [{"topic_id": topic.id, "partitions": [part]}],
            "forgotten_topics_data": [],
        }
        place = {"broker": topic.leader} if b.several else {}
        b.ask("ShareFetch" if kind == "fetch" else "ShareAcknowledge", fields, connection=user, **place)
    elif kind == "offsets":
        topics = b.choose(None, [{"topic_name": name(topic.alias), "partitions": [0]}])
        asked = [{"group_id": name(group.alias), "topics": topics}]
        b.ask("DescribeShareGroupOffsets", {"groups": asked}, connection=user)
    elif kind == "alter":
        part = {"partition_index": 0, "start_offset": 0}
        changed = [{"topic_name": name(topic.alias), "partitions": [part]}]
        b.ask("AlterShareGroupOffsets", {"group_id": name(group.alias), "topics": changed}, connection=user)
    elif kind == "delete":
        changed = [{"topic_name": name(topic.alias)}]
        b.ask("DeleteShareGroupOffsets", {"group_id": name(group.alias), "topics": changed}, connection=user)
    elif kind == "state":
        api = b.choose("ReadShareGroupState", "ReadShareGroupStateSummary", "DeleteShareGroupState")
        fields = {"group_id": name(group.alias), "topics": [{"topic_id": topic.id, "partitions": rows}]}
        b.ask(api, fields, connection=user)
    else:
        key = {"$share": [group.alias, topic.id, 0]}
        fields = {"key_type": 2, "coordinator_keys": [key]}
        b.ask("FindCoordinator", fields, version=b.version("FindCoordinator", 6), connection=user)


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.0, describe),
    (1.0, describe_offsets),
    (0.8, alter_offsets),
    (0.3, new_by_offsets),
    (0.6, delete_offsets),
    (0.5, delete_group),
    (0.8, settings),
    (0.3, forgotten_topic),
    (0.5, coordinator),
    (1.5, state),
    (0.8, as_user),
]
