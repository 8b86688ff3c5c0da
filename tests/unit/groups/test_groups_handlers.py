"""The group APIs through dispatch and codec in every version, on a node with a simulated disk."""

import importlib
import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from tests.support.kio_entities import build
from tests.unit.broker.node import NodeUnderTest, joined
from tidelog.broker.coordinators.internal_topic import coordinator_partition, java_string_hash
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.requests.request import PendingAnswer
from tidelog.controller.commands import DeleteTopics, TopicDeleted, TopicReference
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS

ROWS = {row.module: row for row in APIS.values()}
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"
QUICK: dict[str, Any] = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "4"}


def versions(module: str) -> range:
    return range(ROWS[module].min_version, ROWS[module].max_version + 1)


def send(node: NodeUnderTest, module: str, version: int, **fields: Any) -> Any:
    row = ROWS[module]
    message = messages._message_class(module, version, "request")
    out = io.BytesIO()
    entity_writer(message)(out, build(message)(fields))
    header = struct.pack(">hhih", row.key, version, 5, 4) + b"test"
    return node.handle(header + (b"\x00" if row.flexible(version) else b"") + out.getvalue())


def decode(module: str, version: int, answer: Any) -> Any:
    frame = joined(answer)
    schema = importlib.import_module(f"kio.schema.{module}.v{version}.response")
    name = "".join(word.capitalize() for word in module.split("_")) + "Response"
    # Size, correlation id, and from the first flexible version on the header's empty tagged fields.
    start = 8 + (1 if ROWS[module].flexible(version) else 0)
    body, size = entity_reader(getattr(schema, name))(memoryview(frame), start)
    assert start + size == len(frame)
    return body


def ask(node: NodeUnderTest, module: str, version: int, **fields: Any) -> Any:
    answer = send(node, module, version, **fields)
    if isinstance(answer, PendingAnswer) and answer.chunks is None:
        node.advance(0)
    return decode(module, version, answer)


def join(node: NodeUnderTest, version: int, member_id: str = "", group_id: str = "g") -> Any:
    return ask(
        node,
        "join_group",
        version,
        group_id=group_id,
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=20),
        member_id=member_id,
        protocol_type="consumer",
        protocols=({"name": "range", "metadata": SUBSCRIPTION},),
    )


def commit(node: NodeUnderTest, version: int, **fields: Any) -> list[tuple[str, int, int]]:
    parts = ({"partition_index": 0, "committed_offset": 7, "committed_metadata": "m"},)
    more = ({"partition_index": 9, "committed_offset": 7, "committed_metadata": "m"},)
    topics = ({"name": "t", "partitions": parts + more}, {"name": "nowhere", "partitions": parts})
    defaults = {"group_id": "g", "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}
    defaults["retention_time"] = timedelta(milliseconds=-1)
    answer = ask(node, "offset_commit", version, **{**defaults, **fields})
    return [(t.name, p.partition_index, int(p.error_code)) for t in answer.topics for p in t.partitions]


def delete(node: NodeUnderTest, topic: str) -> None:
    deleted: list[Any] = []
    node.broker.metadata.submit(DeleteTopics((TopicReference(topic),)), deleted.extend)
    assert isinstance(deleted[0], TopicDeleted)


def fetch_all(node: NodeUnderTest, group_id: str = "g") -> list[tuple[str, int, int, str]]:
    answer = ask(node, "offset_fetch", 9, groups=({"group_id": group_id, "topics": None},))
    (group,) = answer.groups
    assert not group.error_code
    return [
        (t.name, p.partition_index, p.committed_offset, p.metadata)
        for t in group.topics
        for p in t.partitions
    ]


@pytest.fixture
def node() -> NodeUnderTest:
    node = NodeUnderTest(**QUICK)
    node.create_topic("t", 2)
    assert not ask(node, "find_coordinator", 0, key="g").error_code
    return node


def test_groups_hash_as_in_java() -> None:
    assert java_string_hash("hello") == 99162322
    assert (
        java_string_hash("consumer-group-ö😀")
        == sum(
            unit * 31**power
            for power, unit in enumerate(
                reversed(struct.unpack(">18H", "consumer-group-ö😀".encode("utf-16-be")))
            )
        )
        % 2**32
    )
    assert coordinator_partition("polygenelubricants", 50) == 0, "the hash is the most negative number"


@pytest.mark.parametrize("version", versions("find_coordinator"))
def test_find_coordinator(version: int) -> None:
    node = NodeUnderTest(**QUICK)
    if version < 4:
        answer = ask(node, "find_coordinator", version, key="g")
    else:
        (answer,) = ask(node, "find_coordinator", version, coordinator_keys=("g",)).coordinators
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "localhost", 9092)
    assert len(node.broker.image.topics["__consumer_offsets"].partitions) == 4
    assert node.broker.image.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"


