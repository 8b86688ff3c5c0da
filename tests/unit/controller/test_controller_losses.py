"""The controller after losses: directories that are gone, power cuts, unclean elections."""

from dataclasses import replace

import pytest

from tests.unit.controller.controller_cluster import A0, UNCLEAN, Cluster, code, state
from tidelog.controller.commands import (
    AlterConfigs,
    AssignReplicas,
    BrokersChanged,
    ChangeIsr,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResourceType,
    Done,
    ElectionType,
    ElectOffline,
    FailDirectories,
    IsrChange,
    IsrChanged,
    ReplicaPlacement,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.identifiers import LOST_DIRECTORY, NO_LEADER
from tidelog.model.metadata import ALL_BROKERS


def test_a_lost_disk_is_no_copy() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2), (2, 1))
    cluster.lives(2, 3)
    cluster.lives(1, 2, 3, incarnation="second", directories=("new-disk",))
    assert cluster.a0().directory_of(1) == "disk-1"
    assert code(cluster.change((2, 1))) is ErrorCode.INELIGIBLE_REPLICA
    cluster.places(1, "new-disk")
    assert cluster.change((2, 1)) == IsrChanged(cluster.a0())
    cluster.lives(1, 3)
    cluster.restarts(1, "third", directories=("newer-disk",))
    lost = cluster.a0()
    assert (lost.leader, lost.elr, lost.directory_of(1)) == (NO_LEADER, (1,), "new-disk")
    cluster.lives()
    assert cluster.a0() == lost, "it stays lost when the broker is seen again"
    assert code(cluster.elect(ElectionType.PREFERRED, A0)) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.restarts(1, "fourth", directories=("new-disk",))
    assert cluster.a0().leader == 1, "the disk was found"


def test_who_comes_back_without_its_directory_for_the_second_time_is_not_waited_for() -> None:
    """It was dead when the other one began to lead, and might have come back with it."""
    cluster = Cluster(2)
    cluster.create("a", (1, 2), min_insync_replicas="2")
    cluster.lives(1)
    cluster.run(BrokersChanged((), cluster.sequence))
    assert set(cluster.a0().elr) == {1, 2}
    cluster.lives(2, incarnation="second", directories=("new",))
    assert (cluster.a0().leader, set(cluster.a0().elr)) == (NO_LEADER, {1, 2})
    cluster.run(BrokersChanged((), cluster.sequence))
    cluster.lives(1, incarnation="second")
    assert (cluster.a0().leader, cluster.a0().elr) == (1, (2,))
    cluster.lives(1, 2, incarnation="third", directories=("new",))
    assert (cluster.a0().leader, cluster.a0().isr, cluster.a0().elr) == (1, (1,), ())
    assert not cluster.a0().counts_on(2), "it may begin anew, and join"


def test_a_directory_that_was_given_up_is_not_waited_for() -> None:
    """Both lose power; the disk of 1 is gone for good, and it returns on an empty one."""
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.create("b", (1,))
    cluster.lives(3)
    cluster.lives(2, 3, incarnation="second", unclean_shutdown=True)
    cluster.report("a", b2=(0, 90))
    cluster.lives(1, 2, 3, incarnation="second", directories=("new-disk",))
    assert (cluster.a0().leader, cluster.a0().elr) == (NO_LEADER, (1,)), "the disk may be mounted yet"
    cluster.restarts(1, "third", directories=("new-disk",), lost_directories=("disk-1",))
    assert (cluster.a0().leader, cluster.a0().elr, cluster.a0().last_known_elr) == (2, (), ())
    assert cluster.a0().unclean_leader_epoch == cluster.a0().leader_epoch
    alone = cluster.image.topics["b"].partitions[0]
    assert (alone.leader, alone.elr) == (NO_LEADER, (1,)), "there is no other"
    cluster.restarts(1, "fourth", directories=("disk-1",), lost_directories=("disk-1",))
    assert cluster.image.topics["b"].partitions[0].leader == 1, "it was found all the same"


def test_who_returns_from_a_power_cut_first_is_not_forgotten() -> None:
    """All lose power. The sessions of 2 and 3 have not ended when 1 is back: it leaves the ISR to them."""
    cluster = Cluster()
    cluster.create("a", (1, 2, 3), min_insync_replicas="2")
    cluster.restarts(1, "second", unclean_shutdown=True)
    assert (set(cluster.a0().isr), cluster.a0().last_known_elr) == ({2, 3}, (1,))
    cluster.lives(1)
    cluster.run(BrokersChanged((), cluster.sequence))
    cluster.lives(2, 3, incarnation="second", unclean_shutdown=True)
    cluster.report("a", b2=(0, 10), b3=(0, 0))
    assert cluster.a0().leader == NO_LEADER, "the log of 1 may be longer"
    cluster.lives(1, 2, 3, incarnation="third", unclean_shutdown=False)
    cluster.report("a", b1=(0, 90))
    assert cluster.a0().leader == 1


