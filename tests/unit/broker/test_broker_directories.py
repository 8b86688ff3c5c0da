"""Several log directories per broker, among brokers without sockets: lost, swapped, failed, found again."""

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.in_memory_cluster import InMemoryCluster, Node, Produced
from tests.support.simulated_disk import SimulatedDisk
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replicas.replicas import OfflineReplica
from tidelog.broker.replication.directory_failure_reports import DirectoryFailureReports
from tidelog.broker.replication.replica_fetcher import ReplicaFetcher
from tidelog.broker.replication.replica_homes import ReplicaHomes
from tidelog.broker.requests.handlers import describe_log_dirs
from tidelog.controller import partition_change
from tidelog.controller.commands import (
    AlterReassignments,
    DeleteTopics,
    ElectionType,
    ElectLeaders,
    Reassignment,
    TopicReference,
)
from tidelog.controller.partition_change import PartitionDraft
from tidelog.model.errors import ErrorCode
from tidelog.model.events import COMMITTED_RECORDS_CUT, CUT_REFUSED, DIRECTORY_FAILED
from tidelog.model.identifiers import MIGRATING_DIRECTORY, NO_LEADER, TopicPartition
from tidelog.protocol.fetch_client import AnsweredPartition
from tidelog.storage import log_directory
from tidelog.storage.checkpoints import REPLICATION_OFFSET_CHECKPOINT
from tidelog.storage.log_directories import Home, LogDirectories
from tidelog.storage.log_directory import LogDirectoryUnusable

PARTITIONS = 4


def produce(cluster: InMemoryCluster, *values: bytes, index: int = 0) -> Produced:
    cluster.run_until(lambda: cluster.leader("t", index) is not None)
    leader = cluster.leader("t", index)
    assert leader is not None
    produced = cluster.produce(leader.node_id, "t", *values, index=index)
    cluster.run_until(lambda: produced)
    return produced


def cluster_with_records(**settings: Any) -> InMemoryCluster:
    """Three brokers with two directories each, and ten acknowledged records in every partition."""
    cluster = InMemoryCluster(log_dirs="/x,/y", **settings)
    cluster.create_topic("t", partitions=PARTITIONS, min_insync_replicas="2")
    for number in range(10):
        for index in range(PARTITIONS):
            assert produce(cluster, b"%d" % number, index=index).error is ErrorCode.NONE
    cluster.run_until(lambda: all(in_sync(cluster, index) for index in range(PARTITIONS)))
    return cluster


def in_sync(cluster: InMemoryCluster, index: int, *node_ids: int) -> bool:
    if cluster.controller is None or cluster.leader("t", index) is None:
        return False
    state = cluster.state("t", index)
    wanted = node_ids or state.replicas
    replicas = [cluster.broker(node_id).replicas.replica("t", index) for node_id in wanted]
    ends = {replica.log.log_end_offset if replica is not None else -1 for replica in replicas}
    return set(state.isr) == set(wanted) and len(ends) == 1 and ends != {-1}


def path_of(cluster: InMemoryCluster, node_id: int, index: int) -> str:
    return cluster.broker(node_id).log_directories.directory_of(TopicPartition("t", index)).path


def directory_ids(cluster: InMemoryCluster, node_id: int) -> dict[str, str]:
    return {each.path: each.directory_id for each in cluster.broker(node_id).log_directories.directories}


def kill_all(cluster: InMemoryCluster) -> None:
    for node_id in cluster.nodes:
        cluster.kill(node_id)


def start(cluster: InMemoryCluster, node_id: int, **options: Any) -> Node:
    node = cluster.restart(node_id, **options)
    cluster.run_until(lambda: node.registered)
    cluster.run_for(500)
    return node


def lose_y(disk: SimulatedDisk) -> None:
    disk.remove_tree("/y")


def empty_in_secret(disk: SimulatedDisk, directory: str) -> None:
    """Take all records of a log, and everything that would tell the broker so."""
    disk.remove_tree(f"{directory}/t-0")
    disk.make_directory(f"{directory}/t-0")
    disk.remove(f"{directory}/{REPLICATION_OFFSET_CHECKPOINT}")


def events(cluster: InMemoryCluster, node_id: int, kind: str) -> int:
    return cluster.broker(node_id).metrics.events.counts[kind]