@pytest.mark.parametrize("version", versions("join_group"))
def test_join_sync_heartbeat_leave(node: NodeUnderTest, version: int) -> None:
    answer = join(node, version)
    if version >= 4:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        answer = join(node, version, answer.member_id)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.members[0].metadata == SUBSCRIPTION
    member_id = answer.member_id
    assert member_id == answer.leader and member_id.startswith("test-")
    identity = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    parts = ({"member_id": member_id, "assignment": b"mine"},)
    sync = ask(node, "sync_group", min(version, 5), assignments=parts, **identity)
    assert (sync.error_code, sync.assignment) == (0, b"mine")
    assert not ask(node, "heartbeat", min(version, 4), **identity).error_code
    leave_version = min(version, 5)
    leaving = {"members": ({"member_id": member_id},), "member_id": member_id, "group_id": "g"}
    left = ask(node, "leave_group", leave_version, **leaving)
    assert not left.error_code
    again = ask(node, "leave_group", leave_version, **leaving)
    error = again.members[0].error_code if leave_version >= 3 else again.error_code
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions("join_group"))
def test_refused_joins_can_be_encoded(node: NodeUnderTest, version: int) -> None:
    assert join(node, version, "nobody").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert join(node, version, group_id="").error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions("offset_commit")[:-1])  # the last one names topics by id
def test_commit_stores_what_exists(node: NodeUnderTest, version: int) -> None:
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert commit(node, version) == [("t", 0, 0), ("t", 9, unknown), ("nowhere", 0, unknown)]
    assert fetch_all(node) == [("t", 0, 7, "m")]


@pytest.mark.parametrize("version", versions("offset_fetch")[:-1])  # the last one names topics by id
def test_fetch_in_every_version(node: NodeUnderTest, version: int) -> None:
    commit(node, 5)
    topics = ({"name": "t", "partition_indexes": (0, 1)},)
    for group_id, expected in (("g", [7, -1]), ("unknown", [-1, -1])):
        if version < 8:
            answer = group = ask(node, "offset_fetch", version, group_id=group_id, topics=topics)
        else:
            answer = ask(node, "offset_fetch", version, groups=({"group_id": group_id, "topics": topics},))
            (group,) = answer.groups
        assert [part.committed_offset for part in group.topics[0].partitions] == expected
        assert all(not part.error_code for part in group.topics[0].partitions)
        assert not getattr(group, "error_code", 0)


def test_a_coordinator_elsewhere_is_said_so_in_every_shape(node: NodeUnderTest) -> None:
    for index in range(4):
        node.broker.groups.get().unload(index)
    elsewhere = int(ErrorCode.NOT_COORDINATOR)
    assert join(node, 9).error_code == elsewhere
    assert ask(node, "heartbeat", 4, group_id="g", member_id="m", generation_id=1).error_code == elsewhere
    assert ask(node, "sync_group", 5, group_id="g", member_id="m", generation_id=1).error_code == elsewhere
    assert ask(node, "leave_group", 0, group_id="g", member_id="m").error_code == elsewhere
    # What does not exist is known here.
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert {error for _, _, error in commit(node, 9)} == {elsewhere, unknown}
    topics = ({"name": "t", "partition_indexes": (0,)},)
    old = ask(node, "offset_fetch", 1, group_id="g", topics=topics)
    assert old.topics[0].partitions[0].error_code == elsewhere
    assert ask(node, "offset_fetch", 5, group_id="g", topics=topics).error_code == elsewhere
    assert ask(node, "describe_groups", 5, groups=("g",)).groups[0].error_code == elsewhere
    assert ask(node, "delete_groups", 2, groups_names=("g",)).results[0].error_code == elsewhere
    assert ask(node, "offset_delete", 0, group_id="g", topics=()).error_code == elsewhere


def test_waiting_members_are_answered_when_leadership_goes(node: NodeUnderTest) -> None:
    first = join(node, 3).member_id
    waiting = send(node, "sync_group", 3, group_id="g", member_id=first, generation_id=1, assignments=())
    assert not decode("sync_group", 3, waiting).error_code, "a lone leader waits for nobody"
    other = send(
        node,
        "join_group",
        3,
        group_id="g",
        session_timeout=timedelta(seconds=10),
        rebalance_timeout=timedelta(seconds=20),
        member_id="",
        protocol_type="consumer",
        protocols=({"name": "range", "metadata": SUBSCRIPTION},),
    )
    assert other.chunks is None
    node.broker.groups.get().unload(node.broker.group_topic.partition_for("g"))
    assert decode("join_group", 3, other).error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", versions("list_groups"))
