"""The hand-written codecs against kio's, for every version."""

import contextlib
import dataclasses
import datetime
import io
import struct
import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from tests.support.kio_entities import build
from tidelog.model.errors import ErrorCode
from tidelog.protocol import api_versions, fetch, messages, produce
from tidelog.protocol.apis import APIS
from tidelog.protocol.current_leaders import CurrentLeader, LeaderEndpoint
from tidelog.protocol.headers import response_chunks, response_frame
from tidelog.protocol.primitives import (
    DECODING_ERRORS,
    MalformedRequest,
    read_unsigned_varint,
    unsigned_varint,
)
from tidelog.protocol.schema_fields import unwrap

TOPIC_ID = uuid.UUID("6f0c1c6e-27e8-4c35-8d4d-111111111111")


class Range(NamedTuple):
    """Stands for a range of a segment file."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def kio_class(module: str, version: int, side: str) -> Any:
    return messages._message_class(module, version, side)


def encode_request(module: str, version: int, fields: dict[str, Any]) -> memoryview:
    cls = kio_class(module, version, "request")
    out = io.BytesIO()
    entity_writer(cls)(out, build(cls)(fields))
    return memoryview(bytearray(out.getvalue()))


def decode_response(module: str, version: int, body: bytes) -> Any:
    message, size = entity_reader(kio_class(module, version, "response"))(memoryview(body), 0)
    assert size == len(body)
    return message


def strip_header(frame: bytes, flexible: bool) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == 77
    if flexible:
        assert frame[8] == 0
        return frame[9:]
    return frame[8:]


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_request_is_decoded_like_kio_encodes_it(version: int) -> None:
    buffer = encode_request(
        "produce",
        version,
        {
            "transactional_id": "txn",
            "acks": -1,
            "timeout": 1500,
            "topic_data": [
                {
                    "name": "orders",
                    "topic_id": TOPIC_ID,
                    "partition_data": [{"index": 3, "records": b"abc"}, {"index": 4, "records": None}],
                }
            ],
        },
    )
    request = produce.decode_request(buffer, 0, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == ("txn", -1, 1500)
    [(topic, partitions)] = request.topics
    assert topic == (TOPIC_ID if version >= 13 else "orders")
    assert [(i, None if r is None else bytes(r)) for i, r in partitions] == [(3, b"abc"), (4, None)]
    assert partitions[0][1] is not None and partitions[0][1].obj is buffer.obj, "records must not be copied"


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_response_is_read_by_kio(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "orders"
    rows = [
        produce.PartitionProduced(0, 0, 42, 1000, 7),
        produce.PartitionProduced(1, ErrorCode.INVALID_RECORD, -1, -1, 7, ((2, "no key"),), "bad batch"),
    ]
    frame = produce.encode_response([(topic, rows)], version, 77, throttle_time_ms=12)
    message = decode_response("produce", version, strip_header(frame, version >= 9))
    [answer] = message.responses
    assert (answer.topic_id if version >= 13 else answer.name) == topic
    first, second = answer.partition_responses
    assert (first.index, first.error_code.value, first.base_offset) == (0, 0, 42)
    assert second.error_code.value == 87
    if version >= 5:
        assert first.log_start_offset == 7
    if version >= 8:
        assert second.error_message == "bad batch"
        assert [(e.batch_index, e.batch_index_error_message) for e in second.record_errors] == [(2, "no key")]
    assert message.throttle_time.total_seconds() == 0.012


class Endpoints:
    """Who leads what is led elsewhere."""

    def of(self, topic: str | uuid.UUID, partition: int) -> CurrentLeader:
        return CurrentLeader(2, 7)

    def endpoints(self) -> list[LeaderEndpoint]:
        return [LeaderEndpoint(2, "elsewhere", 9092, None)]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("count", [1, 3_000])
@pytest.mark.parametrize("led_elsewhere", [False, True])
def test_a_produce_response_is_told_the_time_to_wait_when_it_is_written(
    version: int, count: int, led_elsewhere: bool
) -> None:
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER if led_elsewhere else ErrorCode.NONE
    names: list[str | uuid.UUID] = [f"{number:04d}".ljust(1_000, "n") for number in range(count)]
    if version >= 13:
        names = [uuid.UUID(int=number + 1) for number in range(count)]
    topics = [(name, [produce.PartitionProduced(0, error)]) for name in names]
    leaders = Endpoints() if led_elsewhere else None
    answer = produce.encode_response_pieces(topics, version, 77, leaders=leaders)
    if count == 1 and not leaders:
        assert isinstance(answer, bytes)
    answer = produce.with_throttle_time(answer, version, 1234)
    frame = answer if isinstance(answer, bytes) else b"".join(answer)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    message = decode_response("produce", version, strip_header(frame, version >= 9))
    assert message.throttle_time.total_seconds() == 1.234
    assert [(each.topic_id if version >= 13 else each.name) for each in message.responses] == names
    if led_elsewhere and version >= 10:
        assert [each.host for each in message.node_endpoints] == ["elsewhere"]


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_response_is_told_the_time_to_wait_unless_it_has_a_longer_one(version: int) -> None:
    key = TOPIC_ID if version >= 13 else "orders"
    for own_ms, told_ms, longest_ms in ((0, 1234, 1.234), (2000, 1234, 2.0)):
        records = Range(b"records")
        rows = [fetch.PartitionFetched(0, high_watermark=7, records=records)]
        answer = fetch.encode_response([(key, rows)], version, 77, throttle_time_ms=own_ms)
        answer = fetch.with_throttle_time(answer, version, told_ms)
        assert records in answer
        frame = b"".join(chunk if isinstance(chunk, bytes) else chunk.data for chunk in answer)
        message = decode_response("fetch", version, strip_header(frame, version >= 12))
        assert message.throttle_time.total_seconds() == longest_ms
        assert message.responses[0].partitions[0].high_watermark == 7


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_request_is_decoded_like_kio_encodes_it(version: int) -> None:
    buffer = encode_request(
        "fetch",
        version,
        {
            "replica_id": -1,
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 1,
            "session_id": 9,
            "session_epoch": 2,
            "topics": [
                {
                    "topic": "orders",
                    "topic_id": TOPIC_ID,
                    "partitions": [
                        {
                            "partition": 5,
                            "current_leader_epoch": 3,
                            "fetch_offset": 1234,
                            "last_fetched_epoch": 2,
                            "log_start_offset": 11,
                            "partition_max_bytes": 4096,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [{"topic": "gone", "topic_id": TOPIC_ID, "partitions": [1, 2]}],
            "rack_id": "r1",
        },
    )
    request = fetch.decode_request(buffer, 0, version)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation) == (
        500,
        1,
        1 << 20,
        1,
    )
    key = TOPIC_ID if version >= 13 else "orders"
    assert request.topics == [
        (
            key,
            [
                fetch.FetchPartition(
                    5,
                    3 if version >= 9 else -1,
                    1234,
                    2 if version >= 12 else -1,
                    11 if version >= 5 else -1,
                    4096,
                )
            ],
        )
    ]
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (9, 2)
        assert request.forgotten == [(TOPIC_ID if version >= 13 else "gone", [1, 2])]
    if version >= 11:
        assert request.rack_id == "r1"


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_response_is_read_by_kio(version: int) -> None:
    key = TOPIC_ID if version >= 13 else "orders"
    rows = [
        fetch.PartitionFetched(0, 0, 100, 90, 5, [(7, 50)], -1, Range(b"x" * 300)),
        fetch.PartitionFetched(1, ErrorCode.OFFSET_OUT_OF_RANGE),
        fetch.PartitionFetched(2, 0, 3, 3, 0, [], -1, Range(b"yz")),
        fetch.PartitionFetched(3, 0, 3, 3, 0, None, -1, None, (4, 55), (1, 6)),
    ]
    chunks = fetch.encode_response([(key, rows)], version, 77, session_id=8, throttle_time_ms=3)
    frame = b"".join(c if isinstance(c, bytes) else c.data for c in chunks)
    message = decode_response("fetch", version, strip_header(frame, version >= 12))
    if version >= 7:
        assert message.session_id == 8
    [topic] = message.responses
    assert (topic.topic_id if version >= 13 else topic.topic) == key
    data, missing, small, diverged = topic.partitions
    assert data.records == b"x" * 300 and data.high_watermark == 100 and data.last_stable_offset == 90
    assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 50)]
    assert missing.error_code.value == 1
    assert small.records == b"yz" and small.aborted_transactions == ()
    if version >= 12:
        assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (4, 55)
        assert (diverged.current_leader.leader_id, diverged.current_leader.leader_epoch) == (1, 6)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_response_is_read_by_kio(version: int) -> None:
    features = {"transaction.version": api_versions.Feature(0, 2, 2), "plain": api_versions.Feature(1, 1, 0)}
    frame = api_versions.encode_response(version, 77, ErrorCode.NONE, features)
    message = decode_response("api_versions", version, strip_header(frame, flexible=False))
    rows = {row.api_key: (row.min_version, row.max_version) for row in message.api_keys}
    assert rows == {api.key: (api.min_version, api.max_version) for api in APIS.values()}
    if version >= 3:
        assert [f.name for f in message.finalized_features] == ["transaction.version"]
        supported = {f.name for f in message.supported_features}
        # before version 4 clients could not read a lowest level of 0
        assert supported == ({"transaction.version", "plain"} if version >= 4 else {"plain"})


def test_api_versions_of_an_unknown_version_gets_a_version_0_body() -> None:
    frame = api_versions.encode_response(9, 77, ErrorCode.UNSUPPORTED_VERSION, {})
    message = decode_response("api_versions", 0, strip_header(frame, flexible=False))
    assert message.error_code.value == 35 and len(message.api_keys) == len(APIS)


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        (api_versions.ApiVersionsRequest("a", "1"), ErrorCode.NONE),
        (api_versions.ApiVersionsRequest("-a", "1"), ErrorCode.INVALID_REQUEST),
        (api_versions.ApiVersionsRequest("a", "1", "cluster", 1), ErrorCode.NONE),
        (api_versions.ApiVersionsRequest("a", "1", "other", 1), ErrorCode.REBOOTSTRAP_REQUIRED),
        (api_versions.ApiVersionsRequest("a", "1", "cluster", 2), ErrorCode.REBOOTSTRAP_REQUIRED),
        (api_versions.ApiVersionsRequest("a", "1", None, 1), ErrorCode.INVALID_REQUEST),
        (api_versions.ApiVersionsRequest("a", "1", "cluster", -1), ErrorCode.INVALID_REQUEST),
    ],
)
def test_api_versions_checks_software_and_destination(
    request_fields: api_versions.ApiVersionsRequest, expected: ErrorCode
) -> None:
    assert api_versions.check_request(request_fields, 5, "cluster", 1) == expected


def test_the_table_agrees_with_kio() -> None:
    """Every version we say we serve has a schema, and is flexible exactly where the schema is."""
    for api in APIS.values():
        if api.name == "ApiVersions":
            continue  # by hand; version 5 is newer than kio
        for version in range(max(api.min_version, api.served_from), api.max_version + 1):
            assert kio_class(api.module, version, "request").__flexible__ == api.flexible(version), api


def test_every_response_can_be_encoded_from_defaults() -> None:
    for api in APIS.values():
        if api.name == "ApiVersions":
            continue
        for version in range(max(api.min_version, api.served_from), api.max_version + 1):
            decode_response(api.module, version, messages.encode_response(api, version, {}))


def test_a_control_request_is_decoded_from_the_receive_buffer() -> None:
    buffer = encode_request("metadata", 12, {"topics": [{"name": "orders"}]})
    body = messages.decode_request(APIS[3], 12, buffer, 0)
    assert [topic.name for topic in body.topics] == ["orders"]
    surplus = messages.decode_request(APIS[3], 12, memoryview(bytearray(buffer) + b"xyz"), 0)
    assert surplus == body, "librdkafka leaves bytes behind the end of Metadata v13"
    with pytest.raises(MalformedRequest):
        messages.decode_request(APIS[3], 12, buffer[:-8], 0)


def example_of(entity: Any, depth: int = 0) -> Any:
    """An object of one of kio's classes with something in every field, tagged ones too."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        inner, is_array, _ = unwrap(field.type)
        if dataclasses.is_dataclass(inner):
            value: Any = example_of(inner, depth + 1)
        else:
            value = EXAMPLES.get(field.metadata["kafka_type"], 5)
        values[field.name] = (value, value) if is_array else value
    return entity(**values)


