"""Activities of admin clients: topics, configs, rights, users, quotas, the cluster."""

from tests.oracle.clients_generator import Maker

#: settings of topics, with values that are taken and some that are not
SETTINGS = (
    ("retention.ms", "3600000"),
    ("retention.ms", "-2"),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "nothing"),
    ("max.message.bytes", "2000"),
    ("max.message.bytes", "many"),
    ("compression.type", "gzip"),
    ("compression.type", "rar"),
    ("min.insync.replicas", "1"),
    ("message.timestamp.type", "LogAppendTime"),
    ("segment.bytes", "1048576"),
    ("segment.bytes", "1"),
    ("unclean.leader.election.enable", "true"),
    ("no.such.setting", "1"),
)


def topics(maker: Maker) -> None:
    """Topics are made, looked at and deleted."""
    made = [maker.topic() for _ in range(maker.random.randint(1, 2))]
    maker.add("create_topics", topics=[{"name": made[0], "partitions": 1}])
    if maker.chance(0.5):
        maker.add("create_topics", topics=[{"name": maker.new("v"), "partitions": 2}], validate_only=True)
    maker.add("describe_topics", topics=[*made, "~absent"])
    maker.add("list_topics")
    if maker.chance(0.5):
        maker.filled(made[-1])
    if maker.chance(0.6):
        gone = made[0]
        maker.add("delete_topics", settle=True, topics=[gone, "~absent"])
        maker.add("describe_topics", topics=[gone])
        maker.add("delete_topics", topics=[gone])
        del maker.topics[gone]
        if maker.chance(0.5):
            maker.add("create_topics", settle=True, topics=[{"name": gone, "partitions": 1, "replicas": 1}])
            if maker.brokers == 1:
                maker.topics[gone] = 1


def wrong_topics(maker: Maker) -> None:
    """What is refused, beside something that is not."""
    there = maker.some_topic()
    rows = [
        {"name": "~bad name!", "partitions": 1},
        {"name": "~" + "n" * 250, "partitions": 1},
        {"name": ".", "partitions": 1},
        {"name": there, "partitions": 1},
        {"name": "~zero", "partitions": 0},
        {"name": "~below", "partitions": -2},
        {"name": "~replicas", "partitions": 1, "replicas": 9},
        {"name": "~nobody", "assignments": {"0": [77]}},
        {"name": "~twice", "assignments": {"0": [1, 1]}},
        {"name": "~config", "partitions": 1, "configs": {"retention.ms": "soon"}},
        {"name": "~setting", "partitions": 1, "configs": {"no.such.setting": "1"}},
        {"name": "~gap", "assignments": {"0": [1], "2": [1]}} if maker.java else {"name": "~none"},
    ]
    picked = maker.random.sample(rows, 3)
    maker.add("create_topics", topics=picked, validate_only=maker.chance(0.3), settle=True)
    maker.add("create_partitions", topics={"~absent": 3})
    maker.add("delete_topics", topics=["~absent"])
    maker.add("delete_topics", topics=["~none", "~below"], settle=True)


def more_partitions(maker: Maker) -> None:
    topic = maker.topic(partitions=maker.random.randint(1, 2))
    now = maker.topics[topic]
    wrong = maker.random.choice((now, now - 1, 0))
    maker.add("create_partitions", topics={topic: wrong})
    maker.add("create_partitions", topics={topic: now + 1}, validate_only=True)
    if maker.brokers == 1:
        # with several, each system chooses the brokers of new partitions
        maker.add("create_partitions", settle=True, topics={topic: now + 2})
        maker.topics[topic] = now + 2
        maker.filled(topic)
        maker.add("describe_topics", topics=[topic])


