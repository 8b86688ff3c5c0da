"""Where the logs of partitions begin and end, and where they were at a time (ListOffsets)."""

from collections.abc import Iterable

from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.cluster_state import ask_metadata
from tidelog.admin.offset_reset import LogEnds
from tidelog.admin.topics import views_of
from tidelog.client.client_settings import READ_UNCOMMITTED
from tidelog.client.cluster import EARLIEST, LATEST, Cluster, ListedOffset
from tidelog.model.identifiers import TopicPartition

Partition = tuple[str, int]


def list_offsets(
    admin: ClusterAdmin,
    partitions: Iterable[Partition],
    position: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[Partition, ListedOffset]:
    """The offset at a time in ms, EARLIEST or LATEST; -1 where no record is as young as the time."""
    wanted = {TopicPartition(*key): position for key in partitions}
    if not wanted:
        return {}

    def ask(cluster: Cluster) -> dict[Partition, ListedOffset]:
        found = cluster.list_offsets(wanted, isolation_level)
        return {(key.topic, key.partition): listed for key, listed in found.items()}

    return admin.asked("the offsets cannot be listed", ask)


def known_offsets(
    admin: ClusterAdmin,
    partitions: Iterable[Partition],
    position: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[Partition, int]:
    """The same as far as it is told now, at the first try: a look does not wait for a broker that is away."""
    wanted = set(partitions)
    if not wanted:
        return {}

    def ask(cluster: Cluster) -> dict[Partition, int]:
        names = tuple({"name": name} for name in sorted({topic for topic, _ in wanted}))
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for view in views_of(ask_metadata(cluster.any_link(), names)).values():
            for row in view.partitions:
                if (view.name, row.number) in wanted and not row.offline:
                    by_leader.setdefault(row.leader, {})[TopicPartition(view.name, row.number)] = position
        found = cluster.list_offsets_at(by_leader, isolation_level)
        return {(key.topic, key.partition): listed.offset for key, listed in found.items()}

    return admin.asked_once("the offsets cannot be listed", ask)


def log_ends(
    admin: ClusterAdmin, partitions: Iterable[Partition], timestamp_ms: int | None = None
) -> dict[Partition, LogEnds]:
    """The ends of each partition's log, with the offset at a time where one is given."""
    keys = list(partitions)
    first = list_offsets(admin, keys, EARLIEST)
    last = list_offsets(admin, keys, LATEST)
    at_time = {} if timestamp_ms is None else list_offsets(admin, keys, timestamp_ms)
    return {
        key: LogEnds(
            first[key].offset,
            last[key].offset,
            at_time[key].offset if key in at_time and at_time[key].offset >= 0 else None,
        )
        for key in keys
    }
