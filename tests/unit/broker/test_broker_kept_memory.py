"""What a broker remembers for clients is bounded; nothing that somebody without rights makes up is kept."""

import logging
import struct
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.node import NodeUnderTest, joined
from tests.unit.broker.test_broker_authorization import TOPIC, GuardedNode
from tidelog.broker.replicas import fetch_sessions
from tidelog.broker.replicas.fetch_sessions import FetchSessions
from tidelog.broker.requests import authorization as authorization_module
from tidelog.broker.requests import dispatch
from tidelog.broker.requests.dispatch import Calls
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.model.acls import AclOperation, PatternType
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.protocol.fetch import FetchPartition, FetchRequest
from tidelog.protocol.primitives import STRING_BYTES_MAX, compact_string, unsigned_varint


def retained_bytes(root: Any) -> int:
    """The size of containers and texts below an object, as far as they are plain."""
    seen: set[int] = set()
    left, total = [root], 0
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += one
    return total


# -- the authorizer


def test_names_that_are_denied_are_not_remembered(caplog: pytest.LogCaptureFixture) -> None:
    node = GuardedNode()
    node.be("stranger")
    authorization = node.broker.authorization
    assert authorization is not None
    caplog.set_level(logging.INFO, "tidelog.authorizer")
    for number in range(3_000):
        name = f"{number:05d}" + "n" * 32_000
        assert not authorization.allows(node.context, AclOperation.READ, TOPIC, name)
    kept = retained_bytes([authorization._allowed, authorization._denials])
    assert kept < 1 << 20, f"{kept} bytes kept of 96 MB of names"
    logged = [record for record in caplog.records if record.name == "tidelog.authorizer"]
    assert 0 < len(logged) <= 100
    assert sum(len(record.getMessage()) for record in logged) < 100_000


def test_what_is_allowed_is_remembered_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization_module, "ALLOWED_NAMES_BYTES_MAX", 1 << 20)
    node = GuardedNode()
    node.allow("alice", AclOperation.READ, TOPIC, "a", way=PatternType.PREFIXED)
    node.be("alice")
    authorization = node.broker.authorization
    assert authorization is not None
    for number in range(300):
        assert authorization.allows(node.context, AclOperation.READ, TOPIC, f"a{number}" + "n" * 32_000)
        assert authorization._allowed_names_bytes <= 1 << 20
    assert retained_bytes(authorization._allowed) < 2 << 20
    node.revoke_all()
    assert not authorization.allows(node.context, AclOperation.READ, TOPIC, "a299" + "n" * 32_000)


def test_a_denial_is_logged_once_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    node = GuardedNode()
    node.be("stranger")
    authorization = node.broker.authorization
    assert authorization is not None
    caplog.set_level(logging.INFO, "tidelog.authorizer")
    for _ in range(3):
        authorization.allows(node.context, AclOperation.READ, TOPIC, "x" * 30_000)
    [record] = [record for record in caplog.records if record.name == "tidelog.authorizer"]
    assert "(30000 characters)" in record.getMessage() and len(record.getMessage()) < 500


# -- fetch sessions


def fetch_12(names: list[tuple[str, list[int]]], session_id: int = 0, epoch: int = 0) -> bytes:
    """A Fetch v12 request."""
    topics = b"".join(
        compact_string(name)
        + unsigned_varint(len(indexes) + 1)
        + b"".join(struct.pack(">iiqiqi", index, -1, 0, -1, -1, 1 << 20) + b"\0" for index in indexes)
        + b"\0"
        for name, indexes in names
    )
    head = struct.pack(">hhih", 1, 12, 9, 4) + b"test\0"
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, session_id, epoch)
    return head + body + unsigned_varint(len(names) + 1) + topics + b"\x01\x01\0"


def session_of(answer: Any) -> tuple[int, int]:
    """(error, session id) of a Fetch answer."""
    return struct.unpack_from(">hi", joined(answer), 4 + 4 + 1 + 4)


