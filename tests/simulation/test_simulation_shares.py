"""Share groups under seeded misfortune: what must always hold holds, and wrong machines are noticed."""

import os

import pytest

from tests.simulation import share_group_mutants, share_mutants
from tests.simulation.group_mutants import alive
from tests.simulation.hash_seeds import assert_same_output
from tests.simulation.share_group_world import ShareGroupWorld
from tests.simulation.share_world import ShareWorld

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_SHARE_SEEDS", "30"))
BLOCK = 15
MUTANT_SEEDS = 120
WORLDS: dict[str, type[ShareWorld | ShareGroupWorld]] = {"partition": ShareWorld, "group": ShareGroupWorld}
MUTANTS = {"partition": share_mutants.MUTANTS, "group": share_group_mutants.MUTANTS}
#: a seed of the group's world takes as long as several of the other
SEEDS = {"partition": SEED_COUNT, "group": SEED_COUNT // 5}


@pytest.mark.parametrize(
    ("world", "first_seed"),
    [(world, first) for world, count in SEEDS.items() for first in range(0, count, BLOCK)],
)
def test_nothing_breaks_and_everything_settles(world: str, first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEEDS[world])):
        try:
            WORLDS[world](seed).simulate()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    assert_same_output(
        "tests.simulation.test_simulation_shares",
        "[world(seed).simulate() for world in w.WORLDS.values() for seed in range(2)]",
    )


@pytest.mark.parametrize(
    ("world", "mutant"), [(world, mutant) for world, mutants in MUTANTS.items() for mutant in mutants]
)
def test_a_wrong_machine_is_noticed(world: str, mutant: str) -> None:
    with alive(MUTANTS[world][mutant]):
        for seed in range(MUTANT_SEEDS):
            try:
                WORLDS[world](seed).simulate()
            except (AssertionError, KeyError) as broken:
                print(f"{mutant}: seed {seed}: {type(broken).__name__} {str(broken)[:100]}")
                return
    pytest.fail(f"survived {MUTANT_SEEDS} seeds")
