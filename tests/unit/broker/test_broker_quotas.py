"""Quotas at the broker: who is counted, how long who is above has to wait, and what is done meanwhile."""

import struct
from typing import Any

import pytest
from node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from test_broker_authorization import GuardedNode, errors

from tidelog.broker.dispatch import ConnectionContext, PendingAnswer
from tidelog.controller.commands import AlterClientQuotas, QuotaChange
from tidelog.model.errors import ErrorCode


def limit(node: NodeUnderTest, entity: dict[str, str | None], **values: float | None) -> None:
    change = QuotaChange(tuple(entity.items()), tuple(values.items()))
    results: list[Any] = []
    node.broker.metadata.submit(AlterClientQuotas((change,)), results.extend)
    assert type(results[0]).__name__ == "Done", results


def call(node: NodeUnderTest, name: str, version: int, fields: dict[str, Any]) -> Any:
    return GuardedNode.call(node, name, version, fields)  # type: ignore[arg-type]


def produce_throttle_ms(answer: Any, version: int = 7) -> int:
    data = joined(answer)
    return int(struct.unpack_from(">i", data, len(data) - (5 if version >= 9 else 4))[0])


def fetch_throttle_ms(answer: Any) -> int:
    return int(struct.unpack_from(">i", joined(answer), 8)[0])


def muted_ms(node: NodeUnderTest) -> int:
    """For how long the connection was asked to be muted; asking again is told apart."""
    throttle_ms, node.context.throttle_ms = node.context.throttle_ms, 0
    return throttle_ms


@pytest.fixture
def node() -> NodeUnderTest:
    made = NodeUnderTest()
    made.create_topic("t")
    return made


def test_without_quotas_nothing_is_counted_and_the_last_one_takes_it_away(node: NodeUnderTest) -> None:
    assert node.broker.quotas is None
    limit(node, {"user": "alice"}, producer_byte_rate=1000.0)
    assert node.broker.quotas is not None
    limit(node, {"user": "alice"}, producer_byte_rate=None)
    assert node.broker.quotas is None


@pytest.mark.parametrize("version", [3, 7, 9, 12])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_producer_above_its_rate_waits(node: NodeUnderTest, version: int, acks: int) -> None:
    limit(node, {"client-id": "test"}, producer_byte_rate=1000.0)
    frame = produce_frame(version, batch(b"x" * 5000), acks=acks)
    assert produce_throttle_ms(node.handle(frame), version) == muted_ms(node) == 0
    assert produce_throttle_ms(node.handle(frame), version) > 0
    waits_ms = muted_ms(node)
    total = 2 * len(frame)
    assert waits_ms == pytest.approx(total - 10_000, abs=2)
    # What was sent is done all the same.
    assert node.broker.partitions["t", 0].log.log_end_offset == 2
    assert not node.context.produce_shapes, "who is limited goes the long way"


def test_the_rate_is_kept_by_who_waits(node: NodeUnderTest) -> None:
    limit(node, {"user": "ANONYMOUS"}, producer_byte_rate=10_000.0)
    frame = produce_frame(7, batch(b"x" * 2000))
    sent = 0
    begin_ms = node.clock.time_ms
    # Measured over whole turns of the windows: what the first of them let through comes again with each turn.
    while node.clock.time_ms - begin_ms < 66_000:
        node.handle(frame)
        if node.clock.time_ms - begin_ms >= 11_000:
            sent += len(frame)
        node.advance(1 + muted_ms(node))
    assert sent / 55 == pytest.approx(10_000, rel=0.1)


def test_acks_0_is_muted_without_an_answer(node: NodeUnderTest) -> None:
    limit(node, {"user": None}, producer_byte_rate=100.0)
    assert node.handle(produce_frame(7, batch(b"x" * 5000), acks=0)) is None
    assert muted_ms(node) > 0


def test_a_waiting_answer_carries_the_time_too(node: NodeUnderTest) -> None:
    node.create_topic("flushed", flush_messages="1")
    limit(node, {"client-id": "test"}, producer_byte_rate=100.0)
    held: list[Any] = []
    node.broker.flusher.request = held.append  # type: ignore[method-assign]
    answer = node.handle(produce_frame(7, batch(b"x" * 5000), "flushed"))
    assert isinstance(answer, PendingAnswer) and answer.chunks is None
    waits_ms = muted_ms(node)
    node.advance(2_000)
    assert produce_throttle_ms(answer) == waits_ms > 0


def test_others_are_not_counted_and_keep_the_short_way(node: NodeUnderTest) -> None:
    limit(node, {"client-id": "other"}, producer_byte_rate=1.0)
    frame = produce_frame(7, batch(b"x" * 5000), acks=1)
    for _ in range(5):
        assert produce_throttle_ms(node.handle(frame)) == 0
    assert node.context.produce_shapes and muted_ms(node) == 0
    # A limit that comes ends the short way.
    limit(node, {"client-id": "test"}, producer_byte_rate=1.0)
    assert node.dispatcher.handle_again(node.context, memoryview(bytearray(frame)), 0, len(frame)) is None
    assert produce_throttle_ms(node.handle(frame)) > 0