def test_replicas_are_spread_over_directories_and_the_cluster_knows_where_they_are() -> None:
    cluster = cluster_with_records()
    for node_id in cluster.nodes:
        ids = directory_ids(cluster, node_id)
        assert set(cluster.state("t").directories).isdisjoint({MIGRATING_DIRECTORY})
        paths = [path_of(cluster, node_id, index) for index in range(PARTITIONS)]
        assert sorted(paths) == ["/x", "/x", "/y", "/y"]
        assert [ids[path] for path in paths] == [
            cluster.state("t", index).directory_of(node_id) for index in range(PARTITIONS)
        ]


def test_an_empty_directory_never_leads_and_nothing_is_lost() -> None:
    """All are killed; a later directory of broker 1 is replaced by an empty one; broker 1 starts first."""
    cluster = cluster_with_records()
    lost = [index for index in range(PARTITIONS) if path_of(cluster, 1, index) == "/y"]
    lost_id = directory_ids(cluster, 1)["/y"]
    kill_all(cluster)
    start(cluster, 1, before=lose_y)
    cluster.run_for(5_000)
    assert lost
    for index in range(PARTITIONS):
        state = cluster.state("t", index)
        assert state.leader == (NO_LEADER if index in lost else 1)
        assert (cluster.broker(1).replicas.replica("t", index) is None) == (index in lost)
    start(cluster, 2)
    start(cluster, 3)
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i, *((2, 3) if i in lost else (1, 2, 3))))  # type: ignore[misc]
        for node_id in cluster.state("t", index).isr:
            assert cluster.replica(node_id, "t", index).log.log_end_offset == 10
    # It stays out of use, and everybody can see it.
    request: Any = SimpleNamespace(body=SimpleNamespace(topics=None))
    broker = cluster.broker(1)
    shown: Any = describe_log_dirs.Handler(broker.log_directories, broker.log_moves).handle(request)
    assert {row["log_dir"]: row["error_code"] for row in shown["results"]} == {
        "/x": ErrorCode.NONE,
        "/y": ErrorCode.KAFKA_STORAGE_ERROR,
    }
    assert cluster.broker(1).replicas.absence("t", lost[0]) is ErrorCode.KAFKA_STORAGE_ERROR
    assert cluster.broker(2).image.brokers[1].offline_directories == 1
    # Somebody says that it is lost: the replicas are copied again.
    start(cluster, 1, tidelog_lost_directories=lost_id)
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
    assert len({path_of(cluster, 1, index) for index in range(PARTITIONS)}) == 2


def test_a_directory_that_was_only_away_is_used_again() -> None:
    cluster = cluster_with_records()
    kill_all(cluster)
    start(cluster, 1, before=lambda disk: disk.rename("/y", "/elsewhere"))
    start(cluster, 2)
    cluster.run_for(1_000)

    def bring_back(disk: SimulatedDisk) -> None:
        disk.remove_tree("/y")
        disk.rename("/elsewhere", "/y")

    start(cluster, 1, before=bring_back)
    start(cluster, 3)
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
        assert cluster.replica(1, "t", index).log.log_end_offset == 10


def test_the_order_of_the_directories_does_not_matter() -> None:
    cluster = cluster_with_records()
    before = [path_of(cluster, 1, index) for index in range(PARTITIONS)]
    kill_all(cluster)
    for node_id in (1, 2, 3):
        start(cluster, node_id, log_dirs="/y,/x")
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
    assert [path_of(cluster, 1, index) for index in range(PARTITIONS)] == before


def test_a_directory_that_is_taken_out_of_log_dirs_is_copied_again() -> None:
    cluster = cluster_with_records()
    start(cluster, 1, log_dirs="/x")
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
        assert path_of(cluster, 1, index) == "/x"
    # It comes back with old copies, which count for nothing.
    for index in range(PARTITIONS):
        produce(cluster, b"more", index=index)
    start(cluster, 1, log_dirs="/x,/y")
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
        assert path_of(cluster, 1, index) == "/x"
        assert cluster.replica(1, "t", index).log.log_end_offset == 11


