"""A whole cluster under seeded misfortune: what must always hold holds, and wrong brokers are noticed.

`TIDELOG_SIMULATION_CLUSTER_SEEDS` says how many seeds: `make test` runs few, `make simulation` more,
`make simulation-long` very many.
"""

import os
import sys
from pathlib import Path

import pytest
from hash_seeds import assert_same_output

sys.path.insert(0, str(Path(__file__).parent))

import cluster_mutants
import cluster_world

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_CLUSTER_SEEDS", "200"))
BLOCK = 50
MUTANT_SEEDS = 250


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, BLOCK))
def test_nothing_is_lost_and_everything_comes_to_rest(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEED_COUNT)):
        cluster_world.run(seed)


def test_the_same_seed_gives_the_same_story_whatever_the_hash_seed() -> None:
    assert_same_output(
        "cluster_world",
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
