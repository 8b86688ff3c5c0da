"""The consumer's side of Fetch against the broker's, and against kio, in every version it speaks."""

import importlib
from dataclasses import dataclass

import pytest
from kio.serial import entity_reader

from tidelog.protocol import fetch
from tidelog.protocol.fetch import FetchPartition
from tidelog.protocol.fetch_client import (
    CONSUMER_VERSION_MAX,
    CONSUMER_VERSION_MIN,
    consumer_request,
    decode_response,
    encode_request,
)
from tidelog.protocol.primitives import MalformedRequest

VERSIONS = range(CONSUMER_VERSION_MIN, CONSUMER_VERSION_MAX + 1)


@dataclass
class Records:
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def request(version: int) -> bytes:
    asked = consumer_request(
        "orders",
        0,
        100,
        1 << 20,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        isolation=1,
        rack_id="r1",
    )
    [(topic, [first])] = asked.topics
    second, third = FetchPartition(3, -1, 7, -1, -1, 1 << 10), FetchPartition(1, -1, 0, -1, -1, 5)
    return encode_request(version, asked._replace(topics=[(topic, [first, second]), ("ä", [third])]))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_broker_reads_what_the_consumer_writes(version: int) -> None:
    decoded = fetch.decode_request(memoryview(request(version)), 0, version)
    assert (decoded.replica_id, decoded.max_wait_ms, decoded.isolation) == (-1, 500, 1)
    assert (decoded.session_id, decoded.session_epoch) == (0, -1)
    assert decoded.rack_id == ("r1" if version >= 11 else "")
    wanted = [
        (topic, [(p.partition, p.fetch_offset, p.max_bytes) for p in rows]) for topic, rows in decoded.topics
    ]
    assert wanted == [("orders", [(0, 100, 1 << 20), (3, 7, 1 << 10)]), ("ä", [(1, 0, 5)])]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_the_message_of_the_schema(version: int) -> None:
    message = importlib.import_module(f"kio.schema.fetch.v{version}.request").FetchRequest
    decoded, size = entity_reader(message)(request(version), 0)
    assert size == len(request(version))
    assert decoded.topics[0].partitions[1].fetch_offset == 7


def response(version: int) -> bytes:
    rows = [
        fetch.PartitionFetched(
            0, 0, 50, 40, 3, aborted=[(9, 11), (10, 12)], preferred_read_replica=2, records=Records(b"abc")
        ),
        fetch.PartitionFetched(3, 1),
    ]
    chunks = fetch.encode_response([("orders", rows), ("ä", [])], version, 77)
    frame = b"".join(chunk if isinstance(chunk, bytes) else chunk.data for chunk in chunks)
    return frame[9 if version >= 12 else 8 :]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_consumer_reads_what_the_broker_writes(version: int) -> None:
    answer = decode_response(version, memoryview(response(version)))
    assert (answer.error, answer.throttle_time_ms) == (0, 0)
    first, second = answer.partitions
    assert (first.topic, first.partition, first.error, bytes(first.records)) == ("orders", 0, 0, b"abc")
    assert (first.high_watermark, first.last_stable_offset) == (50, 40)
    assert first.log_start_offset == (3 if version >= 5 else -1)
    assert first.aborted == [(9, 11), (10, 12)]
    assert first.preferred_read_replica == (2 if version >= 11 else -1)
    assert (second.partition, second.error, bytes(second.records), second.aborted) == (3, 1, b"", None)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_is_cut_off_is_refused(version: int) -> None:
    whole = response(version)
    for length in range(len(whole) - 1):
        with pytest.raises(MalformedRequest):
            decode_response(version, memoryview(whole[:length]))