def test_those_who_share_a_limit_are_counted_together(node: NodeUnderTest) -> None:
    limit(node, {"user": "alice"}, producer_byte_rate=1000.0)
    frame = produce_frame(7, batch(b"x" * 6000))
    throttles = []
    for client_id, user in ((b"one1", "alice"), (b"two2", "alice"), (b"one1", "bob")):
        node.context = ConnectionContext("127.0.0.1", 1, "PLAINTEXT")
        node.context.principal = f"User:{user}"
        throttles.append(produce_throttle_ms(node.handle(frame.replace(b"test", client_id, 1))))
    assert throttles[0] == 0 and throttles[1] > 0 and throttles[2] == 0


def test_a_consumer_above_its_rate_gets_nothing_and_waits(node: NodeUnderTest) -> None:
    data = batch(b"x" * 6000)
    for _ in range(4):
        node.handle(produce_frame(7, data))
    limit(node, {"client-id": "test"}, consumer_byte_rate=1000.0)
    one = fetch_frame("t", 0, max_bytes=7000)
    first = node.handle(one)
    assert fetch_throttle_ms(first) == 0 and len(joined(first)) > 6000
    second = node.handle(one)
    waits_ms = muted_ms(node)
    assert fetch_throttle_ms(second) == waits_ms > 0 and len(joined(second)) < 100
    for _ in range(10):
        node.advance(waits_ms + 1)
        third = node.handle(one)
        waits_ms = muted_ms(node)
        if not waits_ms:
            break
    assert fetch_throttle_ms(third) == 0 and len(joined(third)) > 6000
    # One answer never has more than all windows hold, or its turn would never come.
    node.advance(60_000)
    everything = node.handle(fetch_frame("t", 0))
    assert fetch_throttle_ms(everything) == 0 and len(joined(everything)) < 13_000


def test_a_fetch_that_waited_is_counted_when_it_is_answered(node: NodeUnderTest) -> None:
    limit(node, {"client-id": "test"}, consumer_byte_rate=100.0)
    waiting = node.handle(fetch_frame("t", 0, max_wait_ms=5_000))
    assert isinstance(waiting, PendingAnswer)
    other = ConnectionContext("127.0.0.1", 2, "PLAINTEXT")
    mine, node.context = node.context, other
    node.handle(produce_frame(7, batch(b"x" * 5000), client_id=b"free"))
    node.context = mine
    node.advance(5_000)
    assert fetch_throttle_ms(waiting) > 0 and muted_ms(node) > 0


def test_a_session_does_not_begin_with_an_empty_answer(node: NodeUnderTest) -> None:
    node.handle(produce_frame(7, batch(b"x" * 5000)))
    limit(node, {"client-id": "test"}, consumer_byte_rate=1.0)
    v7 = (
        struct.pack(">hhih", 1, 7, 5, 4)
        + b"test"
        + struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, 0)
        + struct.pack(">i", 1)
        + struct.pack(">h", 1)
        + b"t"
        + struct.pack(">iiqqi", 1, 0, 0, -1, 1 << 20)
        + struct.pack(">i", 0)
    )
    answer = joined(node.handle(v7))
    throttle_ms, error, session_id, topics = struct.unpack_from(">ihii", answer, 8)
    assert throttle_ms > 0 and (error, session_id, topics) == (0, 0, 0)
    assert len(node.broker.fetch_sessions) == 0


def test_request_time_is_limited_for_every_api(node: NodeUnderTest) -> None:
    limit(node, {"client-id": "test"}, request_percentage=0.000001)
    assert call(node, "Metadata", 12, {"topics": None}).throttle_time.total_seconds() > 0
    assert 0 < muted_ms(node) <= 1000
    assert call(node, "Metadata", 12, {"topics": None}).throttle_time.total_seconds() > 0, "not remembered"
    assert fetch_throttle_ms(node.handle(fetch_frame("t", 0))) > 0
    muted_ms(node)
    assert produce_throttle_ms(node.handle(produce_frame(7, batch(b"x")))) > 0
    assert not node.context.produce_shapes
    found = call(node, "FindCoordinator", 3, {"key": "g", "key_type": 0})
    assert found.throttle_time.total_seconds() > 0, "a later answer carries it too"