@pytest.mark.parametrize("guarded", [True, False])
def test_no_session_is_made_of_much_that_does_not_exist(guarded: bool) -> None:
    node = GuardedNode() if guarded else NodeUnderTest()
    if not guarded:
        node.create_topic("open")
    elif isinstance(node, GuardedNode):
        node.allow("alice", AclOperation.READ, TOPIC, "open")
        node.be("alice")
    illegal = ("nowhere" * 1_000, [0])
    for names in ([("open", [0]), illegal], [("open", list(range(1_000)))]):
        assert session_of(node.handle(fetch_12(names))) == (0, 0)
        assert len(node.broker.fetch_sessions) == 0
    error, session_id = session_of(node.handle(fetch_12([("open", [0])])))
    assert (error, len(node.broker.fetch_sessions)) == (0, 1) and session_id
    # One that would have to remember more is over; the client begins again.
    answer = node.handle(fetch_12([("open", list(range(1_000)))], session_id, 1))
    assert session_of(answer)[0] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(node.broker.fetch_sessions) == 0


def test_no_session_is_made_of_what_may_not_be_read() -> None:
    node = GuardedNode()
    node.allow("alice", AclOperation.READ, TOPIC, "open")
    node.be("alice")
    assert session_of(node.handle(fetch_12([("open", [0]), ("secret", [0])]))) == (0, 0)
    _, session_id = session_of(node.handle(fetch_12([("open", [0])])))
    assert session_id
    error, _ = session_of(node.handle(fetch_12([("secret", [0])], session_id, 1)))
    assert error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def wanting(count: int, session_id: int = 0, epoch: int = 0, first: int = 0) -> FetchRequest:
    partitions = [FetchPartition(first + index, -1, 0, -1, -1, 1) for index in range(count)]
    return FetchRequest(-1, 0, 0, 0, 0, session_id, epoch, [(UUID(int=1), partitions)], [], "")


class NextIds:
    """Ids one after the other."""

    def __init__(self) -> None:
        self.last = 0

    def randint(self, low: int, high: int) -> int:
        self.last += 1
        return self.last


def test_sessions_have_so_many_partitions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 100)
    sessions = FetchSessions(10, NextIds())  # type: ignore[arg-type]
    assert sessions.resolve(wanting(101), 0, True)[0] is None
    first = sessions.resolve(wanting(60), 0, True)[0]
    assert first is not None
    assert sessions.resolve(wanting(41), 0, True)[0] is None
    second = sessions.resolve(wanting(40), 0, True)[0]
    assert second is not None
    # A follower's session does not count, and always finds room.
    assert sessions.resolve(wanting(500), 0, True, privileged=True)[0] is not None
    # A session that would grow above the limit is over.
    grown = sessions.resolve(wanting(1, second.session_id, 1, first=900), 0, True)
    assert grown == (None, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert sessions._partition_count == 60
    sessions.drop(first.session_id)
    assert sessions._partition_count == 0


def test_room_is_made_as_kafka_makes_it() -> None:
    sessions = FetchSessions(2, NextIds())  # type: ignore[arg-type]
    old_small = sessions.resolve(wanting(5), 0, True)[0]
    old_large = sessions.resolve(wanting(50), 0, True)[0]
    assert old_small is not None and old_large is not None
    assert sessions.resolve(wanting(20), 119_999, True)[0] is None  # none is stale or settled
    for session in (old_small, old_large):
        sessions.resolve(wanting(0, session.session_id, 1), 120_000, True)
    assert sessions.resolve(wanting(4), 130_000, True)[0] is None  # the others are in use and larger
    larger = sessions.resolve(wanting(20), 130_000, True)[0]
    assert larger is not None and len(sessions) == 2
    assert sessions.resolve(wanting(0, old_small.session_id, 2), 130_000, True)[2] != ErrorCode.NONE
    stale = sessions.resolve(wanting(1), 400_000, True)[0]
    assert stale is not None and len(sessions) == 2


# -- everything else


def test_metadata_answers_are_kept_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "METADATA_CACHE_BYTES_MAX", 10_000)
    node = NodeUnderTest()
    for number in range(100):
        name = f"{number:03d}" + "n" * 200
        fields = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        body = messages.encode_request(APIS[3], 4, fields)
        node.handle(struct.pack(">hhih", 3, 4, 5, 4) + b"test" + body)
    dispatcher = node.dispatcher
    assert 0 < len(dispatcher._metadata_cache) < 30
    assert sum(map(len, dispatcher._metadata_cache.values())) <= dispatcher._metadata_cache_bytes <= 10_000
    node.create_topic("new")
    node.handle(struct.pack(">hhih", 3, 4, 5, 4) + b"test" + body)
    assert len(dispatcher._metadata_cache) == 1 and dispatcher._metadata_cache_bytes < 1_000


