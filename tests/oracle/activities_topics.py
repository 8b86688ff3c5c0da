"""Topics: created, grown, deleted, described, and their settings."""

from tests.oracle.generator import Activity, Builder
from tests.oracle.session import Json, name

_SETTINGS = (
    ("retention.ms", ("-1", "1", "86400000", "-2", "x", "")),
    ("retention.bytes", ("-1", "0", "1048576", "9223372036854775807", "9223372036854775808")),
    (
        "cleanup.policy",
        ("delete", "compact", "compact,delete", "delete,compact", "none", "delete,delete"),
    ),
    ("compression.type", ("producer", "gzip", "zstd", "uncompressed", "lzma")),
    # not less than the marker of a transaction, which Kafka could not write then
    ("max.message.bytes", ("100", "200", "1048588", "-1", "2147483647")),
    ("message.timestamp.type", ("CreateTime", "LogAppendTime", "Never")),
    ("min.insync.replicas", ("1", "2", "0", "-1")),
    ("segment.bytes", ("1048576", "1073741824", "2147483648")),
    ("segment.ms", ("1", "604800000", "0")),
    ("unclean.leader.election.enable", ("true", "false", "yes")),
    ("delete.retention.ms", ("0", "100", "-1")),
    ("min.cleanable.dirty.ratio", ("0", "0.5", "1", "1.5")),
    ("max.compaction.lag.ms", ("1", "0", "9223372036854775807")),
    ("message.timestamp.after.max.ms", ("0", "3600000", "-1")),
    # with 0 Kafka refuses its own markers, a millisecond later: a transaction never ends
    ("message.timestamp.before.max.ms", ("3600000", "9223372036854775807")),
    ("preallocate", ("true", "false")),
    ("flush.messages", ("1", "0", "9223372036854775807")),
    ("index.interval.bytes", ("0", "4096")),
    ("compression.gzip.level", ("-1", "1", "9", "0", "10")),
    ("compression.zstd.level", ("3", "22", "23")),
    ("compression.lz4.level", ("1", "17", "18")),
    ("no.such.setting", ("1",)),
    ("", ("1",)),
    ("leader.replication.throttled.replicas", ("*", "0:1", "none", "")),
)


def _setting(b: Builder) -> tuple[str, str]:
    key, values = b.choose(*_SETTINGS)
    return key, b.choose(*values)


def create(b: Builder) -> None:
    """A topic with some settings that are right."""
    configs = {
        key: value
        for key, value in (
            ("cleanup.policy", b.choose("delete", "compact")),
            ("compression.type", b.choose("producer", "gzip", "lz4", "uncompressed")),
            ("message.timestamp.type", b.choose("CreateTime", "LogAppendTime")),
            ("max.message.bytes", b.choose("1048588", "300")),
        )
        if b.chance(0.4)
    }
    if len([topic for topic in b.topics if not topic.deleted]) < 4:
        b.create_topic(configs=configs)


def create_oddly(b: Builder) -> None:
    """Creations of which most are refused; those that are not are only validated."""
    rows = []
    for _ in range(b.choose(1, 1, 2, 3)):
        configs = [
            dict(zip(("name", "value"), _setting(b), strict=True)) for _ in range(b.choose(0, 0, 1, 2))
        ]
        assignments = b.choose(
            [], [], [],
            [{"partition_index": 0, "broker_ids": [1]}],
            [{"partition_index": 1, "broker_ids": [1]}],
            [{"partition_index": 0, "broker_ids": [1, 1]}],
            [{"partition_index": 0, "broker_ids": [9]}],
            [{"partition_index": 0, "broker_ids": []}],
        )  # fmt: skip
        rows.append(
            {
                "name": b.choose(name("odd"), name("odd2"), b.some_topic_name(), "__consumer_offsets"),
                "num_partitions": -1 if assignments and b.chance(0.8) else b.choose(1, 2, -1, 0, -2, 3),
                "replication_factor": -1 if assignments and b.chance(0.8) else b.choose(1, 1, -1, 0, 2, -2),
                "assignments": assignments,
                "configs": configs,
            }
        )
    b.ask(
        "CreateTopics",
        {"topics": rows, "timeout": b.choose(10_000, 10_000, 1_000), "validate_only": True},
        connection=b.connection(),
    )


def delete(b: Builder) -> None:
    """A topic goes, by name or id; or one that is not there."""
    topic = b.topic()
    really = b.chance(0.6) and len(b.topics) > 1
    by_id = b.chance(0.5)
    wanted: Json = name(topic.alias) if really else name("absent")
    version = b.version("DeleteTopics")
    row: dict[str, Json] = {"name": wanted, "topic_id": None}
    if by_id:
        row = {
            "name": None,
            "topic_id": topic.id if really else {"$uuid": "0a0b0c0d-0000-4000-8000-000000000001"},
        }
        version = b.version("DeleteTopics", 6)
    b.ask("DeleteTopics", {"topics": [row], "topic_names": [wanted], "timeout": 10_000}, version=version)
    if really:
        topic.deleted = True
        asked = {"topics": [{"name": name(topic.alias)}], "allow_auto_topic_creation": False}
        gone = {"path": ["topics", 0, "error_code"], "in": [3]}
        where = {"broker": 1} if b.several else {}
        b.ask("Metadata", asked, version=b.version("Metadata", 4), until=gone, **where)
        b.everywhere("Metadata", asked, version=12, until=gone)