def test_the_last_copy_waits_for_its_directory_or_is_given_up_by_an_election() -> None:
    cluster = InMemoryCluster(log_dirs="/x,/y")
    cluster.create_topic("t", partitions=2, replication_factor=1)
    for index in range(2):
        assert produce(cluster, b"only", index=index).error is ErrorCode.NONE
    holder, index = next(
        (node_id, index)
        for node_id in cluster.nodes
        for index in range(2)
        if cluster.broker(node_id).replicas.replica("t", index) is not None
    )
    directory = path_of(cluster, holder, index)
    start(cluster, holder, before=lambda disk: disk.rename(directory, "/away"))
    cluster.run_for(2_000)
    assert cluster.state("t", index).leader == NO_LEADER and cluster.state("t", index).elr == (holder,)
    node = cluster.nodes[holder]

    def find(disk: SimulatedDisk) -> None:
        disk.remove_tree(directory)
        disk.rename("/away", directory)

    node = start(cluster, holder, before=find)
    cluster.run_until(lambda: cluster.leader("t", index) is node)
    assert cluster.replica(holder, "t", index).log.log_end_offset == 1
    start(cluster, holder, before=lambda disk: disk.remove_tree(directory))
    results: list[Any] = []
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("t", index),))
    cluster.controller.broker.metadata.submit(command, results.extend)
    cluster.run_until(lambda: cluster.leader("t", index) is not None)
    assert produce(cluster, b"anew", index=index).offset == 0


def test_an_old_copy_does_not_count_while_the_newer_one_is_away() -> None:
    """A replica begins anew in another directory; then that one is away, and the old one is back."""
    cluster = InMemoryCluster((1, 2), log_dirs="/x,/y")
    cluster.create_topic("t", replication_factor=2)
    produce(cluster, b"old")
    cluster.run_until(lambda: in_sync(cluster, 0))
    old = path_of(cluster, 1, 0)
    new = "/y" if old == "/x" else "/x"
    start(cluster, 1, log_dirs=new)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert path_of(cluster, 1, 0) == new
    for number in range(9):
        assert produce(cluster, b"%d" % number).error is ErrorCode.NONE
    cluster.run_until(lambda: in_sync(cluster, 0))
    kill_all(cluster)
    start(cluster, 1, log_dirs=old)
    cluster.run_for(2_000)
    state = cluster.state("t")
    assert (state.leader, state.elr) == (NO_LEADER, (2, 1)), "broker 1 has one record of ten here"
    start(cluster, 2)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert cluster.replica(1, "t").log.log_end_offset == 10


def test_swapped_directories_of_two_brokers_are_refused() -> None:
    cluster = cluster_with_records()
    kill_all(cluster)
    stolen = cluster.nodes[2].disk

    def swap(disk: SimulatedDisk) -> None:
        file = stolen.open("/y/meta.properties", create=False)
        disk.replace_atomically("/y/meta.properties", file.read(0, file.size_bytes))

    with pytest.raises(LogDirectoryUnusable, match="/y belongs to broker 2, this is broker 1"):
        cluster.restart(1, before=swap)


def test_a_directory_that_fails_takes_its_leaders_away_at_once() -> None:
    cluster = cluster_with_records()
    index = next(
        index
        for index in range(PARTITIONS)
        if cluster.leader("t", index) is cluster.nodes[cluster.state("t", index).leader]
    )
    leader = cluster.state("t", index).leader
    failed = path_of(cluster, leader, index)
    led_elsewhere = [
        each
        for each in range(PARTITIONS)
        if cluster.state("t", each).leader == leader and path_of(cluster, leader, each) != failed
    ]
    cluster.nodes[leader].disk.fail_directory(failed)
    refused = cluster.produce(leader, "t", b"refused", index=index)
    cluster.run_until(lambda: refused)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    began_ms = cluster.clock.time_ms
    cluster.run_until(lambda: cluster.state("t", index).leader not in (leader, NO_LEADER))
    assert cluster.clock.time_ms - began_ms < 100, "the controller is told at once"
    assert events(cluster, leader, DIRECTORY_FAILED) == 1
    assert produce(cluster, b"more", index=index).offset == 10
    for each in led_elsewhere:
        assert cluster.state("t", each).leader == leader, "its other directory is well"
    assert cluster.nodes[leader].registered == [None] and not cluster.nodes[leader].fatal
    # After a start with a mended disk everything is as before.
    start(cluster, leader)
    for each in range(PARTITIONS):
        cluster.run_until(lambda i=each: in_sync(cluster, i))  # type: ignore[misc]


