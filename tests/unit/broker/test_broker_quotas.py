"""Quotas at the broker: who is counted, how long who is above has to wait, and what is done meanwhile."""

import ast
import importlib
import re
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.authorization_rules import RULES
from tests.unit.broker.node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tests.unit.broker.test_broker_authorization import BY_NAME, PRIVATE, GuardedNode, errors
from tidelog import broker as broker_package
from tidelog.broker.requests import dispatch, mutation_quota
from tidelog.broker.requests import quotas as quotas_module
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.request import HELD, CloseConnection, PendingAnswer
from tidelog.controller.commands import AlterClientQuotas, QuotaChange
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS, PRIVATE_APIS

#: ask for what creates or deletes topics, and count for none: records are deleted; topics come by themselves
NO_MUTATIONS = {"DeleteRecords", "Metadata"}
#: gives on what it is asked for; and what forwards delayed records is a client like any, which quotas count
PASSES_ON = ("runtime/turn.py", "coordinators/delay_client.py")


def sent_to_brokers() -> set[str]:
    """The APIs whose keys are given to `Peers.request` somewhere in the broker."""
    found = set()
    folder = Path(broker_package.__path__[0])
    for path in folder.rglob("*.py"):
        place = path.relative_to(folder)
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="_peers"), attr="request"),
                    args=[_, ast.Name(id=key), *_],
                ) if str(place) not in PASSES_ON:
                    name = ".".join((broker_package.__name__, *place.with_suffix("").parts))
                    module = importlib.import_module(name)
                    # One of several: those of a table of the module.
                    keys = [getattr(module, key)] if hasattr(module, key) else module.API_KEYS.values()
                    found |= {{**APIS, **PRIVATE_APIS}[each].name for each in keys}
    return found


def test_no_api_that_brokers_ask_each_other_is_counted() -> None:
    """Both who may act as a broker, and what brokers send, say which APIs those are."""
    sent = sent_to_brokers()
    assert {"Fetch", "ControllerCommand"} <= sent
    acting = {
        name: need.when
        for name, needs in RULES.items()
        for need in needs
        # Brokers know from their metadata who keeps the state of a share partition.
        if need.operation is AclOperation.CLUSTER_ACTION and name != "FindCoordinator"
    }
    between = quotas_module._BETWEEN_BROKERS
    assert (sent | acting.keys()) - PRIVATE.keys() == between.keys()
    for name, since in between.items():
        first = re.search(r"from version (\d+)", acting.get(name, ""))
        assert since == (int(first[1]) if first else 0)


def test_every_api_that_creates_or_deletes_topics_takes_tokens() -> None:
    changing = {AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER}
    mutating = {
        name
        for name, needs in RULES.items()
        if any(need.resource_type is ResourceType.TOPIC and need.operation in changing for need in needs)
    }
    assert mutating - NO_MUTATIONS == mutation_quota.STRICT_SINCE.keys() == mutation_quota._ANSWERED.keys()
    for name, since in mutation_quota.STRICT_SINCE.items():
        assert BY_NAME[name].serves(since)


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


def rest(node: NodeUnderTest) -> None:
    """Wait until whoever was above a limit has paid for it."""
    muted_ms(node)
    node.clock.time_ms += 2**31


def another(node: NodeUnderTest, user: str = "ANONYMOUS") -> None:
    """Go on over a new connection."""
    node.context = ConnectionContext("127.0.0.1", 2, "PLAINTEXT")
    node.context.principal = f"User:{user}"


@pytest.fixture
def node() -> NodeUnderTest:
    made = NodeUnderTest()
    made.create_topic("t")
    return made


def test_without_quotas_nothing_is_counted_and_the_last_one_takes_it_away(node: NodeUnderTest) -> None:
    assert node.broker.quotas.current is None
    limit(node, {"user": "alice"}, producer_byte_rate=1000.0)
    assert node.broker.quotas.current is not None
    limit(node, {"user": "alice"}, producer_byte_rate=None)
    assert node.broker.quotas.current is None


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
    assert node.broker.replicas.led["t", 0].log.log_end_offset == 2
    assert not node.context.produce_templates, "who is limited goes by the general path"