@pytest.mark.parametrize("count", [10, 5_000])
def test_a_long_answer_that_comes_later_is_written_in_slices(count: int) -> None:
    calls: list[Callable[[], None]] = []

    class Later(Calls):
        def later(self, call: Callable[[], None]) -> None:
            calls.append(call)

    node = NodeUnderTest()
    node.dispatcher = node.broker.make_dispatcher(Later())
    delete_topics = next(api for api in APIS.values() if api.name == "DeleteTopics")
    parked = DelayedAnswer()
    pending = node.dispatcher._settle_control(node.context, parked, delete_topics, 6, 7)
    rows = [{"name": f"t{number}", "error_code": ErrorCode.NONE} for number in range(count)]
    parked.answer({"responses": rows})
    assert (pending.chunks is None, len(calls)) == ((True, 1) if count > 500 else (False, 0))
    for call in calls:
        call()
    told = messages.decode_response(delete_topics, 6, memoryview(joined(pending.chunks))[9:])
    assert [topic.name for topic in told.responses] == [row["name"] for row in rows]


def test_events_keep_the_beginning_of_long_names() -> None:
    events = NodeUnderTest().broker.metrics.events
    event = events.emit("member joined", {"group": "g" * 30_000, "epoch": 3}, cause="c" * 30_000)
    assert event is not None and len(str(event)) < 2_000
    assert event.fields["epoch"] == 3 and str(event.fields["group"]).startswith("ggg")


@pytest.mark.parametrize("api", ["JoinGroup", "ConsumerGroupHeartbeat"])
def test_the_longest_names_that_are_taken_can_be_told_to_everybody(api: str) -> None:
    """A group and a member whose names fill their strings: listed and described, after loading too."""
    node = NodeUnderTest(offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="0")
    node.create_topic("t")
    longest, client_id = "g" * STRING_BYTES_MAX, b"c" * STRING_BYTES_MAX

    def call(name: str, version: int, **fields: Any) -> Any:
        row = next(row for row in APIS.values() if row.name == name)
        tags = b"\0" if row.flexible(version) else b""
        head = struct.pack(">hhih", row.key, version, 5, len(client_id)) + client_id + tags
        answer = node.handle(head + messages.encode_request(row, version, fields))
        node.advance(10)
        data = memoryview(joined(answer))[9 if tags else 8 :]
        return messages.decode_response(row, version, data)

    call("FindCoordinator", 3, key=longest, key_type=0)
    if api == "JoinGroup":
        protocols = [{"name": "p" * STRING_BYTES_MAX, "metadata": b""}]
        fields = {
            "group_id": longest,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
        }
        fields |= {"protocol_type": "consumer", "protocols": protocols, "group_instance_id": "i" * 32_767}
        joined_group = call("JoinGroup", 9, **fields)
        assert not joined_group.error_code and len(joined_group.member_id) == STRING_BYTES_MAX
        call(
            "SyncGroup", 5, group_id=longest, generation_id=joined_group.generation_id,
            member_id=joined_group.member_id, protocol_type="consumer", protocol_name="p" * STRING_BYTES_MAX,
            assignments=[],
        )  # fmt: skip
        [described] = call("DescribeGroups", 5, groups=[longest]).groups
    else:
        fields = {"group_id": longest, "member_id": "m" * STRING_BYTES_MAX, "member_epoch": 0}
        fields |= {"rebalance_timeout": 5_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        assert not call("ConsumerGroupHeartbeat", 1, **fields).error_code
        [described] = call("ConsumerGroupDescribe", 1, group_ids=[longest]).groups
    assert len(described.members) == 1 and described.members[0].client_id == client_id.decode()
    assert [group.group_id for group in call("ListGroups", 5).groups] == [longest]
    for index in range(1):
        node.broker.groups.get().unload(index)
        node.broker.groups.get().load(index)
    assert [group.group_id for group in call("ListGroups", 5).groups] == [longest]