def test_leaders_do_not_wait_for_a_follower_whose_directory_failed() -> None:
    """Its broker goes on fetching other partitions, so it seems to be about to join again."""
    cluster = InMemoryCluster(log_dirs="/x,/y")
    cluster.create_topic("t", partitions=12, min_insync_replicas="2")
    for index in range(12):
        assert produce(cluster, b"for all", index=index).error is ErrorCode.NONE
    cluster.run_for(1_000)
    broker = cluster.broker(1)
    led_by_2 = [index for index in range(12) if cluster.state("t", index).leader == 2]
    assert {path_of(cluster, 1, index) for index in led_by_2} == {"/x", "/y"}
    directory = broker.log_directories.directory_of(TopicPartition("t", led_by_2[0]))
    broker.directory_failures.failed(directory, "it is broken")
    cluster.run_until(lambda: 1 not in cluster.state("t", led_by_2[0]).isr)
    cluster.run_for(2_000)
    began_ms = cluster.clock.time_ms
    for index in led_by_2:
        assert produce(cluster, b"not for broker 1", index=index).error is ErrorCode.NONE
    assert cluster.clock.time_ms - began_ms < 1_000


@pytest.mark.parametrize("told", [True, False])
def test_a_broker_stops_if_the_controller_does_not_hear_of_a_failed_directory(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_with_records(log_dir_failure_timeout_ms="4000")
    node_id = next(each for each in cluster.nodes if cluster.nodes[each] is not cluster.controller)
    broker = cluster.broker(node_id)
    if not told:
        monkeypatch.setattr(broker.metadata, "submit", lambda command, then, **how: None)
    broker.directory_failures.failed(broker.log_directories.directories[0], "it is broken")
    cluster.run_for(3_900)
    assert not cluster.nodes[node_id].fatal
    cluster.run_for(200)
    assert [fatal[:34] for fatal in cluster.nodes[node_id].fatal] == (
        [] if told else ["the controller has not heard for 4"]
    )


def test_a_full_disk_is_none_that_has_failed() -> None:
    cluster = cluster_with_records()
    leader = cluster.state("t").leader
    disk = cluster.nodes[leader].disk
    disk.capacity_bytes = disk.used_bytes
    refused = cluster.produce(leader, "t", b"x" * 1000)
    cluster.run_until(lambda: refused)
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.run_for(100)
    assert events(cluster, leader, DIRECTORY_FAILED) == 0 and cluster.state("t").leader == leader
    disk.capacity_bytes = None
    assert produce(cluster, b"room again").error is ErrorCode.NONE


def test_a_broker_without_any_directory_stops() -> None:
    cluster = cluster_with_records()
    leader = cluster.state("t").leader
    for path in ("/x", "/y"):
        cluster.nodes[leader].disk.fail_directory(path)
    for index in range(PARTITIONS):
        if cluster.state("t", index).leader == leader:
            cluster.produce(leader, "t", b"refused", index=index)
    cluster.run_until(lambda: cluster.nodes[leader].fatal, timeout_ms=120_000)
    assert "all log directories have failed" in cluster.nodes[leader].fatal[0]


def test_a_follower_keeps_what_is_committed_from_a_leader_that_lacks_it() -> None:
    """The records of broker 1 are removed while everything is down, and broker 1 starts first."""
    cluster = cluster_with_records()
    cluster.run_for(6_000)  # the watermarks are written down every five seconds
    directory = path_of(cluster, 1, 0)
    kill_all(cluster)
    start(cluster, 1, before=lambda disk: empty_in_secret(disk, directory))
    assert cluster.state("t").leader == 1
    for node_id in (2, 3):
        start(cluster, node_id)
        cluster.run_for(3_000)
        assert cluster.replica(node_id, "t").log.log_end_offset == 10, "it keeps its records"
        assert events(cluster, node_id, CUT_REFUSED) >= 1
        refused = cluster.broker(node_id).followed_logs.refused_cuts[TopicPartition("t", 0)]
        assert (refused.leader_id, refused.high_watermark, refused.offset) == (1, 10, 0)
    assert cluster.state("t").isr == (1,)
    # Without that leader, the records are served again.
    cluster.kill(1)
    cluster.run_for(500)
    results: list[Any] = []
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("t", 0),))
    cluster.controller.broker.metadata.submit(command, results.extend)
    cluster.run_until(lambda: in_sync(cluster, 0, 2, 3))
    assert cluster.replica(2, "t").log.log_end_offset == 10
    assert not cluster.broker(2).followed_logs.refused_cuts


