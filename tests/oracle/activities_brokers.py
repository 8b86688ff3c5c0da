"""Several brokers: replicas moved, leaders elected, and each broker asked what it knows."""

from tests.oracle.generator import Activity, Builder, Topic
from tests.oracle.session import Json, name, raw


def _reassign(b: Builder, topic: Topic, replicas: list[int]) -> None:
    """Move every partition of a topic, and wait until nothing is under way."""
    rows = [{"partition_index": number, "replicas": replicas} for number in range(topic.partitions)]
    moved: dict[str, Json] = {"timeout": 10_000, "topics": [{"name": name(topic.alias), "partitions": rows}]}
    b.ask("AlterPartitionReassignments", {**moved, "allow_replication_factor_change": True})
    asked = [{"name": name(topic.alias), "partition_indexes": list(range(topic.partitions))}]
    b.ask(
        "ListPartitionReassignments",
        {"timeout": 10_000, "topics": asked},
        until={"path": ["topics"], "in": [[]]},
    )
    topic.replicas = replicas
    if topic.leader not in replicas:
        topic.leader = replicas[0]
    _wait_led(b, topic)


def _wait_led(b: Builder, topic: Topic) -> None:
    b.wait_topic(topic.alias, topic.partitions, topic.leader, topic.replicas)
    b.wait_served(topic)


def reorder(b: Builder) -> None:
    """Another replica is preferred; then it is elected, or not."""
    topic = b.topic()
    first = b.choose(*topic.replicas)
    replicas = [first, *(one for one in topic.replicas if one != first)]
    _reassign(b, topic, replicas)
    if b.chance(0.7):
        _elect_preferred(b, topic)


def elect(b: Builder, topic: Topic, leader: int) -> None:
    """Have a replica lead every partition of a topic."""
    _reassign(b, topic, [leader, *(one for one in topic.replicas if one != leader)])
    _elect_preferred(b, topic)


def _elect_preferred(b: Builder, topic: Topic) -> None:
    rows = [{"topic": name(topic.alias), "partitions": list(range(topic.partitions))}]
    b.ask("ElectLeaders", {"election_type": 0, "topic_partitions": rows, "timeout": 10_000})
    topic.leader = topic.replicas[0]
    _wait_led(b, topic)


def move(b: Builder) -> None:
    """Replicas go and come: the leader stays, or another one takes over."""
    topic = b.topic()
    _reassign(b, topic, b.choose([1, 2], [2, 3], [3, 1], [1], [2], [3], [1, 2, 3], [3, 2, 1]))
    if b.chance(0.5):
        rest = [one for one in b.brokers if one not in topic.replicas]
        _reassign(b, topic, topic.replicas + rest)


def each_broker(b: Builder) -> None:
    """What every broker says of the same."""
    topic = b.topic()
    kind = b.choose("metadata", "partitions", "folders", "cluster", "groups", "transactions", "coordinator")
    for broker in b.brokers:
        if kind == "metadata":
            fields: dict[str, Json] = {
                "topics": [{"name": name(topic.alias)}, {"name": name("absent")}],
                "allow_auto_topic_creation": False,
            }
            b.ask("Metadata", fields, version=b.version("Metadata", 4), broker=broker)
        elif kind == "partitions":
            fields = {"topics": [{"name": name(topic.alias)}], "response_partition_limit": b.choose(1, 100)}
            b.ask("DescribeTopicPartitions", {**fields, "cursor": None}, broker=broker)
        elif kind == "folders":
            rows = [{"topic": name(topic.alias), "partitions": list(range(topic.partitions))}]
            b.ask("DescribeLogDirs", {"topics": rows}, broker=broker)
        elif kind == "cluster":
            b.ask("DescribeCluster", {"endpoint_type": 1}, broker=broker)
        elif kind == "groups":
            b.ask("ListGroups", {"states_filter": [], "types_filter": []}, broker=broker)
        elif kind == "transactions":
            b.ask("ListTransactions", {"duration_filter": -1}, broker=broker)
        else:
            keys = [name("g0"), name("c0"), name("x0")]
            fields = {"key": keys[0], "key_type": b.choose(0, 1), "coordinator_keys": keys}
            b.ask("FindCoordinator", fields, broker=broker)


def wrong_coordinator(b: Builder) -> None:
    """Requests of a member to a broker that does not coordinate its group."""
    alias = b.choose("c0", "g0", "gabsent")
    api = b.choose("JoinGroup", "SyncGroup", "LeaveGroup")
    member: Json = b.choose("", "nobody")
    fields: dict[str, Json] = {
        "group_id": name(alias),
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "generation_id": 1,
        "member_id": member,
        "members": [{"member_id": member, "group_instance_id": None}],
        "protocol_type": "consumer",
        "protocol_name": "range",
        "protocols": [{"name": "range", "metadata": raw(b"")}],
        "assignments": [],
    }
    b.ask(api, fields, elsewhere=True)


ACTIVITIES: list[tuple[float, Activity]] = [
    (1.5, reorder),
    (1.5, move),
    (3.0, each_broker),
    (1.0, wrong_coordinator),
]
