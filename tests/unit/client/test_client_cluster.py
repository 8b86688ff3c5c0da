"""The cluster client against a running broker: Tidelog's, or whatever TIDELOG_TEST_BOOTSTRAP names."""

import os
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidelog.client.client_settings import READ_UNCOMMITTED, ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST, Cluster
from tidelog.client.faults import LinkFault, Refusal
from tidelog.client.partition_reader import NothingArrived, PartitionReader
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.records.batch import iterate_headers
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    if foreign := os.environ.get("TIDELOG_TEST_BOOTSTRAP"):
        yield foreign
        return
    with RunningBroker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def make_topic(bootstrap: str) -> Callable[..., str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def make(partitions: int = 1) -> str:
        name = f"client-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS_MAX)
        return name

    return make


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(ClientSettings.from_options({"bootstrap.servers": bootstrap})) as opened:
        yield opened


def fill(bootstrap: str, topic: str, count: int, partition: int = 0, **config: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    for number in range(count):
        producer.produce(topic, b"%06d" % number, partition=partition, timestamp=1_000 + number)
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0


def test_topics_and_leaders(cluster: Cluster, make_topic: Callable[..., str]) -> None:
    one, three = make_topic(), make_topic(3)
    found = cluster.topics([one, three, "no-such-topic"])
    assert sorted(found) == sorted([one, three])
    assert [row.partition for row in found[three].partitions] == [0, 1, 2]
    assert {one, three} <= set(cluster.topics())
    assert not found[one].internal and found[one].topic_id is not None
    assert cluster.leader_of(one, 0) == found[one].partitions[0].leader
    with pytest.raises(Refusal) as refused:
        cluster.leader_of(one, 7)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_asking_for_a_topic_does_not_make_it(cluster: Cluster) -> None:
    name = f"client-{uuid.uuid4().hex[:8]}"
    assert cluster.topics([name]) == {}
    assert name not in cluster.topics()


def test_offsets_by_position_and_time(
    cluster: Cluster, bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, 50, partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    latest = cluster.list_offsets({first: LATEST, second: LATEST})
    assert {where: row.offset for where, row in latest.items()} == {first: 0, second: 50}
    earliest = cluster.list_offsets({first: EARLIEST, second: EARLIEST})
    assert {row.offset for row in earliest.values()} == {0}
    by_time = cluster.list_offsets({second: 1_020})
    assert (by_time[second].offset, by_time[second].timestamp_ms) == (20, 1_020)
    assert cluster.list_offsets({second: 5_000})[second].offset == -1
    assert cluster.list_offsets({second: LATEST}, READ_UNCOMMITTED)[second].offset == 50


def test_commits_are_those_of_an_ordinary_consumer(
    cluster: Cluster, bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic, group = make_topic(2), f"group-{uuid.uuid4().hex[:8]}"
    where = TopicPartition(topic, 1)
    assert cluster.committed_offsets(group, [where]) == {}
    cluster.commit_offsets(group, {where: 42, TopicPartition(topic, 0): 7}, metadata="said")
    assert cluster.committed_offsets(group) == {where: 42, TopicPartition(topic, 0): 7}
    assert cluster.commits(group, [where])[where] == (42, "said")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    seen = consumer.committed([ConfluentTopicPartition(topic, 1)], timeout=SECONDS_MAX)
    consumer.close()
    assert seen[0].offset == 42
    assert group in cluster.group_ids()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_range_is_read_in_slices(
    cluster: Cluster, bootstrap: str, make_topic: Callable[..., str], codec: str
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 3_000, **{"compression.type": codec, "batch.num.messages": 100})  # type: ignore[arg-type]
    reader = PartitionReader(cluster, TopicPartition(topic, 0))
    for start, end in ((0, 3_000), (250, 2_750), (2_999, 3_000), (10, 10)):
        slices = list(reader.slices(start, end, 1_000))
        seen: list[int] = []
        for one in slices:
            for _, header in iterate_headers(one.records):
                seen += range(header.base_offset, header.next_offset)
        assert seen == sorted(set(seen))
        assert set(range(start, end)) <= set(seen)
        assert not slices or slices[-1].next_offset >= end


def test_small_fetches_follow_each_other(bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 2_000, **{"batch.num.messages": 50})
    options = {"bootstrap.servers": bootstrap, "max.partition.fetch.bytes": "2000"}
    with Cluster(ClientSettings.from_options(options)) as opened:
        slices = list(PartitionReader(opened, TopicPartition(topic, 0)).slices(0, 2_000, 1_000))
        assert len(slices) >= 10
        assert [one.next_offset for one in slices] == sorted({one.next_offset for one in slices})
        assert slices[-1].next_offset == 2_000


def test_a_reader_that_stops_early_leaves_the_cluster_usable(
    cluster: Cluster, bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 1_000, **{"batch.num.messages": 50})
    reader = PartitionReader(cluster, TopicPartition(topic, 0))
    slices = reader.slices(0, 10_000, 1_000)
    next(slices)
    slices.close()  # type: ignore[attr-defined]
    assert cluster.list_offsets({TopicPartition(topic, 0): LATEST})[TopicPartition(topic, 0)].offset == 1_000


def test_what_the_log_does_not_hold(cluster: Cluster, bootstrap: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 10)
    reader = PartitionReader(cluster, TopicPartition(topic, 0))
    with pytest.raises(Refusal) as refused:
        list(reader.slices(500, 600, 1_000))
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(NothingArrived) as silence:
        list(reader.slices(5, 20, 1))
    assert (silence.value.offset, silence.value.readable_end) == (10, 10)


def test_a_topic_that_is_not_there_is_told_soon(cluster: Cluster) -> None:
    started = time.monotonic()
    with pytest.raises(Refusal, match="no-such-topic"):
        cluster.list_offsets({TopicPartition("no-such-topic", 0): LATEST})
    assert time.monotonic() - started < SECONDS_MAX


def test_nobody_there_is_told_with_every_address() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2", "default.api.timeout.ms": "50"}
    with Cluster(ClientSettings.from_options(options)) as lonely, pytest.raises(LinkFault) as fault:
        lonely.topics()
    assert "127.0.0.1:1: connection refused" in str(fault.value)
    assert "127.0.0.1:2: connection refused" in str(fault.value)


def test_a_broker_that_restarts_is_lived_through() -> None:
    with RunningBroker() as broker:
        broker.create_topic("here")
        fill(broker.bootstrap, "here", 100)
        with Cluster(ClientSettings.from_options({"bootstrap.servers": broker.bootstrap})) as opened:
            where = TopicPartition("here", 0)
            assert opened.list_offsets({where: LATEST})[where].offset == 100
            broker.restart()
            assert opened.list_offsets({where: LATEST})[where].offset == 100
            slices = PartitionReader(opened, where).slices(0, 100, 1_000)
            assert next(slices).next_offset == 100