def test_after_an_unclean_election_committed_records_are_cut_loudly() -> None:
    cluster = InMemoryCluster((1, 2))
    cluster.create_topic("t", replication_factor=2)
    produce(cluster, b"both")
    cluster.run_until(lambda: in_sync(cluster, 0))
    leader = cluster.state("t").leader
    other = 3 - leader
    cluster.kill(other)
    cluster.run_until(lambda: cluster.controller is not None and cluster.state("t").isr == (leader,))
    assert produce(cluster, b"only here").error is ErrorCode.NONE
    cluster.run_for(10_000)
    cluster.kill(leader)
    start(cluster, other)
    results: list[Any] = []
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("t", 0),))
    cluster.controller.broker.metadata.submit(command, results.extend)
    cluster.run_until(lambda: cluster.leader("t") is cluster.nodes[other])
    produce(cluster, b"another")
    start(cluster, leader)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert events(cluster, leader, COMMITTED_RECORDS_CUT) == 1
    assert events(cluster, leader, CUT_REFUSED) == 0
    assert cluster.content(1, "t") == cluster.content(2, "t")


def _move(cluster: InMemoryCluster, node_id: int) -> tuple[str, str]:
    """Begin to move t-0 to the other directory of a broker; from where, and to where."""
    home = path_of(cluster, node_id, 0)
    target = "/y" if home == "/x" else "/x"
    assert cluster.broker(node_id).log_moves.move(TopicPartition("t", 0), target) is ErrorCode.NONE
    return home, target


def announced_move() -> tuple[InMemoryCluster, int, str, str]:
    """A cluster that is being told of a move of its only copy: its holder, from where and whereto."""
    cluster = InMemoryCluster(log_dirs="/x,/y")
    cluster.create_topic("t", replication_factor=1)
    assert produce(cluster, b"only").error is ErrorCode.NONE
    holder = cluster.state("t").leader
    broker = cluster.broker(holder)
    home, target = _move(cluster, holder)
    cluster.run_until(lambda: broker.placements._reports.in_flight)
    return cluster, holder, home, target


def test_a_log_whose_directory_fails_while_it_moves_does_not_begin_anew() -> None:
    """The cluster is being told of the other directory when the one with the log fails."""
    cluster, holder, home, target = announced_move()
    broker = cluster.broker(holder)
    ids = directory_ids(cluster, holder)
    assert cluster.state("t").directory_of(holder) == ids[home], "it is not known yet"
    cluster.nodes[holder].disk.fail_directory(home)
    broker.directory_failures.failed(broker.log_directories.directory_of(TopicPartition("t", 0)), "broken")
    cluster.run_for(3_000)
    assert broker.replicas.replica("t", 0) is None, f"an empty log begins in {target}"
    state = cluster.state("t")
    assert (state.leader, state.elr) == (NO_LEADER, (holder,))
    assert state.directory_of(holder) == ids[home], "it comes back with its directory"
    # The disk is mended: the log is in the directory that it was about to leave.
    node = start(cluster, holder)
    cluster.run_until(lambda: cluster.leader("t") is node)
    assert cluster.replica(holder, "t").log.log_end_offset == 1


def test_a_log_that_was_lost_while_it_moved_begins_anew_when_an_election_says_so() -> None:
    cluster, holder, home, target = announced_move()
    broker = cluster.broker(holder)
    failed = directory_ids(cluster, holder)[home]
    cluster.nodes[holder].disk.fail_directory(home)
    broker.directory_failures.failed(broker.log_directories.directory_of(TopicPartition("t", 0)), "broken")
    cluster.run_for(3_000)
    assert cluster.state("t").directory_of(holder) == failed
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("t", 0),))
    cluster.controller.broker.metadata.submit(command, lambda results: None)
    cluster.run_until(lambda: cluster.state("t").leader == holder)
    cluster.run_for(2_000)
    assert cluster.state("t").leader == holder, "nothing is told to be lost that was given up"
    assert cluster.state("t").directory_of(holder) == directory_ids(cluster, holder)[target]
    assert produce(cluster, b"anew").offset == 0


