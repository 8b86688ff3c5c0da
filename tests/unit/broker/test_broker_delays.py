"""Delayed records on a simulated cluster: once, in order, never early, whoever dies meanwhile."""

import json
from itertools import chain
from random import Random
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster, produce_frame
from tidelog.broker.coordinators.delay_forwarder import DelayForwarder
from tidelog.broker.coordinators.delay_reading import Taken, committed_records
from tidelog.client.requests import frame_prefix
from tidelog.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    DeleteTopics,
    TopicReference,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.protocol.apis import DESCRIBE_DELAYS
from tidelog.records.builder import build_batch
from tidelog.records.compression import Codec
from tidelog.records.record import Record

SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": "2",
    "transaction_state_log_num_partitions": "2",
    "log_retention_check_interval_ms": "1000",
}


def delaying(
    nodes: int = 3, partitions: int = 1, target_partitions: int = 1, seed: int = 1, **configs: str
) -> InMemoryCluster:
    """A cluster with the topic `later`, whose records go to `orders`."""
    cluster = InMemoryCluster(range(1, nodes + 1), seed=seed, **SETTINGS)
    replicas = min(3, nodes)
    cluster.create_topic("orders", target_partitions, replicas)
    cluster.create_topic("later", partitions, replicas, tidelog_delay_target="orders", **configs)
    return cluster


def send(
    cluster: InMemoryCluster,
    *records: Record,
    index: int = 0,
    codec: Codec = Codec.NONE,
) -> ErrorCode:
    """Produce one batch to `later` with acks=all, again until it is there."""
    batch = bytes(build_batch(records, codec=codec))
    cluster.run_until(lambda: cluster.leader("later", index))
    leader = cluster.leader("later", index)
    assert leader is not None
    answer = cluster.send(leader.node_id, produce_frame("later", index, batch, -1, 30_000))
    cluster.run_until(lambda: answer)
    assert answer.data is not None
    # size, correlation id, tags, topics, name, partitions, index
    position = 4 + 4 + 1 + 1
    position += answer.data[position] + 1 + 4
    return ErrorCode(int.from_bytes(answer.data[position : position + 2], "big", signed=True))


def record(
    cluster: InMemoryCluster, value: bytes | None, delay_ms: int | None = None, **fields: object
) -> Record:
    headers = () if delay_ms is None else (("tidelog-delay-ms", b"%d" % delay_ms),)
    return Record(0, cluster.clock.now_ms(), b"k-" + (value or b""), value, headers)._replace(**fields)  # type: ignore[arg-type]


def delivered(cluster: InMemoryCluster, index: int = 0, topic: str = "orders") -> list[Record]:
    """What a read_committed consumer sees."""
    leader = cluster.leader(topic, index)
    if leader is None:
        return []
    partition = leader.broker.replicas.led[topic, index]
    return [
        Record(
            found.offset,
            found.timestamp_ms,
            found.key and bytes(found.key),
            found.value and bytes(found.value),
            found.headers,
        )
        for each in committed_records(partition, 0, partition.last_stable_offset)
        if isinstance(each, Taken) and (found := each.record) is not None
    ]


def values(cluster: InMemoryCluster, index: int = 0) -> list[bytes | None]:
    return [each.value for each in delivered(cluster, index)]


def forwarder(cluster: InMemoryCluster, index: int = 0) -> DelayForwarder:
    leader = cluster.leader("later", index)
    assert leader is not None
    partition = leader.broker.replicas.led["later", index]
    return leader.broker.delays.get().forwarders[partition]


def alter(cluster: InMemoryCluster, topic: str, name: str, value: str | None) -> None:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    changes = ConfigChanges(ConfigResourceType.TOPIC, topic, (ConfigChange(name, operation, value),))
    results: list[object] = []
    assert cluster.controller is not None
    cluster.controller.broker.metadata.submit(AlterConfigs((changes,)), results.extend)
    cluster.run_until(lambda: results)
    assert not isinstance(results[0], Refused), results
    cluster.run_for(100)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_are_forwarded_when_they_are_due(nodes: int, codec: Codec) -> None:
    cluster = delaying(nodes)
    sent = [record(cluster, b"c", 3_000), record(cluster, b"a", 1_000), record(cluster, b"b", 2_000)]
    due = {each.value: each.timestamp_ms + int(each.headers[0][1] or b"") for each in sent}
    assert send(cluster, *sent, codec=codec) is ErrorCode.NONE
    seen: dict[bytes | None, int] = {}
    for _ in range(80):
        cluster.run_for(50)
        for value in values(cluster):
            seen.setdefault(value, cluster.clock.now_ms())
    assert list(seen) == [b"a", b"b", b"c"]
    for value, at_ms in seen.items():
        assert due[value] <= at_ms <= due[value] + 200
    for copy, original in zip(
        delivered(cluster), sorted(sent, key=lambda each: each.value or b""), strict=True
    ):
        assert (copy.key, copy.headers, copy.timestamp_ms) == (
            original.key,
            original.headers,
            original.timestamp_ms,
        )


