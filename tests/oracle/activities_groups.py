"""Groups: members that join, sync, beat and leave, by the classic protocol and by KIP-848; their offsets."""

import dataclasses

from tests.oracle.activities_transactions import offset_fetch
from tests.oracle.generator import Activity, Builder, Topic
from tests.oracle.session import Json, name, raw, ref

_METADATA = raw(b"\x00\x01\x00\x00\x00\x01\x00\x02t0\xff\xff\xff\xff\x00\x00\x00\x00")
ASSIGNMENT = raw(b"\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff")


@dataclasses.dataclass(slots=True)
class Member:
    """One member of a classic group: where it is connected and what it was told."""

    connection: str
    id: Json
    instance: Json
    generation: Json
    leader: bool = True


@dataclasses.dataclass(slots=True)
class Classic:
    """A group of the classic protocol."""

    alias: str
    members: list[Member] = dataclasses.field(default_factory=list)
    kind: str = "classic"


@dataclasses.dataclass(slots=True)
class Modern:
    """A group of the consumer protocol: member ids are the client's own from version 1 on."""

    alias: str
    #: connection, member id, epoch, the step with the last assignment
    members: list[list[Json]] = dataclasses.field(default_factory=list)
    assignor: str | None = None
    #: what its first member subscribes to, and whether a member has asked for `range`
    topics: list[str] = dataclasses.field(default_factory=list)
    ranged: bool = False
    kind: str = "consumer"

    @property
    def shares_alike(self) -> bool:
        """Whether two members get the same partitions on both systems.

        `uniform` takes those of several topics in the order of a table of ids, which are random.
        """
        return self.ranged or len(self.topics) == 1


def _groups(b: Builder, kind: str) -> list[str]:
    return [alias for alias, group in b.groups.items() if getattr(group, "kind", "") == kind]


def join_fields(alias: str, member: Json, instance: Json, b: Builder) -> dict[str, Json]:
    return {
        "group_id": name(alias),
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [
            {"name": "range", "metadata": _METADATA},
            {"name": "roundrobin", "metadata": _METADATA},
        ],
        "reason": b.choose(None, "why not"),
    }


def classic(b: Builder) -> None:
    """A group with one member, in a new generation and synchronised."""
    known = _groups(b, "classic")
    if len(known) >= 2:
        rejoin(b)
        return
    group = Classic(b.new("c"))
    b.groups[group.alias] = group
    version = b.version("JoinGroup")
    instance = name("i0") if version >= 5 and b.chance(0.3) else None
    connection = b.choose("c0", "c1")
    first = b.ask(
        "JoinGroup", join_fields(group.alias, "", instance, b), version=version, connection=connection
    )
    label = first
    if version >= 4 and instance is None:
        # the first answer is MEMBER_ID_REQUIRED with the id to come back with
        fields = join_fields(group.alias, ref(first, "member_id", otherwise=""), instance, b)
        label = b.ask("JoinGroup", fields, version=version, connection=connection)
    member = Member(
        connection, ref(label, "member_id", otherwise=""), instance, ref(label, "generation_id", otherwise=1)
    )
    group.members.append(member)
    sync(b, group, member)


def sync(b: Builder, group: Classic, member: Member, *, right: bool = False) -> None:
    """A member gives its assignments; where others wait for them they have to be `right`."""
    assignments = [{"member_id": one.id, "assignment": ASSIGNMENT} for one in group.members]
    fields = {
        "group_id": name(group.alias),
        "generation_id": member.generation,
        "member_id": member.id,
        "group_instance_id": member.instance,
        "protocol_type": "consumer" if right else b.choose("consumer", "consumer", "consumer", "other"),
        "protocol_name": "range" if right else b.choose("range", "range", "range", "sticky"),
        "assignments": assignments,
    }
    b.ask("SyncGroup", fields, connection=member.connection)


