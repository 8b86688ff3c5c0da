"""The controller of several brokers: deaths, elections, ISR changes, reassignments, each a small story."""

from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.controller.controller_cluster import A0, Cluster, code, state
from tidelog.controller.commands import (
    AlterReassignments,
    BrokersChanged,
    BrokerShuttingDown,
    ChangeIsr,
    ConfigResourceType,
    CreatePartitions,
    CreateTopics,
    Done,
    ElectionType,
    ElectLeaders,
    IsrChange,
    IsrChanged,
    LeadersElected,
    PartitionsSpec,
    Reassignment,
    RebalanceLeaders,
    ShutDownBroker,
    TopicCreated,
    TopicSpec,
    UnregisterBroker,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER, TopicPartition
from tidelog.model.metadata import Endpoint, PartitionRecord


def test_registrations_get_epochs_that_grow() -> None:
    cluster = Cluster(2)
    assert {broker.id: broker.epoch for broker in cluster.image.brokers.values()} == {1: 100, 2: 100}
    cluster.restarts(2)
    assert cluster.image.brokers[2].epoch == 101
    # A sequence that somebody lost does not give an old epoch again.
    cluster.live[2] = replace(cluster.live[2], incarnation="third")
    cluster.run(BrokersChanged(tuple(cluster.live.values()), 7))
    assert cluster.image.brokers[2].epoch == 102


def test_a_broker_that_moves_keeps_its_epoch() -> None:
    cluster = Cluster(1)
    cluster.live[1] = replace(cluster.live[1], endpoints={"PLAINTEXT": Endpoint("new", 1)}, rack="r")
    cluster.lives()
    broker = cluster.image.brokers[1]
    assert (broker.epoch, broker.rack, broker.endpoints["PLAINTEXT"]) == (100, "r", Endpoint("new", 1))


def test_nothing_new_writes_nothing() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    before = cluster.image
    cluster.lives()
    assert cluster.image is before


def test_the_death_of_a_leader_elects_the_next_in_sync() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3), (2, 3, 1))
    cluster.create("b", (2, 3), (3, 1))
    cluster.lives(2, 3)
    assert set(cluster.image.alive_brokers) == {2, 3} and 1 in cluster.image.brokers
    assert cluster.states("a") == [(2, (2, 3), 1, 1), (2, (2, 3), 1, 1)]
    assert cluster.states("b") == [(2, (2, 3), 0, 0), (3, (3,), 1, 1)]


def test_replicas_behind_do_not_lead() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    cluster.change((1, 3))
    cluster.lives(2, 3)
    assert state(cluster.a0())[:2] == (3, (3,))


def test_the_last_in_sync_replica_is_waited_for() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.lives(1, 3)
    cluster.lives(3)
    assert state(cluster.a0()) == (NO_LEADER, (), 2, 2) and cluster.a0().elr == (1,)
    cluster.lives(2, 3, incarnation="second")
    assert state(cluster.a0()) == (NO_LEADER, (), 2, 2)
    cluster.lives(1, 2, 3, incarnation="second")
    assert state(cluster.a0()) == (1, (1,), 3, 3)


def test_when_all_die_at_once_whoever_comes_back_first_leads() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.lives(3)
    assert state(cluster.a0()) == (NO_LEADER, (), 1, 1) and cluster.a0().elr == (1, 2)
    cluster.lives(2, 3, incarnation="second")
    assert state(cluster.a0()) == (2, (2,), 2, 2)


def test_a_restart_nobody_noticed_is_a_death_and_a_return() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2), (2, 3))
    cluster.create("b", (3,))
    cluster.restarts(1)
    assert state(cluster.a0()) == (2, (2,), 1, 1)
    cluster.restarts(3)
    # Alone it leads again, under a new epoch; where it followed, it has to catch up first.
    assert cluster.states("b") == [(3, (3,), 1, 1)]
    assert cluster.states("a")[1] == (2, (2,), 1, 1)


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    shrunk = cluster.change((1, 3))
    assert shrunk == IsrChanged(cluster.a0()) and state(cluster.a0()) == (1, (1, 3), 0, 1)
    grown = cluster.change((1, 3, 2), isr_broker_epochs=(100, -1, 100))
    assert grown == IsrChanged(cluster.a0()) and state(cluster.a0()) == (1, (1, 3, 2), 0, 2)
    assert cluster.change((3, 2, 1)) == IsrChanged(cluster.a0()), "the order does not matter"
    assert cluster.a0().partition_epoch == 2


