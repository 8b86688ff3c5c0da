"""Every API asks what the table of rules says; who may not is refused, changes nothing and learns nothing."""

import dataclasses
import struct
from contextlib import suppress
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tests.support.authorization_rules import RULES
from tests.unit.broker.api_requests import BODIES, requests_of
from tests.unit.broker.node import NodeUnderTest, batch, fetch_frame, joined, produce_frame
from tidelog.broker.requests.authorization import Authorization
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.guards.table import GUARDS, OWN_CHECKS
from tidelog.broker.requests.request import CloseConnection, PendingAnswer
from tidelog.controller.commands import CreateAcls, DeleteAcls
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.model.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS, PRIVATE_APIS, Api

BY_NAME = {api.name: api for api in APIS.values()}
PRIVATE = {api.name: api for api in PRIVATE_APIS.values()}
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
#: APIs that answer without an error, and leave out what may not be seen
SILENT = {"ListGroups", "ListTransactions", "DescribeCluster"}
#: before this version there was no place for the error
FIRST_WITH_ERROR = {"DescribeLogDirs": 3}
GUARDED = sorted(name for name, api in BY_NAME.items() if RULES[name] and name not in OWN_CHECKS)

ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


class GuardedNode(NodeUnderTest):
    """A broker with an authorizer, whose super user is root."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            authorizer_class_name=STANDARD_AUTHORIZER,
            super_users="User:root",
            offsets_topic_replication_factor="1",
            transaction_state_log_replication_factor="1",
            transaction_state_log_min_isr="1",
            **settings,
        )
        self.create_topic("secret")
        self.create_topic("open")

    def be(self, user: str, host: str = "127.0.0.1") -> None:
        self.context = ConnectionContext(host, 1, "PLAINTEXT")
        self.context.principal = f"User:{user}"

    def allow(
        self,
        user: str,
        operation: AclOperation,
        kind: ResourceType,
        name: str,
        permission: PermissionType = ALLOW,
        way: PatternType = PatternType.LITERAL,
        host: str = "*",
    ) -> None:
        binding = AclBinding(kind, name, way, f"User:{user}", host, operation, permission)
        results: list[Any] = []
        self.broker.metadata.submit(CreateAcls((binding,)), results.extend)
        assert type(results[0]).__name__ == "Done", results

    def revoke_all(self) -> None:
        self.broker.metadata.submit(DeleteAcls((AclFilter(),)), lambda results: None)

    def call(self, name: str, version: int, fields: dict[str, Any]) -> Any:
        """The decoded answer to a request."""
        api = BY_NAME[name]
        tags = b"\x00" if api.flexible(version) else b""
        header = struct.pack(">hhih", api.key, version, 5, 4) + b"test" + tags
        answer = self.handle(header + messages.encode_request(api, version, fields))
        if isinstance(answer, PendingAnswer):
            for _ in range(100):
                if answer.chunks is not None:
                    break
                self.advance(1000)
        data = joined(answer)
        start = 9 if api.flexible(version) else 8
        return messages.decode_response(api, version, memoryview(data)[start:])


def errors(answer: Any) -> set[ErrorCode]:
    """All error codes in an answer."""
    if dataclasses.is_dataclass(answer):
        found: set[ErrorCode] = set()
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                found.add(ErrorCode(int(value)))
            else:
                found |= errors(value)
        return found
    if isinstance(answer, tuple):
        return set().union(*(errors(item) for item in answer))
    return set()


@pytest.fixture(scope="module")
def node() -> GuardedNode:
    made = GuardedNode()
    made.be("root")
    made.call("FindCoordinator", 3, {"key": "secret", "key_type": 0})
    made.call("FindCoordinator", 3, {"key": "secret", "key_type": 1})
    return made


def test_every_api_has_a_rule() -> None:
    """A new API needs a row in tests/support/authorization_rules.py, also if it asks for nothing."""
    assert {*BY_NAME, *PRIVATE} == set(RULES)


@pytest.mark.parametrize("api", PRIVATE.values(), ids=lambda api: api.name)
def test_what_is_outside_of_kafkas_protocol_asks_for_what_its_rule_says(api: Api) -> None:
    node = GuardedNode()
    assert node.broker.authorization is not None
    asked: set[tuple[ResourceType, AclOperation]] = set()

    class Recorder:
        """Allows nothing, and notes what was asked."""

        def allows(
            self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
        ) -> bool:
            asked.add((kind, operation))
            return False

    node.broker.authorization._index = Recorder()  # type: ignore[assignment]
    node.be("mallory")
    with suppress(CloseConnection):
        node.handle(struct.pack(">hhih", api.key, 0, 1, 0) + b"{}")
    assert asked == {(need.resource_type, need.operation) for need in RULES[api.name]}


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_api_with_a_rule_has_a_guard(name: str) -> None:
    assert bool(RULES[name]) == (name in GUARDS or name in OWN_CHECKS)
    assert not (name in GUARDS and name in OWN_CHECKS)


def versions_of(api: Api) -> list[int]:
    return [version for version in range(api.min_version, api.max_version + 1) if api.serves(version)]


@pytest.mark.parametrize("name", GUARDED)
def test_who_may_nothing_is_refused_in_every_version_and_learns_nothing(name: str, node: GuardedNode) -> None:
    assert name in BODIES, f"give {name} a request in api_requests.py"
    node.be("mallory")
    before = node.broker.image
    for version in versions_of(BY_NAME[name]):
        if name == "OffsetFetch" and version >= 10:
            continue  # by id, below
        secret = node.call(name, version, requests_of(name, "secret", None))
        absent = node.call(name, version, requests_of(name, "absent", None))
        assert repr(secret).replace("secret", "absent") == repr(absent), (
            f"{name} v{version} tells what exists"
        )
        silent = name in SILENT or version < FIRST_WITH_ERROR.get(name, 0)
        assert errors(secret) & REFUSALS or silent, f"{name} v{version} is not refused: {secret}"
        assert errors(secret) <= REFUSALS | {ErrorCode.NONE}, f"{name} v{version}: {secret}"
    assert node.broker.image is before, f"{name} changed the metadata"


@pytest.mark.parametrize("name", GUARDED)
def test_a_super_user_is_never_refused(name: str) -> None:
    node = GuardedNode()
    node.be("root")
    version = BY_NAME[name].max_version
    if name == "OffsetFetch":
        version = 9
    answer = node.call(name, version, requests_of(name, "secret", None))
    assert not errors(answer) & REFUSALS, answer


@pytest.mark.parametrize("name", GUARDED)
def test_each_api_asks_for_what_its_rule_says_and_for_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = GuardedNode()
    prepare(node)
    authorization = node.broker.authorization
    assert authorization is not None
    asked: set[tuple[ResourceType, AclOperation]] = set()
    allowed: set[tuple[ResourceType, AclOperation]] = set()

    class Recorder:
        """Allows what a test wants, and notes what was asked."""

        def allows(
            self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
        ) -> bool:
            asked.add((kind, operation))
            return (kind, operation) in allowed

        def allows_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> bool:
            asked.add((kind, operation))
            return (kind, operation) in allowed

    authorization._index = Recorder()  # type: ignore[assignment]
    # What is asked to tell authorized operations is not a check.
    monkeypatch.setattr(Authorization, "operations", lambda *_: 0)
    needs = {(need.resource_type, need.operation) for need in RULES[name]}
    # Every set of rights may lead to other checks: nothing, each alone, all but each, everything.
    for rights in [set(), *({need} for need in needs), *(needs - {need} for need in needs), needs]:
        for version in {BY_NAME[name].max_version, versions_of(BY_NAME[name])[0], 3, 9}:
            if not BY_NAME[name].serves(version) or (name == "OffsetFetch" and version >= 10):
                continue
            allowed.clear()
            allowed |= rights
            authorization._allowed.clear()
            for body in variants(name, version):
                try:
                    node.call(name, version, body)
                except CloseConnection:
                    pytest.fail(f"{name} v{version} closes the connection")
    assert asked == needs


def prepare(node: GuardedNode) -> None:
    """Groups with members and offsets, and a transaction that is open, all named `open`."""
    node.be("root")
    for key_type in (0, 1):
        node.call("FindCoordinator", 3, {"key": "open", "key_type": key_type})
    node.call("ConsumerGroupHeartbeat", 1, requests_of("ConsumerGroupHeartbeat", "open", None))
    sharing = {**requests_of("ShareGroupHeartbeat", "open", None), "group_id": "shared"}
    for _ in range(2):
        # The second time the state of its partitions is there, and it is assigned them.
        answer = node.call("ShareGroupHeartbeat", 1, sharing)
        sharing["member_epoch"] = answer.member_epoch
        node.advance(1_000)
    assert answer.assignment.topic_partitions
    begun = node.call("InitProducerId", 4, requests_of("InitProducerId", "open", None))
    added = requests_of("AddPartitionsToTxn", "open", None)
    added |= {
        "v3_and_below_producer_id": begun.producer_id,
        "v3_and_below_producer_epoch": begun.producer_epoch,
    }
    assert errors(node.call("AddPartitionsToTxn", 3, added)) <= {ErrorCode.NONE}


_FRESH = count()


def variants(name: str, version: int) -> list[dict[str, Any]]:
    """Requests that reach all checks of an API."""
    body = requests_of(name, "open", None)
    fresh = requests_of(name, f"fresh{next(_FRESH)}", None)
    if name == "FindCoordinator":
        shared = "open:AAAAAAAAAAAAAAAAAAAAAQ:0"
        return [
            body,
            {**body, "key_type": 1},
            {**body, "key_type": 2, "key": shared, "coordinator_keys": [shared]},
        ]
    if name == "ShareGroupDescribe":
        return [{**body, "group_ids": ["shared"]}]
    if name == "InitProducerId":
        return [body, {**body, "transactional_id": None}, {**body, "enable2_pc": True}]
    if name == "Metadata":
        return [body, fresh, {**body, "topics": None if version else []}]
    if name in ("CreateTopics", "EndTxn", "DeleteTopics"):
        return [fresh]
    return [body]


# -- Produce and Fetch, which ask the authorizer themselves


def produced_error(answer: Any) -> int:
    """The error of the one partition of a Produce v7 answer for a topic of four letters or six."""
    data = joined(answer)
    name_length = struct.unpack_from(">h", data, 12)[0]
    return int(struct.unpack_from(">h", data, 14 + name_length + 4 + 4)[0])


def fetched_error(answer: Any) -> int:
    data = joined(answer)
    name_length = struct.unpack_from(">h", data, 16)[0]
    return int(struct.unpack_from(">h", data, 18 + name_length + 4 + 4)[0])


def test_produce_needs_write_and_tells_nothing_of_topics() -> None:
    node = GuardedNode()
    node.be("alice")
    for topic in ("secret", "absent"):
        assert produced_error(node.handle(produce_frame(7, batch(b"x"), topic))) == 29
    assert node.broker.replicas.led["secret", 0].log.log_end_offset == 0
    node.allow("alice", AclOperation.WRITE, TOPIC, "secret")
    assert produced_error(node.handle(produce_frame(7, batch(b"x"), "secret"))) == 0
    assert produced_error(node.handle(produce_frame(7, batch(b"x"), "absent"))) == 29


def test_a_revoked_right_ends_the_short_way_too() -> None:
    node = GuardedNode()
    node.be("alice")
    node.allow("alice", AclOperation.WRITE, TOPIC, "secret")
    frame = produce_frame(7, batch(b"x"), "secret", acks=1)
    for _ in range(3):
        assert produced_error(node.handle(frame)) == 0
    assert node.context.produce_templates, "the fast path is not taken"
    again = node.dispatcher.produce_fast_path.again(node.context, memoryview(bytearray(frame)), 0, len(frame))
    assert again is not None
    run = memoryview(bytearray((struct.pack(">i", len(frame)) + frame) * 3))
    assert node.dispatcher.produce_fast_path.run(node.context, run, 0, len(run)) is not None
    end_offset = node.broker.replicas.led["secret", 0].log.log_end_offset
    node.revoke_all()
    assert (
        node.dispatcher.produce_fast_path.again(node.context, memoryview(bytearray(frame)), 0, len(frame))
        is None
    )
    run = memoryview(bytearray((struct.pack(">i", len(frame)) + frame) * 3))
    assert node.dispatcher.produce_fast_path.run(node.context, run, 0, len(run)) is None
    assert produced_error(node.handle(frame)) == 29
    assert node.broker.replicas.led["secret", 0].log.log_end_offset == end_offset


def test_fetch_needs_read_and_a_follower_cluster_action() -> None:
    node = GuardedNode()
    node.be("alice")
    for topic in ("secret", "absent"):
        assert fetched_error(node.handle(fetch_frame(topic, 0))) == 29
        waiting = node.handle(fetch_frame(topic, 0, max_wait_ms=10_000))
        assert fetched_error(waiting) == 29, "a refused fetch does not wait"
    follower = bytearray(fetch_frame("secret", 0))
    struct.pack_into(">i", follower, 14, 3)
    assert fetched_error(node.handle(bytes(follower))) == 29
    node.allow("alice", AclOperation.READ, TOPIC, "secret")
    assert fetched_error(node.handle(fetch_frame("secret", 0))) == 0
    assert fetched_error(node.handle(bytes(follower))) == 29
    node.allow("alice", AclOperation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    # Broker 3 has no replica of it, which is another matter.
    assert fetched_error(node.handle(bytes(follower))) != 29


def test_a_waiting_fetch_is_answered_by_the_rights_of_then() -> None:
    node = GuardedNode()
    node.be("alice")
    node.allow("alice", AclOperation.READ, TOPIC, "secret")
    waiting = node.handle(fetch_frame("secret", 0, max_wait_ms=10_000))
    assert isinstance(waiting, PendingAnswer)
    node.revoke_all()
    node.be("root")
    node.handle(produce_frame(7, batch(b"x"), "secret"))
    node.advance(10_000)
    assert fetched_error(waiting) == 29


def test_topics_by_id() -> None:
    node = GuardedNode()
    prepare(node)
    topic_id = node.broker.image.topics["secret"].topic_id
    node.be("mallory")
    assert errors(node.call("Metadata", 12, requests_of("Metadata", "", topic_id))) == {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED
    }
    [topic] = node.call("Metadata", 12, requests_of("Metadata", "", topic_id)).topics
    assert (topic.name, topic.topic_id) == (None, topic_id)
    [deleted] = node.call("DeleteTopics", 6, requests_of("DeleteTopics", "", topic_id)).responses
    assert deleted.name is None and int(deleted.error_code) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    node.allow("mallory", AclOperation.DESCRIBE, TOPIC, "secret")
    [deleted] = node.call("DeleteTopics", 6, requests_of("DeleteTopics", "", topic_id)).responses
    assert deleted.name == "secret" and int(deleted.error_code) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    node.allow("mallory", AclOperation.READ, GROUP, "g")
    commit = {**requests_of("OffsetCommit", "g", topic_id), "group_id": "g"}
    assert errors(node.call("OffsetCommit", 10, commit)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    frame = produce_frame(13, batch(b"x"), topic_id)
    assert struct.pack(">h", 29) in joined(node.handle(frame))
    node.allow("mallory", AclOperation.DESCRIBE, GROUP, "g")
    fetch = {"groups": [{"group_id": "g", "topics": [{"topic_id": topic_id, "partition_indexes": [0]}]}]}
    node.be("nobody")
    assert errors(node.call("OffsetFetch", 10, fetch)) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    node.allow("nobody", AclOperation.READ, GROUP, "g")
    assert errors(node.call("OffsetFetch", 10, fetch)) >= {ErrorCode.TOPIC_AUTHORIZATION_FAILED}


# -- what is shown


def test_only_topics_that_may_be_described_are_listed() -> None:
    node = GuardedNode()
    node.be("alice")
    everything = {"topics": None}
    assert node.call("Metadata", 12, everything).topics == ()
    node.allow("alice", AclOperation.READ, TOPIC, "op", way=PatternType.PREFIXED)
    answer = node.call("Metadata", 12, everything)
    assert [topic.name for topic in answer.topics] == ["open"]
    pages = {"topics": [], "response_partition_limit": 1, "cursor": None}
    assert [topic.name for topic in node.call("DescribeTopicPartitions", 0, pages).topics] == ["open"]
    node.allow("alice", AclOperation.DESCRIBE, TOPIC, "open", DENY)
    assert node.call("Metadata", 12, everything).topics == ()


def test_one_page_after_the_other_over_what_may_be_seen() -> None:
    node = GuardedNode()
    for name in ("a", "b", "c", "d"):
        node.create_topic(name, 2)
    node.be("alice")
    for name in ("a", "b", "d"):
        node.allow("alice", AclOperation.DESCRIBE, TOPIC, name)
    seen: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        body = {"topics": [], "response_partition_limit": 1, "cursor": cursor}
        page = node.call("DescribeTopicPartitions", 0, body)
        seen += [(topic.name, part.partition_index) for topic in page.topics for part in topic.partitions]
        if page.next_cursor is None:
            break
        cursor = {
            "topic_name": page.next_cursor.topic_name,
            "partition_index": page.next_cursor.partition_index,
        }
        if cursor["topic_name"] == "b":
            node.allow("alice", AclOperation.DESCRIBE, TOPIC, "b", DENY)
    assert seen == [("a", 0), ("a", 1), ("d", 0), ("d", 1)]


def bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


def test_authorized_operations_are_those_that_are_allowed() -> None:
    node = GuardedNode()
    prepare(node)
    node.be("alice")
    node.allow("alice", AclOperation.WRITE, TOPIC, "open")
    body = requests_of("Metadata", "open", None)
    answer = node.call("Metadata", 9, body)
    assert answer.topics[0].topic_authorized_operations == bits(AclOperation.WRITE, AclOperation.DESCRIBE)
    assert answer.cluster_authorized_operations == 0
    asked = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    assert node.call("DescribeCluster", 1, asked).cluster_authorized_operations == 0
    node.allow("alice", AclOperation.ALTER, CLUSTER, CLUSTER_NAME)
    expected = bits(AclOperation.ALTER, AclOperation.DESCRIBE)
    assert node.call("DescribeCluster", 1, asked).cluster_authorized_operations == expected
    assert node.call("Metadata", 9, body).cluster_authorized_operations == expected
    node.allow("alice", AclOperation.DELETE, GROUP, "g")
    [group] = node.call("DescribeGroups", 5, {"groups": ["g"], "include_authorized_operations": True}).groups
    assert group.authorized_operations == bits(AclOperation.DELETE, AclOperation.DESCRIBE)


def test_metadata_is_remembered_for_each_asker() -> None:
    node = GuardedNode()
    node.allow("alice", AclOperation.READ, TOPIC, "open")
    everything = {"topics": None}
    for _ in range(2):
        for user, shown in (("alice", ["open"]), ("mallory", []), ("root", ["secret", "open"])):
            node.be(user)
            assert [topic.name for topic in node.call("Metadata", 12, everything).topics] == shown


def test_the_settings_of_a_new_topic_are_told_to_who_may_see_them() -> None:
    node = GuardedNode()
    node.be("alice")
    node.allow("alice", AclOperation.CREATE, TOPIC, "new", way=PatternType.PREFIXED)
    [topic] = node.call("CreateTopics", 7, requests_of("CreateTopics", "new1", None)).topics
    assert int(topic.error_code) == 0 and topic.configs == () and topic.num_partitions == -1
    assert int(topic.topic_config_error_code) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "new1" in node.broker.image.topics
    node.allow("alice", AclOperation.ALTER_CONFIGS, TOPIC, "new2")
    [topic] = node.call("CreateTopics", 7, requests_of("CreateTopics", "new2", None)).topics
    assert topic.num_partitions == 1 and topic.configs


def test_what_is_allowed_is_done_beside_what_is_not() -> None:
    node = GuardedNode()
    node.be("alice")
    node.allow("alice", AclOperation.DELETE, TOPIC, "open")
    body = {
        "topics": [{"name": "open", "topic_id": None}, {"name": "secret", "topic_id": None}],
        "timeout": 1,
    }
    answer = {each.name: int(each.error_code) for each in node.call("DeleteTopics", 6, body).responses}
    assert answer == {"open": 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert set(node.broker.image.topics) == {"secret"}
    # Who may describe a topic that is missing is told so.
    missing = {"topics": [{"name": "open", "topic_id": None}], "timeout": 1}
    assert errors(node.call("DeleteTopics", 6, missing)) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_id_that_a_broker_does_not_know_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller may have made the topic a moment ago: nobody has asked for the rights on it."""
    node = GuardedNode()
    node.be("mallory")
    monkeypatch.setattr(node.broker.metadata, "submit", lambda *_: pytest.fail("the controller was asked"))
    unknown, both = UUID(int=7), UUID(int=8)
    topics = [
        {"name": None, "topic_id": unknown},
        {"name": None, "topic_id": unknown},
        {"name": "open", "topic_id": both},
        {"name": None, "topic_id": None},
    ]
    answer = node.call("DeleteTopics", 6, {"topics": topics, "timeout": 1}).responses
    assert {each.topic_id: int(each.error_code) for each in answer} == {
        unknown: ErrorCode.UNKNOWN_TOPIC_ID,
        both: ErrorCode.INVALID_REQUEST,
        None: ErrorCode.INVALID_REQUEST,
    }
    assert len(answer) == 3


