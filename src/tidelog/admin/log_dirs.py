"""The log directories of brokers, and the sizes of the replicas in them (DescribeLogDirs)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.admin.cluster_admin import ClusterAdmin, check
from tidelog.client.api_keys import DESCRIBE_LOG_DIRS
from tidelog.client.cluster import Cluster
from tidelog.client.faults import ClientFault, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode

Topics = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class LogDirView:
    """A folder of a broker; figures are -1 where the broker does not tell or was not asked."""

    broker: int
    path: str
    error: str
    total_bytes: int = -1
    usable_bytes: int = -1
    replicas: int = -1
    used_bytes: int = -1


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    broker: int
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


Place = tuple[LogDirView, list[ReplicaSize]]


def describe_at(link: Link, broker: int, topics: Topics | None) -> list[Place]:
    """The folders of a broker, each with its replicas: of all topics (None), of some, or of none."""
    asked = (
        None
        if topics is None
        else [{"topic": name, "partitions": tuple(numbers)} for name, numbers in topics.items()]
    )
    answer = link.request(DESCRIBE_LOG_DIRS, {"topics": asked}, lowest=1, highest=4)
    check(answer, "log dirs")
    return [_place(broker, folder, told=topics != {}) for folder in answer.results]


def _place(broker: int, folder: Any, *, told: bool) -> Place:
    sizes = [
        ReplicaSize(
            broker,
            str(topic.name),
            int(row.partition_index),
            int(row.partition_size),
            int(row.offset_lag),
        )
        for topic in folder.topics
        for row in topic.partitions
        if not row.is_future_key
    ]
    code = known_code(folder.error_code)
    view = LogDirView(
        broker,
        str(folder.log_dir),
        "" if code is ErrorCode.NONE else code.name,
        int(getattr(folder, "total_bytes", -1)),
        int(getattr(folder, "usable_bytes", -1)),
        len(sizes) if told else -1,
        sum(size.size_bytes for size in sizes) if told else -1,
    )
    return view, sizes


def replica_places(admin: ClusterAdmin, brokers: Iterable[int], topics: Topics | None) -> list[Place]:
    """The folders of these brokers, each with the replicas in it."""
    places: list[Place] = []
    for broker in brokers:

        def ask(cluster: Cluster, broker: int = broker) -> list[Place]:
            return describe_at(cluster.link_to(broker), broker, topics)

        places += admin.asked(f"broker {broker} did not describe its log dirs", ask)
    return places


def log_dirs(
    admin: ClusterAdmin, brokers: Iterable[int], topics: Topics | None = None
) -> tuple[list[LogDirView], list[ReplicaSize]]:
    """The same, apart."""
    places = replica_places(admin, brokers, topics)
    return [folder for folder, _ in places], [size for _, sizes in places for size in sizes]


def known_sizes(
    admin: ClusterAdmin, brokers: Iterable[int], topics: Topics
) -> dict[tuple[int, str, int], int]:
    """Bytes on disk of each replica as (broker, topic, partition); of brokers that tell, at the first try."""
    sizes: dict[tuple[int, str, int], int] = {}
    for broker in brokers:

        def ask(cluster: Cluster, broker: int = broker) -> list[Place]:
            return describe_at(cluster.link_to(broker), broker, topics)

        try:
            places = admin.once(ask)
        except ClientFault:
            continue
        sizes |= {(broker, one.topic, one.partition): one.size_bytes for _, found in places for one in found}
    return sizes
