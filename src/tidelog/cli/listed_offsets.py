"""Offsets of partitions at a position, asked of the cluster with ListOffsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.connection import Connection
from tidelog.cli.errors import explained
from tidelog.cli.positions import Position, PositionKind

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset and the timestamp of its record; offset -1 means no record is that young."""

    offset: int
    timestamp_ms: int


def list_offsets(
    connection: Connection, admin: "AdminClient", partitions: Sequence["TopicPartition"], position: Position
) -> dict[tuple[str, int], ListedOffset]:
    """Look up beginning, end or a timestamp in each partition."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    if not partitions:
        return {}
    match position.kind:
        case PositionKind.BEGINNING:
            specification = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        case PositionKind.END:
            specification = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        case PositionKind.TIMESTAMP:
            specification = OffsetSpec.for_timestamp(position.number)
        case _:
            raise AssertionError(position)
    futures = admin.list_offsets(
        dict.fromkeys(partitions, specification), request_timeout=connection.timeout_seconds
    )
    found: dict[tuple[str, int], ListedOffset] = {}
    for partition, future in futures.items():
        with explained(f"the offsets of {partition.topic}-{partition.partition} cannot be listed"):
            result = connection.outcome(future)
        found[(partition.topic, partition.partition)] = ListedOffset(result.offset, result.timestamp)
    return found
