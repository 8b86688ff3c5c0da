"""The lab's scenarios about clusters in the simulation: the same files, seeded and at once, and mutants."""

import logging
import time

import pytest

from tests.simulation import cluster_mutants
from tests.simulation.simulated_lab import SimulatedLab
from tidelog.lab import catalog
from tidelog.lab.runner import run_scenario
from tidelog.lab.scenario import Outcome, ScenarioResult

SEEDS = 5
SCENARIOS = ("acks", "min-insync", "unclean-election", "replication-and-failover", "controller-failover")

#: a wrong edit of the brokers, and the scenario that must notice it with some seed
NOTICED = (
    ("acks=all is answered before it is replicated", "acks"),
    ("elections are unclean", "unclean-election"),
    ("a diverging log is not truncated", "unclean-election"),
    ("a follower's log has gaps", "replication-and-failover"),
)


def simulated(name: str, seed: int) -> ScenarioResult:
    logging.disable(logging.CRITICAL)
    return run_scenario(
        catalog.load(name),
        make_lab=lambda scenario, events: SimulatedLab(scenario, events, seed),
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_holds_in_the_simulation(name: str) -> None:
    began = time.perf_counter()
    for seed in range(SEEDS):
        result = simulated(name, seed)
        assert result.outcome is Outcome.HELD, f"seed {seed}: {result.faults}"
    print(f"{name}: {SEEDS} seeds in {time.perf_counter() - began:.1f} s")


@pytest.mark.parametrize(("mutant", "name"), NOTICED, ids=[row[0] for row in NOTICED])
def test_a_wrong_edit_is_noticed(mutant: str, name: str) -> None:
    for seed in range(SEEDS):
        with cluster_mutants.alive(mutant):
            try:
                result = simulated(name, seed)
            except AssertionError as broken:  # an assertion of the broker itself was quicker
                print(f"{mutant}: seed {seed}: {broken!r}")
                return
        if not result.held:
            print(f"{mutant}: seed {seed}: {result.faults[0]}")
            return
    pytest.fail(f"{name} held with {SEEDS} seeds although {mutant}")


def test_a_seed_is_a_story() -> None:
    """The same seed shows the same, figures and all but the seconds of the clock on the wall."""
    first, second = (simulated("acks", 3).as_json() for _ in range(2))
    for one, other in zip(first["steps"], second["steps"], strict=True):
        assert one["shown"] == other["shown"] and one["figures"] == other["figures"]
