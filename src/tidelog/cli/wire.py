"""Requests that confluent-kafka does not offer, spoken directly: DescribeLogDirs, OffsetDelete and others.

One request, one answer, with kio's messages, over a connection that is secured by the same properties as the
client's (`Connection.link`).
"""

import io
from typing import Any

from tidelog.cli.connection import Connection
from tidelog.cli.errors import UNREACHABLE_HINT, UNREADABLE_HINT, CommandError, hint_for
from tidelog.client.faults import ClientFault
from tidelog.protocol import schema_reader
from tidelog.protocol.primitives import MalformedRequest, malformed_if_fails

#: how long a broker may take to be reached for figures that can be left out
SIZES_SECONDS_MAX = 2.0


def call(
    connection: Connection,
    address: str,
    request: Any,
    response_class: type[Any],
    connect_seconds_max: float | None = None,
) -> Any:
    """Send one kio request to `address` and return the parsed response."""
    from kio.serial import entity_writer

    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    link = connection.link(address, connect_seconds_max)
    try:
        ticket = link.send(request.__api_key__, request.__version__, body.getvalue())
        answer = link.receive(ticket)
        # kio's own reader refuses the -1 that stands for a time that is not known.
        response, _ = malformed_if_fails(schema_reader.entity_reader(response_class), answer, 0)
    except ClientFault as failure:
        raise CommandError(f"the connection to {address} failed: {failure}", UNREACHABLE_HINT) from failure
    except MalformedRequest as failure:
        raise CommandError(f"the answer of {address} cannot be read: {failure}", UNREADABLE_HINT) from failure
    finally:
        link.close()
    return response


def partition_sizes(
    connection: Connection, brokers: dict[int, str], topics: dict[str, list[int]]
) -> dict[tuple[int, str, int], int]:
    """The bytes on disk of each replica as (broker, topic, partition), from every broker in turn."""
    from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse

    request = DescribeLogDirsRequest(
        topics=tuple(
            DescribableLogDirTopic(topic=name, partitions=tuple(partitions))  # type: ignore[arg-type]
            for name, partitions in topics.items()
        )
    )
    sizes: dict[tuple[int, str, int], int] = {}
    for broker_id, address in brokers.items():
        response = call(connection, address, request, DescribeLogDirsResponse, SIZES_SECONDS_MAX)
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    if not partition.is_future_key:
                        key = (broker_id, topic.name, partition.partition_index)
                        sizes[key] = partition.partition_size
    return sizes


def delete_group_offsets(
    connection: Connection, coordinator: str, group: str, topics: dict[str, list[int]]
) -> dict[tuple[str, int], str | None]:
    """Ask the coordinator to forget committed offsets; the error's name per partition, None where done."""
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )
    from kio.schema.offset_delete.v0.response import OffsetDeleteResponse

    request = OffsetDeleteRequest(
        group_id=group,  # type: ignore[arg-type]
        topics=tuple(
            OffsetDeleteRequestTopic(
                name=name,  # type: ignore[arg-type]
                partitions=tuple(
                    OffsetDeleteRequestPartition(partition_index=number)  # type: ignore[arg-type]
                    for number in partitions
                ),
            )
            for name, partitions in topics.items()
        ),
    )
    response = call(connection, coordinator, request, OffsetDeleteResponse)
    if response.error_code.value != 0:
        name = str(response.error_code.name).upper()
        raise CommandError(f"the offsets of group {group!r} were not deleted: {name}", hint_for(name))
    return {
        (topic.name, partition.partition_index): None
        if partition.error_code.value == 0
        else str(partition.error_code.name).upper()
        for topic in response.topics
        for partition in topic.partitions
    }
