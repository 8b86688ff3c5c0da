"""Activities of consumers in groups, of the classic protocol and of the new one."""

from tests.oracle.clients_generator import Maker


def _protocol(maker: Maker) -> dict[str, str]:
    return maker.random.choice(({}, {}, {"group_protocol": "consumer"}))


def subscribed(maker: Maker) -> None:
    """One member reads, commits, goes, and another goes on."""
    topic = maker.some_topic()
    if maker.chance(0.7):
        maker.filled(topic)
    group, count = maker.group(), maker.topics[topic]
    settings = {"group_id": group, **_protocol(maker)}
    if maker.chance(0.7):
        settings["auto_offset_reset"] = "earliest"
    if maker.chance(0.4):
        settings["enable_auto_commit"] = "false"
    first = maker.consumer(**settings)
    maker.add("subscribe", consumer=first, topics=[topic])
    maker.poll(first, assigned=count)
    maker.filled(topic)
    maker.poll(first, assigned=count)
    if maker.chance(0.5):
        maker.add("commit_offsets", consumer=first)
    if maker.java:
        maker.add("group_metadata", consumer=first)
        maker.add("subscription", consumer=first)
    maker.add("describe_groups", groups=[group])
    maker.add("delete_groups", groups=[group])
    if maker.chance(0.4):
        maker.add("unsubscribe", consumer=first)
        maker.add("assignment", consumer=first)
        maker.add("describe_groups", groups=[group])
    maker.add("close_consumer", consumer=first)
    maker.add("describe_groups", groups=[group])
    if maker.chance(0.6):
        maker.filled(topic, 3)
        second = maker.consumer(**settings)
        maker.add("subscribe", consumer=second, topics=[topic])
        maker.poll(second, assigned=count)
        maker.add("close_consumer", consumer=second)
    if maker.chance(0.4):
        maker.add("delete_groups", groups=[group, "~absent"])


def two_members(maker: Maker) -> None:
    """Two share the partitions; one leaves, and the other has them all."""
    topic = maker.topic(partitions=3)
    group = maker.group()
    settings = {"group_id": group, "auto_offset_reset": "earliest", **_protocol(maker)}
    if "group_protocol" in settings:
        # who has which partitions follows from ids that clients make up: they are told alike
        settings["client_id"] = "one of two"
    members = [maker.consumer(**settings), maker.consumer(**settings)]
    for member in members:
        maker.add("subscribe", consumer=member, topics=[topic])
    maker.add("poll", consumers=members, assigned=3, bound_ms=15_000, shared=True)
    maker.filled(topic)
    maker.add("poll", consumers=members, assigned=3, bound_ms=15_000, shared=True)
    maker.add("describe_groups", groups=[group])
    maker.add("close_consumer", consumer=members[0])
    maker.poll(members[1], assigned=3, bound_ms=15_000)
    maker.filled(topic)
    maker.poll(members[1], assigned=3, bound_ms=15_000)
    maker.add("close_consumer", consumer=members[1])


def static_member(maker: Maker) -> None:
    """A member with an instance id comes back with the same partitions; another takes its place."""
    topic = maker.topic(partitions=2)
    group = maker.group()
    settings = {
        "group_id": group,
        "group_instance_id": "~instance",
        "auto_offset_reset": "earliest",
        **_protocol(maker),
    }
    first = maker.consumer(**settings)
    maker.add("subscribe", consumer=first, topics=[topic])
    maker.poll(first, assigned=2)
    maker.add("describe_groups", groups=[group])
    maker.add("close_consumer", consumer=first)
    maker.add("describe_groups", groups=[group])
    maker.filled(topic)
    second = maker.consumer(**settings)
    maker.add("subscribe", consumer=second, topics=[topic])
    maker.poll(second, assigned=2)
    maker.add("close_consumer", consumer=second)
    if maker.java:
        maker.add("remove_members", group=group, instances=["~instance"])
        maker.add("remove_members", group=group, instances=["~nobody"])
        maker.add("describe_groups", groups=[group])


def pattern(maker: Maker) -> None:
    """Topics by an expression, which a topic made later may match too."""
    stem = maker.new("m")
    names = [f"{stem}-a", f"{stem}-b"]
    rows = [{"name": name, "partitions": 1, "replicas": 1} for name in names]
    maker.add("create_topics", topics=rows, settle=True)
    if maker.brokers == 1:
        for name in names:
            maker.topics[name] = 1
    settings = {"group_id": maker.group(), "auto_offset_reset": "earliest", "enable_auto_commit": "false"}
    if maker.chance(0.5):
        reader = maker.consumer(**settings, group_protocol="consumer")
        maker.add("subscribe", consumer=reader, server_pattern=f"{stem}-.*")
    else:
        reader = maker.consumer(**settings)
        maker.add("subscribe", consumer=reader, pattern=f"{stem}-.*")
    maker.poll(reader, assigned=2)
    maker.add("close_consumer", consumer=reader)