def topic_configs(maker: Maker) -> None:
    topic = maker.some_topic()
    if maker.chance(0.6):
        maker.add("describe_configs", resources=[["TOPIC", topic]])
    picked = maker.random.sample(SETTINGS, 2)
    # one setting only once in a request
    names = dict(picked)
    changes = [["TOPIC", topic, "SET", name, value] for name, value in names.items()]
    maker.add("alter_configs", changes=changes[:1], settle=True)
    maker.add("alter_configs", changes=changes, validate_only=maker.chance(0.3), settle=True)
    if maker.chance(0.4):
        operation = maker.random.choice(("APPEND", "SUBTRACT"))
        setting, value = maker.random.choice((("cleanup.policy", "compact"), ("retention.ms", "1")))
        maker.add("alter_configs", changes=[["TOPIC", topic, operation, setting, value]], settle=True)
    maker.add("describe_configs", resources=[["TOPIC", topic], ["TOPIC", "~absent"]])
    names["message.timestamp.type"] = ""
    undone = [["TOPIC", topic, "DELETE", name] for name in names if name != "no.such.setting"]
    undone.append(["TOPIC", topic, "DELETE", "max.message.bytes"])
    unique = {row[3]: row for row in undone}
    maker.add("alter_configs", changes=list(unique.values()), settle=True)
    if maker.chance(0.5):
        maker.add("alter_configs", changes=[["TOPIC", "~absent", "SET", "retention.ms", "1"]])


def group_configs(maker: Maker) -> None:
    group = maker.new("gc")
    setting, value = maker.random.choice(
        (
            ("consumer.session.timeout.ms", "50000"),
            ("consumer.session.timeout.ms", "1"),
            ("consumer.heartbeat.interval.ms", "4000"),
            ("share.auto.offset.reset", "earliest"),
            ("no.such.setting", "1"),
        )
    )
    maker.add("alter_configs", changes=[["GROUP", group, "SET", setting, value]], settle=True)
    maker.add("describe_configs", resources=[["GROUP", group]])
    maker.add("list_config_resources")


def rights(maker: Maker) -> None:
    topic = maker.new("at")
    rows = [
        ["TOPIC", topic, "LITERAL", "User:alice", "*", "READ", "ALLOW"],
        ["TOPIC", "~", "PREFIXED", "User:bob", "*", "WRITE", "DENY"],
        ["GROUP", "~ag", "LITERAL", "User:alice", "127.0.0.1", "READ", "ALLOW"],
        ["TRANSACTIONAL_ID", "~ax", "LITERAL", "User:alice", "*", "ALL", "ALLOW"],
        ["TOPIC", topic, "LITERAL", "User:*", "*", "DESCRIBE", "ALLOW"],
        ["TOPIC", topic, "LITERAL", "alice", "*", "READ", "ALLOW"],
    ]
    picked = maker.random.sample(rows, 3)
    maker.add("create_acls", acls=picked, settle=True)
    for pattern in maker.random.sample(("LITERAL", "PREFIXED", "MATCH", "ANY"), 2):
        maker.add("describe_acls", filter=["TOPIC", topic, pattern, None, None, "ANY", "ANY"])
    maker.add("describe_acls", filter=["GROUP", "~ag", "ANY", "User:alice", None, "ANY", "ALLOW"])
    filters = [[row[0], row[1], "ANY", None, None, "ANY", "ANY"] for row in picked]
    unique = {row[1]: row for row in filters}
    maker.add("delete_acls", filters=list(unique.values()), settle=True)
    maker.add("describe_acls", filter=["TOPIC", topic, "MATCH", None, None, "ANY", "ANY"])


