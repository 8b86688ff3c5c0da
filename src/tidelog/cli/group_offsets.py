"""What a group has committed and how far the logs go, read from the cluster into values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.cli.connection import Connection
from tidelog.cli.errors import CommandError, explained
from tidelog.cli.listed_offsets import list_offsets
from tidelog.cli.positions import Position, PositionKind
from tidelog.client.offset_reset import LogEnds, Partition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of a group: lag is the log's end minus the committed offset."""

    topic: str
    partition: int
    committed: int | None
    latest: int | None
    lag: int | None
    member: str | None = None
    host: str | None = None


def committed_offsets(connection: Connection, admin: "AdminClient", group: str) -> dict[Partition, int]:
    """Every offset the group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    with explained(f"the offsets of group {group!r} cannot be read"):
        futures = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=connection.timeout_seconds
        )
        listed = connection.outcome(futures[group]).topic_partitions or []
    return {(item.topic, item.partition): item.offset for item in listed if item.offset >= 0}


def describe_group(connection: Connection, admin: "AdminClient", group: str) -> Any:
    """The group's state and members; a group nobody has used is an error for a person."""
    with explained(f"group {group!r} cannot be described"):
        futures = admin.describe_consumer_groups([group], request_timeout=connection.timeout_seconds)
        described = connection.outcome(futures[group])
    if described.state.name == "DEAD":
        raise CommandError(f"there is no group {group!r}", "'tidelog group list' shows the groups")
    return described


def log_ends(
    connection: Connection,
    admin: "AdminClient",
    partitions: Iterable[Partition],
    timestamp_ms: int | None = None,
) -> dict[Partition, LogEnds]:
    """The ends of each partition's log, with the offset at a time where one is given."""
    from confluent_kafka import TopicPartition

    asked = [TopicPartition(topic, partition) for topic, partition in partitions]
    earliest = list_offsets(connection, admin, asked, Position(PositionKind.BEGINNING))
    latest = list_offsets(connection, admin, asked, Position(PositionKind.END))
    at_time: dict[Partition, int] = {}
    if timestamp_ms is not None:
        found = list_offsets(connection, admin, asked, Position(PositionKind.TIMESTAMP, timestamp_ms))
        at_time = {partition: listed.offset for partition, listed in found.items() if listed.offset >= 0}
    return {
        partition: LogEnds(earliest[partition].offset, latest[partition].offset, at_time.get(partition))
        for partition in earliest
    }


def group_lag(connection: Connection, admin: "AdminClient", group: str) -> list[PartitionLag]:
    """Committed offset, end and lag of every partition the group has committed or is assigned."""
    from confluent_kafka import TopicPartition

    described = describe_group(connection, admin, group)
    committed = committed_offsets(connection, admin, group)
    owners: dict[Partition, Any] = {}
    for member in described.members:
        assignment = member.assignment.topic_partitions if member.assignment is not None else []
        owners.update({(item.topic, item.partition): member for item in assignment})
    known = connection.metadata(admin).topics
    partitions = sorted(set(committed) | set(owners))
    # A group can remember a topic that was deleted; it has no end to lag behind.
    alive = [
        TopicPartition(topic, number)
        for topic, number in partitions
        if topic in known and number in known[topic].partitions
    ]
    latest = list_offsets(connection, admin, alive, Position(PositionKind.END))
    rows = []
    for partition in partitions:
        offset = committed.get(partition)
        end = latest[partition].offset if partition in latest else None
        lag = max(0, end - offset) if end is not None and offset is not None else None
        owner = owners.get(partition)
        rows.append(
            PartitionLag(
                *partition,
                offset,
                end,
                lag,
                owner.member_id if owner is not None else None,
                owner.host if owner is not None else None,
            )
        )
    return rows