def test_a_directory_fails_after_a_topic_went_whose_log_was_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InMemoryCluster(log_dirs="/x,/y")
    cluster.create_topic("t", partitions=2)
    for index in range(2):
        assert produce(cluster, b"a", index=index).error is ErrorCode.NONE
    cluster.run_until(lambda: all(in_sync(cluster, index) for index in range(2)))
    node_id = next(each for each in cluster.nodes if cluster.nodes[each] is not cluster.controller)
    broker = cluster.broker(node_id)
    monkeypatch.setattr(broker.placements._reports, "_send", lambda: None)
    _move(cluster, node_id)
    cluster.run_until(lambda: TopicPartition("t", 0) in broker.log_moves.announced)
    assert cluster.controller is not None
    command = DeleteTopics((TopicReference(name="t"),))
    cluster.controller.broker.metadata.submit(command, lambda results: None)
    cluster.run_until(lambda: "t" not in broker.image.topics)
    broker.directory_failures.failed(broker.log_directories.directories[0], "broken")
    assert len(broker.log_directories.directories) == 1
    assert not broker.log_moves.announced and not broker.log_moves.futures


def _reassign(cluster: InMemoryCluster, index: int, *replicas: int) -> None:
    assert cluster.controller is not None
    change = Reassignment("t", index, replicas)
    cluster.controller.broker.metadata.submit(AlterReassignments((change,)), lambda results: None)
    cluster.run_until(lambda: cluster.state("t", index).replicas == replicas)


def test_two_folders_of_a_replica_that_went_elsewhere_are_set_aside() -> None:
    """The second began while the directory of the first was away; then the replica was reassigned."""
    cluster = cluster_with_records()
    index = next(index for index in range(PARTITIONS) if path_of(cluster, 1, index) == "/y")
    start(cluster, 1, log_dirs="/x")
    cluster.run_until(lambda: in_sync(cluster, index))
    cluster.kill(1)
    cluster.run_until(lambda: in_sync(cluster, index, 2, 3))
    _reassign(cluster, index, 2, 3)
    node = start(cluster, 1)
    assert node.broker.replicas.replica("t", index) is None
    for path in ("/x", "/y"):
        names = node.disk.list(path)
        assert f"t-{index}" not in names
        assert any(name.startswith(f"t-{index}.") and name.endswith("-stray") for name in names)


def test_two_old_copies_do_not_keep_a_broker_from_starting() -> None:
    """What counts is in a third directory, which is away."""
    cluster = InMemoryCluster(log_dirs="/x,/y,/z")
    cluster.create_topic("t", min_insync_replicas="2")
    assert produce(cluster, b"a").error is ErrorCode.NONE
    cluster.run_until(lambda: in_sync(cluster, 0))
    first = path_of(cluster, 1, 0)
    second, third = (path for path in ("/x", "/y", "/z") if path != first)
    for path in (second, third):
        start(cluster, 1, log_dirs=path)
        cluster.run_until(lambda: in_sync(cluster, 0))
        assert produce(cluster, b"more").error is ErrorCode.NONE
        cluster.run_until(lambda: in_sync(cluster, 0))
    assert path_of(cluster, 1, 0) == third
    start(cluster, 1, log_dirs=f"{first},{second}")
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert cluster.replica(1, "t").log.log_end_offset == 3


@pytest.mark.parametrize("first", [1, 3])
def test_a_directory_that_is_away_is_waited_for_when_the_others_lost_their_power(first: int) -> None:
    """After a power cut of all only broker 3 has everything, and its directory is not mounted."""
    for seed in range(20):
        cluster = InMemoryCluster(seed=seed, log_dirs="/x,/y")
        cluster.create_topic("t", min_insync_replicas="2")
        for number in range(10):
            assert produce(cluster, b"%d" % number).error is ErrorCode.NONE
        cluster.run_until(lambda c=cluster: in_sync(c, 0))  # type: ignore[misc]
        plan = cluster.replica(3, "t").log.flush_plan()
        assert plan is not None
        plan.run()
        home = path_of(cluster, 3, 0)
        kill_all(cluster)
        order = (3, 1, 2) if first == 3 else (1, 2, 3)
        for node_id in order:
            away = node_id == 3
            start(
                cluster,
                node_id,
                power_cut=True,
                before=lambda disk, h=home, a=away: disk.rename(h, "/away") if a else None,
            )
        cluster.run_for(5_000)
        lost = all(cluster.replica(node_id, "t").log.log_end_offset < 10 for node_id in (1, 2))
        if lost:
            break
    assert lost, "the power cuts took nothing"
    state = cluster.state("t")
    assert state.leader == NO_LEADER and state.counts_on(3), state

    def find(disk: SimulatedDisk) -> None:
        disk.remove_tree(home)
        disk.rename("/away", home)

    start(cluster, 3, before=find)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert [cluster.replica(node_id, "t").log.log_end_offset for node_id in (1, 2, 3)] == [10, 10, 10]


