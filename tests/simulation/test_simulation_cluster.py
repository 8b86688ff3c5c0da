"""A whole cluster under seeded misfortune: what must always hold holds, and wrong brokers are noticed.

`TIDELOG_SIMULATION_CLUSTER_SEEDS` says how many seeds: `make test` runs few, `make simulation` more,
`make simulation-long` very many.
"""

import os

import pytest

from tests.simulation import cluster_mutants, cluster_world
from tests.simulation.cluster_checks import Broken
from tests.simulation.cluster_machines import Machine
from tests.simulation.hash_seeds import assert_same_output
from tidelog.broker.replicas.partition import Partition

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_CLUSTER_SEEDS", "200"))
BLOCK = 50
MUTANT_SEEDS = 250


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, BLOCK))
def test_nothing_is_lost_and_everything_comes_to_rest(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEED_COUNT)):
        cluster_world.run(seed)


def test_the_same_seed_gives_the_same_story_whatever_the_hash_seed() -> None:
    assert_same_output(
        "tests.simulation.cluster_world",
        "[(world.simulate(), world.story) for world in [w.ClusterWorld(seed) for seed in range(4)]]",
    )


@pytest.mark.parametrize("mutant", cluster_mutants.MUTANTS)
def test_a_wrong_broker_is_noticed(mutant: str) -> None:
    with cluster_mutants.alive(mutant):
        for seed in range(MUTANT_SEEDS):
            try:
                cluster_world.ClusterWorld(seed).simulate()
            except Exception as broken:
                print(f"{mutant}: seed {seed}: {type(broken).__name__} {str(broken)[:100]}")
                return
    pytest.fail(f"survived {MUTANT_SEEDS} seeds")


def _leader_behind(monkeypatch: pytest.MonkeyPatch, *, replicated: bool) -> tuple[Machine, Partition]:
    """A leader whose watermark is behind its log; the followers have all of it, or have not."""
    world = cluster_world.ClusterWorld(1)
    world._mood = []
    assert world.run_until(lambda: all(machine.registered for machine in world.running), 10_000)
    world._make_topic("t", 1, 3)
    assert world.run_until(lambda: world.checker.acknowledged_count > 3, 10_000)
    leader = next(machine for machine in world.running if machine.broker.replicas.led)
    partition = leader.broker.replicas.led["t", 0]
    assert world.run_until(lambda: partition.high_watermark == partition.log.log_end_offset, 10_000)
    with monkeypatch.context() as held:
        held.setattr(Partition, "advance_high_watermark", lambda self: False)
        others = [node_id for node_id in world.machines if node_id != leader.node_id]
        if not replicated:
            world.network.cuts.update((leader.node_id, other) for other in others)
        assert world.run_until(lambda: partition.high_watermark < partition.log.log_end_offset, 10_000)
        for client in world.clients:
            client.stopped = True
        world.run_for(100)
        ends = {
            world.machines[node_id].broker.replicas.followed["t", 0].log.log_end_offset for node_id in others
        }
        assert (ends == {partition.log.log_end_offset}) is replicated
    return leader, partition


def test_what_a_leader_commits_just_before_it_stands_down_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, partition = _leader_behind(monkeypatch, replicated=True)
    world = machine.cluster
    assert isinstance(world, cluster_world.ClusterWorld)
    with world.checker.watching():
        assert partition.advance_high_watermark()
        partition.follow(-1, partition.leader_epoch)
        world.happened(machine)
    assert world.checker.histories[partition.topic_id, 0].end == partition.log.log_end_offset


def test_a_watermark_that_is_too_high_just_before_a_leader_stands_down_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, partition = _leader_behind(monkeypatch, replicated=False)
    world = machine.cluster
    assert isinstance(world, cluster_world.ClusterWorld)
    with (
        world.checker.watching(),
        pytest.raises(Broken, match=r"t-0 in sync on \d: \d+ was committed, the log ends"),
    ):
        partition.high_watermark = partition.log.log_end_offset
        partition.follow(-1, partition.leader_epoch)
        world.happened(machine)
