"""Replication among brokers without sockets: what acks=all promises, failover, truncation, the ISR."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster, Node, Produced
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replication import replica_fetcher
from tidelog.broker.requests.handlers.fetch import DelayedFetch
from tidelog.client.requests import decode_response, encode_request
from tidelog.controller.commands import AlterReassignments, Reassignment
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.replication.leader import LeaderReplicas


def produce(cluster: InMemoryCluster, topic: str, *values: bytes, **how: Any) -> Produced:
    """Produce to the leader and wait for the answer."""
    index = how.get("index", 0)
    cluster.run_until(lambda: cluster.leader(topic, index) is not None)
    leader = cluster.leader(topic, index)
    assert leader is not None
    produced = cluster.produce(leader.node_id, topic, *values, **how)
    cluster.run_until(lambda: produced)
    return produced


def same_everywhere(cluster: InMemoryCluster, topic: str, index: int = 0) -> Callable[[], bool]:
    """Whether all living replicas have the same log, the same watermark, and nobody is out of sync."""

    def check() -> bool:
        if cluster.leader(topic, index) is None or cluster.controller is None:
            return False
        state = cluster.state(topic, index)
        living = [node.node_id for node in cluster.living if node.node_id in state.replicas]
        if not all(cluster.broker(node_id).replicas.replica(topic, index) for node_id in living):
            return False
        replicas = [cluster.replica(node_id, topic, index) for node_id in living]
        return (
            set(state.isr) >= set(living)
            and len({replica.log.log_end_offset for replica in replicas}) == 1
            and len({replica.high_watermark for replica in replicas}) == 1
            and all(replica.high_watermark == replica.log.log_end_offset for replica in replicas)
            and len({cluster.content(node_id, topic, index) for node_id in living}) == 1
        )

    return check


def leader_of(cluster: InMemoryCluster, topic: str) -> Node:
    cluster.run_until(lambda: cluster.leader(topic) is not None)
    leader = cluster.leader(topic)
    assert leader is not None
    return leader


def test_acks_all_is_answered_when_all_in_sync_have_it() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    leader = leader_of(cluster, "t")
    produced = cluster.produce(leader.node_id, "t", b"a", b"b")
    cluster.run_until(lambda: produced)
    assert (produced.error, produced.offset) == (ErrorCode.NONE, 0)
    assert {cluster.replica(node_id, "t").log.log_end_offset for node_id in cluster.nodes} == {2}
    cluster.run_until(same_everywhere(cluster, "t"), timeout_ms=50)


def test_acks_one_does_not_wait_and_acks_all_does() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    leader = leader_of(cluster, "t")
    for node_id in cluster.nodes:
        if node_id != leader.node_id:
            cluster.freeze(node_id)
    fast = cluster.produce(leader.node_id, "t", b"a", acks=1)
    slow = cluster.produce(leader.node_id, "t", b"b", acks=-1, timeout_ms=1000)
    cluster.run_until(lambda: fast, timeout_ms=100)
    assert fast.error is ErrorCode.NONE and not slow
    cluster.run_until(lambda: slow, timeout_ms=1100)
    assert slow.error is ErrorCode.REQUEST_TIMED_OUT
    assert cluster.replica(leader.node_id, "t").high_watermark == 0


def cluster_that_knows_the_request(**settings: Any) -> tuple[InMemoryCluster, Node]:
    """A leader that served a request with acks=all before: the next ones go by the fast path."""
    cluster = InMemoryCluster(**settings)
    cluster.create_topic("t", min_insync_replicas="2")
    cluster.run_for(500)
    assert produce(cluster, "t", b"before").error is ErrorCode.NONE
    leader = leader_of(cluster, "t")
    assert leader.client_context.produce_templates
    return cluster, leader


def freeze_followers(cluster: InMemoryCluster, leader: Node) -> None:
    for node_id in cluster.nodes:
        if node_id != leader.node_id:
            cluster.freeze(node_id)


def test_the_short_way_waits_for_the_replicas_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, leader = cluster_that_knows_the_request()
    monkeypatch.setattr(leader.dispatcher, "_produce", None)  # the general path
    produced = [cluster.produce(leader.node_id, "t", b"%d" % n) for n in range(3)]
    cluster.run_until(lambda: all(produced))
    assert sorted(each.offset for each in produced) == [1, 2, 3]
    assert all(each.error is ErrorCode.NONE for each in produced)


def test_the_short_way_times_out_and_refuses_as_the_long_way_does() -> None:
    cluster, leader = cluster_that_knows_the_request(replica_lag_time_max_ms="2000")
    freeze_followers(cluster, leader)
    late = cluster.produce(leader.node_id, "t", b"late")
    cluster.run_until(lambda: late, timeout_ms=31_000)
    assert late.error is ErrorCode.REQUEST_TIMED_OUT
    assert cluster.replica(leader.node_id, "t").high_watermark == 1


def test_a_retry_does_not_wait_for_what_came_behind_it() -> None:
    cluster, leader = cluster_that_knows_the_request()
    partition = cluster.replica(leader.node_id, "t")
    waiters = [DelayedFetch.__new__(DelayedFetch) for _ in range(4)]
    for end_offset, waiter in zip((5, 7, 3, 5), waiters, strict=True):
        waiter.purgatory = leader.broker.purgatory
        partition.await_commit(end_offset, waiter)
    assert [offset for offset, _ in partition.commits] == [3, 5, 5, 7]
    partition.high_watermark = 5
    assert [partition.take_committed() for _ in range(4)] == [waiters[2], waiters[0], waiters[3], None]


def test_who_waits_on_the_short_way_is_told_of_another_leader() -> None:
    cluster, leader = cluster_that_knows_the_request()
    freeze_followers(cluster, leader)
    waiting = cluster.produce(leader.node_id, "t", b"x")
    cluster.run_for(10)
    for node_id in cluster.nodes:
        cluster.thaw(node_id)
        if node_id != leader.node_id:
            cluster.cut(leader.node_id, node_id)
    cluster.expire_session(leader.node_id)
    cluster.run_until(lambda: waiting, timeout_ms=5000)
    assert waiting.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_followers_learn_the_watermark_at_once() -> None:
    cluster = InMemoryCluster(replica_fetch_wait_max_ms="400")
    cluster.create_topic("t")
    leader_of(cluster, "t")
    cluster.run_for(1000)
    for number in range(5):
        assert produce(cluster, "t", b"%d" % number).offset == number
        cluster.run_for(20)
        assert {cluster.replica(node_id, "t").high_watermark for node_id in cluster.nodes} == {number + 1}


def test_idle_followers_send_little() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", partitions=60)
    cluster.run_for(3000)
    assert sum(len(node.broker.replicas.led) for node in cluster.living) == 60
    before = cluster.events_count
    cluster.run_for(10_000)
    # Six pairs of brokers, two polls a second each, and the timers of the brokers.
    assert cluster.events_count - before < 10 * 6 * 2 * 6 + 500


@pytest.mark.parametrize("seed", range(5))
def test_the_leader_dies_and_nothing_acknowledged_is_lost(seed: int) -> None:
    cluster = InMemoryCluster(seed=seed)
    cluster.create_topic("t", min_insync_replicas="2")
    acknowledged = []
    for number in range(30):
        if number % 10 == 9:
            cluster.kill(leader_of(cluster, "t").node_id)
            cluster.run_until(lambda: len(cluster.living) == 2 and cluster.leader("t") is not None)
        produced = produce(cluster, "t", b"value %d" % number)
        assert produced.error is ErrorCode.NONE
        acknowledged.append((produced.offset, b"value %d" % number))
        dead = [node.node_id for node in cluster.nodes.values() if node.dead]
        for node_id in dead:
            cluster.restart(node_id)
            cluster.run_until(same_everywhere(cluster, "t"))
    assert [offset for offset, _ in acknowledged] == list(range(30))
    for node_id in cluster.nodes:
        content = cluster.content(node_id, "t")
        assert all(value in content for _, value in acknowledged)


def test_a_diverged_tail_is_cut_when_the_old_leader_returns() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    old = leader_of(cluster, "t")
    assert produce(cluster, "t", b"everywhere").error is ErrorCode.NONE
    others = [node_id for node_id in cluster.nodes if node_id != old.node_id]
    for node_id in others:
        cluster.cut(old.node_id, node_id)
    lonely = [cluster.produce(old.node_id, "t", b"lonely %d" % n, acks=1) for n in range(3)]
    cluster.run_until(lambda: all(lonely))
    assert cluster.replica(old.node_id, "t").log.log_end_offset == 4
    cluster.kill(old.node_id)
    cluster.heal()
    new = leader_of(cluster, "t")
    assert new.node_id != old.node_id
    assert produce(cluster, "t", b"after").offset == 1
    cluster.restart(old.node_id)
    cluster.run_until(same_everywhere(cluster, "t"))
    content = cluster.content(old.node_id, "t")
    assert b"after" in content and b"lonely" not in content
    assert cluster.replica(old.node_id, "t").log.log_end_offset == 2


def test_those_who_wait_are_told_that_the_leader_is_another() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    old = leader_of(cluster, "t")
    cluster.run_for(100)
    for node_id in cluster.nodes:
        if node_id != old.node_id:
            cluster.cut(old.node_id, node_id)
    waiting = cluster.produce(old.node_id, "t", b"x")
    cluster.run_for(10)
    cluster.expire_session(old.node_id)
    cluster.run_until(lambda: waiting, timeout_ms=5000)
    assert waiting.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_stops_leaves_the_isr_and_comes_back() -> None:
    cluster = InMemoryCluster(replica_lag_time_max_ms="2000", broker_session_timeout_ms="9000000")
    cluster.create_topic("t", min_insync_replicas="2")
    leader = leader_of(cluster, "t")
    slow = next(n.node_id for n in cluster.living if n is not leader and n is not cluster.controller)
    cluster.run_for(500)
    cluster.freeze(slow)
    waiting = cluster.produce(leader.node_id, "t", b"x")
    cluster.run_until(lambda: waiting, timeout_ms=5000)
    assert waiting.error is ErrorCode.NONE
    assert set(cluster.state("t").isr) == set(cluster.nodes) - {slow}
    cluster.thaw(slow)
    cluster.run_until(same_everywhere(cluster, "t"), timeout_ms=5000)


def test_too_few_in_sync() -> None:
    cluster = InMemoryCluster(replica_lag_time_max_ms="2000")
    cluster.create_topic("t", partitions=3, min_insync_replicas="2")
    cluster.run_for(500)
    leader = cluster.controller
    assert leader is not None
    index = next(index for topic, index in leader.broker.replicas.led if topic == "t")
    for node_id in cluster.nodes:
        if node_id != leader.node_id:
            cluster.freeze(node_id)
    first = cluster.produce(leader.node_id, "t", b"x", index=index, timeout_ms=20_000)
    cluster.run_until(lambda: set(cluster.state("t", index).isr) == {leader.node_id}, timeout_ms=10_000)
    cluster.run_for(10)
    assert cluster.replica(leader.node_id, "t", index).high_watermark == 0, "what one has is not committed"
    second = cluster.produce(leader.node_id, "t", b"y", index=index)
    third = cluster.produce(leader.node_id, "t", b"z", index=index, acks=1)
    cluster.run_until(lambda: second and third, timeout_ms=100)
    assert (second.error, third.error) == (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE)
    for node_id in cluster.nodes:
        cluster.thaw(node_id)
    cluster.run_until(lambda: first)
    assert first.error is ErrorCode.NONE
    cluster.run_until(same_everywhere(cluster, "t", index))


def test_a_wiped_broker_refills() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", partitions=3)
    for number in range(30):
        assert produce(cluster, "t", b"%d" % number, index=number % 3).error is ErrorCode.NONE
    cluster.kill(2)
    cluster.run_for(100)
    cluster.restart(2, wiped=True)
    for index in range(3):
        cluster.run_until(same_everywhere(cluster, "t", index))


def test_a_retry_is_recognised_by_the_next_leader() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    idempotent = {"producer_id": 9, "producer_epoch": 0}
    for sequence in range(3):
        produced = produce(cluster, "t", b"%d" % sequence, base_sequence=sequence, **idempotent)
        assert (produced.error, produced.offset) == (ErrorCode.NONE, sequence)
    cluster.kill(leader_of(cluster, "t").node_id)
    again = produce(cluster, "t", b"2", base_sequence=2, **idempotent)
    assert (again.error, again.offset) == (ErrorCode.NONE, 2)
    gap = produce(cluster, "t", b"9", base_sequence=9, **idempotent)
    assert gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(cluster, "t", b"3", base_sequence=3, **idempotent).offset == 3


def test_every_replica_describes_its_producers() -> None:
    """Whoever looks for hanging transactions asks each broker for what it has, leader or not (KIP-664)."""
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    produce(cluster, "t", b"a", b"b", base_sequence=4, producer_id=9, producer_epoch=1)
    cluster.run_until(same_everywhere(cluster, "t"))
    topics = [{"name": "t", "partition_indexes": [0, 5]}, {"name": "u", "partition_indexes": [0]}]
    for node_id in cluster.nodes:
        answers = ask(cluster, node_id, 61, 0, topics=topics)
        cluster.run_until(lambda: len(answers))  # noqa: B023
        there, unknown = answers[0].topics
        [active] = there.partitions[0].active_producers
        assert (active.producer_id, active.producer_epoch, active.last_sequence) == (9, 1, 5)
        for nothing in (there.partitions[1], unknown.partitions[0]):
            assert nothing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_followers_start_with_the_watermark_they_noted() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    for number in range(10):
        produce(cluster, "t", b"%d" % number)
    cluster.run_for(6000)
    for node_id in list(cluster.nodes):
        cluster.kill(node_id)
    started = [cluster.restart(node_id) for node_id in list(cluster.nodes)]
    for node in started:
        replica = node.broker.replicas.replica("t", 0)
        assert replica is not None and replica.high_watermark == 10
    cluster.run_until(same_everywhere(cluster, "t"))


def test_a_deleted_topic_takes_its_replicas_along_and_the_name_can_return() -> None:
    from tidelog.controller.commands import DeleteTopics, TopicReference

    cluster = InMemoryCluster()
    first_id = cluster.create_topic("t")
    assert produce(cluster, "t", b"first life").error is ErrorCode.NONE
    done: list[Any] = []
    assert cluster.controller is not None
    cluster.controller.broker.metadata.submit(DeleteTopics((TopicReference("t"),)), done.extend)
    cluster.run_until(lambda: done)
    cluster.run_until(lambda: all("t" not in node.broker.image.topics for node in cluster.living))
    assert all(not node.broker.replicas.led and not node.broker.replicas.followed for node in cluster.living)
    assert all(not node.broker.fetchers.by_leader for node in cluster.living)
    assert cluster.create_topic("t") != first_id
    assert produce(cluster, "t", b"second life").offset == 0
    cluster.run_until(same_everywhere(cluster, "t"))
    assert all(b"first" not in cluster.content(node_id, "t") for node_id in cluster.nodes)


def ask(cluster: InMemoryCluster, node_id: int, key: int, version: int, **fields: Any) -> list[Any]:
    """Send a control request as another broker would; the decoded answer comes into the list."""
    answers: list[Any] = []
    asking = next(node for node in cluster.living if node.node_id != node_id)
    asking.request(
        node_id,
        key,
        version,
        encode_request(key, version, fields),
        lambda body: answers.append(decode_response(key, version, body)),  # type: ignore[arg-type]
        timeout_ms=60_000,
    )
    return answers


def delete_records(cluster: InMemoryCluster, node_id: int, offset: int) -> list[Any]:
    partitions = [{"partition_index": 0, "offset": offset}]
    timeout = timedelta(seconds=5)
    topics = [{"name": "t", "partitions": partitions}]
    return ask(cluster, node_id, 21, 2, topics=topics, timeout=timeout)


def test_records_are_deleted_on_every_replica_before_the_answer() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    for number in range(10):
        produce(cluster, "t", b"%d" % number)
    leader = leader_of(cluster, "t")
    answers = delete_records(cluster, leader.node_id, 7)
    cluster.run_until(lambda: answers, timeout_ms=100)
    row = answers[0].topics[0].partitions[0]
    assert (row.error_code, row.low_watermark) == (ErrorCode.NONE, 7)
    assert {cluster.replica(node_id, "t").log.log_start_offset for node_id in cluster.nodes} == {7}
    frozen = next(node.node_id for node in cluster.living if node not in (leader, cluster.controller))
    cluster.freeze(frozen)
    answers = delete_records(cluster, leader.node_id, 8)
    cluster.run_until(lambda: answers, timeout_ms=6000)
    assert answers[0].topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_follower_far_behind_starts_where_the_leader_does() -> None:
    cluster = InMemoryCluster(log_segment_bytes="300")
    cluster.create_topic("t")
    leader = leader_of(cluster, "t")
    away = next(node.node_id for node in cluster.living if node not in (leader, cluster.controller))
    produce(cluster, "t", b"first")
    cluster.kill(away)
    for number in range(20):
        produce(cluster, "t", b"%d" % number)
    answers = delete_records(cluster, leader.node_id, 15)
    cluster.run_until(lambda: answers)
    cluster.restart(away)
    cluster.run_until(same_everywhere(cluster, "t"))
    log = cluster.replica(away, "t").log
    assert (log.log_start_offset, log.log_end_offset) == (15, 21)


def test_transactions_are_the_same_on_followers() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    leader = leader_of(cluster, "t")
    partition = cluster.replica(leader.node_id, "t")
    for producer_id, committed in ((5, True), (6, False), (7, None)):
        values = build_batch(
            [Record(0, cluster.clock.time_ms, None, b"x", ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        partition.append_produced(memoryview(bytearray(values)), cluster.clock.time_ms)
        if committed is not None:
            marker = {"coordinator_epoch": 0, "transaction_version": 0, "now_ms": cluster.clock.time_ms}
            assert partition.append_marker(producer_id, 0, committed=committed, **marker) is None
    leader.broker.turn.note_progress(partition)
    leader.broker.turn.wake()
    cluster.run_until(same_everywhere(cluster, "t"))
    for node_id in cluster.nodes:
        replica = cluster.replica(node_id, "t")
        assert (replica.high_watermark, replica.last_stable_offset) == (5, 4)
        assert [a.producer_id for a in replica.log.aborted_transactions(0, 5)] == [6]


def test_consumers_read_from_the_follower_in_their_rack() -> None:
    cluster = InMemoryCluster(
        racks={1: "a", 2: "b", 3: "c"},
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )
    topic_id = cluster.create_topic("t")
    produce(cluster, "t", b"near")
    cluster.run_for(50)
    leader = leader_of(cluster, "t")
    racks = {node_id: rack for node_id, rack in cluster.racks.items() if node_id != leader.node_id}

    def fetch(node_id: int, rack: str, offset: int = 0) -> Any:
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        topics = [{"topic_id": topic_id, "partitions": [partition]}]
        fields = {"topics": topics, "rack_id": rack, "min_bytes": 1, "max_wait": timedelta(0)}
        answers = ask(cluster, node_id, 1, 13, **fields)
        cluster.run_until(lambda: answers)
        return answers[0].responses[0].partitions[0]

    for node_id, rack in racks.items():
        sent_on = fetch(leader.node_id, rack)
        assert (sent_on.preferred_read_replica, sent_on.records or b"") == (node_id, b"")
        near = fetch(node_id, rack)
        assert near.error_code == ErrorCode.NONE and b"near" in near.records
        assert (near.high_watermark, fetch(node_id, rack, 9).error_code) == (
            1,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
    at_home = fetch(leader.node_id, cluster.racks[leader.node_id])
    assert at_home.preferred_read_replica == -1 and b"near" in at_home.records


def reassign(cluster: InMemoryCluster, *replicas: int) -> None:
    done: list[Any] = []
    assert cluster.controller is not None
    command = AlterReassignments((Reassignment("t", 0, replicas),))
    cluster.controller.broker.metadata.submit(command, done.extend)
    cluster.run_until(lambda: done)
    cluster.run_until(lambda: cluster.state("t").replicas == replicas)


def test_a_reassigned_partition_is_copied_and_the_old_copies_go() -> None:
    cluster = InMemoryCluster((1, 2, 3, 4, 5))
    cluster.create_topic("t", replication_factor=2)
    for number in range(20):
        produce(cluster, "t", b"%d" % number)
    old = cluster.state("t").replicas
    new = tuple(node_id for node_id in cluster.nodes if node_id not in old)
    reassign(cluster, *new)
    cluster.run_until(same_everywhere(cluster, "t"))
    cluster.run_for(100)
    for node_id in old:
        assert cluster.broker(node_id).replicas.replica("t", 0) is None
        assert not cluster.nodes[node_id].disk.exists("/data/t-0")
    assert produce(cluster, "t", b"more").offset == 20
    # One replica, and several again: the only one leads without anybody to wait for.
    reassign(cluster, new[0])
    assert produce(cluster, "t", b"alone").offset == 21
    assert cluster.replica(new[0], "t").replicas is None
    reassign(cluster, new[0], *old)
    assert produce(cluster, "t", b"together").offset == 22
    cluster.run_until(same_everywhere(cluster, "t"))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_replica_catches_up_slowly_and_the_others_do_not_wait(side: str) -> None:
    rate = {f"{side}.replication.throttled.rate": "2000"}
    cluster = InMemoryCluster(replica_fetch_max_bytes="700", **rate)  # type: ignore[arg-type]
    cluster.create_topic("t", **{f"{side}.replication.throttled.replicas": "*"})  # type: ignore[arg-type]
    leader = leader_of(cluster, "t")
    away = next(node.node_id for node in cluster.living if node not in (leader, cluster.controller))
    cluster.kill(away)
    for number in range(20):
        assert produce(cluster, "t", b"%d" % number * 300).error is ErrorCode.NONE
    assert len(cluster.content(leader.node_id, "t")) > 8000
    started_ms = cluster.clock.time_ms
    cluster.restart(away)
    cluster.run_for(1000)
    assert 0 < cluster.replica(away, "t").log.log_end_offset < 20
    cluster.run_until(same_everywhere(cluster, "t"))
    assert cluster.clock.time_ms - started_ms > 2500


def test_a_follower_whose_disk_fails_for_a_moment_goes_on() -> None:
    cluster = InMemoryCluster(log_segment_bytes="400")
    cluster.create_topic("t", partitions=2)
    leader = leader_of(cluster, "t")
    weak = next(node for node in cluster.living if node not in (leader, cluster.controller))
    for number in range(60):
        weak.disk.fail_operation(1 + number % 7)
        for index in range(2):
            produced = produce(cluster, "t", b"%d" % number, index=index)
            assert produced.error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR)
    for index in range(2):
        cluster.run_until(same_everywhere(cluster, "t", index))


def test_a_fault_nobody_thought_of_stops_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition cannot be appended to for a while, some answers cannot even be read."""
    cluster = InMemoryCluster()
    cluster.create_topic("t", partitions=6)
    leader = leader_of(cluster, "t")
    weak = next(node for node in cluster.living if node is not leader)
    append, decode = Partition.append_fetched, replica_fetcher.decode_response  # type: ignore[attr-defined]
    faults = {"append": 0, "decode": 0}
    broken: set[int] = {0}

    def fail_to_append(self: Partition, *arguments: Any) -> Any:
        if self.index in broken and self is cluster.replica(weak.node_id, "t", 0):
            faults["append"] += 1
            raise ZeroDivisionError
        return append(self, *arguments)

    def fail_to_decode(version: int, answer: memoryview) -> Any:
        if faults["decode"] < 5:
            faults["decode"] += 1
            raise ZeroDivisionError
        return decode(version, answer)

    def run_until(condition: Callable[[], Any]) -> None:
        while True:
            try:
                return cluster.run_until(condition)
            except ZeroDivisionError:
                pass  # an event loop logs it and goes on

    monkeypatch.setattr(Partition, "append_fetched", fail_to_append)
    monkeypatch.setattr(replica_fetcher, "decode_response", fail_to_decode)
    for index in range(6):
        run_until(lambda index=index: cluster.leader("t", index) is not None)  # type: ignore[misc]
        at = cluster.leader("t", index)
        assert at is not None
        run_until(cluster.produce(at.node_id, "t", b"%d" % index, index=index, acks=1).__bool__)
    for index in range(1, 6):
        run_until(same_everywhere(cluster, "t", index))
    run_until(lambda: faults["append"] > 3)
    assert cluster.replica(weak.node_id, "t", 0).log.log_end_offset == 0
    broken.clear()
    run_until(same_everywhere(cluster, "t", 0))
    assert faults["decode"] == 5


