"""Where the cluster believes a replica while its log moves, and what a late word about it cannot do."""

import pytest

from tests.support.in_memory_cluster import InMemoryCluster
from tests.unit.broker.test_broker_directories import (
    announced_move,
    directory_ids,
    path_of,
    produce,
    start,
)
from tidelog.controller.commands import AssignReplicas, ReplicaPlacement
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import NO_LEADER, TopicPartition


def test_a_log_on_its_way_is_not_told_to_be_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the cluster's word and the arrival: an older word that is late would outlive the move."""
    cluster, holder, _, target = announced_move()
    broker = cluster.broker(holder)
    monkeypatch.setattr(broker.log_moves._copies, "may_take_over", lambda partition: False)
    ids = directory_ids(cluster, holder)
    cluster.run_until(lambda: cluster.state("t").directory_of(holder) == ids[target])
    epoch = cluster.state("t").partition_epoch
    cluster.run_for(2_000)
    assert path_of(cluster, holder, 0) != target, "it is still on its way"
    assert (cluster.state("t").directory_of(holder), cluster.state("t").partition_epoch) == (
        ids[target],
        epoch,
    )
    monkeypatch.undo()
    cluster.run_until(lambda: path_of(cluster, holder, 0) == target)
    cluster.run_for(2_000)
    assert (cluster.state("t").directory_of(holder), cluster.state("t").partition_epoch) == (
        ids[target],
        epoch,
    )
    assert not broker.placements._arriving


def test_a_late_word_of_an_older_place_begins_no_empty_log() -> None:
    """The directory with the only copy has failed when the cluster hears that it is in the other one."""
    cluster = InMemoryCluster(log_dirs="/x,/y")
    cluster.create_topic("t", replication_factor=1)
    assert produce(cluster, b"only").error is ErrorCode.NONE
    holder = cluster.state("t").leader
    broker, home = cluster.broker(holder), path_of(cluster, holder, 0)
    ids = directory_ids(cluster, holder)
    cluster.nodes[holder].disk.fail_directory(home)
    broker.directory_failures.failed(broker.log_directories.directory_of(TopicPartition("t", 0)), "broken")
    cluster.run_until(lambda: cluster.state("t").leader == NO_LEADER)
    (other,) = (each for path, each in ids.items() if path != home)
    late = ReplicaPlacement(cluster.broker(holder).image.topics["t"].topic_id, 0, other)
    epoch = broker.image.brokers[holder].epoch
    assert cluster.controller is not None
    told: list[object] = []
    cluster.controller.broker.metadata.submit(AssignReplicas(holder, epoch, (late,)), told.extend)
    cluster.run_until(lambda: told)
    cluster.run_for(3_000)
    assert broker.replicas.replica("t", 0) is None, "an empty log has begun"
    assert cluster.state("t").directory_of(holder) == ids[home], "it comes back with its directory"
    node = start(cluster, holder)
    cluster.run_until(lambda: cluster.leader("t") is node)
    assert cluster.replica(holder, "t").log.log_end_offset == 1
