"""Requests that confluent-kafka does not offer, spoken directly: DescribeLogDirs and OffsetDelete.

One request, one answer over a plain TCP connection, with kio's messages. It knows neither TLS nor SASL:
callers check `Connection.plaintext()` first and say so.
"""

import io
import socket
import struct
from typing import Any

from tidelog.cli.connection import Connection, split_address
from tidelog.cli.errors import CommandError
from tidelog.protocol import schema_reader

FRAME_SIZE_MAX_BYTES = 64 << 20
_CORRELATION_ID = 1


def call(address: str, request: Any, response_class: type[Any], timeout_seconds: float) -> Any:
    """Send one kio request to `address` and return the parsed response."""
    from kio.serial import entity_reader, entity_writer

    body = io.BytesIO()
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=_CORRELATION_ID,
        client_id="tidelog-cli",
    )
    entity_writer(type(header))(body, header)
    entity_writer(type(request))(body, request)
    payload = body.getvalue()
    try:
        with socket.create_connection(split_address(address), timeout=timeout_seconds) as channel:
            channel.sendall(struct.pack(">i", len(payload)) + payload)
            (size_bytes,) = struct.unpack(">i", _receive(channel, 4))
            if not 0 <= size_bytes <= FRAME_SIZE_MAX_BYTES:
                raise CommandError(f"{address} answered with a frame of {size_bytes} bytes")
            answer = memoryview(_receive(channel, size_bytes))
    except (OSError, EOFError) as failure:
        raise CommandError(f"the connection to {address} failed: {failure}") from failure
    return _parse(answer, response_class, entity_reader)


def _parse(answer: memoryview, response_class: type[Any], entity_reader: Any) -> Any:
    header_class = response_class.__header_schema__
    _, header_size = entity_reader(header_class)(answer, 0)
    # kio's own reader refuses the -1 that stands for a time that is not known.
    response, _ = schema_reader.entity_reader(response_class)(answer, header_size)
    return response


def _receive(channel: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = channel.recv(min(1 << 16, size_bytes - len(received)))
        if not piece:
            raise EOFError("it was closed before the answer came")
        received += piece
    return bytes(received)


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
        response = call(address, request, DescribeLogDirsResponse, connection.timeout_seconds)
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
    response = call(coordinator, request, OffsetDeleteResponse, connection.timeout_seconds)
    if response.error_code.value != 0:
        raise CommandError(f"the offsets of group {group!r} were not deleted: {response.error_code.name}")
    return {
        (topic.name, partition.partition_index): None
        if partition.error_code.value == 0
        else str(partition.error_code.name).upper()
        for topic in response.topics
        for partition in topic.partitions
    }