def test_an_unclean_election_of_long_ago_is_no_leave_to_cut() -> None:
    """What was written since then is as committed as anything."""
    cluster = InMemoryCluster((1, 2))
    cluster.create_topic("t", replication_factor=2)
    produce(cluster, b"old")
    cluster.run_until(lambda: in_sync(cluster, 0))
    kill_all(cluster)
    start(cluster, 2)
    results: list[Any] = []
    assert cluster.controller is not None
    cluster.kill(2)
    start(cluster, 1, wiped=True)
    assert cluster.controller is not None
    command = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("t", 0),))
    cluster.controller.broker.metadata.submit(command, results.extend)
    cluster.run_until(lambda: cluster.leader("t") is not None)
    start(cluster, 2)
    cluster.run_until(lambda: in_sync(cluster, 0))
    assert cluster.state("t").unclean_leader_epoch >= 0
    for number in range(5):
        assert produce(cluster, b"%d" % number).error is ErrorCode.NONE
    cluster.run_for(6_000)
    kill_all(cluster)
    start(cluster, 1, before=lambda disk: empty_in_secret(disk, "/data"))
    assert cluster.state("t").leader == 1
    start(cluster, 2)
    cluster.run_for(3_000)
    assert cluster.replica(2, "t").log.log_end_offset >= 5, "it keeps its records"
    assert events(cluster, 2, CUT_REFUSED) >= 1


def test_an_offset_out_of_range_is_no_leave_to_cut_either() -> None:
    """A leader whose log starts within what the follower knows as committed, and ends there."""
    cluster = cluster_with_records()
    follower = next(each for each in cluster.state("t").replicas if each != cluster.state("t").leader)
    partition = cluster.replica(follower, "t")
    broker = cluster.broker(follower)
    fetcher = broker.fetchers.by_leader[cluster.state("t").leader]
    key = (partition.topic_id, 0)
    answered = AnsweredPartition(
        partition.topic_id, 0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, 4, None, -1, memoryview(b"")
    )
    cluster.run_until(lambda: partition.high_watermark == 10)
    fetcher._heed_error(key, partition, answered)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (0, 10)
    assert broker.followed_logs.refused_cuts[TopicPartition("t", 0)].offset == 4
    # Where everything the follower has was deleted by the leader it begins behind that.
    fetcher._heed_error(key, partition, answered._replace(log_start_offset=12))
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (12, 12)


def _as_older_versions_stored(cluster: InMemoryCluster) -> None:
    """Take out of the store what they did not know; the first directory was the only one with an id."""
    for entry in cluster.store.entries():
        if not entry.key.startswith(("brokers/", "partitions/")):
            continue
        fields = json.loads(entry.value)
        if entry.key.startswith("brokers/"):
            first = directory_ids(cluster, int(entry.key.removeprefix("brokers/")))["/x"]
            del fields["directories"], fields["offline_directories"]
            fields["disk_id"] = first
        else:
            del fields["directories"]
        value = json.dumps(fields).encode()
        version, owner = cluster.store._entries[entry.key][1:]
        cluster.store._entries[entry.key] = (value, version, owner)


@pytest.mark.parametrize("lost", [None, "/x"])
def test_a_cluster_of_an_older_version_goes_on(lost: str | None) -> None:
    cluster = cluster_with_records()
    kill_all(cluster)
    _as_older_versions_stored(cluster)
    in_lost = {index for index in range(PARTITIONS) if path_of(cluster, 1, index) == lost}
    for node_id in (1, 2, 3):
        damage = lost is not None and node_id == 1
        start(cluster, node_id, before=lambda disk, d=damage: disk.remove_tree("/x") if d else None)
    for index in range(PARTITIONS):
        wanted = (2, 3) if index in in_lost else (1, 2, 3)
        cluster.run_until(lambda i=index, w=wanted: in_sync(cluster, i, *w))  # type: ignore[misc]
        for node_id in wanted:
            assert cluster.replica(node_id, "t", index).log.log_end_offset == 10
            ids = directory_ids(cluster, node_id)
            cluster.run_until(
                lambda i=index, n=node_id, known=ids: (  # type: ignore[misc]
                    cluster.state("t", i).directory_of(n) == known[path_of(cluster, n, i)]
                )
            )


