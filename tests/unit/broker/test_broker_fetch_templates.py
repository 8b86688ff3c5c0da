"""The fast path of Fetch: it answers exactly as the general path does, and steps aside for all else."""

import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.broker.node import NodeUnderTest, batch, joined, produce_frame
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.controller.commands import DeleteTopics, TopicReference
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import DECODING_ERRORS, compact_string, string

BATCHES = 6


def fetch_frame(
    version: int,
    topic: str | UUID,
    offset: int,
    *,
    partition: int = 1,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    correlation_id: int = 5,
) -> bytes:
    """A request for one partition, of any version."""
    flexible = version >= 12
    parts = [struct.pack(">hhih", 1, version, correlation_id, 4) + b"test" + (b"\0" if flexible else b"")]
    if version <= 14:
        parts.append(struct.pack(">i", -1))
    parts.append(struct.pack(">iiib", 0, min_bytes, max_bytes, isolation))
    if version >= 7:
        parts.append(struct.pack(">ii", *session))
    one = b"\x02" if flexible else struct.pack(">i", 1)
    if isinstance(topic, UUID):
        name = topic.bytes
    else:
        name = compact_string(topic) if flexible else string(topic)
    parts += one, name, one, struct.pack(">i", partition)
    if version >= 9:
        parts.append(struct.pack(">i", -1))
    parts.append(struct.pack(">q", offset))
    if version >= 12:
        parts.append(struct.pack(">i", -1))
    if version >= 5:
        parts.append(struct.pack(">q", -1))
    parts.append(struct.pack(">i", max_bytes))
    parts.append(b"\0\0" if flexible else b"")
    if version >= 7:
        parts.append(b"\x01" if flexible else struct.pack(">i", 0))
    if version >= 11:
        parts.append(b"\x01" if flexible else struct.pack(">h", 0))
    parts.append(b"\0" if flexible else b"")
    return b"".join(parts)


def node_with_records() -> NodeUnderTest:
    node = NodeUnderTest()
    node.create_topic("t", 3)
    for n in range(BATCHES):
        node.handle(produce_frame(9, batch(b"first %d" % n, bytes(300 * n)), "t", partition=1))
    return node


def topic_key(node: NodeUnderTest, version: int) -> str | UUID:
    return node.broker.image.topics["t"].topic_id if version >= 13 else "t"


@pytest.mark.parametrize("version", range(4, 19))
def test_the_short_way_answers_like_the_long_way(version: int) -> None:
    node = node_with_records()
    topic = topic_key(node, version)
    for max_bytes in (1, 700, 1 << 20):
        for offset in range(2 * BATCHES):
            frame = fetch_frame(version, topic, offset, max_bytes=max_bytes, correlation_id=offset)
            node.context.fetch_template = None
            expected = joined(node.handle(frame))
            assert (node.context.fetch_template is not None) == (version >= 5)
            template = node.context.fetch_template
            assert joined(node.handle(frame)) == expected
            assert node.context.fetch_template is template, "the second request went by the general path"


def test_records_are_counted_on_both_ways() -> None:
    node = node_with_records()
    partition = node.broker.replicas.led["t", 1]
    node.handle(fetch_frame(12, "t", 0))
    first = partition.sent_bytes, partition.sent_messages
    assert node.context.fetch_template is not None
    node.handle(fetch_frame(12, "t", 0))
    assert (partition.sent_bytes, partition.sent_messages) == (2 * first[0], 2 * first[1])


@pytest.mark.parametrize("offset", [-1, 2 * BATCHES, 2 * BATCHES + 1])
def test_nothing_to_read_and_a_wrong_offset_go_the_long_way(offset: int) -> None:
    node = node_with_records()
    frame = fetch_frame(12, "t", offset)
    expected = joined(node.handle(frame))
    node.handle(fetch_frame(12, "t", 0))
    assert node.context.fetch_template is not None
    assert joined(node.handle(frame)) == expected


def test_a_request_that_waits_for_more_bytes_goes_the_long_way() -> None:
    node = node_with_records()
    node.handle(fetch_frame(12, "t", 0, min_bytes=900))
    assert node.context.fetch_template is not None
    tail = fetch_frame(12, "t", 2 * BATCHES - 1, min_bytes=1 << 19)
    assert not isinstance(node.handle(tail), PendingAnswer), "max_wait_ms is 0"


@pytest.mark.parametrize("fields", [{"isolation": 1}, {"session": (0, 0)}])
def test_what_is_unusual_has_no_shape(fields: dict[str, object]) -> None:
    node = node_with_records()
    node.handle(fetch_frame(12, "t", 0, **fields))  # type: ignore[arg-type]
    assert node.context.fetch_template is None


def test_a_shape_dies_with_its_topic() -> None:
    node = node_with_records()
    for _ in range(2):
        node.handle(fetch_frame(12, "t", 0))
    node.broker.metadata.submit(DeleteTopics((TopicReference("t"),)), lambda results: None)
    answer = joined(node.handle(fetch_frame(12, "t", 0)))
    assert struct.pack(">ih", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) in answer


@settings(max_examples=200)
@given(st.integers(8, 200), st.integers(1, 255), st.sampled_from([7, 11, 12]))
def test_a_request_that_differs_in_any_byte_is_answered_as_without_a_shape(
    place: int, flip: int, version: int
) -> None:
    frame = bytearray(fetch_frame(version, "t", 2))
    place = 8 + place % (len(frame) - 8)
    damaged = frame.copy()
    damaged[place] ^= flip
    answers = []
    for known in (False, True):
        SHARED.context.fetch_template = None
        if known:
            SHARED.handle(bytes(frame))
            assert SHARED.context.fetch_template is not None
        try:
            answer = SHARED.handle(bytes(damaged))
            answers.append(None if isinstance(answer, PendingAnswer) else joined(answer))
        except (CloseConnection, *DECODING_ERRORS) as fault:
            answers.append(type(fault))  # type: ignore[arg-type]
    if isinstance(answers[0], bytes) and version >= 7:
        # a damaged session field may open a session, whose id is a new one each time
        answers = [a[:14] + a[18:] if isinstance(a, bytes) else a for a in answers]
    assert answers[0] == answers[1]


SHARED = node_with_records()
