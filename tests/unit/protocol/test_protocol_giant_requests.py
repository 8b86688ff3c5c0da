"""Requests that name more than anybody needs are refused while they are read, before they cost much."""

import struct

import pytest

from tidelog.protocol import fetch, messages, produce
from tidelog.protocol.apis import APIS
from tidelog.protocol.primitives import PARTITIONS_MAX, TAGS_MAX, MalformedRequest, read_tags, unsigned_varint

METADATA, OFFSET_FETCH = APIS[3], APIS[9]


def body(api: int, version: int, **fields: object) -> memoryview:
    return memoryview(messages.encode_request(APIS[api], version, fields))


def test_elements_of_all_arrays_count_together() -> None:
    topics = [{"name": f"t{number}", "partition_indexes": list(range(9))} for number in range(10)]
    asked = body(9, 5, group_id="g", topics=topics)
    assert len(messages.decode_request(OFFSET_FETCH, 5, asked, 0, elements_max=100).topics) == 10
    with pytest.raises(MalformedRequest, match=r"tidelog.request.elements.max"):
        messages.decode_request(OFFSET_FETCH, 5, asked, 0, elements_max=99)
    # The next request has all of it again, and who sets no limit has none.
    assert messages.decode_request(OFFSET_FETCH, 5, asked, 0, elements_max=100).topics
    assert messages.decode_request(OFFSET_FETCH, 5, asked, 0).topics


@pytest.mark.parametrize("version", [1, 9, 12])
def test_a_metadata_request_stops_before_its_topics_are_read(version: int) -> None:
    asked = body(3, version, topics=[{"name": "t"}] * 1_001)
    with pytest.raises(MalformedRequest, match="elements"):
        messages.decode_request(METADATA, version, asked, 0, elements_max=1_000)


def test_produce_names_no_more_partitions_than_there_can_be() -> None:
    head = struct.pack(">hhi", -1, 1, 1000)
    one = struct.pack(">ii", 0, -1)
    for topics, partitions in ((1, PARTITIONS_MAX), (PARTITIONS_MAX + 1, 0)):
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", partitions) + one * partitions
        with pytest.raises(MalformedRequest, match="more than"):
            produce.decode_request(memoryview(head + struct.pack(">i", topics) + topic * topics), 0, 7)
    flexible = b"\x00" + struct.pack(">hi", 1, 1000) + unsigned_varint(2) + b"\x02t"
    flexible += unsigned_varint(PARTITIONS_MAX + 1) + (struct.pack(">i", 0) + b"\x00\x00") * PARTITIONS_MAX
    with pytest.raises(MalformedRequest, match="more than"):
        produce.decode_request(memoryview(flexible), 0, 9)


def test_fetch_names_no_more_partitions_than_there_can_be() -> None:
    head = struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 1) + struct.pack(">h", 1) + b"t"
    one = struct.pack(">iqi", 0, 0, 1 << 20)
    asked = head + struct.pack(">i", PARTITIONS_MAX) + one * PARTITIONS_MAX
    with pytest.raises(MalformedRequest, match="more than"):
        fetch.decode_request(memoryview(asked), 0, 4)
    some = head + struct.pack(">i", 1_000) + one * 1_000
    assert len(fetch.decode_request(memoryview(some), 0, 4).topics[0][1]) == 1_000


def test_tagged_fields_without_end() -> None:
    many = unsigned_varint(TAGS_MAX + 1) + b"".join(
        unsigned_varint(number) + b"\x00" for number in range(TAGS_MAX + 1)
    )
    with pytest.raises(MalformedRequest, match="tagged fields"):
        read_tags(memoryview(many), 0)
