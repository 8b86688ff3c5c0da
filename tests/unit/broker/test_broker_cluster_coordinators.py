"""Coordinators in a cluster: transactions whose partitions are led by several brokers, groups that move."""

from typing import Any

import pytest

from tests.support.in_memory_cluster import Answer, Connection, InMemoryCluster
from tidelog.client.requests import (
    decode_response,
    encode_request,
    flexible_answer,
    frame_prefix,
    response_body,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import GROUP_METADATA_TOPIC, TopicPartition
from tidelog.protocol.apis import APIS
from tidelog.protocol.primitives import compact_string, unsigned_varint
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

KEYS = {row.name: row.key for row in APIS.values()}
TX = "tx"
GROUP = "g"


class Client:
    """Asks the brokers of a cluster, each request over a connection of its own."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self.cluster = cluster

    def send(self, node_id: int, api: str, version: int, **fields: Any) -> Answer:
        key = KEYS[api]
        body = encode_request(key, version, fields)
        return self.cluster.send(node_id, frame_prefix(key, version, 1, b"test", len(body))[4:] + body)

    def read(self, answer: Answer, api: str, version: int) -> Any:
        assert answer.data is not None
        body = response_body(memoryview(answer.data)[4:], flexible_answer(KEYS[api], version))
        return decode_response(KEYS[api], version, body)

    def ask(self, node_id: int, api: str, version: int, **fields: Any) -> Any:
        answer = self.send(node_id, api, version, **fields)
        self.cluster.run_until(lambda: answer)
        return self.read(answer, api, version)

    def coordinator(self, key: str = TX, key_type: int = 1) -> int:
        """The coordinator, when there is one that has loaded."""
        found: list[int] = []

        def is_there() -> bool:
            for node in self.cluster.living:
                part = node.broker.transactions.get().coordinator if key_type else node.broker.groups.get()
                if not isinstance(part.machine_for(key), ErrorCode):
                    found.append(node.node_id)
                    return True
            return False

        self.ask(self.cluster.living[0].node_id, "FindCoordinator", 3, key=key, key_type=key_type)
        self.cluster.run_until(is_there)
        return found[0]

    def init(self) -> tuple[int, int]:
        answer = self.ask(
            self.coordinator(), "InitProducerId", 4, transactional_id=TX, transaction_timeout=60_000
        )
        assert answer.error_code.value == 0
        return answer.producer_id, answer.producer_epoch

    def add(self, producer: tuple[int, int], topic: str, *indexes: int) -> None:
        answer = self.ask(
            self.coordinator(),
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=TX,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[{"name": topic, "partitions": indexes}],
        )
        rows = [row for each in answer.results_by_topic_v3_and_below for row in each.results_by_partition]
        assert [row.partition_error_code.value for row in rows] == [0] * len(indexes)

    def produce(
        self, producer: tuple[int, int], topic: str, index: int, *, version: int = 9, sequence: int = 0
    ) -> ErrorCode:
        answer = self.send_batch(producer, topic, index, version=version, sequence=sequence)
        self.cluster.run_until(lambda: answer)
        return produced_error(answer)

    def send_batch(
        self, producer: tuple[int, int], topic: str, index: int, *, version: int = 9, sequence: int = 0
    ) -> Answer:
        return self.send_batches(producer, {index: sequence}, topic=topic, version=version)

    def send_batches(
        self,
        producer: tuple[int, int],
        sequences: dict[int, int],
        *,
        topic: str = "t",
        version: int = 12,
        over: Connection | None = None,
    ) -> Answer:
        """One request with a batch of one record for each partition, all led by the same broker."""
        head = frame_prefix(0, version, 1, b"test", 0)[4:]
        body = compact_string(TX) + (-1).to_bytes(2, "big", signed=True) + (30_000).to_bytes(4, "big")
        body += b"\x02" + compact_string(topic) + unsigned_varint(len(sequences) + 1)
        for index, sequence in sequences.items():
            batch = bytes(
                build_batch(
                    [Record(0, self.cluster.clock.time_ms, None, b"value", ())],
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                    transactional=True,
                )
            )
            body += index.to_bytes(4, "big") + unsigned_varint(len(batch) + 1) + batch + b"\x00"
        if over is None:
            leader = self.cluster.leader(topic, next(iter(sequences)))
            assert leader is not None
            over = self.cluster.connect(leader.node_id)
        return over.send(head + body + b"\x00\x00")

    def end_v2(self, producer: tuple[int, int], *, committed: bool = True) -> tuple[ErrorCode, int, int]:
        answer = self.ask(
            self.coordinator(),
            "EndTxn",
            5,
            transactional_id=TX,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        return ErrorCode(answer.error_code.value), answer.producer_id, answer.producer_epoch

    def end(self, producer: tuple[int, int], *, committed: bool = True) -> ErrorCode:
        answer = self.ask(
            self.coordinator(),
            "EndTxn",
            3,
            transactional_id=TX,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        return ErrorCode(answer.error_code.value)

    def state(self) -> str:
        for node in self.cluster.living:
            machine = node.broker.transactions.get().coordinator.machine_for(TX)
            if not isinstance(machine, ErrorCode):
                return machine.transactions[TX].state.name
        return "?"


def produced_error(answer: Answer) -> ErrorCode:
    assert answer.data is not None
    position = 4 + 4 + 1 + 1
    position += answer.data[position] + 1 + 4
    return ErrorCode(int.from_bytes(answer.data[position : position + 2], "big", signed=True))


@pytest.fixture
def client() -> Client:
    return new_client()


def new_client(seed: int = 1, latency_ms_max: int = 1) -> Client:
    cluster = InMemoryCluster(
        seed=seed,
        latency_ms_max=latency_ms_max,
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
        transaction_state_log_min_isr="2",
        min_insync_replicas="2",
    )
    client = Client(cluster)
    cluster.create_topic("t", 3, 3)
    client.coordinator()
    client.coordinator(GROUP, 0)
    return client


def leaders(client: Client, topic: str = "t") -> set[int]:
    return {state.leader for state in client.cluster.living[0].broker.image.topics[topic].partitions}


def decided(client: Client, topic: str = "t") -> bool:
    """Whether no transaction is open in any partition, as their leaders see it."""
    for index in range(3):
        leader = client.cluster.leader(topic, index)
        if leader is None:
            return False
        partition = leader.broker.replicas.led[topic, index]
        if partition.last_stable_offset != partition.log.log_end_offset:
            return False
    return True


@pytest.mark.parametrize("committed", [True, False])
def test_markers_reach_the_leaders_wherever_they_are(client: Client, committed: bool) -> None:
    assert len(leaders(client)) == 3
    producer = client.init()
    client.add(producer, "t", 0, 1, 2)
    for index in range(3):
        assert client.produce(producer, "t", index) is ErrorCode.NONE
    assert not decided(client)
    assert client.end(producer, committed=committed) is ErrorCode.NONE
    client.cluster.run_until(lambda: decided(client), 5_000)
    client.cluster.run_until(lambda: client.state().startswith("COMPLETE"), 5_000)
    for index in range(3):
        partition = client.cluster.leader("t", index).broker.replicas.led["t", index]  # type: ignore[union-attr]
        assert partition.log.log_end_offset == 2, "one batch, one marker"
        assert bool(partition.log.aborted_transactions(0, 9)) is not committed


def elsewhere(client: Client) -> int:
    """A partition that is not led where the transactions are coordinated."""
    coordinator = client.coordinator()
    partitions = client.cluster.living[0].broker.image.topics["t"].partitions
    return next(index for index, state in enumerate(partitions) if state.leader != coordinator)


@pytest.mark.parametrize(
    ("version", "error"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_leader_asks_the_coordinator_on_another_broker(
    client: Client, version: int, error: ErrorCode
) -> None:
    producer = client.init()
    index = elsewhere(client)
    client.add(producer, "t", (index + 1) % 3)
    assert client.produce(producer, "t", index, version=version) is error
    client.add(producer, "t", index)
    assert client.produce(producer, "t", index, version=version) is ErrorCode.NONE
    assert client.produce(producer, "t", index, version=version, sequence=1) is ErrorCode.NONE
    assert client.produce((producer[0], producer[1] + 1), "t", index) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_leader_adds_its_partition_for_producers_of_transactions_v2(client: Client) -> None:
    producer = client.init()
    index = elsewhere(client)
    assert client.produce(producer, "t", index, version=12) is ErrorCode.NONE
    machine = client.cluster.broker(client.coordinator()).transactions.get().coordinator.machine_for(TX)
    assert not isinstance(machine, ErrorCode)
    assert machine.transactions[TX].partitions == {("t", index)}


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("seed", range(4))
def test_batches_in_flight_stay_in_order_while_the_coordinator_is_asked(version: int, seed: int) -> None:
    """A producer that is new to the partition, with five requests on their way over one connection."""
    client = new_client(seed=seed, latency_ms_max=3)
    producer = client.init()
    index = elsewhere(client)
    if version < 12:
        client.add(producer, "t", index)
    leader = client.cluster.leader("t", index)
    assert leader is not None
    over = client.cluster.connect(leader.node_id)
    answers = [client.send_batches(producer, {index: n}, version=version, over=over) for n in range(5)]
    client.cluster.run_until(lambda: all(answers))
    assert [produced_error(answer) for answer in answers] == [ErrorCode.NONE] * 5
    assert leader.broker.replicas.led["t", index].log.log_end_offset == 5
    assert not leader.broker.transactions.get().verification.guards
    assert not leader.broker.transactions.get().writes._queues


def test_only_some_partitions_of_a_request_wait_for_the_coordinator(client: Client) -> None:
    client.cluster.create_topic("wide", 12, 3)
    producer = client.init()
    coordinator = client.coordinator()
    states = client.cluster.living[0].broker.image.topics["wide"].partitions
    leader_id = next(state.leader for state in states if state.leader != coordinator)
    one, two, *_ = (index for index, state in enumerate(states) if state.leader == leader_id)
    over = client.cluster.connect(leader_id)
    answers = [
        client.send_batches(producer, sequences, topic="wide", over=over)
        for sequences in ({one: 0}, {one: 1, two: 0}, {two: 1}, {one: 2}, {two: 2, one: 3})
    ]
    client.cluster.run_until(lambda: all(answers))
    for answer in answers:
        assert produced_error(answer) is ErrorCode.NONE
    ends = [
        client.cluster.broker(leader_id).replicas.led["wide", each].log.log_end_offset for each in (one, two)
    ]
    assert ends == [4, 3]


def test_the_next_transaction_waits_in_the_broker_for_the_markers_of_the_last(client: Client) -> None:
    """Commit, begin, send at once: the producer learns nothing of CONCURRENT_TRANSACTIONS."""
    producer = client.init()
    index = elsewhere(client)
    for _ in range(10):
        assert client.produce(producer, "t", index, version=12) is ErrorCode.NONE
        error, *identity = client.end_v2(producer)
        assert error is ErrorCode.NONE
        producer = identity[0], identity[1]


def test_an_abort_right_after_a_commit_is_not_fenced(client: Client) -> None:
    index = elsewhere(client)
    producer = client.init()
    for number in range(10):
        sent = client.send_batches(producer, {index: 0})
        if number % 2 == 0:
            client.cluster.run_until(lambda sent=sent: sent)  # type: ignore[misc]
        error = ErrorCode.CONCURRENT_TRANSACTIONS
        while error is ErrorCode.CONCURRENT_TRANSACTIONS:
            error, *identity = client.end_v2(producer, committed=number % 2 == 0)
        assert error is ErrorCode.NONE
        producer = identity[0], identity[1]
    client.cluster.run_until(lambda: decided(client), 5_000)


def test_a_coordinator_that_stays_busy_is_told_to_the_producer(client: Client) -> None:
    producer = client.init()
    index = elsewhere(client)
    assert client.produce(producer, "t", index, version=12) is ErrorCode.NONE
    swallow_markers(client, client.coordinator())
    _, *identity = client.end_v2(producer)
    began_ms = client.cluster.clock.time_ms
    answer = client.send_batches((identity[0], identity[1]), {index: 0})
    client.cluster.run_until(lambda: answer)
    assert produced_error(answer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert 100 <= client.cluster.clock.time_ms - began_ms < 150, "add.partitions.to.txn.retry.backoff.max.ms"


def test_a_leader_that_changes_while_its_coordinator_is_asked_appends_nothing(client: Client) -> None:
    producer = client.init()
    index = elsewhere(client)
    leader = client.cluster.leader("t", index)
    assert leader is not None
    over = client.cluster.connect(leader.node_id)
    answers = [client.send_batches(producer, {index: n}, over=over) for n in range(3)]
    client.cluster.run_until(lambda: leader.broker.transactions.get().verification.guards)
    partition = leader.broker.replicas.led["t", index]
    partition.leader_epoch += 1
    client.cluster.run_until(lambda: all(answers))
    errors = [produced_error(answer) for answer in answers]
    assert errors[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert set(errors[1:]) == {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}, "the producer sends them all again"
    assert partition.log.log_end_offset == 0


def test_what_waits_for_its_coordinator_goes_with_its_connection(client: Client) -> None:
    producer = client.init()
    index = elsewhere(client)
    leader = client.cluster.leader("t", index)
    assert leader is not None
    over = client.cluster.connect(leader.node_id)
    for number in range(3):
        client.send_batches(producer, {index: number}, over=over)
    client.cluster.run_until(lambda: leader.broker.transactions.get().verification.guards)
    over.close()
    again = client.cluster.connect(leader.node_id)
    answers = [client.send_batches(producer, {index: n}, over=again) for n in range(3)]
    client.cluster.run_until(lambda: all(answers))
    assert [produced_error(answer) for answer in answers] == [ErrorCode.NONE] * 3
    assert leader.broker.replicas.led["t", index].log.log_end_offset == 3
    assert not leader.broker.transactions.get().writes._queues


def test_a_coordinator_that_cannot_be_reached_makes_producers_retry(client: Client) -> None:
    producer = client.init()
    index = elsewhere(client)
    leader = client.cluster.leader("t", index)
    assert leader is not None
    client.cluster.cut(leader.node_id, client.coordinator())
    assert client.produce(producer, "t", index, version=12) in (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def swallow_markers(client: Client, node_id: int) -> None:
    """Let no WriteTxnMarkers of a broker arrive: as if the link were slow for them alone."""
    node = client.cluster.nodes[node_id]
    request = node.request

    def without_markers(broker_id: int, api_key: int, *rest: Any, **named: Any) -> None:
        if api_key != KEYS["WriteTxnMarkers"]:
            request(broker_id, api_key, *rest, **named)

    node.request = without_markers  # type: ignore[method-assign]


def prepare(client: Client) -> tuple[int, int]:
    """A transaction that is decided, and whose marker for a partition led elsewhere is under way for ever."""
    producer = client.init()
    index = elsewhere(client)
    client.add(producer, "t", index)
    assert client.produce(producer, "t", index) is ErrorCode.NONE
    swallow_markers(client, client.coordinator())
    assert client.end(producer) is ErrorCode.NONE
    client.cluster.run_for(1_000)
    assert client.state() == "PREPARE_COMMIT"
    leader = client.cluster.leader("t", index)
    assert leader is not None
    return index, leader.node_id


def test_markers_follow_a_leader_that_changes(client: Client) -> None:
    index, leader_id = prepare(client)
    coordinator = client.coordinator()
    markers = client.cluster.broker(coordinator).transactions.get().coordinator._markers
    assert list(markers._under_way.values()) == [leader_id], "sent once, whatever the retries"
    third = ({1, 2, 3} - {coordinator, leader_id}).pop()
    client.cluster.kill(leader_id)
    client.cluster.run_until(lambda: client.cluster.leader("t", index) is not None)
    client.cluster.run_for(1_000)
    new_leader = client.cluster.leader("t", index)
    assert new_leader is not None
    if new_leader.node_id == third:
        assert third in markers._under_way.values()
    else:
        assert client.state() == "COMPLETE_COMMIT"


def test_another_coordinator_completes_what_was_decided(client: Client) -> None:
    prepare(client)
    coordinator = client.coordinator()
    client.cluster.kill(coordinator)
    client.cluster.run_until(lambda: client.state() == "COMPLETE_COMMIT", 60_000)
    assert decided(client)
    assert client.coordinator() != coordinator


def commit_offset(client: Client, node_id: int, offset: int) -> Answer:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    return client.send(
        node_id, "OffsetCommit", 7, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics
    )


def committed_error(client: Client, answer: Answer) -> ErrorCode:
    body = client.read(answer, "OffsetCommit", 7)
    return ErrorCode(body.topics[0].partitions[0].error_code.value)


def fetched(client: Client, node_id: int) -> tuple[int, int]:
    body = client.ask(
        node_id, "OffsetFetch", 7, group_id=GROUP, topics=[{"name": "t", "partition_indexes": [0]}]
    )
    return body.error_code.value, body.topics[0].partitions[0].committed_offset if body.topics else -1


def test_a_group_moves_with_its_partition(client: Client) -> None:
    first = client.coordinator(GROUP, 0)
    answer = commit_offset(client, first, 7)
    client.cluster.run_until(lambda: answer)
    assert committed_error(client, answer) is ErrorCode.NONE
    client.cluster.kill(first)
    client.cluster.run_until(lambda: client.cluster.leader(GROUP_METADATA_TOPIC) is not None)
    second = client.coordinator(GROUP, 0)
    assert second != first
    assert fetched(client, second) == (0, 7)
    third = ({1, 2, 3} - {first, second}).pop()
    assert fetched(client, third)[0] == ErrorCode.NOT_COORDINATOR


def test_who_waits_for_replicas_is_sent_elsewhere_when_leadership_goes(client: Client) -> None:
    first = client.coordinator(GROUP, 0)
    followers = sorted({1, 2, 3} - {first})
    for follower in followers:
        client.cluster.freeze(follower)
    waiting = commit_offset(client, first, 9)
    client.cluster.run_for(50)
    assert not waiting
    for follower in followers:
        client.cluster.thaw(follower)
    client.cluster.cut(first, followers[0])
    client.cluster.cut(first, followers[1])
    client.cluster.expire_session(first)
    client.cluster.run_until(lambda: waiting, 30_000)
    assert committed_error(client, waiting) in (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )


def test_too_few_replicas_in_sync_are_a_coordinator_that_is_not_available(client: Client) -> None:
    first = client.coordinator(GROUP, 0)
    for follower in {1, 2, 3} - {first}:
        client.cluster.kill(follower)
    client.cluster.run_until(lambda: len(client.cluster.state(GROUP_METADATA_TOPIC).isr) == 1)
    client.cluster.run_for(100)
    answer = commit_offset(client, first, 9)
    client.cluster.run_until(lambda: answer)
    assert committed_error(client, answer) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_of_a_transaction_count_when_it_commits_wherever_the_coordinators_are(client: Client) -> None:
    producer = client.init()
    group_coordinator = client.coordinator(GROUP, 0)
    coordinator = client.coordinator()
    answer = client.ask(
        coordinator,
        "AddOffsetsToTxn",
        3,
        transactional_id=TX,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id=GROUP,
    )
    assert answer.error_code.value == 0
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
    answer = client.ask(
        group_coordinator,
        "TxnOffsetCommit",
        3,
        transactional_id=TX,
        group_id=GROUP,
        producer_id=producer[0],
        producer_epoch=producer[1],
        generation_id=-1,
        topics=topics,
    )
    assert answer.topics[0].partitions[0].error_code.value == 0
    assert fetched(client, group_coordinator) == (0, -1)
    assert client.end(producer) is ErrorCode.NONE
    client.cluster.run_until(lambda: client.state() == "COMPLETE_COMMIT", 5_000)
    assert fetched(client, group_coordinator) == (0, 5)


def test_a_marker_that_comes_while_the_coordinator_is_asked_breaks_the_guard(client: Client) -> None:
    """A late batch of an aborted transaction, verified before the end and answered after it (KIP-890)."""
    producer = client.init()
    index = elsewhere(client)
    client.add(producer, "t", index)
    leader = client.cluster.leader("t", index)
    assert leader is not None
    verification = leader.broker.transactions.get().verification
    late = client.send_batch(producer, "t", index, version=11)
    client.cluster.run_until(lambda: verification.guards)
    verification.guards.transaction_ended(TopicPartition("t", index), *producer, 0)
    client.cluster.run_until(lambda: late)
    assert produced_error(late) is ErrorCode.INVALID_TXN_STATE
    assert leader.broker.replicas.led["t", index].log.log_end_offset == 0
    assert not verification.guards
    assert client.produce(producer, "t", index, version=11) is ErrorCode.NONE


def test_an_internal_topic_that_cannot_be_made_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = InMemoryCluster((1,), offsets_topic_replication_factor="3", zookeeper_connect="zk:2181")
    client = Client(cluster)
    cluster.run_until(lambda: cluster.nodes[1].registered)
    for _ in range(3):
        answer = client.ask(1, "FindCoordinator", 3, key=GROUP, key_type=0)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    told = [text for text in caplog.messages if "cannot be made" in text]
    assert len(told) == 1 and told[0].startswith(f"{GROUP_METADATA_TOPIC} cannot be made"), told
    assert "3" in told[0]
