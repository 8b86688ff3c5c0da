"""Answers field by field, as Apache Kafka gives them: what sessions on both systems showed to differ once.

Runs against a real Kafka too (`tests/conformance/oracle`). Each test is the smallest session that showed it.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.drivers.contract import TopicMaker, new_name
from tidelog.client.client_settings import ClientSettings
from tidelog.client.link import Link
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS
from tidelog.records.batch import LOG_APPEND_TIME_BIT, read_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

BY_NAME = {api.name: api for api in APIS.values()}
Ask = Callable[..., Any]
GROUP_RESOURCE = 32
CONCURRENT_TRANSACTIONS, INVALID_GROUP_ID = 51, 24
#: error codes
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC, UNSUPPORTED_VERSION = 1, 3, 17, 35
CORRUPT, TOO_LARGE, INVALID_ACKS, OUT_OF_ORDER, INVALID_EPOCH = 2, 10, 21, 45, 47
INVALID_MAPPING, UNKNOWN_CODEC, INVALID_RECORD = 49, 76, 87
INVALID_CONFIG, INVALID_REQUEST, RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE = 40, 42, 91, 92


@pytest.fixture
def ask(bootstrap: str) -> Iterator[Ask]:
    """Send one request of an API and version; the answer as kio's object."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    link = Link.open(host, int(port), ClientSettings.from_options({"bootstrap.servers": bootstrap}))

    def send(name: str, version: int, **fields: Any) -> Any:
        api = BY_NAME[name]
        ticket = link.send(api.key, version, messages.encode_request(api, version, fields))
        return messages.decode_response(api, version, link.receive(ticket))

    yield send
    link.close()


def wanted_offset(timestamp: int, partition: int = 0) -> dict[str, int]:
    return {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}