def a_classic(b: Builder) -> Classic:
    known = _groups(b, "classic")
    if not known:
        classic(b)
        known = _groups(b, "classic")
    group = b.groups[b.choose(*known)]
    assert isinstance(group, Classic)
    return group


def rejoin(b: Builder) -> None:
    """The only member joins again, as it does when its subscription changes."""
    group = a_classic(b)
    if len(group.members) != 1:
        return
    member = group.members[0]
    fields = join_fields(group.alias, member.id, member.instance, b)
    if b.chance(0.5):
        fields["protocols"] = [{"name": "range", "metadata": raw(b"other")}]
    label = b.ask(
        "JoinGroup",
        fields,
        version=b.version("JoinGroup", 5 if member.instance else 0),
        connection=member.connection,
    )
    member.generation = ref(label, "generation_id", otherwise=1)
    if b.chance(0.9):
        sync(b, group, member)


def second_member(b: Builder) -> None:
    """Another one joins, the first follows, both are synchronised; then the second one leaves."""
    group = a_classic(b)
    if len(group.members) != 1 or group.members[0].instance is not None:
        return
    first = group.members[0]
    connection = "c2"
    version = b.version("JoinGroup", 4)
    label = b.ask("JoinGroup", join_fields(group.alias, "", None, b), version=version, connection=connection)
    identity = ref(label, "member_id", otherwise="")
    label = b.ask(
        "JoinGroup",
        join_fields(group.alias, identity, None, b),
        version=version,
        connection=connection,
        later=True,
    )
    heartbeat_of(b, group, first)
    again = b.ask("JoinGroup", join_fields(group.alias, first.id, None, b), connection=first.connection)
    first.generation = ref(again, "generation_id", otherwise=2)
    second = Member(connection, identity, None, ref(label, "generation_id", otherwise=2))
    group.members.append(second)
    waiting = {
        "group_id": name(group.alias),
        "generation_id": second.generation,
        "member_id": second.id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }
    b.ask("SyncGroup", waiting, connection=connection, later=True)
    sync(b, group, first, right=True)
    heartbeat_of(b, group, second)
    describe_groups(b)
    leave(b, group, second)
    group.members.remove(second)
    again = b.ask("JoinGroup", join_fields(group.alias, first.id, None, b), connection=first.connection)
    first.generation = ref(again, "generation_id", otherwise=3)
    sync(b, group, first, right=True)


def heartbeat_of(b: Builder, group: Classic, member: Member, plus: int = 0) -> None:
    generation = member.generation
    if plus:
        generation = {"$ref": [*generation["$ref"][:3], plus]}
    fields = {
        "group_id": name(group.alias),
        "generation_id": generation,
        "member_id": member.id,
        "group_instance_id": member.instance,
    }
    b.ask(
        "Heartbeat",
        fields,
        version=b.version("Heartbeat", 3 if member.instance else 0),
        connection=member.connection,
    )


def heartbeat(b: Builder) -> None:
    """One that is right, of another generation, of nobody, of another group."""
    group = a_classic(b)
    how = b.choose("right", "right", "generation", "member", "group", "instance")
    if not group.members or how in ("member", "group", "instance"):
        fields = {
            "group_id": b.choose(name("gabsent"), "") if how == "group" else name(group.alias),
            "generation_id": b.choose(1, -1),
            "member_id": b.choose("nobody", ""),
            "group_instance_id": name("iabsent") if how == "instance" else None,
        }
        b.ask("Heartbeat", fields, version=b.version("Heartbeat", 3 if how == "instance" else 0))
        return
    heartbeat_of(b, group, group.members[0], 0 if how == "right" else b.choose(1, -1))


def leave(b: Builder, group: Classic, member: Member) -> None:
    fields = {
        "group_id": name(group.alias),
        "member_id": member.id,
        "members": [
            {
                "member_id": member.id if member.instance is None else "",
                "group_instance_id": member.instance,
                "reason": None,
            }
        ],
    }
    b.ask(
        "LeaveGroup",
        fields,
        version=b.version("LeaveGroup", 3 if member.instance else 0),
        connection=member.connection,
    )