def test_changes_of_topics_are_limited_by_tokens() -> None:
    node = NodeUnderTest(controller_quota_window_num="1")
    limit(node, {"client-id": "test"}, controller_mutation_rate=5.0)

    def create(version: int, *names: str) -> dict[str, int]:
        topics = [
            {"name": name, "num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
            for name in names
        ]
        answer = call(node, "CreateTopics", version, {"topics": topics, "timeout": 1000})
        node.waits = answer.throttle_time.total_seconds()  # type: ignore[attr-defined]
        return {topic.name: int(topic.error_code) for topic in answer.topics}

    # Five tokens: one topic leaves one, the second takes more than there are, the third is refused.
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert create(7, "a", "b", "c") == {"a": 0, "b": 0, "c": refused}
    assert set(node.broker.image.topics) == {"a", "b"}
    assert node.waits == pytest.approx(0.6)  # type: ignore[attr-defined]
    assert muted_ms(node) == 600
    delete = {"topics": [{"name": "a", "topic_id": None}], "timeout": 1000}
    assert errors(call(node, "DeleteTopics", 6, delete)) == {refused}
    grow = {"topics": [{"name": "a", "count": 9, "assignments": None}], "timeout": 1000}
    assert errors(call(node, "CreatePartitions", 3, grow)) == {refused}
    node.advance(700)
    muted_ms(node)
    assert create(5, "d", "e") == {"d": 0, "e": 0}, "an old version is served, and waits"
    assert node.waits > 0  # type: ignore[attr-defined]
    assert set(node.broker.image.topics) == {"a", "b", "d", "e"}


def test_new_connections_of_an_address_are_limited(node: NodeUnderTest) -> None:
    limit(node, {"ip": "10.0.0.1"}, connection_creation_rate=2.0)
    quotas = node.broker.quotas
    assert quotas is not None
    assert [quotas.admits("10.0.0.1") for _ in range(4)] == [True, True, False, False]
    assert all(quotas.admits("10.0.0.2") for _ in range(10))
    node.advance(500)
    assert [quotas.admits("10.0.0.1") for _ in range(2)] == [True, False]


def test_followers_are_not_counted(node: NodeUnderTest) -> None:
    limit(node, {"user": None}, request_percentage=0.000001, consumer_byte_rate=1.0)
    follower = bytearray(fetch_frame("t", 0))
    struct.pack_into(">i", follower, 14, 3)
    assert fetch_throttle_ms(node.handle(bytes(follower))) == 0
    assert muted_ms(node) == 0


def test_quotas_are_altered_and_described(node: NodeUnderTest) -> None:
    def alter(entity: dict[str, str | None], key: str, value: float | None) -> set[ErrorCode]:
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        op = {"key": key, "value": value or 0.0, "remove": value is None}
        return errors(call(node, "AlterClientQuotas", 1, {"entries": [{"entity": parts, "ops": [op]}]}))

    assert alter({"user": "alice"}, "producer_byte_rate", 10.0) == {ErrorCode.NONE}
    assert alter({"user": "alice", "client-id": None}, "request_percentage", 20.0) == {ErrorCode.NONE}
    assert alter({"user": None}, "consumer_byte_rate", 30.0) == {ErrorCode.NONE}
    assert alter({"user": "alice"}, "nonsense", 1.0) == {ErrorCode.INVALID_REQUEST}

    def describe(strict: bool, *components: tuple[str, int, str | None]) -> Any:
        asked = [{"entity_type": k, "match_type": m, "match": name} for k, m, name in components]
        answer = call(node, "DescribeClientQuotas", 1, {"components": asked, "strict": strict})
        if int(answer.error_code):
            return ErrorCode(int(answer.error_code))
        return sorted(value.value for entry in answer.entries for value in entry.values)

    assert describe(False) == [10.0, 20.0, 30.0]
    assert describe(False, ("user", 0, "alice")) == [10.0, 20.0]
    assert describe(True, ("user", 0, "alice")) == [10.0]
    assert describe(True, ("user", 1, None)) == [30.0]
    assert describe(False, ("client-id", 1, None)) == [20.0]
    assert describe(False, ("user", 2, None)) == [10.0, 20.0, 30.0]
    assert describe(False, ("planet", 2, None)) == ErrorCode.UNSUPPORTED_VERSION
    assert describe(False, ("user", 0, None)) == ErrorCode.INVALID_REQUEST
    assert describe(False, ("user", 2, None), ("user", 2, None)) == ErrorCode.INVALID_REQUEST
    assert alter({"user": "alice"}, "producer_byte_rate", None) == {ErrorCode.NONE}
    assert describe(False) == [20.0, 30.0]


def test_throttles_are_counted_by_quota(node: NodeUnderTest) -> None:
    data = batch(b"x" * 6000)
    counts, waits = node.broker.metrics.throttle_count, node.broker.metrics.throttle_ms
    limit(node, {"client-id": "test"}, producer_byte_rate=1000.0, consumer_byte_rate=1000.0)
    for _ in range(2):
        node.handle(produce_frame(7, data))
    assert counts == {"produce": 1} and waits["produce"] == muted_ms(node) > 0
    partition = node.broker.partitions["t", 0]
    for _ in range(2):
        node.handle(fetch_frame("t", 0, max_bytes=7000))
    assert counts == {"produce": 1, "fetch": 1} and waits["fetch"] == muted_ms(node) > 0
    assert partition.sent_bytes == len(data), "what was held back was not sent"
    limit(node, {"client-id": "test"}, request_percentage=0.000001)
    call(node, "Metadata", 12, {"topics": None})
    assert counts["request"] == 1
