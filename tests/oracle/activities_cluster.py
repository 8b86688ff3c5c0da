"""The cluster: who is there, elections, reassignments, folders, versions."""

from tests.oracle.generator import Activity, Builder
from tests.oracle.session import name


def cluster(b: Builder) -> None:
    b.ask(
        "DescribeCluster",
        {
            "include_cluster_authorized_operations": b.chance(0.5),
            "endpoint_type": b.choose(1, 1, 1, 2, 9),
            "include_fenced_brokers": b.chance(0.3),
        },
    )


def api_versions(b: Builder) -> None:
    fields = {
        "client_software_name": b.choose("oracle", "", "bad name!"),
        "client_software_version": b.choose("1", ""),
    }
    b.ask("ApiVersions", fields, connection="c2")


def quorum(b: Builder) -> None:
    b.ask(
        "DescribeQuorum",
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    )


def elect(b: Builder) -> None:
    topic = b.topic()
    rows = b.choose(
        [{"topic": name(topic.alias), "partitions": sorted({0, b.partition(topic)})}],
        [{"topic": name("absent"), "partitions": [0]}],
        [],
    )
    b.ask("ElectLeaders", {"election_type": b.choose(0, 0, 1), "topic_partitions": rows, "timeout": 5_000})


def reassign(b: Builder) -> None:
    """To where they are, to brokers that do not exist, and cancelled."""
    topic = b.topic()
    row = {
        "partition_index": b.partition(topic),
        "replicas": b.choose(topic.replicas, None, [9], [], [1, 1], [-1]),
    }
    fields = {
        "timeout": 5_000,
        "allow_replication_factor_change": b.chance(0.8),
        "topics": [{"name": b.choose(name(topic.alias), name("absent")), "partitions": [row]}],
    }
    b.ask("AlterPartitionReassignments", fields)
    b.ask(
        "ListPartitionReassignments",
        {
            "timeout": 5_000,
            "topics": b.choose(None, [{"name": name(topic.alias), "partition_indexes": [0, 5]}]),
        },
    )


def move_logs(b: Builder) -> None:
    topic = b.topic()
    b.ask(
        "AlterReplicaLogDirs",
        {
            "dirs": [
                {
                    "path": b.choose("/nowhere", "relative"),
                    "topics": [{"name": b.choose(name(topic.alias), name("absent")), "partitions": [0, 9]}],
                }
            ]
        },
    )


def unregister(b: Builder) -> None:
    b.ask("UnregisterBroker", {"broker_id": b.choose(99, -1)})


ACTIVITIES: list[tuple[float, Activity]] = [
    (0.8, cluster),
    (0.5, api_versions),
    (0.2, quorum),
    (0.8, elect),
    (1.0, reassign),
    (0.5, move_logs),
    (0.2, unregister),
]