def test_a_leader_that_lives_ends_the_last_known_elr() -> None:
    """Only the machine of 1 lost power: the leader says so, and 1 is not waited for later."""
    cluster = Cluster()
    cluster.create("a", (2, 1, 3), min_insync_replicas="2")
    cluster.restarts(1, "second", unclean_shutdown=True)
    assert (cluster.a0().leader, cluster.a0().last_known_elr) == (2, (1,))
    cluster.change(cluster.a0().isr)
    assert (set(cluster.a0().isr), cluster.a0().last_known_elr) == ({2, 3}, ())


def test_a_doubtful_copy_that_was_given_up_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.lives(3)
    cluster.lives(1, 3, incarnation="second", unclean_shutdown=True)
    cluster.lives(1, 2, 3, incarnation="second", unclean_shutdown=True)
    assert cluster.a0().last_known_elr == (1, 2)
    cluster.restarts(1, "third", directories=("new-disk",), unclean_shutdown=False)
    cluster.report("a", b2=(0, 90))
    assert cluster.a0().leader == NO_LEADER and cluster.a0().last_known_elr == (1, 2)
    cluster.restarts(
        1, "fourth", directories=("new-disk",), lost_directories=("disk-1",), unclean_shutdown=False
    )
    assert state(cluster.a0())[:2] == (2, (2,))


@pytest.mark.parametrize(("lost", "leader"), [((1,), 2), ((1, 2), NO_LEADER)])
def test_a_doubtful_replica_that_is_in_no_directory_is_not_waited_for(
    lost: tuple[int, ...], leader: int
) -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.lives(3)
    cluster.lives(1, 2, 3, incarnation="second", unclean_shutdown=True)
    for broker_id in lost:
        assert cluster.places(broker_id, LOST_DIRECTORY) == Done()
    assert cluster.a0().leader == leader


@pytest.mark.parametrize(
    ("member", "other", "leader"),
    [((2, 23), (3, 18), 1), ((2, 23), (3, 30), 1), ((2, 23), (2, 30), 3), ((-1, 0), (3, 18), 3)],
)
def test_records_of_an_epoch_that_came_to_nothing_do_not_lead(
    member: tuple[int, int], other: tuple[int, int], leader: int
) -> None:
    """3 led for a while and left; 1 and 2 went on with older records, wrote none, and lost power."""
    cluster = Cluster()
    cluster.create("a", (1, 2, 3))
    cluster.change((1, 2))
    cluster.lives(3)
    cluster.lives(1, 2, 3, incarnation="second", unclean_shutdown=True)
    assert cluster.a0().last_known_elr == (1, 2)
    cluster.report("a", b1=member, b2=(-1, 0), b3=other)
    assert state(cluster.a0())[:2] == (leader, (leader,))


def test_a_replica_in_a_directory_that_failed_is_waited_for() -> None:
    """Its broker says where it is, though that is offline: it may come back with the disk."""
    cluster = Cluster()
    cluster.live = {
        number: replace(each, incarnation="other", directories=(f"disk-{number}", f"spare-{number}"))
        for number, each in cluster.live.items()
    }
    cluster.lives()
    cluster.create("a", (1, 2))
    assert isinstance(cluster.places(1, "disk-9"), Refused), "it has no directory offline"
    cluster.lives(3)
    cluster.lives(1, 2, 3, incarnation="second", unclean_shutdown=True)
    assert cluster.a0().last_known_elr == (1, 2)
    cluster.run(FailDirectories(1, cluster.image.brokers[1].epoch, ("disk-1",)))
    assert cluster.places(1, "disk-1") == Done()
    cluster.report("a", b2=(0, 3))
    assert cluster.a0().leader == NO_LEADER, "the longest log may be in the directory that failed"
    cluster.restarts(1, "third", directories=("disk-1", "spare-1"), unclean_shutdown=False)
    cluster.report("a", b1=(0, 5))
    assert state(cluster.a0())[:2] == (1, (1,))


def test_an_unclean_election_prefers_an_old_copy_to_none() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.change((1,))
    cluster.restarts(1, directories=("new-disk",))
    assert cluster.a0().leader == NO_LEADER
    assert cluster.elect(ElectionType.UNCLEAN, A0) is None
    assert (cluster.a0().leader, cluster.a0().isr) == (2, (2,))
    assert cluster.a0().unclean_leader_epoch == cluster.a0().leader_epoch