def test_flush_messages_holds_on_followers() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", flush_messages="1")
    produced = produce(cluster, "t", b"safe")
    assert produced.error is ErrorCode.NONE
    assert all(cluster.replica(node_id, "t").log.recovery_point == 1 for node_id in cluster.nodes)


class Storm:
    """Producing with acks=all while brokers die, stop and lose each other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = InMemoryCluster(
            seed=seed,
            latency_ms_max=3,
            replica_lag_time_max_ms="1500",
            replica_socket_timeout_ms="2000",
            log_segment_bytes="700",
        )
        self.cluster.create_topic("t", partitions=2, min_insync_replicas="2")
        self.sent: list[tuple[bytes, int, Produced]] = []
        self.watermarks: dict[int, tuple[int, int]] = {}

    def run(self, turns: int = 60) -> None:
        cluster, random = self.cluster, self.random
        for turn in range(turns):
            for _ in range(random.randint(0, 4)):
                self.send(turn)
            self.fault()
            cluster.run_for(random.choice((1, 5, 30, 300, 1500)))
            self.check_watermarks()
        cluster.heal()
        for node_id, node in list(cluster.nodes.items()):
            if node.frozen:
                cluster.thaw(node_id)
            if node.dead:
                cluster.restart(node_id)
        for index in range(2):
            cluster.run_until(same_everywhere(cluster, "t", index))
        self.check_acknowledged()

    def send(self, turn: int) -> None:
        index = self.random.randrange(2)
        leader = self.cluster.leader("t", index)
        if leader is not None:
            value = b"<%d/%d>" % (turn, len(self.sent))
            self.sent.append((value, index, self.cluster.produce(leader.node_id, "t", value, index=index)))

    def fault(self) -> None:
        cluster, random = self.cluster, self.random
        node_id = random.choice(list(cluster.nodes))
        node = cluster.nodes[node_id]
        match random.randrange(12):
            case 0 if len(cluster.living) > 1:
                if not node.dead:
                    cluster.kill(node_id)
            case 1 | 2:
                if node.dead:
                    cluster.restart(node_id)
            case 3 if not node.dead:
                cluster.freeze(node_id)
            case 4 | 5 if node.frozen and not node.dead:
                cluster.thaw(node_id)
            case 6:
                cluster.cut(*random.sample(list(cluster.nodes), 2))
            case 7 | 8:
                cluster.heal()
            case 9 if not node.dead:
                cluster.expire_session(node_id)

    def check_watermarks(self) -> None:
        """A leader's watermark never goes back under one leader epoch, and one epoch has one leader."""
        for index in range(2):
            leaders: dict[int, int] = {}
            for node in self.cluster.living:
                partition = node.broker.replicas.led.get(("t", index))
                if partition is None:
                    continue
                other = leaders.setdefault(partition.leader_epoch, node.node_id)
                assert other == node.node_id, (
                    f"{other} and {node.node_id} lead epoch {partition.leader_epoch}"
                )
                epoch, watermark = self.watermarks.get(index, (-1, 0))
                if partition.leader_epoch >= epoch:
                    if partition.leader_epoch == epoch:
                        assert partition.high_watermark >= watermark
                    self.watermarks[index] = (partition.leader_epoch, partition.high_watermark)

    def check_acknowledged(self) -> None:
        for index in range(2):
            contents = {node_id: self.cluster.content(node_id, "t", index) for node_id in self.cluster.nodes}
            for value, where, produced in self.sent:
                if where == index and produced and produced.error is ErrorCode.NONE:
                    assert all(value in content for content in contents.values()), f"{value!r} is lost"


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_loses_nothing_acknowledged(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    acknowledged = [p for _, _, p in storm.sent if p and p.error is ErrorCode.NONE]
    assert acknowledged


def ack_before_replicating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "replicated", lambda self, end_offset: ErrorCode.NONE)