def test_an_isr_change_that_comes_again_is_answered_again() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    cluster.change((1, 3))
    assert cluster.change((1, 3), partition_epoch=0) == IsrChanged(cluster.a0())
    assert code(cluster.change((1, 2), partition_epoch=0)) is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("isr", "changes", "expected"),
    [
        ((1, 2), {"leader_epoch": 4}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 1), {}, ErrorCode.INVALID_REQUEST),
        ((1, 7), {}, ErrorCode.INVALID_REQUEST),
        ((2,), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"isr_broker_epochs": (100,)}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {"isr_broker_epochs": (100, 99)}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 3), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 4), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 5), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 2), {"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1, 2), {"topic_id": "other"}, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_refused_isr_changes(isr: tuple[int, ...], changes: dict[str, object], expected: ErrorCode) -> None:
    cluster = Cluster(5)
    cluster.create("a", (1, 2, 3, 4, 5))
    cluster.create("b", (1,))
    cluster.lives(1, 2, 4, 5)  # 3 is dead
    cluster.run(ShutDownBroker(4, 100))
    cluster.lives(1, 2, 4)
    cluster.run(UnregisterBroker(5))
    cluster.change((1,))
    assert state(cluster.a0())[:3] == (1, (1,), 3)
    if changes.get("topic_id") == "other":
        changes = {"topic_id": _other_id(cluster)}
    before = cluster.image
    refused = cluster.change(isr, **changes)  # type: ignore[arg-type]
    assert code(refused) is expected and cluster.image is before


def _other_id(cluster: Cluster) -> UUID:
    topic_id = cluster.image.topics["a"].topic_id
    return UUID(int=topic_id.int ^ 1)


def test_an_earlier_life_changes_no_isr() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    change = IsrChange(cluster.image.topics["a"].topic_id, 0, 0, 0, (1,))
    for sender, epoch in ((1, 99), (1, 101), (7, 100)):
        results = cluster.run(ChangeIsr(sender, epoch, (change, change)))
        assert [code(result) for result in results] == [ErrorCode.STALE_BROKER_EPOCH] * 2


def test_a_partition_changes_once_in_a_command() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    change = IsrChange(cluster.image.topics["a"].topic_id, 0, 0, 0, (1,))
    results = cluster.run(ChangeIsr(1, 100, (change, change)))
    assert [code(result) for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert cluster.a0().partition_epoch == 1


# ------------------------------------------------------------ controlled shutdown, unregistering


def test_a_broker_that_shuts_down_hands_over() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2), (2, 1))
    cluster.create("b", (1,))
    assert cluster.run(ShutDownBroker(1, 100)) == (BrokerShuttingDown(1),)
    assert cluster.states("a") == [(2, (2,), 1, 1), (2, (2,), 1, 1)]
    assert cluster.states("b") == [(1, (1,), 0, 0)]
    before = cluster.image
    assert cluster.run(ShutDownBroker(1, 100)) == (BrokerShuttingDown(1),)
    assert cluster.image is before
    assert code(cluster.change((2, 1))) is ErrorCode.INELIGIBLE_REPLICA
    assert cluster.image.brokers[1].alive and cluster.image.brokers[1].shutting_down
    cluster.lives(2, 3)
    assert cluster.states("b") == [(NO_LEADER, (), 1, 1)]
    cluster.lives(1, 2, 3, incarnation="second")
    assert not cluster.image.brokers[1].shutting_down
    assert cluster.states("b") == [(1, (1,), 2, 2)]


def test_a_follower_that_catches_up_takes_over_from_one_that_shuts_down() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.change((1,))
    assert cluster.run(ShutDownBroker(1, 100)) == (BrokerShuttingDown(1),)
    assert code(cluster.change((1, 2))) is ErrorCode.NEW_LEADER_ELECTED
    assert state(cluster.a0())[:2] == (2, (2,))


