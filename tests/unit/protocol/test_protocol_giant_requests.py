"""Requests that name more than anybody needs are refused while they are read, before they cost much."""

import struct
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.support.largest_requests import KIO_VERSION_MAX, LargestRequest
from tidelog.protocol import api_versions, fetch, messages, produce
from tidelog.protocol.apis import APIS, Api
from tidelog.protocol.headers import REQUEST_PREFIX, read_client_id
from tidelog.protocol.primitives import (
    PARTITIONS_MAX,
    PRODUCED_PARTITIONS_MAX,
    STRING_BYTES_MAX,
    TAGS_MAX,
    MalformedRequest,
    compact_string,
    fit_string,
    read_compact_nullable_string,
    read_compact_string,
    read_nullable_string,
    read_string,
    read_tags,
    unsigned_varint,
)
from tidelog.protocol.slices import PIECE_BYTES

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
    most = PRODUCED_PARTITIONS_MAX
    for topics, partitions in ((1, most), (most + 1, 0)):
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", partitions) + one * partitions
        with pytest.raises(MalformedRequest, match="more topics and partitions"):
            produce.decode_request(memoryview(head + struct.pack(">i", topics) + topic * topics), 0, 7)
    flexible = b"\x00" + struct.pack(">hi", 1, 1000) + unsigned_varint(2) + b"\x02t"
    flexible += unsigned_varint(most + 1) + (struct.pack(">i", 0) + b"\x00\x00") * most
    with pytest.raises(MalformedRequest, match="more topics and partitions"):
        produce.decode_request(memoryview(flexible), 0, 9)


def test_fetch_names_no_more_partitions_than_there_can_be() -> None:
    head = struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 1) + struct.pack(">h", 1) + b"t"
    one = struct.pack(">iqi", 0, 0, 1 << 20)
    asked = head + struct.pack(">i", PARTITIONS_MAX) + one * PARTITIONS_MAX
    with pytest.raises(MalformedRequest, match="more topics and partitions"):
        fetch.decode_request(memoryview(asked), 0, 4)
    some = head + struct.pack(">i", 1_000) + one * 1_000
    assert len(fetch.decode_request(memoryview(some), 0, 4).topics[0][1]) == 1_000


def test_tagged_fields_without_end() -> None:
    many = unsigned_varint(TAGS_MAX + 1) + b"".join(
        unsigned_varint(number) + b"\x00" for number in range(TAGS_MAX + 1)
    )
    with pytest.raises(MalformedRequest, match="tagged fields"):
        read_tags(memoryview(many), 0)


@pytest.mark.parametrize("read", [read_compact_string, read_compact_nullable_string])
def test_compact_strings_are_no_longer_than_others(read: Callable[[memoryview, int], object]) -> None:
    longest = compact_string("x" * STRING_BYTES_MAX)
    assert read(memoryview(longest), 0) == ("x" * STRING_BYTES_MAX, len(longest))
    for text in ("x" * (STRING_BYTES_MAX + 1), "ä" * (STRING_BYTES_MAX // 2 + 1), "x" * 3_000_000):
        with pytest.raises(MalformedRequest, match="invalid length"):
            read(memoryview(compact_string(text)), 0)


@pytest.mark.parametrize("read", [read_string, read_nullable_string])
def test_strings_have_no_negative_lengths(read: Callable[[memoryview, int], object]) -> None:
    for length in (-2, -32768) if read is read_nullable_string else (-1, -2, -32768):
        with pytest.raises(MalformedRequest):
            read(memoryview(struct.pack(">h", length) + b"x" * 40_000), 0)


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.first_flexible is not None])
def test_no_api_takes_a_string_that_could_not_be_sent_back(api: Api) -> None:
    """Every string of every API: first as long as it may be, then one byte longer."""
    decode: Callable[[memoryview, int, int], object] = {
        "Produce": produce.decode_request,
        "Fetch": fetch.decode_request,
        "ApiVersions": api_versions.decode_request,
    }.get(api.name, lambda buffer, position, version: messages.decode_request(api, version, buffer, position))
    for version in range(
        api.first_flexible or 0, min(api.max_version, KIO_VERSION_MAX.get(api.name, 99)) + 1
    ):
        if not api.serves(version):
            continue
        longest = LargestRequest(api.module, version, strings=STRING_BYTES_MAX, elements=1)
        decode(memoryview(longest.encode()), 0, version)
        for number, name in enumerate(longest.string_names):
            if (api.name, name) == ("Fetch", "cluster_id"):
                continue  # tagged, and passed over
            over = LargestRequest(api.module, version, strings=10, elements=1, long_string=number)
            with pytest.raises(MalformedRequest):
                decode(memoryview(over.encode()), 0, version)


@pytest.mark.parametrize("codec", [fetch, produce])
def test_no_large_answer_is_copied_in_one_step(codec: ModuleType) -> None:
    """A hundred megabytes that are put together at once hold everybody else up."""
    names = [str(number).ljust(STRING_BYTES_MAX, "n") for number in range(200)]
    if codec is fetch:
        chunks = fetch.encode_response([(name, [fetch.PartitionFetched(0, 3)]) for name in names], 12, 7)
        pieces = [chunk for chunk in chunks if isinstance(chunk, bytes)]
    else:
        produced = [produce.PartitionProduced(0, 3)]
        answer = produce.encode_response_pieces([(name, produced) for name in names], 12, 7)
        pieces = [answer] if isinstance(answer, bytes) else answer
    assert sum(map(len, pieces)) > len(names) * STRING_BYTES_MAX
    assert max(map(len, pieces)) < PIECE_BYTES + STRING_BYTES_MAX + 1_000


def test_a_client_id_that_is_no_text_fits_a_string_again() -> None:
    frame = memoryview(bytes(REQUEST_PREFIX.size) + b"\xff" * STRING_BYTES_MAX)
    client_id = read_client_id(frame, STRING_BYTES_MAX)
    assert client_id is not None and len(client_id.encode()) <= STRING_BYTES_MAX


def test_texts_are_cut_between_characters() -> None:
    assert fit_string("a" * 10, 10) == "a" * 10
    assert fit_string("ä" * 10, 5) == "ää"
    assert fit_string("a" * 11, 10) == "a" * 10
