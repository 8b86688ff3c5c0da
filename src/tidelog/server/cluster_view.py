"""What one broker says about its cluster, asked over the wire without a client library.

A supervisor needs little: who is the controller, which brokers are known, is every replica in sync. That is
one Metadata request of version 1, whose layout is fixed and short, so it is spoken here by hand: importing a
client, or kio, would cost more than starting a broker. A secured cluster is asked over a `Link`.
"""

import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.addresses import address_text
from tidelog.protocol.apis import METADATA
from tidelog.protocol.primitives import (
    DECODING_ERRORS,
    INT32,
    read_array_length,
    read_nullable_string,
    read_string,
)

if TYPE_CHECKING:
    from tidelog.client.client_settings import ClientSettings

METADATA_VERSION = 1
ALL_TOPICS = -1
NO_TOPICS = 0
CLIENT_ID = b"tidelog-supervisor"
FRAME_SIZE_MAX_BYTES = 64 << 20


class NoView(Exception):
    """The broker did not answer; the message says why."""


class PartitionView(NamedTuple):
    """One partition as a broker describes it; the leader is -1 when there is none."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ClusterView(NamedTuple):
    """The cluster as one broker sees it."""

    controller_id: int
    addresses: dict[int, str]
    partitions: tuple[PartitionView, ...]

    @property
    def out_of_sync(self) -> tuple[PartitionView, ...]:
        """The partitions without a leader, or with a replica that is not in sync."""
        return tuple(
            partition
            for partition in self.partitions
            if partition.leader < 0 or not set(partition.replicas) <= set(partition.isr)
        )

    def partition(self, topic: str, partition: int) -> PartitionView:
        """One partition; LookupError if it is not known."""
        for found in self.partitions:
            if (found.topic, found.partition) == (topic, partition):
                return found
        raise LookupError(f"there is no partition {topic}-{partition}")


def ask(
    address: str,
    *,
    topics: bool = True,
    timeout_seconds: float = 5.0,
    security: "ClientSettings | None" = None,
) -> ClusterView:
    """Ask the broker at `address`; `topics` includes the partitions of every topic."""
    host, _, port = address.rpartition(":")
    if security is not None:
        return _ask_securely((host.strip("[]"), int(port)), topics, security)
    header = struct.pack(">hhih", METADATA, METADATA_VERSION, 0, len(CLIENT_ID)) + CLIENT_ID
    request = header + INT32.pack(ALL_TOPICS if topics else NO_TOPICS)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_seconds) as channel:
            channel.sendall(INT32.pack(len(request)) + request)
            (size_bytes,) = INT32.unpack(_receive(channel, INT32.size))
            if not 0 <= size_bytes <= FRAME_SIZE_MAX_BYTES:
                raise NoView(f"{address} answered with a frame of {size_bytes} bytes")
            answer = _receive(channel, size_bytes)
    except OSError as fault:
        raise NoView(f"{address}: {fault}") from fault
    try:
        return _parse(memoryview(answer), INT32.size)
    except DECODING_ERRORS as fault:
        raise NoView(f"{address} answered with something else than metadata: {fault}") from fault


def _ask_securely(address: tuple[str, int], topics: bool, security: "ClientSettings") -> ClusterView:
    from tidelog.client.faults import ClientFault
    from tidelog.client.link import Link

    try:
        link = Link.open(*address, security)
        try:
            body = INT32.pack(ALL_TOPICS if topics else NO_TOPICS)
            return _parse(link.receive(link.send(METADATA, METADATA_VERSION, body)), 0)
        finally:
            link.close()
    except (ClientFault, *DECODING_ERRORS) as fault:
        raise NoView(f"{address_text(*address)}: {fault}") from fault


def _receive(channel: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        piece = channel.recv(size_bytes - len(received))
        if not piece:
            raise NoView("the connection was closed before the answer came")
        received += piece
    return bytes(received)


def _parse(answer: memoryview, position: int) -> ClusterView:
    """Read the answer's body, which begins at `position`."""
    addresses: dict[int, str] = {}
    count, position = read_array_length(answer, position)
    for _ in range(count):
        (broker_id,) = INT32.unpack_from(answer, position)
        host, position = read_string(answer, position + 4)
        (port,) = INT32.unpack_from(answer, position)
        _, position = read_nullable_string(answer, position + 4)
        addresses[broker_id] = address_text(host, port)
    (controller_id,) = INT32.unpack_from(answer, position)
    partitions: list[PartitionView] = []
    count, position = read_array_length(answer, position + 4)
    for _ in range(count):
        name, position = read_string(answer, position + 2)
        partition_count, position = read_array_length(answer, position + 1)
        for _ in range(partition_count):
            index, leader = struct.unpack_from(">ii", answer, position + 2)
            replicas, position = _read_ids(answer, position + 10)
            isr, position = _read_ids(answer, position)
            partitions.append(PartitionView(name, index, leader, replicas, isr))
    return ClusterView(controller_id, addresses, tuple(partitions))


def _read_ids(answer: memoryview, position: int) -> tuple[tuple[int, ...], int]:
    count, position = read_array_length(answer, position)
    ids = struct.unpack_from(f">{count}i", answer, position)
    return ids, position + 4 * count