def test_a_topic_delay_holds_for_records_that_say_nothing() -> None:
    cluster = delaying(tidelog_delay_ms="5000")
    send(cluster, record(cluster, b"plain"), record(cluster, b"now", 0))
    cluster.run_for(1_000)
    assert values(cluster) == [b"now"]
    cluster.run_for(5_000)
    assert values(cluster) == [b"now", b"plain"]


def test_a_tombstone_cancels_what_waits_with_its_key() -> None:
    cluster = delaying()
    send(cluster, record(cluster, b"a", 2_000, key=b"1"), record(cluster, b"b", 2_000, key=b"2"))
    send(cluster, record(cluster, None, key=b"1"))
    send(cluster, record(cluster, b"c", 2_000, key=b"1"))
    send(cluster, record(cluster, b"y", key=b"2", headers=(("tidelog-cancel", b""),)))
    cluster.run_for(5_000)
    assert values(cluster) == [b"c"]
    assert forwarder(cluster).cancelled_count == 2


def test_bad_headers_are_refused_and_nothing_is_stored() -> None:
    cluster = delaying()
    bad = record(cluster, b"bad", headers=(("tidelog-delay-ms", b"soon"),))
    assert send(cluster, record(cluster, b"good", 0), bad) is ErrorCode.INVALID_RECORD
    cluster.run_for(2_000)
    assert values(cluster) == []


def test_a_target_that_is_missing_keeps_records_waiting() -> None:
    cluster = InMemoryCluster(range(1, 4), **SETTINGS)
    cluster.create_topic("later", 1, 3, tidelog_delay_target="orders")
    send(cluster, record(cluster, b"a", 100))
    cluster.run_for(5_000)
    assert "orders does not exist" in forwarder(cluster).reason
    cluster.create_topic("orders", 1, 3, tidelog_delay_target="elsewhere")
    cluster.run_for(3_000)
    assert "is a delay topic itself" in forwarder(cluster).reason
    alter(cluster, "orders", "tidelog.delay.target", None)
    cluster.run_for(3_000)
    assert values(cluster) == [b"a"]
    assert forwarder(cluster).reason == ""


def test_a_target_that_is_deleted_and_made_again_goes_on() -> None:
    cluster = delaying()
    send(cluster, record(cluster, b"a", 0), record(cluster, b"b", 2_000))
    cluster.run_for(1_000)
    assert values(cluster) == [b"a"]
    gone: list[object] = []
    assert cluster.controller is not None
    cluster.controller.broker.metadata.submit(DeleteTopics((TopicReference("orders", None),)), gone.extend)
    cluster.run_until(lambda: gone)
    cluster.run_for(5_000)
    assert forwarder(cluster).reason == "the target orders does not exist"
    cluster.create_topic("orders", 1, 3)
    cluster.run_for(5_000)
    assert values(cluster) == [b"b"]
    assert forwarder(cluster).reason == ""


def test_a_target_with_too_few_replicas_in_sync_makes_records_wait() -> None:
    cluster = delaying()
    alter(cluster, "orders", "min.insync.replicas", "3")
    target, source = cluster.leader("orders"), cluster.leader("later")
    assert target is not None and source is not None
    dead = next(each for each in (1, 2, 3) if each not in (target.node_id, source.node_id))
    cluster.kill(dead)
    send(cluster, record(cluster, b"a", 0))
    cluster.run_for(40_000)
    assert values(cluster) == []
    assert "NOT_ENOUGH_REPLICAS" in forwarder(cluster).reason
    cluster.restart(dead)
    cluster.run_for(30_000)
    assert values(cluster) == [b"a"]
    assert forwarder(cluster).reason == ""


def test_a_record_that_is_too_large_for_the_target_can_be_cancelled() -> None:
    cluster = delaying(3)
    alter(cluster, "orders", "max.message.bytes", "2000")
    send(cluster, record(cluster, b"large" * 1_000, 100, key=b"1"), record(cluster, b"small", 200))
    cluster.run_for(8_000)
    assert "MESSAGE_TOO_LARGE" in forwarder(cluster).reason
    assert values(cluster) == []
    send(cluster, record(cluster, None, key=b"1"))
    cluster.run_for(8_000)
    assert values(cluster) == [b"small"]


def test_many_records_are_spread_over_batches_and_partitions() -> None:
    cluster = delaying(3, target_partitions=3)
    for start in range(0, 1_500, 300):
        send(cluster, *(record(cluster, b"%d" % (start + number), 500) for number in range(300)))
    cluster.run_for(5_000)
    found = [values(cluster, index) for index in range(3)]
    assert all(found)
    assert sorted(chain(*found), key=lambda each: int(each or b"")) == [
        b"%d" % number for number in range(1_500)
    ]