def fetch_fields(topic: str, *partitions: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    rows = [
        {
            "partition": partition,
            "fetch_offset": offset,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for partition in partitions
    ]
    topics = [{"topic": topic, "partitions": rows}] if partitions else []
    usual = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1}
    return {**usual, "topics": topics, "isolation_level": 1, **more}


@pytest.mark.parametrize(
    ("version", "timestamp"), [(6, -3), (7, -4), (8, -5), (10, -6), (11, -7), (1, -3), (11, -100)]
)
@pytest.mark.parametrize("name", ["", "absent"])
def test_a_special_timestamp_that_the_version_does_not_know(
    ask: Ask, topic: str, name: str, version: int, timestamp: int
) -> None:
    asked = {"name": name or topic, "partitions": [wanted_offset(timestamp)]}
    (row,) = ask("ListOffsets", version, replica_id=-1, topics=[asked]).topics[0].partitions
    assert row.error_code == UNSUPPORTED_VERSION
    assert row.offset == -1


def test_offsets_of_a_partition_that_is_asked_for_twice(ask: Ask, topic: str) -> None:
    asked = {"name": topic, "partitions": [wanted_offset(-1), wanted_offset(-2)]}
    (row,) = ask("ListOffsets", 7, replica_id=-1, topics=[asked]).topics[0].partitions
    assert row.error_code == INVALID_REQUEST


@pytest.mark.parametrize("version", [5, 11, 12])
def test_a_fetch_that_is_out_of_range_tells_no_offsets(ask: Ask, topic: str, version: int) -> None:
    (row,) = ask("Fetch", version, **fetch_fields(topic, 0, offset=7)).responses[0].partitions
    assert row.error_code == OFFSET_OUT_OF_RANGE
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (-1, -1, -1)
    assert row.aborted_transactions is None


def test_a_partition_that_does_not_exist_has_no_aborted_transactions(ask: Ask, topic: str) -> None:
    (row,) = ask("Fetch", 12, **fetch_fields(topic, 9)).responses[0].partitions
    assert row.error_code == UNKNOWN_TOPIC
    assert row.aborted_transactions == ()


def test_what_a_fetch_session_is_told_of_and_forgets_at_once_is_forgotten(
    ask: Ask, make_topic: TopicMaker
) -> None:
    topic = make_topic(2)
    first = ask("Fetch", 7, **fetch_fields(topic, 0, 1, session_epoch=0))
    assert first.session_id
    gone = [{"topic": topic, "partitions": [0]}]
    again = fetch_fields(topic, 0, session_id=first.session_id, session_epoch=1, forgotten_topics_data=gone)
    ask("Fetch", 7, **again)
    # an offset out of range is always told: of the partition that is left, alone
    fields = fetch_fields(topic, 1, offset=5, session_id=first.session_id, session_epoch=2)
    (answered,) = ask("Fetch", 7, **fields).responses
    assert [row.partition_index for row in answered.partitions] == [1]
    fields = {
        **fetch_fields(topic, session_id=first.session_id, session_epoch=3),
        "forgotten_topics_data": [],
    }
    (answered,) = ask("Fetch", 7, **fields).responses
    assert [row.partition_index for row in answered.partitions] == [1]


def test_a_fetch_session_begins_with_the_order_of_the_request(ask: Ask, make_topic: TopicMaker) -> None:
    """Only incremental fetches let partitions that gave records wait behind the others."""
    topic = make_topic(2)
    records = bytes(build_batch([Record(0, 1, None, b"v" * 200, ())]))
    rows = [{"index": index, "records": records} for index in (0, 1)]
    asked = {"transactional_id": None, "acks": -1, "timeout": 9_000}
    ask("Produce", 7, **asked, topic_data=[{"name": topic, "partition_data": rows}])
    first = ask("Fetch", 7, **fetch_fields(topic, 0, 1, session_epoch=0, max_bytes=1))
    told = []
    for epoch in (1, 2, 3):
        fields = fetch_fields(topic, session_id=first.session_id, session_epoch=epoch, max_bytes=1)
        got = [row for one in ask("Fetch", 7, **fields).responses for row in one.partitions]
        told.append([row.partition_index for row in got if row.records])
    assert told == [[0], [1], [0]]


@pytest.mark.parametrize(
    ("partition_max_bytes", "max_bytes", "aborted"), [(10, 1 << 20, None), (1 << 20, 1, ())]
)
def test_a_batch_that_does_not_fit_behind_others_has_no_list_of_aborted_transactions(
    ask: Ask, make_topic: TopicMaker, partition_max_bytes: int, max_bytes: int, aborted: tuple[()] | None
) -> None:
    """The list is empty where nothing more may be read, and missing where a little more might."""
    topic = make_topic(2)
    for partition in (0, 1):
        produce(ask, topic, batch_of(), partition=partition)
    fields = fetch_fields(topic, 0, 1, max_bytes=max_bytes)
    for row in fields["topics"][0]["partitions"]:
        row["partition_max_bytes"] = partition_max_bytes
    (answered,) = ask("Fetch", 6, **fields).responses
    assert [bool(row.records) for row in answered.partitions] == [True, False]
    assert [row.aborted_transactions for row in answered.partitions] == [(), aborted]


def test_what_is_forgotten_when_a_fetch_session_begins_is_read(ask: Ask, topic: str) -> None:
    gone = [{"topic": topic, "partitions": [0]}]
    (answered,) = ask(
        "Fetch", 7, **fetch_fields(topic, 0, session_epoch=0, forgotten_topics_data=gone)
    ).responses
    assert [row.partition_index for row in answered.partitions] == [0]


def test_a_reassignment_answers_what_may_change(ask: Ask) -> None:
    asked = [{"name": new_name("absent"), "partitions": [{"partition_index": 0, "replicas": None}]}]
    for allowed in (True, False):
        fields = {"timeout": 9_000, "topics": asked, "allow_replication_factor_change": allowed}
        answer = ask("AlterPartitionReassignments", 1, **fields)
        assert answer.allow_replication_factor_change is allowed


def test_a_fetch_session_may_begin_without_partitions(ask: Ask) -> None:
    assert ask("Fetch", 11, **fetch_fields("", session_epoch=0)).session_id != 0


def test_the_last_stable_offset_is_not_before_the_start_of_the_log(ask: Ask, topic: str) -> None:
    """The beginning of a transaction is deleted while it is open."""
    transactional_id = new_name("answers")
    fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    while (producer := ask("InitProducerId", 4, **fields, producer_id=-1, producer_epoch=-1)).error_code:
        ask("FindCoordinator", 3, key=transactional_id, key_type=1)
    batch = build_batch(
        [Record(0, 1, b"k", b"v"), Record(0, 1, b"k", b"v")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    ask(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    (answered,) = ask(
        "Produce", 9, transactional_id=transactional_id, acks=-1, timeout=9_000, topic_data=rows
    ).responses
    assert answered.partition_responses[0].error_code == 0
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]
    assert ask("DeleteRecords", 1, topics=rows, timeout=9_000).topics[0].partitions[0].low_watermark == 2
    asked = {"name": topic, "partitions": [wanted_offset(-1)]}
    answer = ask("ListOffsets", 7, replica_id=-1, isolation_level=1, topics=[asked])
    assert answer.topics[0].partitions[0].offset == 2


def begin_with_offsets(ask: Ask, transactional_id: str, group: str, topic: str) -> Any:
    """A producer in a transaction with an offset of the group."""
    fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    while (producer := ask("InitProducerId", 4, **fields, producer_id=-1, producer_epoch=-1)).error_code:
        ask("FindCoordinator", 3, key=transactional_id, key_type=1)
    while commit_in_transaction(ask, transactional_id, producer, group, topic):
        ask("FindCoordinator", 3, key=group, key_type=0)
    return producer


def commit_in_transaction(ask: Ask, transactional_id: str, producer: Any, group: str, topic: str) -> int:
    who = {
        "transactional_id": transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "group_id": group,
    }
    assert ask("AddOffsetsToTxn", 3, **who).error_code == 0
    part = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    rows = [{"name": topic, "partitions": [part]}]
    answer = ask("TxnOffsetCommit", 3, **who, generation_id=-1, member_id="", topics=rows)
    return int(answer.topics[0].partitions[0].error_code)


def test_a_group_that_is_deleted_under_a_transaction_may_begin_anew(ask: Ask, topic: str) -> None:
    transactional_id, group = new_name("answers"), new_name("answers")
    producer = begin_with_offsets(ask, transactional_id, group, topic)
    (deleted,) = ask("DeleteGroups", 2, groups_names=[group]).results
    assert deleted.error_code == 0
    (described,) = ask("DescribeGroups", 3, groups=[group], include_authorized_operations=False).groups
    assert described.group_state == "Dead"
    assert commit_in_transaction(ask, transactional_id, producer, group, topic) == 0


def test_offsets_of_a_group_without_a_name_are_refused_for_that(ask: Ask, topic: str) -> None:
    transactional_id = new_name("answers")
    producer = ask("InitProducerId", 4, transactional_id=transactional_id, transaction_timeout=60_000)
    assert commit_in_transaction(ask, transactional_id, producer, "", topic) == INVALID_GROUP_ID


def test_a_producer_that_recovers_under_its_transaction_gets_the_next_epoch(ask: Ask, topic: str) -> None:
    """KIP-360: it is told to ask again until the transaction is aborted, and asks with the epoch it knows."""
    transactional_id = new_name("answers")
    producer = begin_with_offsets(ask, transactional_id, new_name("answers"), topic)
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
    deadline = time.monotonic() + 10
    while (again := ask("InitProducerId", 4, **fields)).error_code == CONCURRENT_TRANSACTIONS:
        assert time.monotonic() < deadline
    assert again.error_code == 0
    assert (again.producer_id, again.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)


def make_quick_group(ask: Ask) -> str:
    """The name of a group that Kafka assigns anew at every change; by default it waits a second."""
    group, setting = new_name("answers"), "consumer.assignment.interval.ms"
    change = {"name": setting, "config_operation": 0, "value": "0"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [change]}
    assert ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code == 0
    asked = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": [setting]}
    deadline = time.monotonic() + 10
    while True:
        (row,) = ask("DescribeConfigs", 4, resources=[asked]).results[0].configs
        if row.value == "0":
            return group
        assert time.monotonic() < deadline


def test_what_a_member_has_to_give_up_is_its_own_until_it_says_so(ask: Ask, make_topic: TopicMaker) -> None:
    topic, group = make_topic(2), make_quick_group(ask)
    join_modern(ask, group, topic, "a")
    join_modern(ask, group, topic, "b")
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    epoch = next(member.member_epoch for member in described.members if member.member_id == "a")
    fields = {"group_id": group, "member_id": "a", "member_epoch": epoch, "rebalance_timeout": -1}
    answer = ask("ConsumerGroupHeartbeat", 1, **fields, subscribed_topic_names=None, topic_partitions=None)
    assert [list(row.partitions) for row in answer.assignment.topic_partitions] == [[0]]
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    owned = {member.member_id: member.assignment.topic_partitions for member in described.members}
    assert [sorted(row.partitions) for row in owned["a"]] == [[0, 1]]


def test_what_a_member_has_to_give_up_is_its_own_though_nobody_wants_it(ask: Ask, topic: str) -> None:
    group = new_name("answers")
    join_modern(ask, group, topic, "a")
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    fields = {"group_id": group, "member_id": "a", "rebalance_timeout": -1, "topic_partitions": None}
    fields |= {"member_epoch": described.members[0].member_epoch, "subscribed_topic_names": []}
    assert ask("ConsumerGroupHeartbeat", 1, **fields, subscribed_topic_regex="").error_code == 0
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    (row,) = described.members[0].assignment.topic_partitions
    assert (row.topic_name, list(row.partitions)) == (topic, [0])


def test_what_one_may_do_with_a_topic_that_does_not_exist(ask: Ask) -> None:
    asked = {"topics": [{"name": new_name("absent")}], "allow_auto_topic_creation": False}
    (row,) = ask("Metadata", 9, **asked, include_topic_authorized_operations=True).topics
    assert (row.error_code, row.topic_authorized_operations) == (UNKNOWN_TOPIC, 3576)
    (row,) = ask("Metadata", 9, **asked).topics
    assert row.topic_authorized_operations == -(1 << 31)


def test_what_one_may_do_with_a_topic_that_is_not_there_to_be_described(ask: Ask) -> None:
    asked = {"topics": [{"name": new_name("absent")}], "response_partition_limit": 10, "cursor": None}
    (row,) = ask("DescribeTopicPartitions", 0, **asked).topics
    assert (row.error_code, row.topic_authorized_operations) == (UNKNOWN_TOPIC, 3576)


def join_modern(ask: Ask, group: str, topic: str, member: str, assignor: str | None = None) -> None:
    fields = {"group_id": group, "member_id": member, "member_epoch": 0, "rebalance_timeout": 9_000}
    fields |= {"subscribed_topic_names": [topic], "topic_partitions": [], "server_assignor": assignor}
    while ask("ConsumerGroupHeartbeat", 1, **fields).error_code:
        ask("FindCoordinator", 3, key=group, key_type=0)


def test_the_uniform_assignor_wins_a_tie(ask: Ask, topic: str) -> None:
    group = new_name("answers")
    join_modern(ask, group, topic, "a", "uniform")
    join_modern(ask, group, topic, "b", "range")
    assert ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups[0].assignor_name == "uniform"


def test_offsets_that_cannot_be_deleted_are_told_once_for_a_topic(ask: Ask, topic: str) -> None:
    group = new_name("answers")
    join_modern(ask, group, topic, "a")
    parts = [{"partition_index": 0}, {"partition_index": 9}]
    (row,) = ask("OffsetDelete", 0, group_id=group, topics=[{"name": topic, "partitions": parts}]).topics
    assert {part.partition_index: part.error_code for part in row.partitions} == {0: 86, 9: UNKNOWN_TOPIC}


def test_a_member_without_an_expression_has_an_empty_one(ask: Ask, topic: str) -> None:
    group = new_name("answers")
    join_modern(ask, group, topic, "m")
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    assert [member.subscribed_topic_regex for member in described.members] == [""]


@pytest.mark.parametrize(("mechanism", "code"), [(2, RESOURCE_NOT_FOUND), (1, DUPLICATE_RESOURCE)])
def test_what_is_wrong_with_the_first_change_of_a_user_is_told(ask: Ask, mechanism: int, code: int) -> None:
    user = new_name("user")
    one = {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}
    assert ask("AlterUserScramCredentials", 0, deletions=[], upsertions=[one]).results[0].error_code == 0
    deletion = {"name": user, "mechanism": mechanism}
    (row,) = ask("AlterUserScramCredentials", 0, deletions=[deletion], upsertions=[one]).results
    assert row.error_code == code


def test_values_are_looked_at_before_the_topic(ask: Ask) -> None:
    for value, code in (("-1", INVALID_CONFIG), ("1", UNKNOWN_TOPIC)):
        config = {"name": "min.insync.replicas", "value": value, "config_operation": 0}
        resource = {"resource_type": 2, "resource_name": new_name("absent"), "configs": [config]}
        (row,) = ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
        assert row.error_code == code


@pytest.mark.parametrize(
    ("setting", "given", "shown"),
    [
        ("min.cleanable.dirty.ratio", "0", "0.0"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "delete,delete", "delete"),
        ("follower.replication.throttled.replicas", "0:1,0:1", "0:1,0:1"),
        ("segment.ms", " 7000", "7000"),
    ],
)
def test_settings_are_shown_as_they_are_understood(
    ask: Ask, topic: str, setting: str, given: str, shown: str
) -> None:
    config = {"name": setting, "value": given, "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    assert ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code == 0
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": [setting]}
    deadline = time.monotonic() + 10
    while True:
        (row,) = ask("DescribeConfigs", 4, resources=[asked], include_synonyms=True).results[0].configs
        if row.config_source == 1 or time.monotonic() > deadline:
            break
    assert (row.value, row.synonyms[0].value) == (shown, shown)


@pytest.mark.parametrize(
    ("replicas", "code"),
    [("*", 0), ("0:1", 0), ("0:1,1:1", 0), ("", 0), ("none", INVALID_CONFIG), ("0:1,*", INVALID_CONFIG)],
)
def test_throttled_replicas_are_numbers(ask: Ask, topic: str, replicas: str, code: int) -> None:
    config = {"name": "follower.replication.throttled.replicas", "value": replicas, "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    (row,) = ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert row.error_code == code


def test_producers_of_a_topic_that_cannot_be(ask: Ask) -> None:
    (row,) = ask("DescribeProducers", 0, topics=[{"name": "bad name!", "partition_indexes": [0]}]).topics
    assert [part.error_code for part in row.partitions] == [INVALID_TOPIC]


def begin_transactional(ask: Ask, transactional_id: str) -> Any:
    fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    while (producer := ask("InitProducerId", 4, **fields, producer_id=-1, producer_epoch=-1)).error_code:
        ask("FindCoordinator", 3, key=transactional_id, key_type=1)
    return producer


def batch_of(producer: Any = None, sequence: int = 0, *, transactional: bool = False, **more: Any) -> bytes:
    who = {}
    if producer is not None:
        who = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        who |= {"base_sequence": sequence, "transactional": transactional}
    return build_batch([Record(0, 1_600_000_000_000, b"k", b"v")], **who, **more)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def produce(ask: Ask, topic: str, batch: bytes, version: int = 9, **more: Any) -> Any:
    rows = [{"name": topic, "partition_data": [{"index": more.pop("partition", 0), "records": batch}]}]
    fields = {"transactional_id": None, "acks": -1, "timeout": 9_000, "topic_data": rows, **more}
    return ask("Produce", version, **fields).responses[0].partition_responses[0]


def delete_all(ask: Ask, topic: str) -> None:
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]
    assert ask("DeleteRecords", 1, topics=rows, timeout=9_000).topics[0].partitions[0].error_code == 0


def transaction_of(ask: Ask, transactional_id: str) -> tuple[str, list[str]]:
    (row,) = ask("DescribeTransactions", 0, transactional_ids=[transactional_id]).transaction_states
    return row.transaction_state, [each.topic for each in row.topics]


@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_a_marker_has_the_time_of_its_topic(ask: Ask, make_topic: TopicMaker, kind: str) -> None:
    topic = make_topic(1, message_timestamp_type=kind)
    transactional_id = new_name("answers")
    producer = begin_transactional(ask, transactional_id)
    batch = batch_of(producer, transactional=True)
    assert produce(ask, topic, batch, 12, transactional_id=transactional_id).error_code == 0
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    assert ask("EndTxn", 5, transactional_id=transactional_id, **fields, committed=True).error_code == 0
    deadline = time.monotonic() + 10
    while True:
        (row,) = ask("Fetch", 12, **fetch_fields(topic, 0, offset=1)).responses[0].partitions
        if row.records or time.monotonic() > deadline:
            break
    marker = read_header(memoryview(row.records))
    assert marker.control
    assert bool(marker.attributes & LOG_APPEND_TIME_BIT) is (kind == "LogAppendTime")


@pytest.mark.parametrize(("epoch", "code"), [(-1, -1), (-2, INVALID_EPOCH)])
def test_a_marker_needs_an_epoch(ask: Ask, topic: str, epoch: int, code: int) -> None:
    rows = [{"name": topic, "partition_indexes": [0]}]
    marker = {"producer_id": 7_000_000, "producer_epoch": epoch, "transaction_result": True, "topics": rows}
    answer = ask("WriteTxnMarkers", 1, markers=[{**marker, "coordinator_epoch": 0}])
    assert answer.markers[0].topics[0].partitions[0].error_code == code


def test_a_batch_that_is_out_of_order_has_its_partition_added(ask: Ask, topic: str) -> None:
    """Transactions v2: the coordinator adds it before the log looks at the batch."""
    transactional_id = new_name("answers")
    producer = begin_transactional(ask, transactional_id)
    batch = batch_of(producer, 5, transactional=True)
    row = produce(ask, topic, batch, 12, transactional_id=transactional_id)
    assert (row.error_code, row.log_start_offset) == (OUT_OF_ORDER, 0)
    assert transaction_of(ask, transactional_id) == ("Ongoing", [topic])


def test_a_batch_with_wrong_acks_has_its_partition_added(ask: Ask, topic: str) -> None:
    transactional_id = new_name("answers")
    batch = batch_of(begin_transactional(ask, transactional_id), transactional=True)
    row = produce(ask, topic, batch, 12, transactional_id=transactional_id, acks=5)
    assert row.error_code == INVALID_ACKS
    assert transaction_of(ask, transactional_id) == ("Ongoing", [topic])


def test_what_is_no_batch_has_no_partition_added(ask: Ask, topic: str) -> None:
    transactional_id = new_name("answers")
    batch = batch_of(begin_transactional(ask, transactional_id), transactional=True)[:-1]
    row = produce(ask, topic, batch, 12, transactional_id=transactional_id)
    assert (row.error_code, row.log_start_offset) == (INVALID_RECORD, -1)
    assert transaction_of(ask, transactional_id) == ("Empty", [])


@pytest.mark.parametrize("refused_before", [True, False])
def test_the_contents_of_a_transactional_batch_are_looked_at_before_its_order(
    ask: Ask, topic: str, refused_before: bool
) -> None:
    transactional_id = new_name("answers")
    producer = begin_transactional(ask, transactional_id)
    if refused_before:
        batch = damaged(batch_of(producer, transactional=True))
        assert produce(ask, topic, batch, 12, transactional_id=transactional_id).error_code == CORRUPT
    batch = batch_of(producer, 1, transactional=True)
    row = produce(ask, topic, damaged(batch), 12, transactional_id=transactional_id)
    assert row.error_code == CORRUPT
    assert produce(ask, topic, batch, 12, transactional_id=transactional_id).error_code == OUT_OF_ORDER


@pytest.mark.parametrize(
    ("fault", "code", "start"),
    [
        ("damaged", CORRUPT, -1),
        ("cut off", INVALID_RECORD, -1),
        ("nothing", INVALID_RECORD, -1),
        ("an old format", INVALID_RECORD, -1),
        ("too large", TOO_LARGE, -1),
        ("an offset of its own", INVALID_RECORD, 1),
        ("a gap", OUT_OF_ORDER, 1),
    ],
)
def test_where_the_log_starts_is_told_by_the_log(
    ask: Ask, make_topic: TopicMaker, fault: str, code: int, start: int
) -> None:
    topic = make_topic(1, max_message_bytes="200")
    fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1, "transaction_timeout": 9_000}
    producer = ask("InitProducerId", 4, **fields)
    assert produce(ask, topic, batch_of(producer)).error_code == 0
    delete_all(ask, topic)
    batch = batch_of()
    bad = {
        "damaged": damaged(batch),
        "cut off": batch[:-1],
        "nothing": b"",
        "an old format": batch[:16] + b"\1" + batch[17:],
        "too large": build_batch([Record(0, 1, b"k", b"v" * 200)]),
        "an offset of its own": bytes(7) + b"\7" + batch[8:],
        "a gap": batch_of(producer, 5),
    }[fault]
    row = produce(ask, topic, bad)
    assert (row.error_code, row.log_start_offset) == (code, start)


def test_a_batch_that_was_there_already_has_a_time(ask: Ask, topic: str) -> None:
    """That of the first time, though its topic has CreateTime."""
    fields = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1, "transaction_timeout": 9_000}
    batch = batch_of(ask("InitProducerId", 4, **fields))
    first, second = produce(ask, topic, batch), produce(ask, topic, batch)
    assert (first.base_offset, first.log_append_time) == (0, None)
    assert (second.error_code, second.base_offset) == (0, 0)
    assert second.log_append_time.timestamp() == 1_600_000_000


@pytest.mark.parametrize(
    ("asked", "batch", "code"),
    [
        ({}, batch_of(), INVALID_ACKS),
        ({}, damaged(batch_of()), INVALID_ACKS),
        ({}, batch_of()[:-1], INVALID_RECORD),
        ({"partition": 9}, batch_of(), UNKNOWN_TOPIC),
        ({"partition": 9}, batch_of()[:-1], UNKNOWN_TOPIC),
        ({"version": 6}, batch_of(codec=Codec.ZSTD), UNKNOWN_CODEC),
    ],
    ids=["alone", "damaged", "cut off", "no partition", "no partition, cut off", "zstd in version 6"],
)
def test_acks_that_do_not_exist_are_not_the_first_fault(
    ask: Ask, topic: str, asked: dict[str, int], batch: bytes, code: int
) -> None:
    assert produce(ask, topic, batch, acks=5, **asked).error_code == code


def test_the_coordinators_verdict_comes_before_acks(ask: Ask, topic: str) -> None:
    batch = batch_of(begin_transactional(ask, new_name("answers")), transactional=True)
    row = produce(ask, topic, batch, 12, acks=5, transactional_id=new_name("other"))
    assert row.error_code == INVALID_MAPPING


@pytest.mark.parametrize(
    ("asked", "batch", "code"),
    [
        ({}, batch_of(), INVALID_TOPIC),
        ({"acks": 5}, batch_of(), INVALID_ACKS),
        ({"partition": 99}, batch_of(), UNKNOWN_TOPIC),
        ({}, b"", INVALID_RECORD),
    ],
    ids=["alone", "wrong acks", "no partition", "nothing"],
)
def test_an_internal_topic_is_not_the_first_fault(
    ask: Ask, asked: dict[str, int], batch: bytes, code: int
) -> None:
    while ask("FindCoordinator", 3, key="answers", key_type=0).error_code:
        pass
    assert produce(ask, "__consumer_offsets", batch, **asked).error_code == code


@pytest.mark.parametrize(
    ("setting", "given"),
    [("cleanup.policy", "delete,delete"), ("segment.ms", " 7000"), ("preallocate", "TRUE")],
)
def test_a_new_topic_has_its_settings_as_they_were_given(ask: Ask, setting: str, given: str) -> None:
    topic = {"name": new_name("answers"), "num_partitions": 1, "replication_factor": 1, "assignments": []}
    configs = [{"name": setting, "value": given}]
    (row,) = ask("CreateTopics", 6, topics=[{**topic, "configs": configs}], timeout=9_000).topics
    assert [config.value for config in row.configs if config.name == setting] == [given]


def beat(ask: Ask, group: str, member: str, epoch: int, **more: Any) -> Any:
    fields = {"group_id": group, "member_id": member, "member_epoch": epoch, "rebalance_timeout": -1}
    fields |= {"subscribed_topic_names": None, "topic_partitions": None, **more}
    return ask("ConsumerGroupHeartbeat", 1, **fields)


def test_a_group_begins_with_epoch_1_and_its_first_member_makes_it_2(ask: Ask, topic: str) -> None:
    """KAFKA-20268"""
    group = new_name("answers")
    join_modern(ask, group, topic, "a")
    (described,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    assert (described.group_epoch, described.members[0].member_epoch) == (2, 2)


def test_a_member_without_a_subscription_does_not_change_its_group(ask: Ask) -> None:
    group = new_name("answers")
    joining = {"subscribed_topic_names": [], "topic_partitions": [], "rebalance_timeout": 9_000}
    while (answer := beat(ask, group, "a", 0, **joining)).error_code:
        ask("FindCoordinator", 3, key=group, key_type=0)
    assert answer.member_epoch == 1
    assert beat(ask, group, "b", 0, **joining).member_epoch == 1


def test_a_member_may_join_again(ask: Ask, topic: str, make_topic: TopicMaker) -> None:
    """With epoch 0, though it has been in two epochs."""
    group, other = make_quick_group(ask), make_topic(1)
    join_modern(ask, group, topic, "a")
    assert beat(ask, group, "a", 2, subscribed_topic_names=[topic, other]).member_epoch == 3
    joining = {"subscribed_topic_names": [topic], "topic_partitions": [], "rebalance_timeout": 9_000}
    answer = beat(ask, group, "a", 0, **joining)
    assert (answer.error_code, answer.member_epoch) == (0, 4)
    assert [list(row.partitions) for row in answer.assignment.topic_partitions] == [[0]]


def test_who_asks_is_looked_at_before_an_expression(ask: Ask, topic: str) -> None:
    group = new_name("answers")
    join_modern(ask, group, topic, "a")
    for member, epoch, code in (("a", 99, 110), ("stranger", 3, 25), ("a", 2, 128), ("a", -1, 0)):
        assert beat(ask, group, member, epoch, subscribed_topic_regex="(").error_code == code
    assert beat(ask, new_name("absent"), "a", 3, subscribed_topic_regex="(").error_code == 69


@pytest.mark.parametrize(
    ("setting", "present", "appended", "code", "shown"),
    [
        ("cleanup.policy", "compact", "", INVALID_CONFIG, "compact"),
        ("cleanup.policy", "compact", "delete,delete", 0, "compact,delete"),
        ("follower.replication.throttled.replicas", "0:1", "0:2,0:2", 0, "0:1,0:2"),
        ("follower.replication.throttled.replicas", "0:1", "", 0, "0:1,"),
    ],
)
def test_what_is_appended_to_a_list(
    ask: Ask, topic: str, setting: str, present: str, appended: str, code: int, shown: str
) -> None:
    codes = []
    for operation, value in ((0, present), (2, appended)):
        config = {"name": setting, "value": value, "config_operation": operation}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        codes.append(ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code)
    assert codes == [0, code]
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": [setting]}
    deadline = time.monotonic() + 10
    while True:
        (row,) = ask("DescribeConfigs", 4, resources=[asked], include_synonyms=True).results[0].configs
        if row.value == shown or time.monotonic() > deadline:
            break
    assert row.value == shown


@pytest.mark.parametrize(("policy", "code"), [("", 0), ("delete", 0), ("compact,delete", 0), ("compact", 44)])
def test_records_are_deleted_unless_the_topic_is_compacted_only(
    ask: Ask, make_topic: TopicMaker, policy: str, code: int
) -> None:
    topic = make_topic(1, cleanup_policy=policy)
    produce(ask, topic, batch_of())
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]
    answer = ask("DeleteRecords", 2, topics=rows, timeout=9_000)
    assert answer.topics[0].partitions[0].error_code == code