EXAMPLES: dict[str, Any] = {
    "string": "größe",
    "bytes": b"bytes",
    "records": b"records",
    "bool": True,
    "uuid": TOPIC_ID,
    "error_code": KioErrorCode.not_controller,
    "timedelta_i32": datetime.timedelta(milliseconds=1234),
    "timedelta_i64": datetime.timedelta(milliseconds=1234),
    "datetime_i64": datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC),
}


def test_every_request_is_read_back_as_kio_wrote_it() -> None:
    """Also with an unknown tagged field behind, which must be passed over."""
    for api in APIS.values():
        if api.name == "ApiVersions":
            continue
        for version in range(max(api.min_version, api.served_from), api.max_version + 1):
            cls = kio_class(api.module, version, "request")
            plain = build(cls)({})
            for message in (example_of(cls), plain):
                out = io.BytesIO()
                entity_writer(cls)(out, message)
                data = bytearray(out.getvalue())
                assert messages.decode_request(api, version, memoryview(data), 0) == message, (api, version)
                if cls.__flexible__ and message is plain:
                    assert data[-1] == 0, "no tagged fields"
                    data[-1:] = b"\x01\x63\x02hi"
                    assert messages.decode_request(api, version, memoryview(data), 0) == message


def plain_of(message: Any) -> Any:
    """The mapping that a handler would give for a message: numbers and mappings instead of kio's types."""
    if dataclasses.is_dataclass(message):
        return {field.name: plain_of(getattr(message, field.name)) for field in dataclasses.fields(message)}
    if isinstance(message, tuple):
        return [plain_of(one) for one in message]
    if isinstance(message, datetime.timedelta):
        return round(message.total_seconds() * 1000)
    if isinstance(message, datetime.datetime):
        return round(message.timestamp() * 1000)
    return int(message) if isinstance(message, KioErrorCode) else message


