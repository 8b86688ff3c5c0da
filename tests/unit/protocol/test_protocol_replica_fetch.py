"""The follower's side of Fetch against the leader's, and against kio."""

from dataclasses import dataclass
from uuid import UUID

import pytest
from kio.schema.fetch.v17.request import FetchRequest as KioFetchRequest
from kio.serial import entity_reader

from tidelog.protocol import fetch
from tidelog.protocol.fetch_client import FOLLOWER_VERSION, decode_response, encode_request
from tidelog.protocol.primitives import MalformedRequest

ONE, TWO = UUID(int=1 << 100), UUID(int=2)


ASKED = fetch.FetchRequest(
    replica_id=3,
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=10 << 20,
    isolation=0,
    session_id=77,
    session_epoch=5,
    topics=[
        (
            ONE,
            [fetch.FetchPartition(0, 4, 100, 3, 7, 1 << 20), fetch.FetchPartition(1, 4, 200, -1, 0, 1 << 20)],
        )
    ],
    forgotten=[(TWO, [5, 6])],
    rack_id="",
    replica_epoch=1 << 40,
)


def request() -> bytes:
    return encode_request(FOLLOWER_VERSION, ASKED)


def test_the_leader_reads_what_the_follower_writes() -> None:
    assert fetch.decode_request(memoryview(request()), 0, FOLLOWER_VERSION) == ASKED


def test_it_is_the_message_of_the_schema() -> None:
    decoded, size = entity_reader(KioFetchRequest)(request(), 0)
    assert size == len(request())
    assert (decoded.replica_state.replica_id, decoded.replica_state.replica_epoch) == (3, 1 << 40)
    assert decoded.topics[0].partitions[0].last_fetched_epoch == 3
    assert decoded.forgotten_topics_data[0].partitions == (5, 6)


@dataclass
class Bytes:
    """Records that are at hand instead of in a file."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def response() -> bytes:
    rows = [
        fetch.PartitionFetched(0, 0, 50, 40, 5, [(1, 2), (3, 4)], -1, Bytes(b"r" * 300)),
        fetch.PartitionFetched(1, 0, 9, 9, 0, diverging_epoch=(3, 8)),
        fetch.PartitionFetched(2, 6, current_leader=(2, 9)),
    ]
    chunks = fetch.encode_response([(ONE, rows), (TWO, [])], FOLLOWER_VERSION, 12, session_id=77)
    whole = b"".join(c if isinstance(c, bytes) else c.data for c in chunks)
    return whole[9:]  # size, correlation id, no tags


def test_the_follower_reads_what_the_leader_writes() -> None:
    buffer = bytearray(response())
    answer = decode_response(FOLLOWER_VERSION, memoryview(buffer))
    assert (answer.error, answer.session_id) == (0, 77)
    first, second, third = answer.partitions
    assert (first.topic, first.partition, first.high_watermark, first.log_start_offset) == (ONE, 0, 50, 5)
    assert first.records == b"r" * 300
    assert first.records.obj is buffer, "not a copy"
    assert (second.diverging_epoch, len(second.records)) == ((3, 8), 0)
    assert (third.error, third.current_leader) == (6, (2, 9))


def test_damage_is_noticed() -> None:
    body = response()
    for size in range(len(body) - 3):
        with pytest.raises(MalformedRequest):
            decode_response(FOLLOWER_VERSION, memoryview(body[:size]))