def leave_oddly(b: Builder) -> None:
    group = a_classic(b)
    if group.members and b.chance(0.5):
        leave(b, group, group.members.pop())
        del b.groups[group.alias]
        b.groups[group.alias] = Classic(group.alias, kind="left")
        return
    members = [
        {"member_id": "nobody", "group_instance_id": None},
        {"member_id": "", "group_instance_id": name("iabsent")},
    ]
    b.ask(
        "LeaveGroup",
        {
            "group_id": b.choose(name(group.alias), name("gabsent"), ""),
            "member_id": "nobody",
            "members": members[: b.choose(1, 2)],
        },
    )


def join_oddly(b: Builder) -> None:
    """Timeouts beyond limits, no protocols, other types, ids that nobody has."""
    group = a_classic(b)
    fields = join_fields(group.alias, "", None, b)
    kind = b.choose("timeout", "long", "no protocols", "type", "member", "no group", "instance")
    if kind == "timeout":
        fields["session_timeout"] = b.choose(1, 99, -1)
    elif kind == "long":
        fields["session_timeout"] = 1_800_001
    elif kind == "no protocols":
        fields["protocols"] = []
    elif kind == "type":
        fields["protocol_type"] = b.choose("", "connect")
    elif kind == "member":
        fields["member_id"] = "nobody"
    elif kind == "no group":
        fields["group_id"] = ""
    else:
        fields |= {"member_id": "nobody", "group_instance_id": b.choose(name("i0"), name("iabsent"))}
    if kind in ("type",):
        fields["member_id"] = "nobody"
    b.ask("JoinGroup", fields, version=b.version("JoinGroup", 5 if kind == "instance" else 0))


def sync_oddly(b: Builder) -> None:
    group = a_classic(b)
    fields = {
        "group_id": b.choose(name(group.alias), name("gabsent"), ""),
        "generation_id": b.choose(0, 1, 99),
        "member_id": b.choose("nobody", ""),
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }
    b.ask("SyncGroup", fields)


def committed(b: Builder, topic: Topic, metadata_max: int, *, alone: bool) -> Json:
    """Offsets of a topic, as they are committed, `alone` or beside those of another one."""
    return {
        # never a name twice: Kafka answers twice then
        "name": b.some_topic_name() if alone and b.chance(0.1) else name(topic.alias),
        "topic_id": topic.id,
        "partitions": [
            {
                "partition_index": partition,
                "committed_offset": b.choose(0, 1, 3, 100, -1),
                "committed_leader_epoch": b.choose(-1, 0),
                "committed_metadata": b.choose("", "where I was", None, {"$text": ["m", metadata_max]}),
            }
            for partition in sorted({b.partition(topic), b.partition(topic)})
        ],
    }


def commit(b: Builder) -> None:
    """Offsets of members and of nobody, and read back."""
    kind = b.choose("classic", "classic", "plain", "plain", "odd")
    generation: Json = -1
    member: Json = ""
    instance: Json = None
    connection = "c0"
    if kind == "classic":
        group = a_classic(b)
        alias = group.alias
        if group.members:
            one = group.members[0]
            generation, member, instance, connection = one.generation, one.id, one.instance, one.connection
            if b.chance(0.2):
                generation = b.choose(-1, 77)
    elif kind == "plain":
        alias = b.choose("g0", "g1")
        b.groups.setdefault(alias, {"kind": "offsets"})
    else:
        alias = b.choose(*(b.groups or {"g0": 0}))
        generation, member = b.choose((3, "nobody"), (-1, "nobody"), (0, ""))
        b.groups.setdefault(alias, {"kind": "offsets"})
    topics = [b.topic()]
    if b.chance(0.4):
        topics.append(b.besides(topics[0]))
    # Kafka makes a group of nothing when it refuses the metadata of the first commit
    metadata_max = 4097 if kind == "classic" else 4096
    version = b.version("OffsetCommit", 7 if instance else 0)
    fields = {
        "group_id": name(alias),
        "generation_id": generation,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": instance,
        "retention_time_ms": -1,
        "retention_time": -1,
        "topics": [committed(b, each, metadata_max, alone=len(topics) == 1) for each in topics],
    }
    b.ask("OffsetCommit", fields, version=version, connection=connection)
    offset_fetch(b, alias, require_stable=b.chance(0.3))


