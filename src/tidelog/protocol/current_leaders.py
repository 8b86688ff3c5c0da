"""Where a partition is led instead, in answers to clients that asked the wrong broker (KIP-951).

    partition    tagged current_leader: leader_id int32, leader_epoch int32
    answer       tagged node_endpoints of these leaders: [node_id int32, host, port int32, rack nullable]

A client goes on with the new leader at once, and asks nobody for metadata.
"""

import struct
from typing import NamedTuple, Protocol
from uuid import UUID

from tidelog.protocol.primitives import (
    INT32,
    NO_TAGS,
    compact_nullable_string,
    compact_string,
    unsigned_varint,
)

_LEADER_AND_EPOCH = struct.Struct(">ii")


class CurrentLeader(NamedTuple):
    """A leader and its epoch; -1 where none is known."""

    leader_id: int
    leader_epoch: int


class LeaderEndpoint(NamedTuple):
    """Where a client reaches a leader on the listener that it came by."""

    node_id: int
    host: str
    port: int
    rack: str | None


class CurrentLeaders(Protocol):
    """Who leads, for the answer to one request."""

    def of(self, topic: str | UUID, partition: int) -> CurrentLeader:
        """Who leads a partition."""
        ...

    def endpoints(self) -> list[LeaderEndpoint]:
        """Where those are that `of` told of."""
        ...


def leader_bytes(leader: tuple[int, int]) -> bytes:
    """The content of the tagged field of a partition."""
    return _LEADER_AND_EPOCH.pack(*leader) + NO_TAGS


def endpoints_bytes(endpoints: list[LeaderEndpoint]) -> bytes:
    """The content of the tagged field of an answer."""
    parts = [unsigned_varint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        parts += (INT32.pack(node_id), compact_string(host), INT32.pack(port))
        parts += (compact_nullable_string(rack), NO_TAGS)
    return b"".join(parts)


def tagged(fields: list[tuple[int, bytes]]) -> bytes:
    """Tagged fields with their numbers."""
    return unsigned_varint(len(fields)) + b"".join(
        unsigned_varint(tag) + unsigned_varint(len(data)) + data for tag, data in fields
    )