def test_list_groups(node: NodeUnderTest, version: int) -> None:
    commit(node, 5)
    (group,) = ask(node, "list_groups", version).groups
    assert (group.group_id, group.protocol_type) == ("g", "")
    if version >= 4:
        assert group.group_state == "Empty"
        assert not ask(node, "list_groups", version, states_filter=("stable",)).groups
        assert ask(node, "list_groups", version, states_filter=("EMPTY",)).groups
    if version >= 5:
        assert group.group_type == "classic"
        assert not ask(node, "list_groups", version, types_filter=("consumer",)).groups


@pytest.mark.parametrize("version", versions("describe_groups"))
def test_describe_groups(node: NodeUnderTest, version: int) -> None:
    member_id = join(node, 3).member_id
    identity = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    ask(node, "sync_group", 3, assignments=({"member_id": member_id, "assignment": b"mine"},), **identity)
    group, missing = ask(node, "describe_groups", version, groups=("g", "h")).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (member,) = group.members
    assert (member.client_id, member.client_host, member.member_assignment) == ("test", "/127.0.0.1", b"mine")
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", versions("delete_groups"))
def test_delete_groups(node: NodeUnderTest, version: int) -> None:
    commit(node, 5)
    results = ask(node, "delete_groups", version, groups_names=("g", "h")).results
    found = {result.group_id: int(result.error_code) for result in results}
    assert found == {"g": 0, "h": int(ErrorCode.GROUP_ID_NOT_FOUND)}
    assert fetch_all(node) == []


def test_offset_delete(node: NodeUnderTest) -> None:
    commit(node, 5)
    parts = ({"partition_index": 0}, {"partition_index": 9})
    answer = ask(node, "offset_delete", 0, group_id="g", topics=({"name": "t", "partitions": parts},))
    errors = {part.partition_index: int(part.error_code) for t in answer.topics for part in t.partitions}
    assert errors == {0: 0, 9: int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}
    assert fetch_all(node) == []


def test_a_restarted_node_knows_its_groups(node: NodeUnderTest) -> None:
    commit(node, 5)
    member_id = join(node, 3).member_id
    identity = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    ask(node, "sync_group", 3, assignments=({"member_id": member_id, "assignment": b"mine"},), **identity)
    groups = node.broker.groups.get()
    for index in range(4):
        groups.unload(index)
        groups.load(index)
    assert fetch_all(node) == [("t", 0, 7, "m")]
    assert not ask(node, "heartbeat", 4, **identity).error_code
    assert ask(node, "sync_group", 3, assignments=(), **identity).assignment == b"mine"