def watermark_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LeaderReplicas.watermark
    monkeypatch.setattr(
        LeaderReplicas,
        "watermark",
        lambda self, high_watermark, end_offset, min_insync, now_ms: min(
            end_offset, right(self, high_watermark, end_offset, min_insync, now_ms) + 1
        ),
    )


def pending_isr_instead_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LeaderReplicas,
        "maximal_isr",
        property(lambda self: self.isr if self.pending_isr is None else self.pending_isr),
    )


@pytest.mark.parametrize(
    "fault",
    [ack_before_replicating, watermark_off_by_one, pending_isr_instead_of_both],
)
def test_a_planted_fault_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    for seed in range(200):
        try:
            Storm(seed).run()
        except AssertionError:
            return
    raise AssertionError("nothing was noticed")


@pytest.mark.parametrize("seed", range(10))
def test_power_cuts_one_at_a_time_lose_nothing_acknowledged(seed: int) -> None:
    """Each time another broker loses its power, and with it what it had not synced, while all are in sync."""
    random = Random(seed)
    cluster = InMemoryCluster(
        seed=seed,
        latency_ms_max=2,
        log_segment_bytes="900",
        log_flush_offset_checkpoint_interval_ms="700",
        replica_high_watermark_checkpoint_interval_ms="300",
    )
    cluster.create_topic("t", min_insync_replicas="2")
    sent: list[tuple[bytes, Produced]] = []
    for turn in range(8):
        for number in range(random.randrange(10)):
            value = b"<%d.%d>" % (turn, number)
            leader = leader_of(cluster, "t")
            acks = random.choice((-1, 1))
            produced = cluster.produce(leader.node_id, "t", value, acks=acks)
            if acks == -1:
                sent.append((value, produced))
            cluster.run_for(random.choice((0, 1, 3, 200)))
        victim = random.choice(list(cluster.nodes))
        if random.random() < 0.5:
            victim = leader_of(cluster, "t").node_id
        cluster.kill(victim)
        cluster.run_for(random.choice((0, 5, 500)))
        cluster.restart(victim, power_cut=True)
        cluster.run_until(same_everywhere(cluster, "t"))
    for node_id in list(cluster.nodes):
        before = cluster.content(node_id, "t")
        cluster.restart(node_id)
        assert cluster.content(node_id, "t") == before
        for value, produced in sent:
            if produced and produced.error is ErrorCode.NONE:
                assert value in before, f"{value!r} is lost"
        cluster.run_until(same_everywhere(cluster, "t"))


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_changes_no_isr(step_ms: int) -> None:
    """Forward, nobody falls out who is a moment behind; back, nobody stays who has not fetched for long."""
    cluster = InMemoryCluster()
    cluster.create_topic("t")
    cluster.run_until(lambda: cluster.leader("t") and len(cluster.state("t").isr) == 3)
    leader = cluster.leader("t")
    assert leader is not None
    follower = next(
        node.node_id for node in cluster.nodes.values() if node not in (leader, cluster.controller)
    )
    produced = cluster.produce(leader.node_id, "t", b"a")
    cluster.run_until(lambda: produced)
    cluster.cut(leader.node_id, follower)
    produced = cluster.produce(leader.node_id, "t", b"b", acks=1)
    cluster.run_until(lambda: produced)
    cluster.clock.set_ahead_ms = step_ms
    replicas = cluster.replica(leader.node_id, "t").replicas
    assert replicas is not None
    leader.broker.isr_changes._check()
    assert replicas.pending_isr is None and len(replicas.isr) == 3
    cluster.run_until(lambda: follower not in cluster.state("t").isr, timeout_ms=50_000)
    cluster.heal()
    cluster.run_until(lambda: follower in cluster.state("t").isr)