# -- ACLs through the protocol


def test_acls_are_created_described_and_deleted() -> None:
    node = GuardedNode()
    node.be("root")
    body = requests_of("CreateAcls", "open", None)
    assert errors(node.call("CreateAcls", 3, body)) == {ErrorCode.NONE}
    bad = {"creations": [{**body["creations"][0], "operation": 99}]}
    assert errors(node.call("CreateAcls", 3, bad)) == {ErrorCode.INVALID_REQUEST}
    everything = requests_of("DescribeAcls", "", None)
    [resource] = node.call("DescribeAcls", 3, everything).resources
    assert (resource.resource_name, resource.acls[0].principal) == ("open", "User:a")
    node.be("a")
    assert fetched_error(node.handle(fetch_frame("open", 0))) == 0
    assert errors(node.call("DescribeAcls", 3, everything)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    node.be("root")
    [result] = node.call("DeleteAcls", 3, requests_of("DeleteAcls", "", None)).filter_results
    assert [acl.resource_name for acl in result.matching_acls] == ["open"]
    assert node.call("DescribeAcls", 3, everything).resources == ()
    node.be("a")
    assert fetched_error(node.handle(fetch_frame("open", 0))) == 29


def test_without_an_authorizer_there_are_no_acls_and_everybody_may() -> None:
    node = NodeUnderTest()
    assert node.broker.authorization is None
    node.create_topic("open")
    assert fetched_error(node.handle(fetch_frame("open", 0))) == 0
    for name in ("DescribeAcls", "CreateAcls", "DeleteAcls"):
        answer = GuardedNode.call(node, name, 3, requests_of(name, "open", None))  # type: ignore[arg-type]
        assert errors(answer) == {ErrorCode.SECURITY_DISABLED}


def test_hosts_and_the_default() -> None:
    node = GuardedNode(allow_everyone_if_no_acl_found="true")
    node.allow("alice", AclOperation.READ, TOPIC, "secret", host="10.0.0.9")
    node.be("alice")
    assert fetched_error(node.handle(fetch_frame("open", 0))) == 0
    assert fetched_error(node.handle(fetch_frame("secret", 0))) == 29
    node.be("alice", "10.0.0.9")
    assert fetched_error(node.handle(fetch_frame("secret", 0))) == 0


def test_only_brokers_give_commands_to_the_controller() -> None:
    node = GuardedNode()
    frame = struct.pack(">hhih", 10000, 0, 5, -1) + b"{}"
    node.be("mallory")
    with pytest.raises(CloseConnection, match="no broker"):
        node.handle(frame)
    node.be("root")
    with pytest.raises(CloseConnection, match="malformed"):
        node.handle(frame)


def test_tokens_of_others_need_rights() -> None:
    node = GuardedNode(delegation_token_secret_key="a secret of the brokers")
    user = ResourceType.USER

    def create(owner: str | None) -> ErrorCode:
        body: dict[str, Any] = {
            "owner_principal_type": None if owner is None else "User",
            "owner_principal_name": owner,
            "renewers": [],
            "max_lifetime": -1,
        }
        return ErrorCode(int(node.call("CreateDelegationToken", 3, body).error_code))

    def seen() -> int:
        return len(node.call("DescribeDelegationToken", 3, {"owners": None}).tokens)

    node.be("alice")
    assert (create(None), seen()) == (ErrorCode.NONE, 1)
    node.be("bob")
    assert create("alice") is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert seen() == 0
    node.allow("bob", AclOperation.CREATE_TOKENS, user, "User:alice")
    assert create("alice") is ErrorCode.NONE
    assert seen() == 1, "the one that bob asked for"
    node.allow("bob", AclOperation.DESCRIBE_TOKENS, user, "User:alice")
    assert seen() == 2
    node.be("carol")
    assert seen() == 0
    token_id = next(iter(node.broker.image.tokens))
    node.allow("carol", AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id)
    assert seen() == 1


def test_denials_are_logged_but_do_not_fill_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    node = GuardedNode()
    node.be("mallory")
    caplog.clear()
    with caplog.at_level("INFO", logger="tidelog.authorizer"):
        for number in range(300):
            node.handle(fetch_frame(f"topic{number}", 0))
        assert len(caplog.records) == 100
        assert "User:mallory is denied READ on TOPIC 'topic0' from 127.0.0.1" in caplog.text
        node.advance(1000)
        node.handle(fetch_frame("one-more", 0))
        node.handle(fetch_frame("one-more", 0))
    assert len(caplog.records) == 101


def test_an_expression_matches_what_its_member_may_describe() -> None:
    """KIP-848: neither the assignment nor the description of the group tells of other topics."""
    node = GuardedNode(auto_create_topics_enable="false")
    node.be("root")
    node.call("FindCoordinator", 3, {"key": "team", "key_type": 0})
    node.allow("alice", AclOperation.READ, GROUP, "team")
    node.allow("alice", AclOperation.READ, TOPIC, "open")
    node.be("alice")
    ids = {name: node.broker.image.topics[name].topic_id for name in ("open", "secret")}
    fields = {**requests_of("ConsumerGroupHeartbeat", "team", None), "subscribed_topic_names": None}
    joined_group = node.call("ConsumerGroupHeartbeat", 1, {**fields, "subscribed_topic_regex": ".*"})
    assert [topic.topic_id for topic in joined_group.assignment.topic_partitions] == [ids["open"]]
    beat = {
        "group_id": "team",
        "member_id": "m",
        "member_epoch": joined_group.member_epoch,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "topic_partitions": None,
    }
    node.allow("alice", AclOperation.DESCRIBE, TOPIC, "secret")
    more = node.call("ConsumerGroupHeartbeat", 1, beat)
    assert {topic.topic_id for topic in more.assignment.topic_partitions} == set(ids.values())
    node.allow("alice", AclOperation.DESCRIBE, TOPIC, "secret", permission=DENY)
    beat["member_epoch"] = more.member_epoch
    less = node.call("ConsumerGroupHeartbeat", 1, beat)
    assert [topic.topic_id for topic in less.assignment.topic_partitions] == [ids["open"]]


@pytest.mark.parametrize(("user", "host"), [("bob", "127.0.0.1"), ("alice", "10.0.0.1")])
def test_a_member_that_comes_from_elsewhere_may_know_less(user: str, host: str) -> None:
    node = GuardedNode(auto_create_topics_enable="false")
    node.be("root")
    node.call("FindCoordinator", 3, {"key": "team", "key_type": 0})
    for name in ("alice", "bob"):
        node.allow(name, AclOperation.READ, GROUP, "team")
        node.allow(name, AclOperation.READ, TOPIC, "open")
    node.allow("alice", AclOperation.READ, TOPIC, "secret", host="127.0.0.1")
    ids = {name: node.broker.image.topics[name].topic_id for name in ("open", "secret")}
    node.be("alice")
    fields = {**requests_of("ConsumerGroupHeartbeat", "team", None), "subscribed_topic_names": None}
    first = node.call("ConsumerGroupHeartbeat", 1, {**fields, "subscribed_topic_regex": ".*"})
    assert {topic.topic_id for topic in first.assignment.topic_partitions} == set(ids.values())
    beat = {**fields, "member_epoch": first.member_epoch, "rebalance_timeout": -1, "topic_partitions": None}
    assert node.call("ConsumerGroupHeartbeat", 1, beat).assignment is None
    node.be(user, host)
    less = node.call("ConsumerGroupHeartbeat", 1, beat)
    assert [topic.topic_id for topic in less.assignment.topic_partitions] == [ids["open"]]


def test_described_topics_are_equal_by_principal_and_host() -> None:
    node = GuardedNode()
    authorization = node.broker.authorization
    assert authorization is not None
    described = []
    for user, host in (("alice", "a"), ("alice", "a"), ("alice", "b"), ("bob", "a")):
        node.be(user, host)
        described.append(authorization.described_topics(node.context))
    assert described[0] == described[1]
    assert len(set(described)) == 3
    assert not described[0]("open")
    node.allow("alice", AclOperation.DESCRIBE, TOPIC, "open", host="a")
    assert described[0]("open"), "by the newest ACLs"
    assert not described[2]("open")