def test_a_session_ends_late_when_heartbeats_came(node: NodeUnderTest) -> None:
    member_id = join(node, 3).member_id
    identity = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    ask(node, "sync_group", 3, assignments=(), **identity)
    for _ in range(3):
        node.advance(9_000)
        assert not ask(node, "heartbeat", 4, **identity).error_code
    node.advance(9_999)
    assert len(ask(node, "describe_groups", 5, groups=("g",)).groups[0].members) == 1
    node.advance(2)
    assert ask(node, "heartbeat", 4, **identity).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_large_log_is_loaded_over_several_turns(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        commit(node, 5)
    monkeypatch.setattr("tidelog.broker.coordinators.coordinator_runtime.LOAD_RECORDS_PER_TURN", 2)
    index = node.broker.group_topic.partition_for("g")
    node.broker.groups.get().unload(index)
    node.broker.groups.get().load(index)
    loading = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert ask(node, "list_groups", 4).error_code == loading
    assert join(node, 9).error_code == loading
    assert not ask(node, "heartbeat", 4, group_id="g", member_id="m", generation_id=1).error_code
    for _ in range(4):
        node.advance(1)
    assert fetch_all(node) == [("t", 0, 7, "m")]


def test_offsets_expire_by_the_clock_and_with_their_topic() -> None:
    node = NodeUnderTest(**QUICK, offsets_retention_minutes="1", offsets_retention_check_interval_ms="60000")
    node.create_topic("t", 2)
    ask(node, "find_coordinator", 0, key="g")
    commit(node, 5)
    commit(node, 5, group_id="h")
    node.broker.groups.get().topic_deleted("elsewhere")
    assert fetch_all(node)
    node.advance(30_000)
    commit(node, 5, group_id="h")
    node.advance(30_001)
    assert fetch_all(node) == []
    assert fetch_all(node, "h")
    node.broker.groups.get().topic_deleted("t")
    assert fetch_all(node, "h") == []


def test_a_deleted_topic_asks_for_the_group_coordinator_only_if_there_is_one() -> None:
    node = NodeUnderTest(**QUICK)
    node.create_topic("t", 2)
    delete(node, "t")
    assert node.broker.groups.made is None and node.broker.transactions.made is None
    node.create_topic("t", 2)
    ask(node, "find_coordinator", 0, key="g")
    commit(node, 5)
    assert fetch_all(node)
    delete(node, "t")
    assert fetch_all(node) == []


def test_answers_wait_for_replicas_and_give_up_in_time(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(node, 5)
    partition = node.broker.replicas.leader("__consumer_offsets", node.broker.group_topic.partition_for("g"))
    assert partition is not None
    append = Partition.append_internal

    def append_unreplicated(self: Partition, *arguments: Any, **options: Any) -> Any:
        high_watermark = self.high_watermark
        outcome = append(self, *arguments, **options)
        self.high_watermark = high_watermark
        return outcome

    monkeypatch.setattr(Partition, "append_internal", append_unreplicated)
    part = {"partition_index": 0, "committed_offset": 8, "committed_metadata": ""}
    topics = ({"name": "t", "partitions": (part,)},)
    request = {"group_id": "g", "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}
    slow = send(node, "offset_commit", 9, **request)
    read = send(node, "offset_fetch", 9, groups=({"group_id": "g", "topics": None},))
    assert slow.chunks is None and read.chunks is None
    node.advance(5_001)
    timed_out = decode("offset_commit", 9, slow)
    assert timed_out.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert decode("offset_fetch", 9, read).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    read = send(node, "offset_fetch", 9, groups=({"group_id": "g", "topics": None},))
    assert read.chunks is None, "the write is still on its way"
    partition.high_watermark = partition.log.log_end_offset
    node.broker.turn.note_progress(partition)
    node.broker.turn.wake()
    assert decode("offset_fetch", 9, read).groups[0].topics[0].partitions[0].committed_offset == 8


def test_a_new_leader_reads_past_the_watermark_and_answers_when_it_has_passed(node: NodeUnderTest) -> None:
    commit(node, 5)
    index = node.broker.group_topic.partition_for("g")
    partition = node.broker.replicas.led["__consumer_offsets", index]
    node.broker.groups.get().unload(index)
    partition.high_watermark = partition.log.log_end_offset - 1
    node.broker.groups.get().load(index)
    assert join(node, 9, "unknown").error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    waiting = send(
        node,
        "offset_fetch",
        7,
        group_id="g",
        topics=[{"name": "t", "partition_indexes": [0]}],
        require_stable=False,
    )
    assert waiting.chunks is None
    partition.high_watermark = partition.log.log_end_offset
    node.broker.turn.note_progress(partition)
    node.broker.turn.wake()
    assert decode("offset_fetch", 7, waiting).topics[0].partitions[0].committed_offset == 7
    assert fetch_all(node) == [("t", 0, 7, "m")]


def test_an_epoch_that_changes_while_the_node_leads_on_sends_nobody_away(node: NodeUnderTest) -> None:
    index = node.broker.group_topic.partition_for("g")
    machine = node.broker.groups.get().machine_for("g")
    node.broker.replicas.led["__consumer_offsets", index].leader_epoch += 1
    node.broker.groups.get().load(index)
    assert node.broker.groups.get().machine_for("g") is machine


@pytest.mark.parametrize("version", [6, 10])
def test_a_broker_that_does_not_coordinate_tells_what_does_not_exist_all_the_same(version: int) -> None:
    node = NodeUnderTest(**QUICK)
    node.create_topic("t", 1)
    topic_id = node.broker.metadata.image.topics["t"].topic_id
    parts = [
        {
            "partition_index": index,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in (0, 99)
    ]
    topics = [{"name": "t", "topic_id": topic_id, "partitions": parts}]
    # There is no topic of committed offsets yet: nobody coordinates.
    answer = ask(
        node,
        "offset_commit",
        version,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=topics,
    )
    (answered,) = answer.topics
    assert [(part.partition_index, int(part.error_code)) for part in answered.partitions] == [
        (0, ErrorCode.NOT_COORDINATOR),
        (99, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