# ------------------------------------------------------------ unclean elections


@pytest.mark.parametrize("where", ["at creation", "topic", "all brokers", "at start"])
def test_unclean_elections_happen_where_they_are_allowed(where: str) -> None:
    cluster = Cluster(**({UNCLEAN: "true"} if where == "at start" else {}))  # type: ignore[arg-type]
    cluster.create("a", (1, 2), **({UNCLEAN: "true"} if where == "at creation" else {}))
    cluster.create("b", (1, 2), **{UNCLEAN: "false"})
    cluster.change((1,))
    b = cluster.image.topics["b"]
    cluster.run(ChangeIsr(1, 100, (IsrChange(b.topic_id, 0, 0, 0, (1,)),)))
    cluster.lives(2, 3)
    assert cluster.a0().leader == NO_LEADER, "others may come back in a moment"
    cluster.run(ElectOffline())
    assert cluster.a0().leader == NO_LEADER, "nobody has said how long its log is"
    cluster.report("a", b2=(0, 7))
    cluster.report("b", b2=(0, 7))
    if where in ("topic", "all brokers"):
        assert state(cluster.a0()) == (NO_LEADER, (), 1, 3) and cluster.a0().elr == (1,)
        if where == "topic":
            cluster.allow_unclean(ConfigResourceType.TOPIC, "a")
        else:
            cluster.allow_unclean(ConfigResourceType.BROKER, ALL_BROKERS)
    else:
        cluster.run(ElectOffline())
    assert state(cluster.a0())[:2] == (2, (2,))
    assert cluster.a0().unclean_leader_epoch == cluster.a0().leader_epoch
    assert cluster.image.topics["b"].partitions[0].leader == NO_LEADER


def test_a_replica_whose_directory_is_offline_does_not_hold_an_unclean_election_up() -> None:
    cluster = Cluster(**{UNCLEAN: "true"})  # type: ignore[arg-type]
    cluster.live = {
        number: replace(each, incarnation="other", directories=(f"disk-{number}", f"spare-{number}"))
        for number, each in cluster.live.items()
    }
    cluster.lives()
    cluster.create("a", (1, 2))
    cluster.create("b", (1,))
    cluster.change((1,))
    places = tuple(cluster.image.topics[name].partitions[0].directory_of(1) for name in "ab")
    cluster.run(FailDirectories(1, cluster.image.brokers[1].epoch, places[:1]))
    if len(set(places)) > 1:
        placement = ReplicaPlacement(cluster.image.topics["b"].topic_id, 0, LOST_DIRECTORY)
        cluster.run(AssignReplicas(1, cluster.image.brokers[1].epoch, (placement,)))
    assert [cluster.image.topics[name].partitions[0].leader for name in "ab"] == [NO_LEADER] * 2
    cluster.report("a", b2=(0, 10))
    cluster.run(ElectOffline())
    assert state(cluster.a0())[:2] == (2, (2,)), "broker 1 will never say how long its log is"
    alone = cluster.image.topics["b"].partitions[0]
    assert (alone.leader, alone.elr) == (NO_LEADER, (1,)), "nothing is begun anew unasked"


def test_unsetting_a_stricter_setting_of_a_topic_elects() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2), **{UNCLEAN: "false"})
    cluster.change((1,))
    cluster.lives(2, 3)
    cluster.report("a", b2=(0, 7))
    cluster.allow_unclean(ConfigResourceType.BROKER, ALL_BROKERS)
    assert cluster.a0().leader == NO_LEADER
    unset = ConfigChange(UNCLEAN, ConfigOperation.DELETE)
    assert cluster.run(AlterConfigs((ConfigChanges(ConfigResourceType.TOPIC, "a", (unset,)),))) == (Done(),)
    assert state(cluster.a0())[:2] == (2, (2,))


def test_only_checking_whether_unclean_could_be_set_elects_nobody() -> None:
    cluster = Cluster()
    cluster.create("a", (1, 2))
    cluster.change((1,))
    cluster.lives(2, 3)
    change = ConfigChanges(
        ConfigResourceType.TOPIC, "a", (ConfigChange(UNCLEAN, ConfigOperation.SET, "true"),)
    )
    assert cluster.run(AlterConfigs((change,), validate_only=True)) == (Done(),)
    assert cluster.a0().leader == NO_LEADER


# ------------------------------------------------------------ ISR changes
