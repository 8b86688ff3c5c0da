"""Transactions under seeded misfortune: what must always hold holds, and wrong machines are noticed."""

import os

import pytest

from tests.simulation import transaction_mutants, transaction_world
from tests.simulation.hash_seeds import assert_same_output

SEED_COUNT = int(os.environ.get("TIDELOG_SIMULATION_SEEDS", "500"))
BLOCK = 50
MUTANT_SEEDS = 100


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, BLOCK))
def test_nothing_breaks_and_everything_is_decided(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + BLOCK, SEED_COUNT)):
        try:
            transaction_world.TransactionWorld(seed).simulate()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    assert_same_output(
        "tests.simulation.transaction_world", "[w.TransactionWorld(seed).simulate() for seed in range(5)]"
    )


@pytest.mark.parametrize("mutant", transaction_mutants.MUTANTS)
def test_a_wrong_machine_is_noticed(mutant: str) -> None:
    with transaction_mutants.alive(mutant):
        for seed in range(MUTANT_SEEDS):
            try:
                transaction_world.TransactionWorld(seed).simulate()
            except (AssertionError, KeyError) as broken:
                print(f"{mutant}: seed {seed}: {type(broken).__name__} {str(broken)[:100]}")
                return
    pytest.fail(f"survived {MUTANT_SEEDS} seeds")