def test_every_message_is_written_as_kio_writes_it() -> None:
    """Requests and answers of every version, full and empty, from plain mappings."""
    count = 0
    for api in APIS.values():
        if api.name == "ApiVersions":
            continue
        for version in range(max(api.min_version, api.served_from), api.max_version + 1):
            for side, encode in (
                ("request", messages.encode_request),
                ("response", messages.encode_response),
            ):
                cls = kio_class(api.module, version, side)
                for message in (example_of(cls), build(cls)({})):
                    out = io.BytesIO()
                    entity_writer(cls)(out, message)
                    assert encode(api, version, plain_of(message)) == out.getvalue(), (api, version, side)
                    count += 1
                assert encode(api, version, {}) == out.getvalue(), (api, version, side)
    assert count > 500


def test_large_answers_are_made_in_pieces() -> None:
    rows = [
        {"error_code": 0, "name": f"{number:05d}" + "n" * 3_000, "partitions": []} for number in range(999)
    ]
    fields = {"brokers": [], "cluster_id": "x", "controller_id": 1, "topics": rows}
    whole = messages.encode_response(APIS[3], 12, fields)
    pieces = messages.encode_response_pieces(APIS[3], 12, fields)
    assert len(pieces) == 3 and b"".join(pieces) == whole
    chunks = response_chunks(APIS[3], 12, 77, pieces)
    assert isinstance(chunks, list) and b"".join(chunks) == response_frame(APIS[3], 12, 77, whole)
    small = messages.encode_response_pieces(APIS[3], 12, {**fields, "topics": rows[:1]})
    assert len(small) == 1 and response_chunks(APIS[3], 12, 77, small) == response_frame(
        APIS[3], 12, 77, small[0]
    )


