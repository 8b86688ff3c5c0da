"""Activities of share consumers: what becomes of records that are accepted, released and rejected."""

from typing import Any

from tests.oracle.clients_generator import Maker

#: what is said of a record at its first delivery, at the next one …
_WORDS = (
    ["ACCEPT"],
    ["REJECT"],
    ["RELEASE", "ACCEPT"],
    ["RELEASE", "REJECT"],
    ["RELEASE", "RELEASE", "ACCEPT"],
)
_LIMIT_DEFAULT = 5


def _group(maker: Maker, **settings: str) -> str:
    """The name of a share group with settings of its own."""
    group = maker.new("sg")
    rows = {"share.auto.offset.reset": "earliest", **settings}
    changes = [["GROUP", group, "SET", key, value] for key, value in rows.items()]
    maker.add("alter_configs", changes=changes, settle=True)
    return group


def _member(maker: Maker, group: str, topics: list[str], **settings: str) -> str:
    name = maker.new("q", "")
    maker.add("new_share_consumer", consumer=name, settings={"group.id": group, **settings})
    maker.add("share_subscribe", consumer=name, topics=topics)
    return name


def _written(maker: Maker, topic: str, count_max: int = 8) -> dict[int, int]:
    """Write records; how many to which partition."""
    rows = []
    counts: dict[int, int] = {}
    for _ in range(maker.random.randint(1, count_max)):
        partition = maker.random.randrange(maker.topics[topic])
        rows.append(maker.record(topic, partition=partition))
        counts[partition] = counts.get(partition, 0) + 1
    producer = maker.producer()
    maker.add("send", producer=producer, records=rows)
    maker.add("close_producer", producer=producer)
    return counts


def _poll(maker: Maker, members: list[str], deliveries: int, say: list[Any] | None = None) -> None:
    maker.add("share_poll", consumers=members, deliveries=deliveries, say=say or [])


def _looked_at(maker: Maker, group: str) -> None:
    maker.add("list_share_group_offsets", group=group)
    maker.add("describe_share_groups", groups=[group])


def _gone(maker: Maker, group: str, *members: str) -> None:
    for member in members:
        maker.add("close_share_consumer", consumer=member)
    maker.add("describe_share_groups", groups=[group])
    if maker.chance(0.5):
        maker.add("delete_share_groups", groups=[group, "~absent"])
        maker.add("describe_share_groups", groups=[group])


def settled(maker: Maker) -> None:
    """A member says of each record what becomes of it, by its offset and by how often it came."""
    topic = maker.topic()
    settings: dict[str, str] = {}
    limit = _LIMIT_DEFAULT
    if maker.chance(0.4):
        limit = maker.random.randint(2, 4)
        settings["share.delivery.count.limit"] = str(limit)
    group = _group(maker, **settings)
    counts = _written(maker, topic)
    say = [maker.random.choice(_WORDS) for _ in range(maker.random.randint(1, 3))]
    if maker.chance(0.3):
        # as often as it may be delivered
        say[0] = ["RELEASE"]
    often = [limit if words == ["RELEASE"] else min(limit, len(words)) for words in say]
    deliveries = sum(often[offset % len(say)] for count in counts.values() for offset in range(count))
    member = _member(maker, group, [topic], **{"share.acknowledgement.mode": "explicit"})
    _poll(maker, [member], deliveries, say)
    _looked_at(maker, group)
    _gone(maker, group, member)


def taken(maker: Maker) -> None:
    """Members that say nothing have accepted what they were given; a later one gets what comes later."""
    topic = maker.topic()
    group = _group(maker)
    written = sum(_written(maker, topic).values())
    members = [_member(maker, group, [topic]) for _ in range(maker.random.randint(1, 2))]
    _poll(maker, members, written)
    maker.add("close_share_consumer", consumer=members.pop())
    written = sum(_written(maker, topic).values())
    if not members:
        members.append(_member(maker, group, [topic]))
    _poll(maker, members, written)
    _looked_at(maker, group)
    _gone(maker, group, *members)


def committed_only(maker: Maker) -> None:
    """Records of a transaction, in a group that reads what is committed, or everything."""
    topic = maker.topic(partitions=1)
    committed = maker.chance(0.6)
    group = _group(maker, **({"share.isolation.level": "read_committed"} if committed else {}))
    transactional_id = maker.new("x")
    maker.transactional_ids.append(transactional_id)
    producer = maker.producer(transactional_id=transactional_id)
    maker.add("init_transactions", producer=producer)
    wanted = 0
    for ending in maker.random.choices(("commit", "abort"), k=maker.random.randint(1, 3)):
        maker.add("begin", producer=producer)
        count = maker.random.randint(1, 4)
        rows = [maker.record(topic, partition=0) for _ in range(count)]
        maker.add("send", producer=producer, records=rows, wait=True)
        maker.add(ending, producer=producer)
        wanted += count if ending == "commit" or not committed else 0
    maker.add("close_producer", producer=producer)
    member = _member(maker, group, [topic])
    _poll(maker, [member], wanted)
    _gone(maker, group, member)


def offsets(maker: Maker) -> None:
    """Where a group starts, changed before it has members and while it has, and forgotten."""
    topic = maker.topic(partitions=1)
    group = _group(maker)
    count = _written(maker, topic)[0]
    start = maker.random.randint(0, count)
    maker.add("alter_share_group_offsets", group=group, offsets=[[topic, 0, start]])
    _looked_at(maker, group)
    member = _member(maker, group, [topic])
    _poll(maker, [member], count - start)
    maker.add("alter_share_group_offsets", group=group, offsets=[[topic, 0, 0]])
    maker.add("delete_share_group_offsets", group=group, topics=[topic])
    maker.add("delete_share_groups", groups=[group])
    maker.add("close_share_consumer", consumer=member)
    maker.add("delete_share_group_offsets", group=group, topics=[topic, "~absent"])
    maker.add("list_share_group_offsets", group=group)
    if maker.chance(0.5):
        member = _member(maker, group, [topic])
        _poll(maker, [member], count)
        maker.add("close_share_consumer", consumer=member)


def refused(maker: Maker) -> None:
    """What cannot be: groups that are none, records that nobody was given, a user without rights."""
    topic = maker.topic(partitions=1)
    group = _group(maker)
    _written(maker, topic)
    maker.add("describe_share_groups", groups=["~absent", *maker.groups[:1]])
    maker.add("alter_share_group_offsets", group=group, offsets=[["~absent", 0, 0]])
    maker.add("delete_share_group_offsets", group="~absent", topics=[topic])
    member = _member(maker, group, [topic], **{"share.acknowledgement.mode": "explicit"})
    maker.add("share_acknowledge", consumer=member, topic=topic, partition=0, offset=0)
    maker.add("close_share_consumer", consumer=member)
    stranger = maker.new("q", "")
    maker.add("new_share_consumer", consumer=stranger, user="alice", settings={"group.id": group})
    maker.add("share_subscribe", consumer=stranger, topics=[topic])
    maker.add("share_poll", consumers=[stranger], deliveries=1, bound_ms=4000)
    maker.add("close_share_consumer", consumer=stranger)