def grow(b: Builder) -> None:
    """More partitions, or as many, or fewer."""
    topic = b.topic()
    count = topic.partitions + b.choose(1, 1, 0, -1, -5)
    assignments = b.choose(
        None, None, None, [{"broker_ids": [1]}], [{"broker_ids": [5]}], [{"broker_ids": []}], []
    )
    validate_only = b.chance(0.3)
    if b.several and not validate_only:
        assignments = [{"broker_ids": topic.replicas}]
    elif assignments is not None and count > topic.partitions:
        validate_only = True
    b.ask(
        "CreatePartitions",
        {
            "topics": [{"name": name(topic.alias), "count": count, "assignments": assignments}],
            "timeout": 10_000,
            "validate_only": validate_only,
        },
    )
    if count > topic.partitions and not validate_only:
        topic.partitions = count
        b.wait_topic(topic.alias, count)
        b.wait_served(topic)


def metadata(b: Builder) -> None:
    """What the cluster says about topics."""
    topic = b.topic()
    version = b.version("Metadata")
    by_id = version >= 12 and b.chance(0.3)
    if by_id:
        rows: Json = [
            {"name": None, "topic_id": b.choose(topic.id, {"$uuid": "0a0b0c0d-0000-4000-8000-000000000002"})}
        ]
    else:
        rows = b.choose(
            [{"name": b.some_topic_name()}], [{"name": name(topic.alias)}, {"name": name("absent")}], None, []
        )
    # to version 3 topics are made by asking, and before 1 an empty list means all
    fields = {
        "topics": [{"name": name(topic.alias)}] if version < 4 else rows,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": b.chance(0.5),
        "include_cluster_authorized_operations": b.chance(0.5),
    }
    b.ask("Metadata", fields, version=version, connection=b.connection())


def topic_partitions(b: Builder) -> None:
    """Pages of partitions."""
    topic = b.topic()
    cursor = b.choose(None, None, {"topic_name": name(topic.alias), "partition_index": b.choose(0, 1, -1, 9)})
    fields = {
        "topics": [{"name": name("absent")}, {"name": name(topic.alias)}],
        "response_partition_limit": b.choose(1, 2, 100, 0),
        "cursor": cursor,
    }
    b.ask("DescribeTopicPartitions", fields)


def configs(b: Builder) -> None:
    """A topic's settings changed and shown."""
    topic = b.topic()
    kind = b.choose(2, 2, 2, 2, 32, 16)
    target = name(topic.alias) if kind == 2 and b.chance(0.9) else name("absent")
    if kind == 2:
        rows = [_setting(b) for _ in range(b.choose(1, 1, 2))]
        # a smaller limit or another policy of deletion would make later steps depend on time
        rows = [
            (key, value)
            for key, value in rows
            if key not in ("retention.ms", "segment.ms", "retention.bytes")
        ]
    elif kind == 32:
        rows = [
            (
                b.choose("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "nothing"),
                b.choose("7000", "1", "x"),
            )
        ]
    else:
        rows = [
            (
                b.choose("interval.ms", "match", "metrics", "nothing"),
                b.choose("5000", "client_id=.*", "x", "-1"),
            )
        ]
    if not rows:
        rows = [("flush.ms", b.choose("1000", "-1"))]
    changes: list[Json] = []
    for key, value in rows:
        operation = b.choose(0, 0, 0, 1, 2, 3)
        changes.append(
            {
                "name": key,
                "value": None if operation == 1 and b.chance(0.5) else value,
                "config_operation": operation,
            }
        )
    resource = {"resource_type": kind, "resource_name": target, "configs": changes}
    if b.chance(0.75):
        b.ask("IncrementalAlterConfigs", {"resources": [resource], "validate_only": b.chance(0.3)})
    else:
        b.ask("AlterConfigs", {"resources": [resource], "validate_only": b.chance(0.3)})
    describe_configs(b, kind, target)


def describe_configs(b: Builder, kind: int = 2, target: Json = None) -> None:
    """Settings of a topic, a group or a subscription."""
    if target is None:
        target = name(b.topic().alias)
    keys = b.choose(None, None, [], [_setting(b)[0], _setting(b)[0]])
    fields = {
        "resources": [{"resource_type": kind, "resource_name": target, "configuration_keys": keys}],
        "include_synonyms": b.chance(0.5),
        "include_documentation": b.chance(0.3),
    }
    b.ask("DescribeConfigs", fields, connection=b.connection())


def config_resources(b: Builder) -> None:
    b.ask("ListConfigResources", {"resource_types": b.choose([], [2], [16], [32], [2, 32], [4], [99])})


ACTIVITIES: list[tuple[float, Activity]] = [
    (2.0, create),
    (1.5, create_oddly),
    (0.6, delete),
    (0.8, grow),
    (1.5, metadata),
    (0.8, topic_partitions),
    (1.5, configs),
    (0.6, describe_configs),
    (0.3, config_resources),
]