def test_who_may_shut_down() -> None:
    cluster = Cluster()
    assert code(cluster.run(ShutDownBroker(1, 99))[0]) is ErrorCode.STALE_BROKER_EPOCH
    assert code(cluster.run(ShutDownBroker(9, 100))[0]) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_an_unregistered_broker_is_forgotten() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.create("b", (1,))
    before = cluster.image
    assert code(cluster.run(UnregisterBroker(1))[0]) is ErrorCode.INVALID_REQUEST  # it is alive
    assert cluster.image is before
    cluster.lives(2, 3)
    assert cluster.run(UnregisterBroker(1)) == (Done(),)
    assert set(cluster.image.brokers) == {2, 3}
    assert cluster.a0().replicas == (1, 2)
    assert code(cluster.run(UnregisterBroker(1))[0]) is ErrorCode.BROKER_ID_NOT_REGISTERED
    # Its only copy is remembered by its disk.
    alone = cluster.image.topics["b"].partitions[0]
    assert (alone.leader, alone.elr, alone.directory_of(1)) == (NO_LEADER, (1,), "disk-1")
    cluster.lives(1, 2, 3, incarnation="second", directories=("other",))
    assert cluster.image.topics["b"].partitions[0].leader == NO_LEADER
    cluster.restarts(1, "third", directories=("disk-1",))
    assert cluster.image.topics["b"].partitions[0].leader == 1


# ------------------------------------------------------------ elections by request


def test_the_preferred_leader_takes_over() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2), (2, 1))
    assert code(cluster.elect(ElectionType.PREFERRED, A0)) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.lives(2, 3)
    cluster.lives(1, 2, 3, incarnation="second")
    assert code(cluster.elect(ElectionType.PREFERRED, A0)) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.change((2, 1))
    [everything] = cluster.run(ElectLeaders(ElectionType.PREFERRED))
    assert everything == LeadersElected(((A0, None),))
    assert cluster.a0().leader == 1
    assert cluster.run(ElectLeaders(ElectionType.PREFERRED)) == (LeadersElected(()),)


def test_unclean_elections_by_request() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    assert code(cluster.elect(ElectionType.UNCLEAN, A0)) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.change((1,))
    cluster.lives(3)
    assert code(cluster.elect(ElectionType.UNCLEAN, A0)) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.lives(2, 3, incarnation="second")
    assert cluster.elect(ElectionType.UNCLEAN, A0) is None
    assert state(cluster.a0())[:2] == (2, (2,))


def test_a_patient_election_waits_for_replicas_that_have_not_spoken() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    cluster.change((1, 2))
    cluster.lives(3)
    cluster.report("a", b3=(-1, 0))
    cluster.lives(2, 3, incarnation="second", unclean_shutdown=True)
    command = ElectLeaders(ElectionType.UNCLEAN, (A0,), patient=True)
    [waits] = cluster.run(command)
    assert isinstance(waits, LeadersElected) and waits.silent == (A0,)
    assert code(waits.outcomes[0][1]) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.report("a", b2=(0, 1000))
    assert cluster.run(command) == (LeadersElected(((A0, None),)),)
    assert cluster.a0().leader == 2


@pytest.mark.parametrize(("spoken", "leader"), [((-1, 0), 2), ((-1, 5), 3), ((0, 10), 3)])
def test_an_impatient_election_takes_an_unknown_log_before_an_empty_one(
    spoken: tuple[int, int], leader: int
) -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    cluster.change((1, 2))
    cluster.lives(3)
    cluster.report("a", b3=spoken)
    cluster.lives(2, 3, incarnation="second", unclean_shutdown=True)
    assert cluster.elect(ElectionType.UNCLEAN, A0) is None
    assert cluster.a0().leader == leader