def test_the_rate_is_kept_by_who_waits(node: NodeUnderTest) -> None:
    limit(node, {"user": "ANONYMOUS"}, producer_byte_rate=10_000.0)
    frame = produce_frame(7, batch(b"x" * 2000))
    sent = 0
    begin_ms = node.clock.time_ms
    # After what may be sent at once.
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
    node.broker.flusher.request = held.append  # type: ignore[assignment, method-assign]
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
    assert node.context.produce_templates and muted_ms(node) == 0
    # A limit that comes ends the fast path.
    limit(node, {"client-id": "test"}, producer_byte_rate=1.0)
    assert (
        node.dispatcher.produce_fast_path.again(node.context, memoryview(bytearray(frame)), 0, len(frame))
        is None
    )
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


def test_a_new_connection_waits_with_the_others(node: NodeUnderTest) -> None:
    """Who opens a connection for every request gets no more than who waits as told."""
    limit(node, {"user": "ANONYMOUS"}, producer_byte_rate=1000.0)
    frame = produce_frame(7, batch(b"x" * 20_000))
    node.handle(frame)
    waits_ms = muted_ms(node)
    log = node.broker.replicas.led["t", 0].log
    for held_count in range(3):
        another(node)
        assert node.handle(frame) is HELD and muted_ms(node) == waits_ms + held_count, "not all wake at once"
        assert call(node, "Metadata", 12, {"topics": None}).topics, "what it has no limit for is served"
    assert log.log_end_offset == 1
    node.advance(waits_ms)
    waiting = [ConnectionContext("127.0.0.1", port, "PLAINTEXT") for port in range(3)]
    served = []
    for node.context in waiting:
        served.append(node.handle(frame) is not HELD)
    assert served == [True, False, False], "one takes what there is, the others wait for the next"
    assert log.log_end_offset == 2


def test_time_on_any_connection_counts_for_all(node: NodeUnderTest) -> None:
    limit(node, {"user": "ANONYMOUS"}, request_percentage=0.000001)
    for frame in (
        struct.pack(">hhih", 18, 0, 5, 4) + b"test",
        struct.pack(">hhih", 3, 12, 5, 4) + b"test\x00\x7f",  # malformed: the connection is closed
    ):
        rest(node)
        another(node)
        with suppress(CloseConnection):
            node.handle(frame)
        muted_ms(node)
        another(node)
        for key, version in ((18, 0), (3, 1), (61, 0)):
            assert node.handle(struct.pack(">hhih", key, version, 5, 4) + b"test" + bytes(16)) is HELD


