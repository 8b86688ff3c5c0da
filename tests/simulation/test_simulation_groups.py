"""Consumer groups under seeded misfortune: what must always hold holds, and wrong machines are noticed."""

import os

import pytest

from tests.simulation import consumer_mutants, consumer_world, group_mutants, group_world
from tests.simulation.hash_seeds import assert_same_output

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_SEEDS", "500"))
BLOCK = 50
MUTANT_SEEDS = 150
WORLDS = {"classic": group_world.GroupWorld, "consumer": consumer_world.ConsumerWorld}
MUTANTS = [
    *(("classic", mutant) for mutant in group_mutants.MUTANTS),
    *(("consumer", mutant) for mutant in consumer_mutants.MUTANTS),
]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, BLOCK))
def test_nothing_breaks_and_everything_settles(world: str, first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEED_COUNT)):
        try:
            WORLDS[world](seed).simulate()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed(world: str) -> None:
    assert_same_output(
        "tests.simulation.test_simulation_groups",
        f"[w.WORLDS[{world!r}](seed).simulate() for seed in range(6)]",
    )


@pytest.mark.parametrize(("world", "mutant"), MUTANTS)
def test_a_wrong_machine_is_noticed(world: str, mutant: str) -> None:
    mutants = group_mutants.MUTANTS if world == "classic" else consumer_mutants.MUTANTS
    with group_mutants.alive(mutants[mutant]):
        for seed in range(MUTANT_SEEDS):
            try:
                WORLDS[world](seed).simulate()
            except (AssertionError, KeyError) as broken:
                print(f"{mutant}: seed {seed}: {type(broken).__name__} {str(broken)[:100]}")
                return
    pytest.fail(f"survived {MUTANT_SEEDS} seeds")
