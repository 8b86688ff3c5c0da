"""Power cuts of all replicas, among brokers without sockets: who leads then, and what is left (KIP-966)."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster, Produced
from tidelog.broker.metadata.controller_runtime import _OFFLINE_TIMER as OFFLINE_TIMER
from tidelog.broker.requests.handlers import elect_leaders
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AssignReplicas, ElectionType, ElectLeaders, ReplicaPlacement
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import LOST_DIRECTORY, NO_LEADER, TopicPartition

T0 = TopicPartition("t", 0)


def produce(cluster: InMemoryCluster, *values: bytes, acks: int = -1) -> Produced:
    cluster.run_until(lambda: cluster.leader("t") is not None)
    leader = cluster.leader("t")
    assert leader is not None
    produced = cluster.produce(leader.node_id, "t", *values, acks=acks)
    cluster.run_until(lambda: produced)
    return produced


def sync(cluster: InMemoryCluster, node_id: int) -> None:
    """Have everything that a broker has of the partition on its disk."""
    plan = cluster.replica(node_id, "t").log.flush_plan()
    assert plan is not None
    plan.run()


def cluster_with_records(seed: int, synced: tuple[int, ...], **configs: Any) -> InMemoryCluster:
    """Three brokers, 20 records with acks=all, all of them on the disks of `synced`, and the power goes."""
    cluster = InMemoryCluster(seed=seed)
    cluster.create_topic("t", **{"min_insync_replicas": "2", **configs})
    for number in range(20):
        assert produce(cluster, b"%d" % number).error is ErrorCode.NONE
    cluster.run_for(100)
    for node_id in synced:
        sync(cluster, node_id)
    for node_id in cluster.nodes:
        cluster.kill(node_id)
    return cluster


def back(cluster: InMemoryCluster, node_id: int, *, power_cut: bool = True) -> int:
    """Start a broker again; returns how much its disk has kept."""
    node = cluster.restart(node_id, power_cut=power_cut)
    cluster.run_until(lambda: node.registered)
    cluster.run_for(500)
    return cluster.replica(node_id, "t").log.log_end_offset


def one_and_two_back(**configs: Any) -> InMemoryCluster:
    """Broker 1 has lost records, broker 2 none, broker 3 is away."""
    for seed in range(20):
        cluster = cluster_with_records(seed, synced=(2,), **configs)
        if back(cluster, 1) < 20:
            assert back(cluster, 2) == 20
            return cluster
    raise AssertionError("the power cuts took nothing")


def elect(cluster: InMemoryCluster, type: ElectionType) -> Any:
    results: list[Any] = []
    assert cluster.controller is not None
    cluster.controller.broker.metadata.submit(ElectLeaders(type, (T0,)), results.extend)
    cluster.run_until(lambda: results)
    return results[0].outcomes[0][1]


@pytest.mark.parametrize("seed", range(8))
def test_the_first_to_return_does_not_lead_with_a_shorter_log(seed: int) -> None:
    cluster = cluster_with_records(seed, synced=(3,))
    kept = [back(cluster, 1)]
    assert cluster.state("t").leader == NO_LEADER, f"broker 1 leads with {kept[0]} of 20 records"
    assert cluster.state("t").last_known_elr == (1,)
    kept.append(back(cluster, 2))
    assert cluster.state("t").leader == NO_LEADER
    node = cluster.restart(3, power_cut=True)
    cluster.run_until(lambda: node.registered and cluster.leader("t"))
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2, 3})
    state = cluster.state("t")
    assert [cluster.replica(node_id, "t").log.log_end_offset for node_id in cluster.nodes] == [20, 20, 20]
    assert state.unclean_leader_epoch == state.leader_epoch
    assert (state.elr, state.last_known_elr, state.replica_logs) == ((), (), ())
    assert produce(cluster, b"more").offset == 20
    assert min(kept) < 20, "the power cuts took nothing"


@pytest.mark.parametrize("seed", range(8))
def test_the_longest_log_leads_when_nobody_kept_everything(seed: int) -> None:
    cluster = cluster_with_records(seed, synced=())
    kept = [back(cluster, node_id) for node_id in (1, 2)]
    node = cluster.restart(3, power_cut=True)
    kept.append(cluster.replica(3, "t").log.log_end_offset)
    cluster.run_until(lambda: node.registered and cluster.leader("t"))
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2, 3})
    assert cluster.replica(1, "t").log.log_end_offset == max(kept), kept


def test_killed_processes_have_lost_nothing_and_lead_at_once() -> None:
    cluster = cluster_with_records(1, synced=())
    assert back(cluster, 2, power_cut=False) == 20
    state = cluster.state("t")
    assert (state.leader, state.isr, set(state.elr), state.last_known_elr) == (2, (2,), {1, 3}, ())
    assert state.unclean_leader_epoch == -1
    back(cluster, 1)
    assert 1 not in cluster.state("t").elr, "its machine lost power"
    cluster.run_until(lambda: set(cluster.state("t").isr) >= {1, 2})
    assert produce(cluster, b"more").offset == 20


def test_the_one_that_does_not_return_is_waited_for_until_somebody_forces_an_election() -> None:
    cluster = one_and_two_back()
    cluster.run_for(30_000)
    assert cluster.state("t").leader == NO_LEADER
    assert cluster.state("t").elr == (3,) and set(cluster.state("t").last_known_elr) == {1, 2}
    assert elect(cluster, ElectionType.UNCLEAN) is None
    assert cluster.state("t").leader == 2, "the longest log, not the first replica"
    assert back(cluster, 3) <= 20
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2, 3})
    assert cluster.replica(3, "t").log.log_end_offset == 20


def ask_to_elect(cluster: InMemoryCluster, node_id: int, *, all_partitions: bool = False) -> list[Any]:
    """Send ElectLeaders to a broker; the list gets its answer."""
    topics = [SimpleNamespace(topic="t", partitions=[0])]
    body = SimpleNamespace(
        topic_partitions=None if all_partitions else topics, election_type=1, timeout=timedelta(seconds=30)
    )
    request: Any = SimpleNamespace(body=body)
    broker = cluster.broker(node_id)
    parked = elect_leaders.Handler(broker.metadata, broker.settings, broker.timers).handle(request)
    assert isinstance(parked, DelayedAnswer)
    answers: list[Any] = []
    parked.deliver_to(answers.append)
    return answers


@pytest.mark.parametrize("all_partitions", [False, True])
def test_an_election_waits_for_the_word_of_a_broker_that_has_just_returned(all_partitions: bool) -> None:
    for seed in range(20):
        cluster = cluster_with_records(seed, synced=(2,))
        if back(cluster, 1) < 20:
            break
    node = cluster.restart(2, power_cut=True)
    reports, told = node.broker.replica_log_reports._reports, []
    send, reports._send = reports._send, lambda: told.append(True)  # type: ignore[method-assign]
    cluster.run_until(lambda: node.registered and told)
    answers = ask_to_elect(cluster, 1, all_partitions=all_partitions)
    cluster.run_for(1_000)
    assert cluster.state("t").leader == NO_LEADER and not answers, "broker 2 has not said how much it has"
    reports._send = send  # type: ignore[method-assign]
    reports._send()
    cluster.run_until(lambda: answers)
    [row] = answers[0]["replica_election_results"][0]["partition_result"]
    assert (row["error_code"], cluster.state("t").leader) == (ErrorCode.NONE, 2)


def test_an_election_does_not_wait_for_ever() -> None:
    cluster = cluster_with_records(1, synced=(1,))
    assert back(cluster, 1) == 20
    node = cluster.restart(2, power_cut=True)
    node.broker.replica_log_reports.stop()
    cluster.run_until(lambda: node.registered)
    cluster.run_for(500)
    answers = ask_to_elect(cluster, 2)
    cluster.run_until(lambda: answers, timeout_ms=6_000)
    [row] = answers[0]["replica_election_results"][0]["partition_result"]
    assert (row["error_code"], cluster.state("t").leader) == (ErrorCode.NONE, 1), "the longest that is known"


def test_a_disk_that_was_given_up_is_not_waited_for() -> None:
    """The disk of 1 does not survive the power cut; it returns on an empty one."""
    cluster = cluster_with_records(1, synced=(2,))
    [lost] = [each.directory_id for each in cluster.broker(1).log_directories.directories]
    [path] = [each.path for each in cluster.broker(1).log_directories.directories]
    assert back(cluster, 2) == 20
    back(cluster, 3)
    node = cluster.restart(1, power_cut=True, before=lambda disk: disk.remove_tree(path))
    cluster.run_until(lambda: node.registered)
    cluster.run_for(30_000)
    assert (cluster.state("t").leader, cluster.state("t").elr) == (NO_LEADER, (1,)), "it may be found"
    cluster.kill(1)
    cluster.restart(1, tidelog_lost_directories=lost)
    cluster.run_until(lambda: set(cluster.state("t").isr) == {1, 2, 3})
    assert [cluster.replica(node_id, "t").log.log_end_offset for node_id in cluster.nodes] == [20, 20, 20]


def test_where_unclean_elections_are_allowed_the_longest_log_leads_after_a_while() -> None:
    cluster = one_and_two_back(unclean_leader_election_enable="true")
    assert cluster.state("t").leader == NO_LEADER, "others may be back in a moment"
    cluster.run_until(lambda: cluster.leader("t") is not None, timeout_ms=6_000)
    assert cluster.state("t").leader == 2


def test_a_replica_that_never_speaks_does_not_hold_an_allowed_election_up_for_ever() -> None:
    cluster = cluster_with_records(1, synced=(2,), unclean_leader_election_enable="true")
    node = cluster.restart(1, power_cut=True)
    node.broker.replica_log_reports.stop()
    cluster.run_until(lambda: node.registered)
    assert back(cluster, 2) == 20
    cluster.run_for(20_000)
    assert cluster.state("t").leader == NO_LEADER, "it may only be slow"
    cluster.run_until(lambda: cluster.leader("t") is not None, timeout_ms=30_000)
    assert cluster.state("t").leader == 2


def test_an_allowed_election_follows_whatever_took_the_leader() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", replication_factor=1, unclean_leader_election_enable="true")
    cluster.run_until(lambda: cluster.leader("t") is not None)
    cluster.run_for(30_000)
    assert cluster.controller is not None
    controller = cluster.controller.broker
    assert OFFLINE_TIMER not in controller.timers
    holder = cluster.state("t").leader
    placement = ReplicaPlacement(controller.image.topics["t"].topic_id, 0, LOST_DIRECTORY)
    lost = AssignReplicas(holder, controller.image.brokers[holder].epoch, (placement,))
    results: list[Any] = []
    controller.metadata.submit(lost, results.extend)
    cluster.run_until(lambda: results)
    assert OFFLINE_TIMER in controller.timers


def test_nothing_is_committed_while_others_may_lead() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", min_insync_replicas="2")
    assert produce(cluster, b"a").error is ErrorCode.NONE
    leader = cluster.leader("t")
    assert leader is not None
    others = [node_id for node_id in cluster.nodes if node_id != leader.node_id]
    for node_id in others:
        cluster.kill(node_id)
        cluster.run_until(lambda: cluster.controller and len(cluster.state("t").isr) < 3)
    cluster.run_until(lambda: cluster.controller and cluster.state("t").isr == (leader.node_id,))
    assert cluster.state("t").elr == (others[1],), "the last one to leave"
    assert produce(cluster, b"b").error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(cluster, b"b", acks=1).error is ErrorCode.NONE
    cluster.run_for(1_000)
    assert cluster.replica(leader.node_id, "t").high_watermark == 1
    cluster.kill(leader.node_id)
    back(cluster, others[0], power_cut=False)
    assert cluster.state("t").leader == NO_LEADER, "it left while the ISR was large enough"
    back(cluster, others[1], power_cut=False)
    assert cluster.state("t").leader == others[1]
    assert cluster.state("t").unclean_leader_epoch == -1