def test_reading_and_writing_a_request_is_counted(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large request costs most before and behind its handler."""
    now_ns = 0
    monkeypatch.setattr(dispatch, "clock_ns", lambda: now_ns)
    decode, encode = messages.decode_request, messages.encode_response_pieces

    def slow(work: Any, milliseconds: int) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal now_ns
            now_ns += milliseconds * 1_000_000
            return work(*arguments)

        return run

    monkeypatch.setattr(messages, "decode_request", slow(decode, 700))
    monkeypatch.setattr(messages, "encode_response_pieces", slow(encode, 300))
    limit(node, {"client-id": "test"}, request_percentage=1.0)
    told = call(node, "DescribeCluster", 0, {}).throttle_time.total_seconds()
    # Ten seconds' worth are free, a second of work is a hundred seconds' worth; the answer tells of a part.
    assert told == pytest.approx(60, abs=1)
    assert muted_ms(node) == pytest.approx(90_000, abs=1_000)


def test_the_right_to_act_as_a_broker_frees_a_request_not_a_connection() -> None:
    node = GuardedNode()
    node.allow("broker", AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    node.allow("broker", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    limit(node, {"user": None}, request_percentage=0.000001)
    follower = bytearray(fetch_frame("open", 0))
    struct.pack_into(">i", follower, 14, 3)
    markers: dict[str, Any] = {"markers": []}
    verified: dict[str, Any] = {"transactions": []}
    offsets: dict[str, Any] = {"isolation_level": 0, "topics": []}
    epochs: dict[str, Any] = {"topics": []}
    for user, counts in (("broker", False), ("mallory", True)):
        for ask in (
            lambda: node.handle(bytes(follower)),
            lambda: call(node, "WriteTxnMarkers", 1, markers),
            lambda: call(node, "AddPartitionsToTxn", 5, verified),
            lambda: call(node, "ListOffsets", 5, {**offsets, "replica_id": 3}),
            lambda: call(node, "OffsetForLeaderEpoch", 4, {**epochs, "replica_id": 3}),
        ):
            rest(node)
            node.be(user)
            ask()
            assert bool(muted_ms(node)) is counts, user
    rest(node)
    node.be("broker")
    node.handle(bytes(follower))
    assert muted_ms(node) == 0
    call(node, "Metadata", 12, {"topics": None})
    assert muted_ms(node) > 0, "what brokers do not ask of each other is counted"
    assert node.handle(bytes(follower)) is not HELD, "replication does not wait"
    muted_ms(node)
    rest(node)
    node.handle(fetch_frame("open", 0))
    assert muted_ms(node) > 0, "as a consumer it is counted"
    rest(node)
    call(node, "ListOffsets", 5, {**offsets, "replica_id": -1})
    assert muted_ms(node) > 0, "so it is with what consumers ask too"


def test_old_versions_wait_on_new_connections_too() -> None:
    node = NodeUnderTest(controller_quota_window_num="1")
    limit(node, {"client-id": "test"}, controller_mutation_rate=5.0)
    delete: dict[str, Any] = {"topic_names": ["a"], "timeout": 1000}
    topic = {"name": "a", "num_partitions": 50, "replication_factor": 1, "assignments": [], "configs": []}
    call(node, "CreateTopics", 5, {"topics": [topic], "timeout": 1000})
    another(node)
    api = BY_NAME["DeleteTopics"]
    frame = struct.pack(">hhih", api.key, 3, 5, 4) + b"test" + messages.encode_request(api, 3, delete)
    assert node.handle(frame) is HELD and "a" in node.broker.image.topics
    node.advance(muted_ms(node))
    node.handle(frame)
    assert "a" not in node.broker.image.topics


def test_nobody_makes_the_broker_remember_much(node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client ids of any length, as many as one likes."""
    monkeypatch.setattr(quotas_module, "BUCKETS_MAX", 200)
    limit(node, {"user": None, "client-id": None}, request_percentage=50.0)
    quotas = node.broker.quotas.current
    assert quotas is not None
    tracemalloc.start()
    for number in range(1_000):
        another(node)
        node.context.client_id = f"{number:05}" * 6_000
        quotas.request_took(node.context, 1_000_000)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 1 << 20


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
    assert call(node, "Metadata", 12, {"topics": None}).throttle_time.total_seconds() > 1.0
    rest(node)
    assert call(node, "Metadata", 12, {"topics": None}).throttle_time.total_seconds() > 0, "not remembered"
    rest(node)
    assert fetch_throttle_ms(node.handle(fetch_frame("t", 0))) > 0
    rest(node)
    assert produce_throttle_ms(node.handle(produce_frame(7, batch(b"x")))) > 0
    rest(node)
    assert not node.context.produce_templates
    node.handle(struct.pack(">hhih", 18, 0, 5, 4) + b"test")
    assert muted_ms(node) > 0, "ApiVersions has its own way"
    rest(node)
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
    quotas = node.broker.quotas.current
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
    partition = node.broker.replicas.led["t", 0]
    for _ in range(2):
        node.handle(fetch_frame("t", 0, max_bytes=7000))
    assert counts == {"produce": 1, "fetch": 1} and waits["fetch"] == muted_ms(node) > 0
    assert partition.sent_bytes == len(data), "what was held back was not sent"
    limit(node, {"client-id": "test"}, request_percentage=0.000001)
    call(node, "Metadata", 12, {"topics": None})
    assert counts["request"] == 1
