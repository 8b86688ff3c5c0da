"""Share groups through dispatch and codec, on a node with a simulated disk."""

from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.node import NodeUnderTest, produce_frame
from tests.unit.broker.share_members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    SETTINGS,
    ShareMember,
    ask,
    configure,
    counts,
    decoded,
    milliseconds,
    produce,
    rows,
    sharing_node,
    taken,
)
from tidelog.broker.coordinators.share_state_coordinator import CHORES_MS
from tidelog.controller.commands import (
    AlterClientQuotas,
    CreateAcls,
    DeleteTopics,
    QuotaChange,
    TopicReference,
)
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.model.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import SHARE_GROUP_STATE_TOPIC
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.storage.partition_log import PartitionLog

LOCK_MS = 30_000


@pytest.fixture
def node() -> NodeUnderTest:
    return sharing_node()


def restarted(node: NodeUnderTest) -> NodeUnderTest:
    """The broker after a kill of its process."""
    return NodeUnderTest(node.disk.kill(), node.store, **SETTINGS)


# -- delivering


def test_records_are_delivered_once_and_accepted_ones_never_again(node: NodeUnderTest) -> None:
    produce(node, b"a", b"b", b"c")
    first, second = ShareMember(node, "one").join(), ShareMember(node, "two").join()
    assert first.take() == [b"a", b"b", b"c"]
    assert second.take() == []
    assert first.acknowledge(0, (0, 1, ACCEPT), (2, 2, RELEASE)) is ErrorCode.NONE
    answer = second.fetch()
    assert taken(answer) == [b"c"] and counts(answer) == {2: 2}
    assert second.take({0: [(2, 2, ACCEPT)]}) == [] == first.take()


def test_what_was_told_survives_a_restart_and_what_was_not_is_delivered_again(node: NodeUnderTest) -> None:
    produce(node, b"a", b"b", b"c", b"d")
    member = ShareMember(node).join()
    assert len(member.take()) == 4
    assert member.acknowledge(0, (0, 0, ACCEPT), (2, 2, REJECT)) is ErrorCode.NONE
    again = restarted(node)
    member = ShareMember(again, "other").join()
    assert member.take() == [b"b", b"d"]


def test_a_fetch_waits_for_records_and_gives_them_to_who_waited_longest(node: NodeUnderTest) -> None:
    first, second = ShareMember(node, "one").join(), ShareMember(node, "two").join()
    assert first.take() == second.take() == []
    waiting = [member.send_fetch(max_wait=500) for member in (first, second)]
    assert [each.chunks for each in waiting] == [None, None]
    produce(node, b"a")
    assert taken(decoded("ShareFetch", 2, waiting[0])) == [b"a"]
    assert waiting[1].chunks is None
    node.advance(500)
    assert taken(decoded("ShareFetch", 2, waiting[1])) == []


def test_a_fetch_waits_for_so_many_bytes(node: NodeUnderTest) -> None:
    member = ShareMember(node).join()
    assert member.take() == []
    waiting = member.send_fetch(max_wait=500, min_bytes=200)
    produce(node, b"a")
    assert waiting.chunks is None
    produce(node, b"b" * 100)
    assert taken(decoded("ShareFetch", 2, waiting)) == [b"a", b"b" * 100]
    produce(node, b"c")
    waiting = member.send_fetch(max_wait=500, min_bytes=200)
    node.advance(500)
    assert taken(decoded("ShareFetch", 2, waiting)) == [b"c"]


def test_what_is_released_wakes_those_who_wait(node: NodeUnderTest) -> None:
    produce(node, b"a")
    holder, waiter = ShareMember(node, "one").join(), ShareMember(node, "two").join()
    assert holder.take() == [b"a"]
    assert waiter.take() == []
    waiting = waiter.send_fetch(max_wait=500)
    assert holder.acknowledge(0, (0, 0, RELEASE)) is ErrorCode.NONE
    node.advance(0)
    assert taken(decoded("ShareFetch", 2, waiting)) == [b"a"]


def test_the_limit_of_records_is_for_all_partitions_together(node: NodeUnderTest) -> None:
    for index in (0, 1):
        for value in (b"a", b"b", b"c"):
            produce(node, value, partition=index)
    member = ShareMember(node, partitions=(0, 1)).join()
    assert len(member.take(max_records=4)) == 4
    assert len(member.take(max_records=4)) == 2