def test_elections_of_unknown_and_repeated_partitions() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    for unknown in (TopicPartition("b", 0), TopicPartition("a", 1), TopicPartition("a", -1)):
        refused = cluster.elect(ElectionType.PREFERRED, unknown)
        assert code(refused) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.lives(2, 3)
    cluster.lives(1, 2, 3, incarnation="second")
    cluster.change((2, 1))
    [twice] = cluster.run(ElectLeaders(ElectionType.PREFERRED, (A0, A0)))
    assert twice == LeadersElected(((A0, None), (A0, None)))


def test_leaders_are_rebalanced_above_the_threshold_only() -> None:
    cluster = Cluster(leader_imbalance_per_broker_percentage="25")
    cluster.create("a", *((1, 2),) * 4, *((2, 1),) * 4)
    cluster.lives(2, 3)
    cluster.lives(1, 2, 3, incarnation="second")
    topic_id = cluster.image.topics["a"].topic_id

    def join(index: int) -> None:
        partition = cluster.image.topics["a"].partitions[index]
        change = IsrChange(topic_id, index, partition.leader_epoch, partition.partition_epoch, (2, 1))
        cluster.run(ChangeIsr(2, 100, (change,)))

    join(0)
    # All four are led elsewhere; one can be given back, which leaves three of four.
    assert cluster.run(RebalanceLeaders()) == (LeadersElected(((A0, None),)),)
    for index in (1, 2, 3):
        join(index)
    [moved] = cluster.run(RebalanceLeaders())
    assert isinstance(moved, LeadersElected) and len(moved.outcomes) == 3
    partition = cluster.a0()
    change = IsrChange(topic_id, 0, partition.leader_epoch, partition.partition_epoch, (1, 2))
    cluster.run(ChangeIsr(1, cluster.image.brokers[1].epoch, (change,)))
    cluster.image = cluster.image.apply([_led_by_2(cluster)])
    assert cluster.run(RebalanceLeaders()) == (LeadersElected(()),), "one of four is within 25 %"


def _led_by_2(cluster: Cluster) -> PartitionRecord:
    partition = cluster.a0()
    return PartitionRecord(
        "a",
        0,
        2,
        partition.leader_epoch + 1,
        (1, 2),
        (1, 2),
        partition.partition_epoch + 1,
        directories=partition.directories,
    )


# ------------------------------------------------------------ reassignments


def test_replicas_are_added_catch_up_and_replace_the_old_ones() -> None:
    cluster = Cluster(5)
    cluster.create("a", (1, 2, 3))
    assert cluster.reassign((4, 5, 1)) == Done()
    moving = cluster.a0()
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 5, 1, 2, 3), (4, 5), (2, 3))
    assert state(moving) == (1, (1, 2, 3), 0, 1), "nobody was shut out yet"
    assert cluster.reassign((4, 5, 1)) == Done() and cluster.a0() == moving, "asked twice, started once"
    cluster.change((1, 2, 3, 4))
    assert cluster.a0().reassigning
    assert cluster.change((1, 2, 3, 4, 5)) == IsrChanged(cluster.a0())
    moved = cluster.a0()
    assert (moved.replicas, moved.adding, moved.removing, moved.isr) == ((4, 5, 1), (), (), (1, 4, 5))
    assert state(moved)[2:] == (1, 3), "two replicas were shut out"


def test_a_leader_that_is_moved_away_is_succeeded() -> None:
    cluster = Cluster()
    cluster.create("a", (1,))
    cluster.reassign((2, 3))
    cluster.change((1, 2))
    assert code(cluster.change((1, 2, 3))) is ErrorCode.NEW_LEADER_ELECTED
    assert state(cluster.a0()) == (2, (2, 3), 1, 3) and cluster.a0().replicas == (2, 3)


def test_reordering_and_dropping_are_done_at_once() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    assert cluster.reassign((3, 1, 2)) == Done()
    assert cluster.a0().replicas == (3, 1, 2) and state(cluster.a0()) == (1, (1, 2, 3), 0, 1)
    assert cluster.reassign((3, 2)) == Done()
    assert cluster.a0().replicas == (3, 2) and not cluster.a0().reassigning
    assert state(cluster.a0())[:3] == (3, (2, 3), 1)