@pytest.mark.parametrize("noted", [False, True])
def test_an_older_version_did_not_tell_of_the_directory_that_is_empty_now(noted: bool) -> None:
    """At the first start after the upgrade a disk is not mounted: it was never told that it was there."""
    cluster = cluster_with_records()
    cluster.run_for(6_000 if noted else 0)
    kill_all(cluster)
    _as_older_versions_stored(cluster)
    lost = [index for index in range(PARTITIONS) if path_of(cluster, 1, index) == "/y"]
    start(cluster, 1, before=lose_y)
    cluster.run_for(3_000)
    assert lost
    for index in range(PARTITIONS):
        assert cluster.state("t", index).leader == (NO_LEADER if index in lost else 1)
        assert (cluster.broker(1).replicas.replica("t", index) is None) == (index in lost)
    assert [each.path for each in cluster.broker(1).log_directories.offline] == ["/y"]
    for node_id in (2, 3):
        start(cluster, node_id)
    for index in lost:
        cluster.run_until(lambda i=index: in_sync(cluster, i, 2, 3))  # type: ignore[misc]
        assert cluster.replica(2, "t", index).log.log_end_offset == 10
    # The cluster knows now: the directory is a new one.
    start(cluster, 1)
    for index in range(PARTITIONS):
        cluster.run_until(lambda i=index: in_sync(cluster, i))  # type: ignore[misc]
        assert cluster.replica(1, "t", index).log.log_end_offset == 10
        assert cluster.state("t", index).unclean_leader_epoch < 0
    assert len(directory_ids(cluster, 1)) == 2


def _always_out_of_range(self: ReplicaFetcher, key: Any, partition: Partition, answered: Any) -> None:
    self._cut([(key, partition, answered.log_start_offset)], fully=True)


def _without_what_has_failed(
    self: ReplicaHomes, place: TopicPartition, directory_id: str, announced: str | None
) -> None:
    self._replicas.offline[place] = OfflineReplica(directory_id, False)


MUTANTS: dict[str, tuple[list[tuple[Any, str, Any]], Callable[[], None]]] = {
    "committed records are cut": (
        [(Partition, "may_lose_committed", property(lambda self: True))],
        test_a_follower_keeps_what_is_committed_from_a_leader_that_lacks_it,
    ),
    "after an unclean election everything may be cut for ever": (
        [(Partition, "may_lose_committed", property(lambda self: self.unclean_leader_epoch >= 0))],
        test_an_unclean_election_of_long_ago_is_no_leave_to_cut,
    ),
    "nothing committed is ever cut": (
        [(Partition, "may_lose_committed", property(lambda self: False))],
        test_after_an_unclean_election_committed_records_are_cut_loudly,
    ),
    "out of range committed records are cut": (
        [(ReplicaFetcher, "_heed_error", _always_out_of_range)],
        test_an_offset_out_of_range_is_no_leave_to_cut_either,
    ),
    "a directory that is away is not waited for": (
        [(PartitionDraft, "_awaited", lambda self, holders, online, lives: ())],
        partial(test_a_directory_that_is_away_is_waited_for_when_the_others_lost_their_power, 3),
    ),
    "a place is believed though the log has failed elsewhere": (
        [(ReplicaHomes, "failed", _without_what_has_failed)],
        test_a_log_whose_directory_fails_while_it_moves_does_not_begin_anew,
    ),
    "an empty directory is accepted": (
        [
            (log_directory, "_held_back", lambda *what: ""),
            (ReplicaHomes, "may_open", lambda self, place, state: True),
        ],
        test_an_empty_directory_never_leads_and_nothing_is_lost,
    ),
    "an offline replica may lead": (
        [(partition_change, "is_online", lambda directory, directories: True)],
        test_an_empty_directory_never_leads_and_nothing_is_lost,
    ),
    "an old copy counts": (
        [(LogDirectories, "home_of", lambda self, place, believed: Home(self.directory_with(place)))],
        test_an_old_copy_does_not_count_while_the_newer_one_is_away,
    ),
    "the controller is not told of a failed directory": (
        [(DirectoryFailureReports, "_tell", lambda self: None)],
        test_a_directory_that_fails_takes_its_leaders_away_at_once,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_broker_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patches, story = MUTANTS[name]
    for holder, attribute, wrong in patches:
        monkeypatch.setattr(holder, attribute, wrong)
    with pytest.raises((AssertionError, KeyError)):
        story()
