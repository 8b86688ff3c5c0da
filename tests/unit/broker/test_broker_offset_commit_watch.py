"""A producer that announced a group's offsets and does not bring them is let go, so that it looks anew."""

from typing import Any

import pytest

from tests.support.in_memory_cluster import Connection, InMemoryCluster
from tests.unit.broker.test_broker_cluster_coordinators import GROUP, KEYS, TX, Client
from tidelog.broker.coordinators import offset_commit_watch
from tidelog.broker.coordinators.offset_commit_watch import (
    LET_GO_MAX,
    PATIENCE_MS,
    TAKEN_OVER_MS_MAX,
    TICK_MS,
)
from tidelog.broker.requests import newcomers
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
        self.watch = cluster.broker(self.coordinator()).transactions.get().offset_commits

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


def cluster_of(**settings: Any) -> InMemoryCluster:
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
    broker.transactions.get().coordinator.unload(broker.transaction_topic.partition_for(TX))
    assert broker.transactions.get().coordinator.machine_for(TX) is ErrorCode.NOT_COORDINATOR
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


def greeted(cluster: InMemoryCluster, node_id: int, *, asks: bool = False) -> Connection:
    """A connection on which a client asked for the versions, as librdkafka does first, and perhaps more."""
    connection = cluster.connect(node_id)
    requests: list[tuple[str, int, dict[str, Any]]] = [
        ("ApiVersions", 3, {"client_software_name": "rdkafka", "client_software_version": "2.16.0"})
    ]
    if asks:
        requests.append(("FindCoordinator", 2, {"key": GROUP, "key_type": 0}))
    for api, version, fields in requests:
        body = encode_request(KEYS[api], version, fields)
        answer = connection.send(frame_prefix(KEYS[api], version, 1, b"test", len(body))[4:] + body)
        cluster.run_until(lambda a=answer: a)  # type: ignore[misc]
    return connection


@pytest.fixture
def taken_over(producer: Producer) -> tuple[Producer, int]:
    """The offsets were announced to a coordinator that is gone; and who took over."""
    producer.announce()
    old = producer.coordinator()
    producer.cluster.kill(old)
    producer.cluster.run_for(TICK_MS)
    new = producer.coordinator()
    assert new != old
    broker = producer.cluster.broker(new)
    producer.cluster.run_until(
        lambda: not isinstance(broker.transactions.get().coordinator.machine_for(TX), ErrorCode)
    )
    producer.watch = broker.transactions.get().offset_commits
    return producer, new


def test_a_new_coordinator_lets_newcomers_go_a_few_times(taken_over: tuple[Producer, int]) -> None:
    """The client has connected to it, and waits for the group's coordinator without a word."""
    producer, coordinator = taken_over
    busy = greeted(producer.cluster, coordinator, asks=True)
    for _ in range(LET_GO_MAX):
        connection = greeted(producer.cluster, coordinator)
        producer.cluster.run_for(PATIENCE_MS - TICK_MS)
        assert not connection.closed
        producer.cluster.run_for(3 * TICK_MS)
        assert connection.closed
    assert not busy.closed, "a client works with it"
    connection = greeted(producer.cluster, coordinator)
    producer.cluster.run_for(LONG_MS)
    assert not connection.closed
    assert not producer.watch


@pytest.mark.parametrize("step", ["commit", "end"])
def test_a_client_that_goes_on_lets_newcomers_be(taken_over: tuple[Producer, int], step: str) -> None:
    producer, coordinator = taken_over
    connection = greeted(producer.cluster, coordinator)
    if step == "commit":
        producer.commit_offsets()
    else:
        producer.connection = producer.cluster.connect(coordinator)
        producer.end_transaction()
    producer.cluster.run_for(LONG_MS)
    assert not connection.closed


def test_newcomers_are_let_be_where_nothing_was_taken_over(producer: Producer) -> None:
    connection = greeted(producer.cluster, producer.coordinator())
    producer.cluster.run_for(LONG_MS)
    assert not connection.closed


def test_transactions_that_were_taken_over_are_forgotten_in_time(taken_over: tuple[Producer, int]) -> None:
    producer, _ = taken_over
    assert producer.watch
    producer.cluster.run_for(TAKEN_OVER_MS_MAX + 2 * TICK_MS)
    assert not producer.watch


def test_no_more_newcomers_are_noted_than_the_limit(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node_id = producer.cluster, producer.coordinator()
    noted = cluster.broker(node_id).newcomers
    noted.let_go(0)
    monkeypatch.setattr(newcomers, "NOTED_MAX", 2)
    monkeypatch.setattr(noted, "_pruned_from", 2)
    first = greeted(cluster, node_id)
    for _ in range(3):
        greeted(cluster, node_id)
    assert len(noted) == 2
    first.close()
    monkeypatch.setattr(noted, "_pruned_from", 2)
    cluster.run_for(PATIENCE_MS)
    greeted(cluster, node_id)
    assert len(noted) == 2, "the one that is gone was forgotten"
    assert noted.let_go(PATIENCE_MS) == 1, "the other one came just now"