def no_such_topic(maker: Maker) -> None:
    reader = maker.consumer(
        group_id=maker.group(),
        allow_auto_create_topics="false",
        enable_auto_commit="false",
        **_protocol(maker),
    )
    maker.add("subscribe", consumer=reader, topics=["~absent"])
    maker.poll(reader, assigned=1, bound_ms=700)
    maker.add("subscribe", consumer=reader, topics=["~bad name!"])
    maker.poll(reader, assigned=1, bound_ms=700)
    maker.add("close_consumer", consumer=reader)


def commits(maker: Maker) -> None:
    """Commits of a consumer without members, with metadata, of partitions that are not there."""
    topic = maker.some_topic()
    maker.filled(topic)
    group = maker.group()
    reader = maker.consumer(group_id=group, enable_auto_commit="false", auto_offset_reset="earliest")
    partitions = maker.partitions_of(topic)
    maker.add("committed", consumer=reader, partitions=partitions)
    maker.add("assign", consumer=reader, partitions=partitions)
    maker.poll(reader, assigned=len(partitions))
    maker.add("commit_offsets", consumer=reader)
    maker.add(
        "commit_offsets", consumer=reader, offsets=[[topic, 0, maker.random.randint(0, 9), "my metadata"]]
    )
    wrong = (
        [["~absent", 0, 1]],
        [[topic, 99, 1]],
        [[topic, 0, 1, "m" * 5000]],
        [[topic, 0, 1_000_000]],
    )
    if maker.java:
        # librdkafka waits for partitions that may come
        maker.add("commit_offsets", consumer=reader, offsets=maker.random.choice(wrong[2:]))
    maker.add("committed", consumer=reader, partitions=partitions)
    maker.add("close_consumer", consumer=reader)
    maker.add("list_group_offsets", groups=[group], partitions=[*partitions, [topic, 99]])


def no_offset(maker: Maker) -> None:
    topic = maker.topic(partitions=1)
    maker.filled(topic)
    reader = maker.consumer(
        group_id=maker.group(), auto_offset_reset="none" if maker.java else "error", **_protocol(maker)
    )
    maker.add("subscribe", consumer=reader, topics=[topic])
    maker.poll(reader, assigned=1, bound_ms=5000)
    maker.add("close_consumer", consumer=reader)


def offsets_of_groups(maker: Maker) -> None:
    """Admin clients change the offsets of groups with and without members."""
    topic = maker.topic(partitions=2)
    maker.filled(topic)
    group = maker.group()
    maker.add("alter_group_offsets", group=group, offsets=[[topic, 0, 1], [topic, 1, 0]])
    maker.add("list_group_offsets", groups=[group, "~absent"])
    maker.add("alter_group_offsets", group=group, offsets=[["~absent", 0, 1]])
    maker.add("describe_groups", groups=[group, "~absent"])
    reader = maker.consumer(
        group_id=group, auto_offset_reset="earliest", enable_auto_commit="false", **_protocol(maker)
    )
    maker.add("subscribe", consumer=reader, topics=[topic])
    maker.poll(reader, assigned=2)
    maker.add("alter_group_offsets", group=group, offsets=[[topic, 0, 0]])
    maker.add("delete_groups", groups=[group])
    if maker.java:
        maker.add("delete_group_offsets", group=group, partitions=[[topic, 0]])
        maker.add("describe_classic_groups", groups=[group, "~absent"])
    maker.add("close_consumer", consumer=reader)
    if maker.java:
        maker.add("delete_group_offsets", group=group, partitions=[[topic, 0], ["~absent", 0]])
        maker.add("delete_group_offsets", group="~absent", partitions=[[topic, 0]])
    maker.add("list_group_offsets", groups=[group], stable=True)
    maker.add("list_groups")
    maker.add("delete_groups", groups=[group])
    maker.add("list_group_offsets", groups=[group])


def other_protocol(maker: Maker) -> None:
    """A group changes from one protocol to the other when it is empty."""
    topic = maker.topic(partitions=2)
    maker.filled(topic)
    group = maker.group()
    protocols = [{"group_protocol": "classic"}, {"group_protocol": "consumer"}]
    maker.random.shuffle(protocols)
    for protocol in protocols:
        reader = maker.consumer(group_id=group, auto_offset_reset="earliest", **protocol)
        maker.add("subscribe", consumer=reader, topics=[topic])
        maker.poll(reader, assigned=2)
        maker.add("describe_groups", groups=[group])
        maker.add("close_consumer", consumer=reader)
        maker.filled(topic, 2)