def test_a_reassignment_can_be_taken_back() -> None:
    cluster = Cluster(4)
    cluster.create("a", (1, 2))
    assert code(cluster.reassign(None)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    cluster.reassign((3, 4))
    cluster.change((1, 2, 3))
    assert cluster.reassign(None) == Done()
    assert cluster.a0().replicas == (1, 2) and not cluster.a0().reassigning
    assert state(cluster.a0()) == (1, (1, 2), 1, 3), "broker 3 was shut out"
    assert code(cluster.reassign(None)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_taking_back_does_not_lose_the_only_copies() -> None:
    cluster = Cluster(4)
    cluster.create("a", (1, 2))
    cluster.reassign((3, 4))
    cluster.change((1, 3))
    cluster.lives(2, 3, 4)
    assert state(cluster.a0())[:2] == (3, (3,))
    assert code(cluster.reassign(None)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.allow_unclean(ConfigResourceType.TOPIC, "a")
    assert cluster.reassign(None) == Done()
    assert state(cluster.a0())[:2] == (2, (2,)) and cluster.a0().replicas == (1, 2)


def test_a_new_target_replaces_the_running_one() -> None:
    cluster = Cluster(5)
    cluster.create("a", (1, 2))
    cluster.reassign((3, 4))
    cluster.change((1, 2, 3))
    assert cluster.reassign((4, 5)) == Done()
    moving = cluster.a0()
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert state(moving) == (1, (1, 2), 1, 3), "broker 3 was shut out"
    cluster.reassign(None)
    assert cluster.a0().replicas == (1, 2)


def test_an_unwanted_replica_stays_while_only_it_is_in_sync() -> None:
    cluster = Cluster(4)
    cluster.create("a", (1,))
    cluster.reassign((2, 3))
    cluster.change((1, 2))
    cluster.lives(2, 3, 4)
    assert state(cluster.a0())[:2] == (2, (2,))
    assert cluster.reassign((4,)) == Done()
    assert (cluster.a0().replicas, cluster.a0().removing, cluster.a0().isr) == ((4, 1, 2), (1, 2), (2,))
    cluster.change((2, 4))
    assert (cluster.a0().replicas, cluster.a0().leader) == ((4,), 4)


def _in_doubt_while_moving(*back: int) -> Cluster:
    """A move from (1, 2) to (1, 4, 5): 4 is in sync, 5 still copies. 1, 2 and 4 lose power; some are back."""
    cluster = Cluster(5)
    cluster.create("a", (1, 2), min_insync_replicas="2")
    cluster.reassign((1, 4, 5))
    cluster.change((1, 2, 4))
    cluster.lives(3, 5)
    cluster.lives(3, 5, *back, incarnation="second", unclean_shutdown=True)
    assert cluster.a0().leader == NO_LEADER
    return cluster


@pytest.mark.parametrize(
    ("back", "elr", "last_known_elr"),
    [((1, 2, 4), (), (1, 4, 2)), ((1, 2), (4,), (1, 2)), ((), (1, 4, 2), ())],
)
def test_who_is_waited_for_is_not_dropped(
    back: tuple[int, ...], elr: tuple[int, ...], last_known_elr: tuple[int, ...]
) -> None:
    cluster = _in_doubt_while_moving(*back)
    before = cluster.image
    assert (cluster.a0().elr, cluster.a0().last_known_elr) == (elr, last_known_elr)
    assert code(cluster.reassign(None)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.image is before
    assert cluster.reassign((1, 2)) == Done()
    moving = cluster.a0()
    assert (moving.replicas, moving.adding, moving.removing) == ((1, 2, 4), (), (4,))
    assert set(moving.elr) == set(elr) and set(moving.last_known_elr) == set(last_known_elr)
    cluster.lives(1, 2, 3, 4, 5, incarnation="second", unclean_shutdown=True)
    cluster.report("a", b1=(0, 50), b2=(0, 60), b4=(0, 100))
    assert state(cluster.a0())[:2] == (4, (4,)), "the longest log leads until others have it"
    cluster.change((4, 1, 2))
    assert cluster.a0().replicas == (1, 2) and cluster.a0().leader == 1


def test_going_back_waits_for_nobody_where_unclean_elections_are_allowed() -> None:
    cluster = _in_doubt_while_moving(2, 4)
    cluster.allow_unclean(ConfigResourceType.TOPIC, "a")
    assert cluster.a0().leader == NO_LEADER, "nobody has said how long its log is"
    assert cluster.reassign(None) == Done()
    assert cluster.a0().replicas == (1, 2)


def test_a_dead_target_is_waited_for() -> None:
    cluster = Cluster()
    cluster.create("a", (1,))
    cluster.lives(1, 3)
    assert cluster.reassign((2,)) == Done()
    assert cluster.a0().reassigning and cluster.a0().leader == 1
    cluster.lives(1, 2, 3, incarnation="second")
    cluster.change((1, 2))
    assert (cluster.a0().replicas, cluster.a0().leader) == ((2,), 2)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refused_targets(replicas: tuple[int, ...], expected: ErrorCode) -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    before = cluster.image
    assert code(cluster.reassign(replicas)) is expected and cluster.image is before


def test_refused_reassignments_of_other_kinds() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    unknown = cluster.run(
        AlterReassignments(
            (Reassignment("b", 0, (1,)), Reassignment("a", 1, (1,)), Reassignment("b", 1, None))
        )
    )
    assert [code(result) for result in unknown] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    twice = cluster.run(AlterReassignments((Reassignment("a", 0, (1,)), Reassignment("a", 0, (2,)))))
    assert [code(result) for result in twice] == [ErrorCode.INVALID_REQUEST] * 2
    fixed = cluster.reassign((1,), allow_replication_factor_change=False)
    assert code(fixed) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.reassign((2, 3), allow_replication_factor_change=False) == Done()


# ------------------------------------------------------------ placement among dead brokers


def test_new_partitions_are_led_and_in_sync_where_brokers_are_alive() -> None:
    cluster = Cluster(4)
    cluster.lives(1, 2, 4)
    cluster.run(ShutDownBroker(4, 100))
    [two, four, five] = cluster.run(
        CreateTopics((TopicSpec("two", 8, 2), TopicSpec("four", 8, 4), TopicSpec("five", 1, 5)))
    )
    assert isinstance(two, TopicCreated) and isinstance(four, TopicCreated)
    assert code(five) is ErrorCode.INVALID_REPLICATION_FACTOR
    for partition in cluster.image.topics["two"].partitions:
        assert set(partition.replicas) == {1, 2} and partition.isr == partition.replicas
    for partition in cluster.image.topics["four"].partitions:
        assert set(partition.replicas) == {1, 2, 3, 4} and set(partition.isr) == {1, 2}
        assert partition.leader == partition.replicas[0]
    leaders = [partition.leader for partition in cluster.image.topics["four"].partitions]
    assert leaders.count(1) == leaders.count(2) == 4


def test_manual_assignments_may_name_dead_brokers_beside_others() -> None:
    cluster = Cluster()
    cluster.lives(2, 3)
    cluster.create("a", (1, 2))
    assert state(cluster.a0()) == (2, (2,), 0, 0)
    [dead] = cluster.run(CreateTopics((TopicSpec("b", assignments=((0, (1,)),)),)))
    assert code(dead) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    [grown, refused] = cluster.run(CreatePartitions((PartitionsSpec("a", 2, ((1, 3),)),))) + cluster.run(
        CreatePartitions((PartitionsSpec("a", 3, ((1, 9),)),))
    )
    assert grown == Done() and code(refused) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert state(cluster.image.topics["a"].partitions[1]) == (3, (3,), 0, 0)


def test_nothing_is_placed_when_nobody_is_there() -> None:
    cluster = Cluster()
    cluster.lives(1)
    cluster.run(ShutDownBroker(1, 100))
    [refused] = cluster.run(CreateTopics((TopicSpec("a", 1, 1),)))
    assert code(refused) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_growth_during_a_reassignment_takes_the_factor_it_leads_to() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.reassign((3,))
    assert cluster.run(CreatePartitions((PartitionsSpec("a", 2),))) == (Done(),)
    assert len(cluster.image.topics["a"].partitions[1].replicas) == 1