def test_retention_keeps_what_waits_and_takes_what_is_done() -> None:
    cluster = delaying(3, retention_ms="1000", segment_bytes="500", file_delete_delay_ms="1")
    send(cluster, record(cluster, b"long", 60_000))
    for number in range(20):
        send(cluster, record(cluster, b"%d" % number, 10))
    cluster.run_for(20_000)
    assert len(values(cluster)) == 20
    for node_id in (1, 2, 3):
        assert cluster.replica(node_id, "later").log.log_start_offset == 0
    cluster.run_for(60_000)
    assert values(cluster)[-1] == b"long"
    cluster.run_for(10_000)
    # The low offset is known in steps; with nothing left it is the end.
    assert forwarder(cluster).line is not None
    for node_id in (1, 2, 3):
        assert cluster.replica(node_id, "later").log.log_start_offset >= 20


def test_a_topic_that_is_made_again_begins_anew() -> None:
    cluster = delaying()
    send(cluster, record(cluster, b"a", 10))
    cluster.run_for(1_000)
    assert cluster.controller is not None
    gone: list[object] = []
    cluster.controller.broker.metadata.submit(DeleteTopics((TopicReference("later", None),)), gone.extend)
    cluster.run_until(lambda: gone)
    cluster.run_for(1_000)
    cluster.create_topic("later", 1, 3, tidelog_delay_target="orders")
    send(cluster, record(cluster, b"b", 10))
    cluster.run_for(2_000)
    assert values(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("seed", range(4))
def test_each_record_comes_once_whoever_dies(seed: int) -> None:
    random = Random(seed)
    cluster = delaying(3, seed=seed, partitions=2, target_partitions=2)
    due: dict[bytes, int] = {}
    dead: int | None = None
    for number in range(40):
        index = number % 2
        batch = [
            record(cluster, b"%d-%d" % (number, each), random.choice([0, 5, 50, 500, 3_000]))
            for each in range(5)
        ]
        for each in batch:
            due[each.value or b""] = each.timestamp_ms + int(each.headers[0][1] or b"")
        while send(cluster, *batch, index=index) is not ErrorCode.NONE:
            cluster.run_for(20)
        if number % 8 == 3 and dead is None:
            dead = random.choice([1, 2, 3])
            cluster.kill(dead)
        elif number % 8 == 7 and dead is not None:
            cluster.restart(dead, power_cut=random.random() < 0.3)
            dead = None
        cluster.run_for(random.randint(1, 60))
    if dead is not None:
        cluster.restart(dead)
    cluster.run_for(15_000)
    found = values(cluster, 0) + values(cluster, 1)
    assert len(found) == len(set(found)), "twice"
    assert set(found) == set(due), "lost"


def test_everything_may_be_restarted() -> None:
    cluster = delaying(3)
    send(cluster, record(cluster, b"a", 500), record(cluster, b"b", 8_000))
    cluster.run_for(1_000)
    for node_id in (1, 2, 3):
        cluster.kill(node_id)
    for node_id in (1, 2, 3):
        cluster.restart(node_id)
    cluster.run_for(20_000)
    assert values(cluster) == [b"a", b"b"]


def described(cluster: InMemoryCluster, body: bytes) -> dict[str, Any]:
    """What a broker tells `tidelog delay`."""
    leader = cluster.leader("later")
    assert leader is not None
    answer = cluster.send(leader.node_id, frame_prefix(DESCRIBE_DELAYS, 0, 1, b"test", len(body))[4:] + body)
    cluster.run_until(lambda: answer)
    assert answer.data is not None
    found: dict[str, Any] = json.loads(answer.data[8:])
    return found


def test_what_waits_is_told() -> None:
    cluster = delaying()
    send(cluster, *(record(cluster, b"%d" % number, 60_000 - number) for number in range(5)))
    send(cluster, record(cluster, b"now", 0))
    cluster.run_for(1_000)
    [row] = described(cluster, b'{"topic": "later", "records": 2}')["partitions"]
    assert (row["topic"], row["partition"], row["target"]) == ("later", 0, "orders")
    assert (row["waiting"], row["due"], row["forwarded"], row["reason"]) == (5, 0, 1, "")
    assert [each["offset"] for each in row["records"]] == [4, 3]
    assert described(cluster, b'{"topic": "orders"}') == {"partitions": []}
    leader = cluster.leader("later")
    assert leader is not None
    text = "".join(leader.broker.scrape.get().run())
    assert 'tidelog_delay_waiting{topic="later"} 5' in text
    assert 'tidelog_delay_forwarded_total{topic="later"} 1' in text


@pytest.mark.parametrize("body", [b"", b"[]", b'{"records": -1}', b'{"records": 1e9}', b'{"topic": 5}'])
def test_a_malformed_question_ends_the_connection(body: bytes) -> None:
    cluster = delaying()
    connection = cluster.connect(1)
    connection.send(frame_prefix(DESCRIBE_DELAYS, 0, 1, b"test", len(body))[4:] + body)
    cluster.run_for(100)
    assert connection.closed