def without_rights(maker: Maker) -> None:
    """A user who may little, with every kind of client; what is granted counts."""
    topic = maker.topic()
    maker.filled(topic)
    user = "alice"
    short = {
        "max.block.ms": "1500",
        "delivery.timeout.ms": "3000",
        "request.timeout.ms": "1000",
        "linger.ms": "0",
    }
    settings = short if maker.java else {"message.timeout.ms": "3000"}
    maker.add(
        "create_topics", admin="by alice", user=user, topics=[{"name": maker.new("n"), "partitions": 1}]
    )
    maker.add("describe_topics", admin="by alice", user=user, topics=[topic])
    writer = maker.new("p", "")
    maker.add("new_producer", producer=writer, user=user, settings={**settings, "enable.idempotence": "true"})
    maker.add("send", producer=writer, records=[maker.record(topic, partition=0)])
    maker.add("close_producer", producer=writer)
    granted = maker.random.sample(("READ", "WRITE", "DESCRIBE"), maker.random.randint(1, 2))
    acls = [["TOPIC", topic, "LITERAL", f"User:{user}", "*", right, "ALLOW"] for right in granted]
    group = maker.group()
    may_commit = maker.chance(0.5)
    if may_commit:
        acls.append(["GROUP", group, "LITERAL", f"User:{user}", "*", "READ", "ALLOW"])
    maker.add("create_acls", acls=acls, settle=True)
    maker.add("describe_topics", admin="by alice", user=user, topics=[topic])
    maker.add("describe_configs", admin="by alice", user=user, resources=[["TOPIC", topic]])
    maker.add("delete_records", admin="by alice", user=user, before=[[topic, 0, 0]])
    writer = maker.new("p", "")
    maker.add("new_producer", producer=writer, user=user, settings=settings)
    maker.add("send", producer=writer, records=[maker.record(topic, partition=0)])
    maker.add("close_producer", producer=writer)
    reader = maker.new("c", "")
    maker.add(
        "new_consumer",
        consumer=reader,
        user=user,
        settings={"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"},
    )
    maker.add("assign", consumer=reader, partitions=maker.partitions_of(topic))
    maker.add("poll", consumers=[reader], assigned=maker.topics[topic], bound_ms=5000)
    if may_commit or maker.java:
        # librdkafka waits without end for a coordinator that it may not know
        maker.add("commit_offsets", consumer=reader, offsets=[[topic, 0, 1]])
    maker.add("close_consumer", consumer=reader)
    maker.add("list_group_offsets", admin="by alice", user=user, groups=[group])
    maker.add("describe_groups", admin="by alice", user=user, groups=[group])
    if maker.java:
        transactional = maker.new("p", "")
        maker.add(
            "new_producer",
            producer=transactional,
            user=user,
            settings={"transactional.id": "~forbidden", "max.block.ms": "5000"},
        )
        maker.add("init_transactions", producer=transactional)
        maker.add("close_producer", producer=transactional, timeout_ms=0)
    maker.add("delete_acls", filters=[["TOPIC", topic, "ANY", None, None, "ANY", "ANY"]], settle=True)


def users(maker: Maker) -> None:
    user = maker.new("u")
    mechanisms = ("SCRAM_SHA_256", "SCRAM_SHA_512")
    for mechanism in maker.random.sample(mechanisms, maker.random.randint(1, 2)):
        maker.add(
            "alter_scram", changes=[[user, mechanism, maker.random.choice((4096, 8192, 100))]], settle=True
        )
    maker.add("describe_scram", users=[user, "~nobody"])
    maker.add("alter_scram", changes=[["~nobody", mechanisms[0]]])
    maker.add("alter_scram", changes=[[user, maker.random.choice(mechanisms)]], settle=True)
    maker.add("describe_scram", users=[user])


def quotas(maker: Maker) -> None:
    user = maker.new("q")
    name = maker.random.choice(
        (
            "producer_byte_rate",
            "consumer_byte_rate",
            "request_percentage",
            "controller_mutation_rate",
            "nothing",
        )
    )
    value = maker.random.choice((1e9, 100.0, 0.5, -1.0, None))
    entity = maker.random.choice(({"user": user}, {"user": user, "client-id": "~app"}, {"client-id": user}))
    maker.add("alter_quotas", changes=[[entity, name, value]], settle=True)
    kind = next(iter(entity))
    maker.add("describe_quotas", components=[[kind, entity[kind]]])
    maker.add("describe_quotas", components=[[kind, entity[kind]]], strict=True)
    maker.add("alter_quotas", changes=[[entity, name, None]], settle=True)
    maker.add("describe_quotas", components=[[kind, entity[kind]]])


def cluster(maker: Maker) -> None:
    topic = maker.some_topic()
    maker.add("describe_cluster", operations=maker.chance(0.5))
    partitions = [[topic, 0], [topic, 99], ["~absent", 0]]
    kind = maker.random.choice(("PREFERRED", "UNCLEAN"))
    maker.add("elect_leaders", type=kind, partitions=maker.random.sample(partitions, 2))


def log_folders(maker: Maker) -> None:
    maker.filled(maker.topic())
    maker.add("describe_log_dirs", broker=1)
    maker.add_for_absent("describe_log_dirs", broker=77)


def reassignments(maker: Maker) -> None:
    topic = maker.some_topic()
    wrong = maker.random.choice(([77], [1, 1], [-1]))
    maker.add("alter_reassignments", partitions=[[topic, 0, wrong]])
    maker.add("alter_reassignments", partitions=[[topic, 0], ["~absent", 0, [1]]])
    maker.add("list_reassignments", partitions=[[topic, 0]])
