"""Share groups: members that come, beat and go; records fetched in share sessions, what becomes of them.

Member ids are the client's own. Each member has a connection of its own: a share session ends with it. What
is said of records names them as the fetch did that gave them, so that it is right however much that was.
"""

import dataclasses
from collections.abc import Mapping

from tests.oracle.activities_producing import produce, records
from tests.oracle.activities_transactions import init, wait_ended
from tests.oracle.generator import UNKNOWN_ID, Activity, Builder, Topic
from tests.oracle.runner import CLOSE
from tests.oracle.session import Json, name, ref

#: gap, accept, release, reject, renew
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
#: how long a fetch waits that should find something, and one that should not
FIRST_WAIT_MS, WAIT_MS, NOTHING_MS = 3_000, 1_500, 50
GROUPS_MAX, MEMBERS_MAX = 2, 3
#: so many fetches take all that there is
AGAIN = 8
#: a fetch that leaves nothing, so that it makes no difference how offsets without records are counted
_EVERYTHING: dict[str, Json] = {"max_records": 10_000, "batch_size": 500, "share_acquire_mode": 0}


@dataclasses.dataclass(slots=True)
class Held:
    """Records that a member was given: the answer to a fetch, about a partition."""

    labels: list[str]
    partition: int

    def said(self, kind: int, which: str = "all") -> Json:
        """All that is said of them: of all alike, of the `first`, or of the `rest`."""
        return {"$acquired": [self.labels, self.partition, which, kind]}

    def first(self, plus: int = 0) -> Json:
        """The first offset, or one behind it."""
        partitions = ["responses", 0, "partitions", {"partition_index": self.partition}]
        return ref(self.labels[0], *partitions, "acquired_records", 0, "first_offset", otherwise=0, plus=plus)


@dataclasses.dataclass(slots=True)
class Member:
    """One member of a share group, and its share session."""

    connection: str
    id: Json
    epoch: Json
    topic: Topic
    #: what the next request of its share session has to say; 0 opens one
    session: int = 0
    #: the partitions in its session
    partitions: list[int] = dataclasses.field(default_factory=list)
    held: list[Held] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Shared:
    """A share group, and the topics that it reads."""

    alias: str
    topics: list[Topic]
    members: list[Member] = dataclasses.field(default_factory=list)
    #: those of its settings that were set
    settings: set[str] = dataclasses.field(default_factory=set)
    #: partitions that somebody has fetched from: their first fetch takes longer
    begun: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    #: whether some records may be delivered again, or are none: how many come together then goes by what a
    #: system keeps in memory
    again: bool = False
    kind: str = "share"


def shares(b: Builder) -> list[Shared]:
    return [group for group in b.groups.values() if isinstance(group, Shared)]


# Groups and members


def shared(b: Builder) -> None:
    """A new group."""
    if len(shares(b)) < GROUPS_MAX:
        new_group(b)


def new_group(b: Builder) -> Shared:
    """A new group with settings, records to read and one member."""
    group = Shared(b.new("s"), [own_topic(b, b.choose(1, 1, 1, 2))])
    b.groups[group.alias] = group
    settings: dict[str, str] = {}
    if b.chance(0.85):
        settings["share.auto.offset.reset"] = "earliest"
    if b.chance(0.3):
        settings["share.delivery.count.limit"] = b.choose("2", "3", "4")
    if b.chance(0.15):
        settings["share.isolation.level"] = "read_committed"
    if settings:
        set_group(b, group, settings)
    if b.chance(0.8):
        write(b, group)
    join(b, group)
    return group


def own_topic(b: Builder, partitions: int = 1, leader: int | None = None) -> Topic:
    """A topic that other activities leave alone: what is in it is known."""
    topic = b.create_topic(partitions, leader=leader)
    b.topics.remove(topic)
    return topic


def a_group(b: Builder) -> Shared:
    known = shares(b)
    return b.choose(*known) if known else new_group(b)


def a_member(b: Builder, group: Shared) -> Member:
    return b.choose(*group.members) if group.members else join(b, group)