def fetch_offsets(b: Builder) -> None:
    """All offsets of groups, also of those that nobody has."""
    alias = b.choose(*(b.groups or {"g0": 0}), "gabsent")
    version = b.version("OffsetFetch", 2)
    fields = {
        "group_id": name(alias),
        "topics": None,
        "groups": [
            {"group_id": name(one), "topics": None, "member_id": None, "member_epoch": -1}
            for one in b.together([alias, "gother"])
        ],
        "require_stable": b.chance(0.5),
    }
    b.ask("OffsetFetch", fields, version=version)


def delete_offsets(b: Builder) -> None:
    alias = b.choose(*(b.groups or {"g0": 0}), "gabsent")
    topic = b.topic()
    b.ask(
        "OffsetDelete",
        {
            "group_id": name(alias),
            "topics": [
                {
                    "name": b.choose(name(topic.alias), name("absent")),
                    "partitions": [{"partition_index": 0}, {"partition_index": 9}],
                }
            ],
        },
    )


def delete_groups(b: Builder) -> None:
    alias = b.choose(*(b.groups or {"g0": 0}), "gabsent")
    b.ask("DeleteGroups", {"groups_names": b.together([name(alias), name("gabsent")])})


def describe_groups(b: Builder) -> None:
    known = b.together([*(name(alias) for alias in list(b.groups)[:3]), name("gabsent")])
    kind = b.choose("classic", "classic", "consumer", "list")
    if kind == "classic":
        b.ask(
            "DescribeGroups",
            {"groups": known, "include_authorized_operations": b.chance(0.5)},
        )
    elif kind == "consumer":
        b.ask(
            "ConsumerGroupDescribe",
            {"group_ids": known, "include_authorized_operations": b.chance(0.5)},
        )
    else:
        b.ask(
            "ListGroups",
            {
                "states_filter": b.choose([], ["Stable"], ["Empty"], ["nonsense"]),
                "types_filter": b.choose([], [], ["classic"], ["Consumer"], ["nonsense"]),
            },
        )


def coordinator(b: Builder) -> None:
    fields = {
        "key": b.choose(name("g0"), ""),
        "key_type": b.choose(0, 1, 0, 3),
        "coordinator_keys": [name("g0"), name("g1")],
    }
    b.ask("FindCoordinator", fields)


def modern(b: Builder) -> None:
    """A member of a new group: it joins, takes what it is given, beats, and may leave."""
    known = _groups(b, "consumer")
    if known and b.chance(0.7):
        beat(b)
        return
    group = Modern(b.new("m"), assignor=b.choose(None, "uniform", "range"))
    b.groups[group.alias] = group
    join_modern(b, group, "1")


def join_modern(b: Builder, group: Modern, number: str) -> None:
    version = b.version("ConsumerGroupHeartbeat") if not group.members else 1
    topics = sorted({b.topic().alias for _ in range(2)})
    instance = name(f"i{number}") if b.chance(0.2) else None
    # one for each group: which one wins a tie is each system's own matter
    assignor = b.choose(None, group.assignor, group.assignor)
    group.ranged = group.ranged or assignor == "range"
    if not group.members:
        group.topics = topics
    elif not group.ranged:
        topics = group.topics
    fields = {
        "group_id": name(group.alias),
        "member_id": "" if version == 0 else name(f"member{number}"),
        "member_epoch": 0,
        "instance_id": instance,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [name(alias) for alias in topics],
        "subscribed_topic_regex": None,
        "server_assignor": assignor,
        "topic_partitions": [],
    }
    label = b.ask("ConsumerGroupHeartbeat", fields, version=version)
    member = ref(label, "member_id", otherwise=name(f"member{number}"))
    group.members.append([version, member, ref(label, "member_epoch", otherwise=1), fields["instance_id"]])