def test_exactly_so_many_records_of_a_batch(node: NodeUnderTest) -> None:
    produce(node, *(b"%d" % number for number in range(10)))
    member = ShareMember(node).join()
    assert len(member.take(max_records=3, share_acquire_mode=1)) == 3
    assert len(member.take(max_records=3)) == 7


def test_only_so_many_bytes_but_always_a_batch(node: NodeUnderTest) -> None:
    for _ in range(4):
        produce(node, b"x" * 1_000)
    member = ShareMember(node).join()
    assert len(member.take(max_bytes=1)) == 1
    assert len(member.take(max_bytes=2_500)) == 2


def test_large_batches_come_together_as_far_as_there_is_room(node: NodeUnderTest) -> None:
    for _ in range(5):
        produce(node, b"x" * 100_000)
    member = ShareMember(node).join()
    assert len(member.take(max_bytes=350_000)) == 3
    assert len(member.take(max_bytes=350_000)) == 2


def test_a_disk_that_cannot_be_read_is_no_answer(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = ShareMember(node).join()
    assert member.take() == []
    waiting = member.send_fetch(max_wait=500, min_bytes=10)
    faults: list[OSError] = []
    partition = node.broker.replicas.led["t", 0]
    partition.on_fault = lambda fault, _: faults.append(fault)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(PartitionLog, "read", broken)
    produce(node, b"a" * 100)
    node.advance(500)
    assert taken(decoded("ShareFetch", 2, waiting)) == []
    assert faults


def test_a_batch_is_sent_only_if_something_of_it_was_acquired(node: NodeUnderTest) -> None:
    for value in (b"a", b"b", b"c"):
        produce(node, value)
    member = ShareMember(node).join()
    assert member.take(max_records=2) == [b"a", b"b"]
    [row] = rows(member.fetch()).values()
    assert len(bytes(row.records)) < 100
    assert [(each.first_offset, each.last_offset) for each in row.acquired_records] == [(2, 2)]


def test_records_of_aborted_transactions_are_not_delivered_to_who_reads_committed(
    node: NodeUnderTest,
) -> None:
    configure(node, "share.isolation.level", "read_committed")
    member = ShareMember(node).join()
    for value, committed in ((b"gone", False), (b"kept", True)):
        begun = ask(node, "FindCoordinator", 3, key="tx", key_type=1)
        assert not int(begun.error_code)
        begun = ask(node, "InitProducerId", 4, transactional_id="tx", transaction_timeout=60_000)
        producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        names = {f"v3_and_below_{name}": value for name, value in producer.items()}
        ask(
            node,
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id="tx",
            v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            **names,
        )
        record = Record(0, node.clock.time_ms, None, value, ())
        data = bytes(build_batch([record], transactional=True, base_sequence=0, **producer))
        partition = node.broker.replicas.led["t", 0]
        partition.append_produced(memoryview(bytearray(data)), node.clock.time_ms)
        assert member.take() == []
        ended = ask(node, "EndTxn", 3, transactional_id="tx", committed=committed, **producer)
        assert not int(ended.error_code)
        node.advance(10)
    assert member.take() == [b"kept"]
    everything = ShareMember(node, "other", group="h")
    configure(node, "share.auto.offset.reset", "earliest", group="h")
    assert everything.join().take() == [b"gone", b"kept"]


@pytest.mark.parametrize(
    ("reset", "expected"), [("latest", [b"new"]), ("by_duration:PT1M", [b"late", b"new"])]
)
def test_a_group_begins_where_its_setting_says(
    node: NodeUnderTest, reset: str, expected: list[bytes]
) -> None:
    def at(value: bytes) -> None:
        data = bytes(build_batch([Record(0, node.clock.time_ms, None, value, ())]))
        node.handle(produce_frame(7, data, "t"))

    configure(node, "share.auto.offset.reset", reset)
    at(b"early")
    node.advance(600_000)
    at(b"late")
    member = ShareMember(node).join()
    assert member.take() == expected[:-1]
    at(b"new")
    assert member.take() == [b"new"]


# -- locks, counts, settings


def test_a_lock_ends_and_the_late_word_is_refused(node: NodeUnderTest) -> None:
    produce(node, b"a", b"b")
    slow, other = ShareMember(node, "slow").join(), ShareMember(node, "other").join()
    assert len(slow.take()) == 2
    node.advance(LOCK_MS - 1)
    assert other.take() == []
    node.advance(1)
    answer = other.fetch()
    assert counts(answer) == {0: 2, 1: 2}
    assert slow.acknowledge(0, (0, 1, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert other.acknowledge(0, (0, 1, ACCEPT)) is ErrorCode.NONE


def test_a_lock_is_renewed(node: NodeUnderTest) -> None:
    produce(node, b"a")
    holder, other = ShareMember(node, "one").join(), ShareMember(node, "two").join()
    assert holder.take() == [b"a"]
    for _ in range(3):
        node.advance(LOCK_MS - 1_000)
        assert holder.acknowledge(0, (0, 0, RENEW), is_renew_ack=True) is ErrorCode.NONE
        assert other.take() == []
    assert holder.acknowledge(0, (0, 0, RENEW)) is ErrorCode.INVALID_REQUEST
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait": 0, "is_renew_ack": True}
    answer = holder.fetch({0: [(0, 0, RENEW)]}, **nothing)
    assert rows(answer)[0].acknowledge_error_code == 0
    assert milliseconds(answer.acquisition_lock_timeout) == LOCK_MS
    wrong = holder.fetch({0: [(0, 0, RENEW)]}, **{**nothing, "max_records": 1})
    assert ErrorCode(int(wrong.error_code)) is ErrorCode.INVALID_REQUEST


def test_renewing_can_be_switched_off(node: NodeUnderTest) -> None:
    configure(node, "share.renew.acknowledge.enable", "false")
    produce(node, b"a")
    holder = ShareMember(node).join()
    assert holder.take() == [b"a"]
    assert holder.acknowledge(0, (0, 0, RENEW), is_renew_ack=True) is ErrorCode.INVALID_RECORD_STATE


def test_a_setting_of_the_group_holds_for_what_is_in_flight(node: NodeUnderTest) -> None:
    produce(node, b"a")
    member = ShareMember(node).join()
    for count in (1, 2):
        assert counts(member.fetch()) == {0: count}
        if count == 2:
            configure(node, "share.delivery.count.limit", "2")
        assert member.acknowledge(0, (0, 0, RELEASE)) is ErrorCode.NONE
    produce(node, b"b")
    assert counts(member.fetch()) == {1: 1}
    configure(node, "share.record.lock.duration.ms", "15000")
    assert milliseconds(member.fetch().acquisition_lock_timeout) == 15_000


def test_a_member_that_is_silent_for_the_session_of_its_group_is_out(node: NodeUnderTest) -> None:
    configure(node, "share.session.timeout.ms", "50000")
    configure(node, "share.heartbeat.interval.ms", "6000")
    member = ShareMember(node).join()
    assert milliseconds(member.heartbeat().heartbeat_interval) == 6_000
    node.advance(49_999)
    assert not int(member.heartbeat().error_code)
    node.advance(50_000)
    assert ErrorCode(int(member.heartbeat().error_code)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_record_is_given_up_after_so_many_deliveries(node: NodeUnderTest) -> None:
    configure(node, "share.delivery.count.limit", "2")
    produce(node, b"a")
    member = ShareMember(node).join()
    for count in (1, 2):
        assert counts(member.fetch()) == {0: count}
        assert member.acknowledge(0, (0, 0, RELEASE)) is ErrorCode.NONE
    assert member.take() == []


def test_no_more_records_are_in_flight_than_allowed(node: NodeUnderTest) -> None:
    configure(node, "share.partition.max.record.locks", "100")
    for _ in range(30):
        produce(node, *([b"x"] * 10))
    member = ShareMember(node).join()
    assert len(member.take()) == 100
    assert member.take() == []
    assert member.acknowledge(0, (0, 49, ACCEPT)) is ErrorCode.NONE
    assert len(member.take()) == 50


def test_records_that_were_deleted_are_passed_over(node: NodeUnderTest) -> None:
    produce(node, b"a", b"b")
    produce(node, b"c")
    member = ShareMember(node).join()
    part = {"partition_index": 0, "offset": 2}
    deleted = ask(node, "DeleteRecords", 2, topics=[{"name": "t", "partitions": [part]}], timeout=1_000)
    assert not int(deleted.topics[0].partitions[0].error_code)
    assert member.take() == [b"c"]


# -- sessions


def test_a_session_goes_on_with_the_next_epoch_only(node: NodeUnderTest) -> None:
    member = ShareMember(node).join()
    wrong = member.fetch(share_session_epoch=7)
    assert ErrorCode(int(wrong.error_code)) is ErrorCode.SHARE_SESSION_NOT_FOUND
    member.fetch()
    wrong = member.fetch(share_session_epoch=7)
    assert ErrorCode(int(wrong.error_code)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert (
        member.acknowledge(0, (0, 0, ACCEPT), share_session_epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    )
    wrong = ShareMember(node, "new").fetch({0: [(0, 0, ACCEPT)]})
    assert ErrorCode(int(wrong.error_code)) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("ends", ["fetch", "acknowledge", "connection"])
def test_when_a_session_ends_others_get_what_was_not_acknowledged(node: NodeUnderTest, ends: str) -> None:
    produce(node, b"a", b"b")
    leaver, other = ShareMember(node, "leaver").join(), ShareMember(node, "other").join()
    assert len(leaver.take()) == 2
    assert other.take() == []
    if ends == "connection":
        leaver.lose_connection()
    elif ends == "fetch":
        assert leaver.take({0: [(0, 0, ACCEPT)]}, share_session_epoch=-1) == []
    else:
        assert leaver.acknowledge(0, (0, 0, ACCEPT), share_session_epoch=-1) is ErrorCode.NONE
    assert other.take() == ([b"a", b"b"] if ends == "connection" else [b"b"])
    assert [session.key.member_id for session in node.broker.shares.get().sessions] == ["other"]


def test_there_are_no_more_sessions_than_allowed() -> None:
    node = sharing_node(group_share_max_share_sessions="2")
    members = [ShareMember(node, name).join() for name in "abc"]
    errors = [ErrorCode(int(member.fetch().error_code)) for member in members]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.SHARE_SESSION_LIMIT_REACHED]


def test_a_session_remembers_no_more_partitions_than_there_may_be(node: NodeUnderTest) -> None:
    member = ShareMember(node).join()
    member.fetch()

    def adding(first: int) -> ErrorCode:
        parts = [{"partition_index": first + number, "acknowledgement_batches": []} for number in range(60)]
        return ErrorCode(
            int(member.fetch(topics=[{"topic_id": member.topic_id, "partitions": parts}]).error_code)
        )

    assert [adding(100), adding(200), adding(300)][-1] is ErrorCode.INVALID_REQUEST
    [session] = node.broker.shares.get().sessions
    assert len(session.partitions) <= node.broker.image.partition_count + 100


def test_nothing_is_kept_of_a_group_that_nobody_fetches_for(node: NodeUnderTest) -> None:
    produce(node, b"a")
    member = ShareMember(node).join()
    member.take()
    shares = node.broker.shares.get()
    assert len(shares.partitions) == 1
    member.lose_connection()
    node.advance(0)
    assert len(shares.partitions) == len(shares.sessions) == len(shares.connections) == 0
    assert member.context.leavings == ()


def test_a_waiting_fetch_whose_connection_is_gone_takes_nothing(node: NodeUnderTest) -> None:
    gone, other = ShareMember(node, "gone").join(), ShareMember(node, "other").join()
    assert gone.take() == other.take() == []
    waiting = gone.send_fetch(max_wait=500)
    waiting.delayed.abandon()
    gone.lose_connection()
    assert node.broker.purgatory.count == 0
    produce(node, b"a")
    assert other.take() == [b"a"]


def test_a_partition_is_forgotten_by_a_session(node: NodeUnderTest) -> None:
    produce(node, b"a", partition=1)
    member = ShareMember(node, partitions=(0, 1)).join()
    forgotten = [{"topic_id": member.topic_id, "partitions": [1]}]
    assert member.take() == [b"a"]
    produce(node, b"b", partition=1)
    assert member.take(forgotten_topics_data=forgotten) == []


# -- what is refused


def test_what_cannot_be_fetched_says_why(node: NodeUnderTest) -> None:
    member = ShareMember(node, partitions=(0, 9)).join()
    produce(node, b"a")
    answer = member.fetch()
    assert taken(answer) == [b"a"]
    assert ErrorCode(int(rows(answer)[9].error_code)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stranger = ShareMember(node, "stranger")
    part = {"partition_index": 0, "acknowledgement_batches": []}
    answer = stranger.fetch(topics=[{"topic_id": UUID(int=5), "partitions": [part]}])
    assert ErrorCode(int(rows(answer)[0].error_code)) is ErrorCode.UNKNOWN_TOPIC_ID
    for fields in (
        {"group_id": None}, {"member_id": None}, {"member_id": "x" * 37}, {"share_acquire_mode": 5},
    ):  # fmt: skip
        wrong = ShareMember(node, "wrong").fetch(**fields)
        assert ErrorCode(int(wrong.error_code)) is ErrorCode.INVALID_REQUEST
    nowhere = ShareMember(node, "wrong").fetch(group_id="", share_session_epoch=1)
    assert ErrorCode(int(nowhere.error_code)) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_partition_that_the_group_was_never_given_cannot_be_fetched(node: NodeUnderTest) -> None:
    stranger = ShareMember(node, "stranger", group="nobody")
    assert stranger.fetch().responses[0].partitions[0].error_code in (0, 42)
    answer = stranger.fetch()
    assert ErrorCode(int(rows(answer)[0].error_code)) is ErrorCode.INVALID_REQUEST


def test_what_cannot_be_acknowledged_says_why(node: NodeUnderTest) -> None:
    produce(node, b"a", b"b")
    member, other = ShareMember(node).join(), ShareMember(node, "other").join()
    member.take()
    other.take()
    assert other.acknowledge(0, (0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert member.acknowledge(0, (1, 0, ACCEPT)) is ErrorCode.INVALID_REQUEST
    assert member.acknowledge(0, (0, 0, 9)) is ErrorCode.INVALID_REQUEST
    assert member.acknowledge(0, (0, 5, ACCEPT)) is ErrorCode.INVALID_REQUEST
    assert member.acknowledge(1, (0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE
    assert member.acknowledge(7, (0, 0, ACCEPT)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert member.acknowledge(0, (0, 0, ACCEPT), group_id="", member_id="") is ErrorCode.INVALID_REQUEST
    assert member.acknowledge(0, (0, 1, ACCEPT)) is ErrorCode.NONE


def test_who_has_no_rights_gets_and_says_nothing() -> None:
    node = sharing_node(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    produce(node, b"a")
    owner, guest = ShareMember(node, "owner").join(), ShareMember(node, "guest")
    assert owner.take() == [b"a"]
    guest.context.principal = "User:guest"

    def allow(kind: ResourceType, name: str) -> None:
        binding = AclBinding(
            kind, name, PatternType.LITERAL, "User:guest", "*", AclOperation.READ, PermissionType.ALLOW
        )
        node.broker.metadata.submit(CreateAcls((binding,)), lambda results: None)

    assert ErrorCode(int(guest.fetch().error_code)) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert guest.acknowledge(0, (0, 0, ACCEPT)) is ErrorCode.GROUP_AUTHORIZATION_FAILED
    allow(ResourceType.GROUP, GROUP)
    guest.session_epoch = 0
    answer = guest.fetch()
    assert ErrorCode(int(rows(answer)[0].error_code)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert guest.acknowledge(0, (0, 0, ACCEPT)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    allow(ResourceType.TOPIC, "t")
    assert guest.take() == []
    assert guest.acknowledge(0, (0, 0, ACCEPT)) is ErrorCode.INVALID_RECORD_STATE


def test_who_gets_more_than_a_quota_allows_waits_afterwards_and_keeps_the_records(
    node: NodeUnderTest,
) -> None:
    change = QuotaChange((("client-id", "test"),), (("consumer_byte_rate", 100.0),))
    node.broker.metadata.submit(AlterClientQuotas((change,)), lambda results: None)
    produce(node, b"x" * 5_000)
    member = ShareMember(node).join()
    answer = member.fetch()
    assert len(taken(answer)) == 1
    assert milliseconds(answer.throttle_time) > 1_000
    assert member.context.throttle_ms == milliseconds(answer.throttle_time)


# -- share coordinators


def state_request(topic_id: UUID, **fields: Any) -> dict[str, Any]:
    part = {"partition": 0, **fields}
    return {"group_id": "s", "topics": [{"topic_id": topic_id, "partitions": [part]}]}


@pytest.mark.parametrize("version", [0, 1])
def test_share_coordinators_keep_state_and_fence_older_epochs(node: NodeUnderTest, version: int) -> None:
    topic_id = node.broker.image.topics["t"].topic_id

    def result(name: str, version: int = 0, topic_id: UUID = topic_id, **fields: Any) -> Any:
        [topic] = ask(node, name, version, **state_request(topic_id, **fields)).results
        [row] = topic.partitions
        return row

    def error(name: str, version: int = 0, **fields: Any) -> ErrorCode:
        return ErrorCode(int(result(name, version, **fields).error_code))

    assert error("ReadShareGroupState", leader_epoch=0) is ErrorCode.NOT_COORDINATOR
    # FindCoordinator makes the topic.
    key = f"s:{_id_text(topic_id)}:0"
    [found] = ask(node, "FindCoordinator", 6, coordinator_keys=[key], key_type=2).coordinators
    assert (int(found.error_code), found.node_id) == (0, 1)
    assert error("ReadShareGroupState", leader_epoch=0) is ErrorCode.INVALID_REQUEST
    assert result("ReadShareGroupState", leader_epoch=0).start_offset == 0
    nobodys = {**state_request(topic_id, leader_epoch=0), "group_id": ""}
    assert ask(node, "ReadShareGroupState", 0, **nobodys).results == ()
    assert error("InitializeShareGroupState", state_epoch=2, start_offset=5) is ErrorCode.NONE
    assert error("InitializeShareGroupState", state_epoch=1, start_offset=0) is ErrorCode.FENCED_STATE_EPOCH
    assert result("ReadShareGroupState", leader_epoch=4).start_offset == 5
    batches = [{"first_offset": 7, "last_offset": 8, "delivery_state": 2, "delivery_count": 1}]
    written = {"state_epoch": 2, "start_offset": 6, "delivery_complete_count": 2, "state_batches": batches}
    assert error("WriteShareGroupState", version, leader_epoch=3, **written) is ErrorCode.FENCED_LEADER_EPOCH
    assert error("WriteShareGroupState", version, leader_epoch=4, **written) is ErrorCode.NONE
    wrong = [{**batches[0], "delivery_state": 1}]
    assert (
        error("WriteShareGroupState", version, leader_epoch=4, **{**written, "state_batches": wrong})
        is ErrorCode.INVALID_REQUEST
    )
    read = result("ReadShareGroupState", leader_epoch=4)
    assert (read.start_offset, read.state_epoch, len(read.state_batches)) == (6, 2, 1)
    summary = result("ReadShareGroupStateSummary", version, leader_epoch=0)
    assert (summary.start_offset, summary.leader_epoch) == (6, 4)
    if version:
        assert summary.delivery_complete_count == 2
    assert error("DeleteShareGroupState") is ErrorCode.NONE
    assert result("ReadShareGroupStateSummary", leader_epoch=0).start_offset == -1
    gone = error("InitializeShareGroupState", topic_id=UUID(int=9), state_epoch=1, start_offset=0)
    assert gone in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_COORDINATOR)


def _id_text(topic_id: UUID) -> str:
    from tidelog.storage.partition_metadata import encode_topic_id

    return encode_topic_id(topic_id)


@pytest.mark.parametrize("key", ["g", "g:t:0", ":AAAAAAAAAAAAAAAAAAAAAQ:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:x"])
def test_what_is_no_share_partition_has_no_coordinator(node: NodeUnderTest, key: str) -> None:
    [found] = ask(node, "FindCoordinator", 6, coordinator_keys=[key], key_type=2).coordinators
    assert ErrorCode(int(found.error_code)) is ErrorCode.INVALID_REQUEST
    assert SHARE_GROUP_STATE_TOPIC not in node.broker.image.topics
    good = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
    [found] = ask(node, "FindCoordinator", 5, coordinator_keys=[good], key_type=2).coordinators
    assert ErrorCode(int(found.error_code)) is ErrorCode.INVALID_REQUEST


def test_old_state_goes_from_the_log_and_with_deleted_topics() -> None:
    node = sharing_node(share_coordinator_snapshot_update_records_per_snapshot="2")
    member = ShareMember(node).join()
    member.take()
    for number in range(9):
        produce(node, b"x")
        member.take()
        assert member.acknowledge(0, (number, number, ACCEPT)) is ErrorCode.NONE
    coordinator = node.broker.shares.get().coordinator
    stored = [key for machine in coordinator.loaded_machines() for key in machine.stored]
    assert len(stored) == 2
    node.advance(CHORES_MS)
    starts = [
        node.broker.replicas.led[SHARE_GROUP_STATE_TOPIC, index].log.log_start_offset for index in (0, 1)
    ]
    assert max(starts) > 3
    member.heartbeat(-1)
    member.lose_connection()
    done: list[Any] = []
    node.broker.metadata.submit(DeleteTopics((TopicReference("t", None),)), done.extend)
    for _ in range(3):
        node.advance(CHORES_MS)
    assert not any(machine.stored for machine in coordinator.loaded_machines())


# -- offsets


def offsets_of(node: NodeUnderTest, version: int = 1, topics: Any = None) -> dict[int, tuple[int, int]]:
    [group] = ask(
        node, "DescribeShareGroupOffsets", version, groups=[{"group_id": GROUP, "topics": topics}]
    ).groups
    assert not int(group.error_code), group
    return {
        row.partition_index: (row.start_offset, getattr(row, "lag", -1))
        for topic in group.topics
        for row in topic.partitions
    }


def test_offsets_are_described_altered_and_deleted(node: NodeUnderTest) -> None:
    produce(node, *([b"x"] * 5))
    member = ShareMember(node).join()
    member.take()
    assert member.acknowledge(0, (0, 1, ACCEPT), (3, 3, ACCEPT)) is ErrorCode.NONE
    assert offsets_of(node) == {0: (2, 2), 1: (-1, -1)}
    assert offsets_of(node, 0, [{"topic_name": "t", "partitions": [0, 1]}]) == {0: (2, -1), 1: (-1, -1)}
    assert offsets_of(node, 0, [{"topic_name": "absent", "partitions": [4]}]) == {4: (-1, -1)}
    part = {"partition_index": 0, "start_offset": 1}
    topics = [{"topic_name": "t", "partitions": [part]}, {"topic_name": "absent", "partitions": [part]}]
    refused = ask(node, "AlterShareGroupOffsets", 0, group_id=GROUP, topics=topics)
    assert ErrorCode(int(refused.error_code)) is ErrorCode.NON_EMPTY_GROUP
    member.lose_connection()
    member.heartbeat(-1)
    altered = ask(node, "AlterShareGroupOffsets", 0, group_id=GROUP, topics=topics)
    found = {topic.topic_name: int(topic.partitions[0].error_code) for topic in altered.responses}
    assert found == {"t": 0, "absent": 3}
    assert offsets_of(node)[0] == (1, 4)
    member = ShareMember(node, "again").join()
    assert len(member.take()) == 4
    member.lose_connection()
    member.heartbeat(-1)
    deleted = ask(node, "DeleteShareGroupOffsets", 0, group_id=GROUP, topics=[{"topic_name": "t"}])
    assert not int(deleted.responses[0].error_code)
    assert offsets_of(node) == {}
    [group] = ask(node, "DescribeShareGroupOffsets", 1, groups=[{"group_id": "none", "topics": None}]).groups
    assert (int(group.error_code), group.topics) == (0, ())
    deleted = ask(node, "DeleteGroups", 2, groups_names=[GROUP])
    assert not int(deleted.results[0].error_code)


def test_share_groups_are_listed_and_described(node: NodeUnderTest) -> None:
    member = ShareMember(node).join()
    [group] = ask(node, "ListGroups", 5, states_filter=[], types_filter=["share"]).groups
    assert (group.group_id, group.group_type, group.protocol_type) == (GROUP, "share", "share")
    answer = ask(
        node, "ShareGroupDescribe", 1, group_ids=[GROUP, "none", ""], include_authorized_operations=False
    )
    found, missing, empty = answer.groups
    assert [each.member_id for each in found.members] == [member.member_id]
    assert found.members[0].assignment.topic_partitions[0].partitions == (0, 1)
    assert ErrorCode(int(missing.error_code)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert ErrorCode(int(empty.error_code)) is ErrorCode.INVALID_GROUP_ID
    unknown = ShareMember(node, "x").heartbeat(5)
    assert ErrorCode(int(unknown.error_code)) is ErrorCode.UNKNOWN_MEMBER_ID
