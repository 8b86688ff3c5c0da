"""A whole cluster under seeded misfortune: what must always hold holds, and wrong brokers are noticed.

`TIDELOG_SIMULATION_CLUSTER_SEEDS` says how many seeds; `make simulation-long` runs many more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cluster_mutants
import cluster_world

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_CLUSTER_SEEDS", "1000"))
BLOCK = 50
MUTANT_SEEDS = 250


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, BLOCK))
def test_nothing_is_lost_and_everything_comes_to_rest(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEED_COUNT)):
        cluster_world.run(seed)


def test_the_same_seed_gives_the_same_story_whatever_the_hash_seed() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cluster_world as w;"
        "worlds = [w.ClusterWorld(seed) for seed in range(4)];"
        "print([(world.simulate(), world.story) for world in worlds])"
    )
    here = str(Path(__file__).parent)
    stories = [
        subprocess.run(
            [sys.executable, "-c", script, here],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert stories[0] == stories[1]
    assert stories[0].strip()


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