def test_messages_of_errors_are_cut_to_fit() -> None:
    told = "ä" * 40_000
    body = messages.encode_response(APIS[60], 0, {"error_message": told})
    assert len(body) < 2_200
    assert told[:1_000] in decode_response("describe_cluster", 0, body).error_message


def test_a_length_bomb_is_refused_before_it_is_allocated() -> None:
    bomb = memoryview(bytearray(b"\xff\xff\xff\xff\x0f"))  # Metadata v12: four billion topics
    with pytest.raises(MalformedRequest):
        messages.decode_request(APIS[3], 12, bomb, 0)
    bomb = memoryview(bytearray(b"\x7f\xff\xff\xff"))
    with pytest.raises(MalformedRequest):
        messages.decode_request(APIS[3], 1, bomb, 0)


def test_response_frame_has_tags_only_where_flexible() -> None:
    assert response_frame(APIS[3], 12, 77, b"body")[8:] == b"\x00body"
    assert response_frame(APIS[3], 1, 77, b"body")[8:] == b"body"
    assert response_frame(APIS[18], 3, 77, b"body")[8:] == b"body"


@given(st.integers(0, 2**31 - 1))
def test_varints_round_trip(value: int) -> None:
    data = unsigned_varint(value)
    assert read_unsigned_varint(memoryview(data), 0) == (value, len(data))


@given(st.binary(max_size=200), st.sampled_from([0, 1]), st.integers(3, 18))
def test_random_bytes_never_crash_the_data_codecs(data: bytes, key: int, version: int) -> None:
    codec = (produce.decode_request, fetch.decode_request)[key]
    version = min(version, APIS[key].max_version)
    version = max(version, APIS[key].min_version, APIS[key].served_from)
    with contextlib.suppress(*DECODING_ERRORS):
        codec(memoryview(bytearray(data)), 0, version)


@given(st.binary(max_size=200), st.sampled_from(sorted(k for k in APIS if k not in (0, 1, 18))), st.data())
def test_random_bytes_never_crash_the_control_codecs(data: bytes, key: int, draw: st.DataObject) -> None:
    api = APIS[key]
    version = draw.draw(st.integers(api.min_version, api.max_version))
    with contextlib.suppress(*DECODING_ERRORS):
        messages.decode_request(api, version, memoryview(bytearray(data)), 0)