def set_group(b: Builder, group: Shared, settings: Mapping[str, str | None]) -> None:
    """Set settings of a group, or delete them."""
    rows = [
        {"name": key, "config_operation": 1 if value is None else 0, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": 32, "resource_name": name(group.alias), "configs": rows}
    b.ask("IncrementalAlterConfigs", {"resources": [resource], "validate_only": False})
    group.settings.update(settings)


def heartbeat_fields(group: Shared, member: Member, **more: Json) -> dict[str, Json]:
    return {
        "group_id": name(group.alias),
        "member_id": member.id,
        "member_epoch": member.epoch,
        "rack_id": None,
        "subscribed_topic_names": None,
        **more,
    }


def join(b: Builder, group: Shared) -> Member:
    """A member comes, and asks until it is assigned something."""
    topic = b.choose(*group.topics)
    number = b.new("n")[1:]
    member = Member(f"m{number}", name(f"member{number}"), 0, topic)
    names = [name(topic.alias) for topic in group.topics]
    fields = heartbeat_fields(group, member, subscribed_topic_names=names, rack_id=b.choose(None, "r1"))
    b.ask("ShareGroupHeartbeat", fields, connection=member.connection)
    assigned = {"path": ["assignment", "topic_partitions"], "count": len(group.topics)}
    label = b.ask(
        "ShareGroupHeartbeat",
        fields,
        connection=member.connection,
        until=assigned if not any(topic.deleted for topic in group.topics) else None,
    )
    member.epoch = ref(label, "member_epoch", otherwise=1)
    group.members.append(member)
    return member


def second(b: Builder) -> None:
    """Another member. Only where there is one partition: who gets which of several goes by ids."""
    group = a_group(b)
    alike = len(group.topics) == 1 and group.topics[0].partitions == 1
    if alike and len(group.members) < MEMBERS_MAX:
        join(b, group)


def beat(b: Builder) -> None:
    """A heartbeat that is right, or of a wrong epoch, or that changes or ends the membership."""
    group = a_group(b)
    member = a_member(b, group)
    how = b.choose("beat", "beat", "old", "new", "all", "subscribe", "unsubscribe", "leave", "odd", "odd")
    more: dict[str, Json] = {}
    if how in ("old", "new"):
        more["member_epoch"] = {"$ref": [*member.epoch["$ref"][:3], b.choose(-1, -2) if how == "old" else 1]}
    elif how == "all":
        more["subscribed_topic_names"] = [name(topic.alias) for topic in group.topics]
    elif how == "subscribe" and len(group.members) == 1 and len(group.topics) == 1:
        group.topics.append(own_topic(b, leader=group.topics[0].leader))
        subscribe(b, group, member)
        return
    elif how == "unsubscribe":
        more["subscribed_topic_names"] = b.choose([], [""], [name("absent")], ["__consumer_offsets"])
        label = b.ask(
            "ShareGroupHeartbeat", heartbeat_fields(group, member, **more), connection=member.connection
        )
        member.epoch = ref(label, "member_epoch", otherwise=member.epoch)
        subscribe(b, group, member)
        return
    elif how == "leave":
        leave(b, group, member)
        return
    elif how == "odd":
        more = b.choose(
            {"group_id": b.choose("", name("gabsent"), name("c0"), name("g0"), name("m0"))},
            {"member_id": b.choose("", name("nobody"), {"$text": ["x", 37]})},
            {"member_epoch": b.choose(-2, -5, 99)},
            {"subscribed_topic_names": None, "member_epoch": 0, "member_id": name("nobody")},
            {"rack_id": ""},
            {"group_id": name("gabsent"), "member_epoch": -1},
            {"member_id": name("nobody"), "member_epoch": -1},
        )
    b.ask("ShareGroupHeartbeat", heartbeat_fields(group, member, **more), connection=member.connection)


def subscribe(b: Builder, group: Shared, member: Member) -> None:
    """A member says what it reads, until it is assigned that."""
    living = [topic for topic in group.topics if not topic.deleted]
    fields = heartbeat_fields(
        group, member, member_epoch=0, subscribed_topic_names=[name(topic.alias) for topic in group.topics]
    )
    until = {"path": ["assignment", "topic_partitions"], "count": len(living)}
    label = b.ask("ShareGroupHeartbeat", fields, connection=member.connection, until=until)
    member.epoch = ref(label, "member_epoch", otherwise=member.epoch)


def leave(b: Builder, group: Shared, member: Member) -> None:
    fields = heartbeat_fields(group, member, member_epoch=-1)
    group.again = True
    if member.session and b.chance(0.5):
        close(b, group, member)
    b.ask("ShareGroupHeartbeat", fields, connection=member.connection)
    disconnect(b, member)
    group.members.remove(member)


# Records


def write(b: Builder, group: Shared) -> None:
    """Batches into the partitions of a group's topics."""
    living = [topic for topic in group.topics if not topic.deleted]
    if not living:
        return
    topic = b.choose(*living)
    for _ in range(b.choose(1, 1, 2, 3)):
        partition = b.random.randrange(topic.partitions)
        rows = records(b, b.choose(1, 2, 3, 5, 8))
        topic.ends[partition] = topic.ends.get(partition, 0) + len(rows)
        produce(b, [(topic, partition, [{"records": rows}])])


def write_more(b: Builder) -> None:
    write(b, a_group(b))


def transactions(b: Builder) -> None:
    """A transaction in the topic that a group reads, and what is read of it."""
    group = a_group(b)
    member = a_member(b, group)
    if b.chance(0.5):
        set_group(b, group, {"share.isolation.level": b.choose("read_committed", "read_uncommitted")})
    if member.topic.deleted:
        return
    group.again = True
    fetch_some(b, group, member)
    producer = init(b)
    partition = b.choose(*(member.partitions or [0]))
    for sequence in range(b.choose(1, 2)):
        one = {
            "records": records(b, 1),
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "base_sequence": sequence,
            "transactional": True,
        }
        options = {
            "version": b.version("Produce", 12),
            "transactional_id": name(producer.transactional_id or ""),
        }
        produce(b, [(member.topic, partition, [one])], **options)
        if b.chance(0.3):
            fetch_some(b, group, member, max_wait=NOTHING_MS)
    fields = {
        "transactional_id": name(producer.transactional_id or ""),
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "committed": b.chance(0.5),
    }
    b.ask("EndTxn", fields, version=b.version("EndTxn", 5))
    wait_ended(b, producer.transactional_id or "")
    fetch_some(b, group, member, max_wait=NOTHING_MS)
    write(b, group)
    fetch_some(b, group, member)


def share_fetch_fields(b: Builder, group: Shared, member: Member, **more: Json) -> dict[str, Json]:
    return {
        "group_id": name(group.alias),
        "member_id": member.id,
        "share_session_epoch": member.session,
        "max_wait": WAIT_MS,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        **(_EVERYTHING if group.again or b.chance(0.5) else _some(b)),
        "is_renew_ack": False,
        "topics": [],
        "forgotten_topics_data": [],
        **more,
    }


def _some(b: Builder) -> dict[str, Json]:
    """How much of records that nobody had yet."""
    return {
        "max_records": b.choose(500, 10, 3, 2, 1),
        "batch_size": b.choose(500, 500, 10, 3, 1),
        "share_acquire_mode": b.choose(0, 0, 0, 1),
    }


def where(b: Builder, member: Member) -> dict[str, Json]:
    """Who is asked, and on which connection."""
    if not b.several:
        return {"connection": member.connection}
    return {"connection": member.connection, "broker": member.topic.leader}


def topic_row(topic: Topic, parts: dict[int, Json]) -> Json:
    rows = [
        {"partition_index": number, "acknowledgement_batches": batches} for number, batches in parts.items()
    ]
    return {"topic_id": topic.id, "partitions": rows}


def fetch_some(b: Builder, group: Shared, member: Member | None = None, **more: Json) -> list[str]:
    """The next fetch of a member's session, which begins with it if there is none."""
    member = member or a_member(b, group)
    topic = member.topic
    fields = share_fetch_fields(b, group, member, **more)
    if member.session == 0:
        member.partitions = _to_fetch(b, group, topic)
        fields["topics"] = [topic_row(topic, {number: [] for number in member.partitions})]
        fields["max_wait"] = FIRST_WAIT_MS
    fresh = not {(topic.alias, number) for number in member.partitions} <= group.begun
    if not any(topic.ends.get(number) for number in member.partitions):
        fields["max_wait"] = NOTHING_MS * (8 if fresh else 1)
    elif group.again and not fresh:
        fields["max_wait"] = 3 * NOTHING_MS
    group.begun.update((topic.alias, number) for number in member.partitions)
    fields |= more
    # How many come at once when some come again is each system's own matter: until nothing is left.
    times = AGAIN if group.again and fields["max_records"] == _EVERYTHING["max_records"] else 1
    together = b.new("together") if times > 1 else ""
    labels = []
    for _ in range(times):
        fields["share_session_epoch"] = member.session
        labels.append(b.ask("ShareFetch", fields, together=together, **where(b, member)))
        member.session += 1
        fields = {**fields, "max_wait": NOTHING_MS, "topics": []}
    member.held += [Held(labels, number) for number in member.partitions]
    return labels


def _to_fetch(b: Builder, group: Shared, topic: Topic) -> list[int]:
    """One partition, or all if somebody has fetched from them: Kafka answers with those that are ready."""
    numbers = list(range(topic.partitions))
    ready = all((topic.alias, number) in group.begun for number in numbers)
    return numbers if ready and b.chance(0.7) else [b.choose(*numbers)]


def fetch(b: Builder) -> None:
    group = a_group(b)
    if b.chance(0.3):
        write(b, group)
    fetch_some(b, group)
    if b.chance(0.6):
        settle_some(b, group)


def said(b: Builder, group: Shared, held: Held, kind: int | None = None) -> Json:
    """What is said of records."""
    group.again = True
    if kind is None:
        kind = b.choose(ACCEPT, ACCEPT, ACCEPT, RELEASE, RELEASE, REJECT, GAP)
    return held.said(kind, b.choose("all", "all", "all", "first", "rest"))


def acknowledge(b: Builder, group: Shared, member: Member, parts: dict[int, Json], **more: Json) -> str:
    """ShareAcknowledge in a member's session."""
    fields = {
        "group_id": name(group.alias),
        "member_id": member.id,
        "share_session_epoch": member.session,
        "is_renew_ack": False,
        "topics": [topic_row(member.topic, parts)],
        **more,
    }
    label = b.ask("ShareAcknowledge", fields, **where(b, member))
    member.session += 1
    return label


def settle_some(b: Builder, group: Shared, member: Member | None = None) -> None:
    """A member says what became of what it holds: by itself, or with the next fetch."""
    member = member or b.choose(*group.members)
    if not member.held:
        return
    if b.chance(0.7):
        held = member.held.pop(b.random.randrange(len(member.held)))
    else:
        held = b.choose(*member.held)
    if b.chance(0.7) or member.session == 0:
        acknowledge(b, group, member, {held.partition: said(b, group, held)})
        return
    # what is released with a fetch may be in its answer, or not
    batches = said(b, group, held, b.choose(ACCEPT, ACCEPT, REJECT, GAP))
    row = topic_row(member.topic, {held.partition: batches})
    fetch_some(b, group, member, topics=[row], max_wait=NOTHING_MS)


def settle(b: Builder) -> None:
    group = a_group(b)
    member = a_member(b, group)
    if not member.held:
        fetch_some(b, group, member)
    settle_some(b, group, member)


def close(b: Builder, group: Shared, member: Member) -> None:
    """The end of a member's session, maybe with a last word."""
    parts: dict[int, Json] = {}
    if member.held and b.chance(0.6):
        held = member.held[-1]
        parts = {held.partition: said(b, group, held)}
    topics = [topic_row(member.topic, parts)] if parts else []
    if b.chance(0.5):
        fields = share_fetch_fields(b, group, member, share_session_epoch=-1, topics=topics, max_wait=0)
        b.ask("ShareFetch", fields, **where(b, member))
    else:
        acknowledge(b, group, member, {}, share_session_epoch=-1, topics=topics)
    member.session = 0
    member.held.clear()


def disconnect(b: Builder, member: Member) -> None:
    """A member's connection goes, and its session with it."""
    b.ask(CLOSE, {}, version=0, connection=member.connection, **({"broker": 1} if b.several else {}))
    member.session = 0
    member.held.clear()


def leave_records(b: Builder) -> None:
    """A session ends, or its connection; somebody else gets what was left of it."""
    group = a_group(b)
    group.again = True
    member = a_member(b, group)
    if member.session == 0:
        fetch_some(b, group, member)
    if b.chance(0.6):
        close(b, group, member)
    else:
        disconnect(b, member)
    fetch_some(b, group)


def read_rest(b: Builder, group: Shared) -> None:
    """Everything that is left for a group, to one who has not been a member before."""
    group.again = True
    for topic in group.topics:
        reader = Member("reader", name(f"reader{topic.alias}"), 0, topic)
        for number in range(topic.partitions):
            reader.session = 0
            fields = {"topics": [topic_row(topic, {number: []})], "max_wait": 4 * NOTHING_MS}
            fetch_some(b, group, reader, **fields)


def poison(b: Builder) -> None:
    """The records of one batch fail until they are given up."""
    if len(shares(b)) >= GROUPS_MAX:
        return
    group = Shared(b.new("s"), [own_topic(b)], again=True)
    b.groups[group.alias] = group
    limit = b.choose("2", "3", "5")
    set_group(b, group, {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": limit})
    rows = records(b, b.choose(1, 2, 5, 8))
    group.topics[0].ends[0] = len(rows)
    produce(b, [(group.topics[0], 0, [{"records": rows}])])
    member = join(b, group)
    for _ in range(b.choose(3, 6)):
        fetch_some(b, group, member)
        held = member.held.pop()
        acknowledge(b, group, member, {0: held.said(b.choose(RELEASE, RELEASE, RELEASE, ACCEPT))})


def passed_on(b: Builder) -> None:
    """Somebody waits for what another one has, and gets it when that one says so or its session ends."""
    group = a_group(b)
    alike = len(group.topics) == 1 and group.topics[0].partitions == 1
    if not alike or len(group.members) >= MEMBERS_MAX:
        return
    first = a_member(b, group)
    other = join(b, group)
    group.again = True
    write(b, group)
    fetch_some(b, group, first)
    fetch_some(b, group, other, max_wait=NOTHING_MS)
    fields = share_fetch_fields(b, group, other, max_wait=WAIT_MS, **_EVERYTHING)
    together = b.new("together")
    labels = [b.ask("ShareFetch", fields, later=True, together=together, **where(b, other))]
    other.session += 1
    how = b.choose("release", "close", "disconnect")
    if how == "release":
        acknowledge(b, group, first, {0: first.held.pop().said(RELEASE)})
    elif how == "close":
        close(b, group, first)
    else:
        disconnect(b, first)
    for _ in range(AGAIN):
        fields = share_fetch_fields(b, group, other, max_wait=NOTHING_MS, **_EVERYTHING)
        labels.append(b.ask("ShareFetch", fields, together=together, **where(b, other)))
        other.session += 1
    acknowledge(b, group, other, {0: Held(labels, 0).said(ACCEPT)})


def pause(b: Builder, topic: Topic) -> None:
    """A fetch that waits for more than there is, until the locks of all records are over."""
    part = {"partition": 0, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    fields = {
        "replica_id": -1,
        "max_wait": 1_500,
        "min_bytes": 1 << 30,
        "max_bytes": 1 << 30,
        "isolation_level": 0,
        "topics": [{"topic": name(topic.alias), "partitions": [part]}],
    }
    b.ask("Fetch", fields, version=4)


def expire(b: Builder) -> None:
    """The lock of a record ends: others get it, and what its member says then comes too late."""
    group = a_group(b)
    member = a_member(b, group)
    set_group(b, group, {"share.record.lock.duration.ms": "1000"})
    write(b, group)
    group.again = True
    labels = fetch_some(b, group, member)
    set_group(b, group, {"share.record.lock.duration.ms": None})
    pause(b, member.topic)
    fetch_some(b, group, member if b.chance(0.5) else None)
    acknowledge(b, group, member, {0: Held(labels, 0).said(ACCEPT)})


def renew(b: Builder) -> None:
    """A lock is renewed, by itself or with a fetch; or not announced, or not allowed."""
    group = a_group(b)
    member = a_member(b, group)
    if b.chance(0.2):
        set_group(b, group, {"share.renew.acknowledge.enable": b.choose("false", "true")})
    if not member.held:
        write(b, group)
        fetch_some(b, group, member)
    held = member.held[-1] if member.held else Held(["s0"], 0)
    parts = {held.partition: said(b, group, held, b.choose(RENEW, RENEW, RENEW, ACCEPT))}
    announced = b.chance(0.85)
    if b.chance(0.5):
        version = b.version("ShareAcknowledge", 2 if announced else 0)
        fields = {
            "group_id": name(group.alias),
            "member_id": member.id,
            "share_session_epoch": member.session,
            "is_renew_ack": announced,
            "topics": [topic_row(member.topic, parts)],
        }
        b.ask("ShareAcknowledge", fields, version=version, **where(b, member))
    else:
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        if b.chance(0.3):
            limits |= b.choose({"max_wait": 10}, {"min_bytes": 1}, {"max_bytes": 1}, {"max_records": 1})
        fields = share_fetch_fields(
            b, group, member, is_renew_ack=announced, topics=[topic_row(member.topic, parts)], **limits
        )
        b.ask(
            "ShareFetch", fields, version=b.version("ShareFetch", 2 if announced else 0), **where(b, member)
        )
    member.session += 1


def fetch_oddly(b: Builder) -> None:
    """Sessions with wrong epochs, of nobody, of unknown topics and partitions, with limits beyond limits."""
    group = a_group(b)
    member = a_member(b, group)
    if member.session == 0:
        fetch_some(b, group, member)
    kind = b.choose(
        "epoch", "epoch", "member", "group", "topic", "partition", "forget", "limits", "begin", "mode"
    )
    more: dict[str, Json] = {"max_wait": NOTHING_MS}
    goes_on = False
    if kind == "epoch":
        more["share_session_epoch"] = b.choose(member.session + 1, member.session - 1, 77, -2)
    elif kind == "member":
        more |= {
            "member_id": b.choose("", None, name("nobody"), {"$text": ["y", 40]}),
            "share_session_epoch": b.choose(0, 1, -1),
        }
    elif kind == "group":
        more |= {"group_id": b.choose("", None, name("gabsent")), "share_session_epoch": b.choose(0, 1, -1)}
    elif kind == "topic":
        topic = Topic("absent", 1, "s0")
        more |= {"topics": [topic_row(topic, {0: []})], "share_session_epoch": 0}
    elif kind == "partition":
        more["topics"] = [topic_row(member.topic, {b.choose(9, -1): []})]
        goes_on = True
    elif kind == "forget":
        ids = b.choose([member.topic.id], [member.topic.id], [UNKNOWN_ID])
        more["forgotten_topics_data"] = [
            {"topic_id": one, "partitions": b.choose([0], [0], [9])} for one in ids
        ]
        goes_on = True
    elif kind == "limits":
        more |= b.choose(
            {"max_records": 0}, {"max_records": -1}, {"max_bytes": 0}, {"max_bytes": 1},
            {"min_bytes": 1 << 20}, {"batch_size": 0}, {"batch_size": -1}, {"max_wait": 0}, {"min_bytes": 0},
        )  # fmt: skip
        goes_on = True
    elif kind == "mode":
        # Kafka looks at it when the session has begun: somebody else's
        more |= {"share_acquire_mode": b.choose(2, -1), "share_session_epoch": 0}
        more |= {"member_id": name(b.new("odd")), "topics": [topic_row(member.topic, {0: []})]}
    else:
        batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]}
        more |= {"share_session_epoch": 0, "topics": [topic_row(member.topic, {0: [batch]})]}
    fields = share_fetch_fields(b, group, member, **more)
    b.ask(
        "ShareFetch", fields, version=b.version("ShareFetch", 2 if kind == "mode" else 0), **where(b, member)
    )
    member.session += goes_on
    if kind in ("topic", "partition", "forget", "begin", "epoch"):
        # a session of which it is not known what is in it
        close(b, group, member)


def acknowledge_oddly(b: Builder) -> None:
    """What cannot be said of records, and who cannot say it."""
    group = a_group(b)
    member = a_member(b, group)
    if member.session == 0 and b.chance(0.8):
        fetch_some(b, group, member)
    kind = b.choose(
        "epoch", "member", "group", "topic", "partition", "types", "types", "order", "beyond", "other"
    )
    more: dict[str, Json] = {}
    mine = member.held[-1] if member.held else Held(["s0"], 0)
    parts = {mine.partition: said(b, group, mine)}
    was = member.session
    if kind == "epoch":
        more["share_session_epoch"] = b.choose(0, was + 1, was - 1, 77, -2)
        was -= 1
    elif kind == "member":
        more["member_id"] = b.choose("", None, name("nobody"))
        was -= 1
    elif kind == "group":
        more["group_id"] = b.choose("", None, name("gabsent"))
        was -= 1
    elif kind == "topic":
        more["topics"] = [topic_row(Topic("absent", 1, "s0"), parts)]
    elif kind == "partition":
        parts = {b.choose(9, -1): said(b, group, mine)}
    elif kind == "types":
        types = b.choose([], [5], [-1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [RENEW], [127])
        batch = {"first_offset": mine.first(), "last_offset": mine.first(1), "acknowledge_types": types}
        parts = {mine.partition: [batch]}
    elif kind == "order":
        rows = b.choose([(0, 2), (1, 3)], [(3, 4), (0, 1)], [(2, 1)])
        parts = {0: [{"first_offset": x, "last_offset": y, "acknowledge_types": [ACCEPT]} for x, y in rows]}
    elif kind == "beyond":
        parts = {0: [{"first_offset": 0, "last_offset": 10_000, "acknowledge_types": [ACCEPT]}]}
    else:
        others = [one for one in group.members if one is not member and one.held]
        held = b.choose(*others).held[-1] if others else Held(["s0"], 0)
        parts = {held.partition: said(b, group, held)}
    acknowledge(b, group, member, parts, **more)
    member.session = was + 1 if member.partitions and was >= 0 else 0


def each_by_itself(b: Builder) -> None:
    """A word for each of several records that are known by their numbers."""
    group = a_group(b)
    member = a_member(b, group)
    held_before = len(member.held)
    group.again = True
    write(b, group)
    fetch_some(b, group, member)
    if len(member.held) == held_before:
        return
    held = member.held[held_before]
    count = b.choose(2, 3)
    types = [b.choose(GAP, ACCEPT, RELEASE, REJECT) for _ in range(count)]
    batch = {"first_offset": held.first(), "last_offset": held.first(count - 1), "acknowledge_types": types}
    last = [
        {"first_offset": held.first(count), "last_offset": held.first(count), "acknowledge_types": [ACCEPT]}
    ]
    acknowledge(b, group, member, {held.partition: [batch, *last[: b.choose(0, 1)]]})
    fetch_some(b, group)


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.0, shared),
    (0.8, second),
    (1.5, beat),
    (0.8, write_more),
    (2.0, fetch),
    (2.0, settle),
    (1.0, leave_records),
    (0.8, poison),
    (0.8, passed_on),
    (0.4, expire),
    (1.0, renew),
    (1.0, fetch_oddly),
    (1.0, acknowledge_oddly),
    (1.0, each_by_itself),
    (0.6, transactions),
]