def heartbeat_fields(group: Modern, member: list[Json], **more: Json) -> dict[str, Json]:
    return {
        "group_id": name(group.alias),
        "member_id": member[1],
        "member_epoch": member[2],
        "instance_id": member[3],
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "topic_partitions": None,
        **more,
    }


def beat(b: Builder) -> None:
    """A heartbeat that is right, or of a wrong epoch, or that changes or ends the membership."""
    known = _groups(b, "consumer")
    if not known:
        modern(b)
        return
    group = b.groups[b.choose(*known)]
    if not group.members:
        return
    member = group.members[0]
    how = b.choose(
        "beat", "beat", "epoch", "subscribe", "leave", "unknown", "odd", "second", "commit", "regex"
    )
    if how == "beat":
        b.ask("ConsumerGroupHeartbeat", heartbeat_fields(group, member), version=member[0])
    elif how == "epoch":
        epoch = {"$ref": [*member[2]["$ref"][:3], b.choose(3, 5)]}
        b.ask(
            "ConsumerGroupHeartbeat", heartbeat_fields(group, member, member_epoch=epoch), version=member[0]
        )
    elif how in ("subscribe", "regex"):
        more: dict[str, Json] = {"subscribed_topic_names": [name(b.topic().alias)]}
        if how == "regex" and member[0] == 1:
            more = {"subscribed_topic_names": [], "subscribed_topic_regex": b.choose("([", "")}
        label = b.ask("ConsumerGroupHeartbeat", heartbeat_fields(group, member, **more), version=member[0])
        if how == "subscribe":
            member[2] = ref(label, "member_epoch", otherwise=member[2])
    elif how == "leave":
        b.ask(
            "ConsumerGroupHeartbeat",
            heartbeat_fields(group, member, member_epoch=b.choose(-1, -1, -2)),
            version=member[0],
        )
        group.members.remove(member)
    elif how == "unknown":
        b.ask(
            "ConsumerGroupHeartbeat",
            heartbeat_fields(group, ["", "nobody", b.choose(3, -1, 0), None]),
            version=member[0],
        )
    elif how == "odd":
        more = b.choose(
            {"group_id": ""},
            {"server_assignor": "best"},
            {"rebalance_timeout": -1, "member_epoch": 0},
            {"member_epoch": -5},
            {"instance_id": ""},
        )
        b.ask("ConsumerGroupHeartbeat", heartbeat_fields(group, member, **more), version=member[0])
    elif how == "second" and len(group.members) == 1:
        # not beside an id that the coordinator made up: assignors go by the order of ids; no static member
        # again, which Kafka refuses until its session ends
        if member[0] > 0 and member[3] is None and group.shares_alike:
            join_modern(b, group, "2")
    else:
        topic = b.topic()
        row = {
            "partition_index": 0,
            "committed_offset": 2,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": name(group.alias),
            "generation_id_or_member_epoch": member[2],
            "member_id": member[1],
            "topics": [{"name": name(topic.alias), "topic_id": topic.id, "partitions": [row]}],
        }
        b.ask("OffsetCommit", fields, version=b.version("OffsetCommit", 9))
        offset_fetch(b, group.alias, require_stable=False)


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.0, classic),
    (1.0, rejoin),
    (0.8, second_member),
    (1.0, heartbeat),
    (0.5, leave_oddly),
    (0.8, join_oddly),
    (0.4, sync_oddly),
    (2.0, commit),
    (0.8, fetch_offsets),
    (0.5, delete_offsets),
    (0.4, delete_groups),
    (1.0, describe_groups),
    (0.4, coordinator),
    (2.0, modern),
    (1.5, beat),
]
