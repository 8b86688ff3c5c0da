"""A producer that announced a group's offsets and does not bring them is let go, so that it looks anew."""

from typing import Any

import pytest
from in_memory_cluster import InMemoryCluster
from test_broker_cluster_coordinators import GROUP, KEYS, TX, Client

from tidelog.broker import offset_commit_watch
from tidelog.broker.offset_commit_watch import PATIENCE_MS, TICK_MS
from tidelog.client.requests import encode_request, frame_prefix
from tidelog.model.errors import ErrorCode

LONG_MS = 10 * PATIENCE_MS


class Producer(Client):
    """A transactional producer with one connection to its coordinator, as librdkafka has it."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        super().__init__(cluster)
        cluster.create_topic("t", 3, 3)
        self.group_coordinator = self.coordinator(GROUP, 0)
        self.id, self.epoch = self.init()
        self.connection = cluster.connect(self.coordinator())
        self.watch = cluster.broker(self.coordinator()).transactions.offset_commits

    def over_the_connection(self, api: str, version: int, **fields: Any) -> Any:
        body = encode_request(KEYS[api], version, fields)
        frame = frame_prefix(KEYS[api], version, 1, b"test", len(body))[4:] + body
        answer = self.connection.send(frame)
        self.cluster.run_until(lambda: answer)
        return self.read(answer, api, version)

    def announce(self, version: int = 0) -> None:
        answer = self.over_the_connection(
            "AddOffsetsToTxn",
            version,
            transactional_id=TX,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=GROUP,
        )
        assert answer.error_code.value == 0

    def commit_offsets(self) -> None:
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        answer = self.ask(
            self.coordinator(GROUP, 0),
            "TxnOffsetCommit",
            3,
            transactional_id=TX,
            group_id=GROUP,
            producer_id=self.id,
            producer_epoch=self.epoch,
            generation_id=-1,
            topics=[{"name": "t", "partitions": [part]}],
        )
        assert answer.topics[0].partitions[0].error_code.value == 0

    def end_transaction(self) -> None:
        answer = self.over_the_connection(
            "EndTxn", 1, transactional_id=TX, producer_id=self.id, producer_epoch=self.epoch, committed=True
        )
        assert answer.error_code.value == 0


def cluster_of(**settings: str) -> InMemoryCluster:
    return InMemoryCluster(
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="3",
        transaction_state_log_min_isr="2",
        min_insync_replicas="2",
        **settings,
    )


@pytest.fixture
def producer() -> Producer:
    """Its two coordinators are on different brokers."""
    producer = Producer(cluster_of())
    assert producer.coordinator() != producer.group_coordinator
    return producer


def test_a_producer_that_does_not_come_is_let_go(producer: Producer) -> None:
    producer.announce()
    producer.cluster.run_for(PATIENCE_MS - TICK_MS)
    assert not producer.connection.closed
    producer.cluster.run_for(2 * TICK_MS)
    assert producer.connection.closed
    assert not producer.watch


def test_one_that_comes_may_take_its_time(producer: Producer) -> None:
    producer.announce()
    producer.commit_offsets()
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed
    producer.end_transaction()
    assert not producer.watch


def test_one_that_ends_its_transaction_waits_for_nobody(producer: Producer) -> None:
    producer.announce()
    producer.end_transaction()
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed


def test_a_commit_may_have_been_lost_with_the_coordinator_it_came_to(producer: Producer) -> None:
    producer.announce()
    producer.commit_offsets()
    producer.cluster.kill(producer.group_coordinator)
    producer.cluster.run_for(PATIENCE_MS)
    assert not producer.connection.closed
    producer.cluster.run_for(3 * TICK_MS)
    assert producer.connection.closed


@pytest.mark.parametrize("later_ms", [50, TICK_MS])
def test_a_commit_to_the_new_coordinator_counts(producer: Producer, later_ms: int) -> None:
    producer.announce()
    producer.cluster.kill(producer.group_coordinator)
    producer.cluster.run_for(later_ms)
    producer.commit_offsets()
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed


def test_nobody_is_let_go_while_there_is_no_coordinator_to_find() -> None:
    producer = Producer(cluster_of(offsets_topic_replication_factor="1"))
    cluster, only_replica = producer.cluster, producer.group_coordinator
    assert producer.coordinator() != only_replica
    cluster.kill(only_replica)
    cluster.run_for(TICK_MS)
    producer.announce()
    cluster.run_for(LONG_MS)
    assert not producer.connection.closed
    cluster.restart(only_replica)
    cluster.run_for(PATIENCE_MS + 4 * TICK_MS)
    assert producer.connection.closed


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_only_the_version_of_librdkafka_is_watched(producer: Producer, version: int) -> None:
    producer.announce(version)
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed


def test_nothing_is_watched_where_writes_are_not_verified() -> None:
    producer = Producer(cluster_of(transaction_partition_verification_enable="false"))
    producer.announce()
    producer.commit_offsets()
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed


def test_a_connection_that_is_gone_is_forgotten(producer: Producer) -> None:
    producer.announce()
    producer.commit_offsets()
    producer.connection.close()
    producer.cluster.run_for(2 * TICK_MS)
    assert not producer.watch


def test_a_coordinator_that_is_none_any_more_forgets(producer: Producer) -> None:
    producer.announce()
    coordinator = producer.coordinator()
    broker = producer.cluster.broker(coordinator)
    broker.transactions.unload(broker.transactions.partition_for(TX))
    assert broker.transactions.machine_for(TX) is ErrorCode.NOT_COORDINATOR
    producer.cluster.run_for(2 * TICK_MS)
    assert not producer.watch
    assert not producer.connection.closed


def test_a_transaction_that_timed_out_is_forgotten(producer: Producer) -> None:
    producer.announce()
    producer.commit_offsets()
    producer.cluster.run_for(90_000)
    assert producer.state() == "COMPLETE_ABORT"
    assert not producer.watch
    assert not producer.connection.closed


def test_no_more_are_watched_than_the_limit(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commit_watch, "WATCHED_MAX", 0)
    producer.announce()
    producer.cluster.run_for(LONG_MS)
    assert not producer.connection.closed
