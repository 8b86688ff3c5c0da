"""Dead letters of share groups (KIP-1191), and records that are kept back after a failed delivery."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.unit.broker.node import NodeUnderTest, produce_frame
from tests.unit.broker.share_members import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    SETTINGS,
    ShareMember,
    configure,
    counts,
    decoded,
    produce,
    sharing_node,
)
from tests.unit.broker.test_broker_cluster_share_groups import Sharer
from tests.unit.broker.test_broker_cluster_share_groups import produce as produce_in
from tidelog.broker.coordinators import dead_letter_writer
from tidelog.broker.replicas.partition import Partition
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record, iterate_records

LETTERS = "dlq.t"
TOPIC_NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"


def letters_of(partition: Partition) -> list[Record]:
    return [record for header, data in partition.read_batches(0) for record in iterate_records(data, header)]


def told(record: Record) -> dict[str, str]:
    """What a letter says of the record."""
    found = {name: (value or b"").decode() for name, value in record.headers}
    return {name.removeprefix("__dlq.errors."): text for name, text in found.items() if "__dlq" in name}


def node_with_letters(*, copies: bool = True, enabled: str = "true", **settings: Any) -> NodeUnderTest:
    node = sharing_node(**settings)
    node.create_topic(LETTERS, 2, **{GROUP_ENABLE: enabled})
    configure(node, TOPIC_NAME, LETTERS)
    configure(node, COPY, "true" if copies else "false")
    return node


def send_original(node: NodeUnderTest, value: bytes = b"v", partition: int = 1) -> None:
    record = Record(0, node.clock.time_ms, b"k", value, (("trace", b"1"), ("trace", b"2")))
    node.handle(produce_frame(7, bytes(build_batch([record], codec=Codec.GZIP)), "t", partition))


def test_a_rejected_record_is_copied_with_its_headers() -> None:
    node = node_with_letters()
    send_original(node)
    member = ShareMember(node, partitions=(1,)).join()
    assert member.take() == [b"v"]
    assert member.acknowledge(1, (0, 0, REJECT)) is ErrorCode.NONE
    [letter] = letters_of(node.broker.replicas.led[LETTERS, 1])
    assert (letter.key, letter.value) == (b"k", b"v")
    assert letter.headers[:2] == (("trace", b"1"), ("trace", b"2"))
    assert told(letter) == {
        "topic": "t",
        "partition": "1",
        "offset": "0",
        "group": GROUP,
        "delivery.count": "1",
        "message": "The record was rejected by a member of the group.",
    }
    send_original(node, b"next")
    assert member.take() == [b"next"]


@pytest.mark.parametrize("how", ["released", "lock"])
def test_a_record_that_was_delivered_too_often_is_a_dead_letter(how: str) -> None:
    node = node_with_letters(copies=False)
    configure(node, "share.delivery.count.limit", "2")
    send_original(node)
    member = ShareMember(node, partitions=(1,)).join()
    for count in (1, 2):
        assert counts(member.fetch()) == {0: count}
        if how == "lock":
            node.advance(30_000)
            member.heartbeat()
        else:
            assert member.acknowledge(1, (0, 0, RELEASE)) is ErrorCode.NONE
    node.advance(1)
    [letter] = letters_of(node.broker.replicas.led[LETTERS, 1])
    assert (letter.key, letter.value) == (None, None)
    assert (told(letter)["delivery.count"], told(letter)["offset"]) == ("2", "0")
    assert member.take() == []


def test_many_dead_letters_all_arrive() -> None:
    node = node_with_letters()
    for _ in range(3):
        produce(node, *([b"x" * 2_000] * 400))
    member = ShareMember(node).join()
    taken = 0
    while found := member.take(max_bytes=8 << 20):
        taken += len(found)
    assert taken == 1_200
    assert member.acknowledge(0, (0, 1_199, REJECT)) is ErrorCode.NONE
    letters = letters_of(node.broker.replicas.led[LETTERS, 0])
    assert [told(letter)["offset"] for letter in letters] == [str(number) for number in range(1_200)]
    assert {letter.value for letter in letters} == {b"x" * 2_000}


def test_what_is_too_large_for_the_topic_is_told_without_its_contents() -> None:
    node = sharing_node()
    node.create_topic(LETTERS, 1, **{GROUP_ENABLE: "true", "max.message.bytes": "600"})
    configure(node, TOPIC_NAME, LETTERS)
    configure(node, COPY, "true")
    produce(node, b"small", b"y" * 900, b"tiny")
    member = ShareMember(node).join()
    assert len(member.take()) == 3
    assert member.acknowledge(0, (0, 2, REJECT)) is ErrorCode.NONE
    letters = letters_of(node.broker.replicas.led[LETTERS, 0])
    assert [letter.value for letter in letters] == [b"small", None, b"tiny"]
    assert [told(letter)["offset"] for letter in letters] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("enabled", "name", "reason"),
    [("false", LETTERS, "INVALID_CONFIG"), ("true", "dlq.absent", "UNKNOWN_TOPIC_OR_PARTITION")],
)
def test_what_cannot_be_written_is_given_up_and_told(enabled: str, name: str, reason: str) -> None:
    node = node_with_letters(enabled=enabled)
    configure(node, TOPIC_NAME, name)
    produce(node, b"a", b"b")
    member = ShareMember(node).join()
    assert member.take() == [b"a", b"b"]
    assert member.acknowledge(0, (0, 0, REJECT), (1, 1, ACCEPT)) is ErrorCode.NONE
    [event] = [each for each in node.broker.metrics.events.after(0) if each.kind == "dead letters given up"]
    assert event.cause == reason
    assert letters_of(node.broker.replicas.led[LETTERS, 0]) == []
    restarted = NodeUnderTest(node.disk.kill(), node.store, **SETTINGS)
    assert ShareMember(restarted, "again").join().take() == []


def test_a_missing_topic_is_made_where_that_is_allowed() -> None:
    node = sharing_node(errors_deadletterqueue_auto_create_topics_enable="true")
    configure(node, TOPIC_NAME, "dlq.made")
    produce(node, b"a")
    member = ShareMember(node).join()
    assert member.take() == [b"a"]
    assert member.acknowledge(0, (0, 0, REJECT)) is ErrorCode.NONE
    node.advance(1_000)
    assert node.broker.image.topics["dlq.made"].configs == {GROUP_ENABLE: "true"}
    assert len(letters_of(node.broker.replicas.led["dlq.made", 0])) == 1


def test_the_name_of_the_topic_has_the_prefix_of_the_cluster() -> None:
    node = sharing_node()
    with pytest.raises(AssertionError, match="does not begin with dlq"):
        configure(node, TOPIC_NAME, "letters")
    with pytest.raises(AssertionError, match="cannot be dlq"):
        configure(node, TOPIC_NAME, "dlq./")


def test_letters_go_to_a_leader_on_another_broker() -> None:
    cluster = InMemoryCluster(
        offsets_topic_num_partitions="2", share_coordinator_state_topic_num_partitions="2"
    )
    cluster.create_topic("t", 2)
    client = Sharer(cluster)
    client.coordinator(GROUP, 0)
    cluster.create_topic(LETTERS, 2, errors_deadletterqueue_group_enable="true")
    cluster.run_until(lambda: all(cluster.leader(name, 0) for name in ("t", LETTERS)))
    leader, letters_leader = cluster.leader("t"), cluster.leader(LETTERS)
    assert leader is not None and letters_leader is not None
    if leader is letters_leader:
        # It comes back, and does not lead what it led.
        cluster.expire_session(leader.node_id)
        cluster.run_until(lambda: cluster.leader("t") not in (None, leader))
        cluster.restart(leader.node_id)
        cluster.run_for(2_000)
        partitions = [{"topic": "t", "partitions": [0]}]
        client.ask(2, "ElectLeaders", 2, election_type=0, topic_partitions=partitions, timeout=1_000)
        cluster.run_for(2_000)
        leader, letters_leader = cluster.leader("t"), cluster.leader(LETTERS)
    assert leader is not None and letters_leader is not None
    configs = {"share.auto.offset.reset": "earliest", TOPIC_NAME: LETTERS, COPY: "true"}
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": changes}
    client.ask(1, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    produce_in(cluster, b"a", b"b")
    member = Sharer(cluster).join()
    assert member.take() == [b"a", b"b"]
    assert int(member.fetch((0, 0, REJECT)).error_code) == 0
    cluster.run_for(2_000)
    assert leader is not letters_leader, "nothing was sent to another broker"
    letters = letters_of(cluster.replica(letters_leader.node_id, LETTERS, 0))
    assert [(letter.value, told(letter)["offset"]) for letter in letters] == [(b"a", "0")]


def test_a_failed_record_is_kept_back_for_longer_each_time() -> None:
    node = sharing_node()
    configure(node, "tidelog.share.retry.backoff.ms", "1000")
    configure(node, "tidelog.share.retry.backoff.max.ms", "1500")
    produce(node, b"a")
    member = ShareMember(node).join()
    assert counts(member.fetch()) == {0: 1}
    for count, rest_ms in ((2, 1_000), (3, 1_500)):
        assert member.acknowledge(0, (0, 0, RELEASE)) is ErrorCode.NONE
        node.advance(rest_ms - 1)
        assert member.take() == []
        waiting = member.send_fetch(max_wait=500)
        assert waiting.chunks is None
        node.advance(1)
        node.advance(0)
        assert counts(decoded("ShareFetch", 2, waiting)) == {0: count}


def test_a_batch_is_unpacked_once_for_all_its_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are rejected here and there are one letter each: their batch may have thousands."""
    node = node_with_letters()
    produce(node, *(b"%d" % number for number in range(1_000)))
    member = ShareMember(node).join()
    assert len(member.take(max_bytes=8 << 20)) == 1_000
    unpacked = 0

    def counted(data: Any, header: Any) -> Iterator[Record]:
        nonlocal unpacked
        for record in iterate_records(data, header):
            unpacked += 1
            yield record

    monkeypatch.setattr(dead_letter_writer, "iterate_records", counted)
    said = [(number, number, REJECT if number % 10 == 3 else ACCEPT) for number in range(1_000)]
    assert member.acknowledge(0, *said) is ErrorCode.NONE
    letters = letters_of(node.broker.replicas.led[LETTERS, 0])
    assert [letter.value for letter in letters] == [b"%d" % number for number in range(3, 1_000, 10)]
    assert unpacked <= 2_000
