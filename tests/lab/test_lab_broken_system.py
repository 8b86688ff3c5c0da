"""A scenario is a test: where the system under it is broken, its check fails, in the step that is about it.

The brokers get their wrong edit from `broken_broker/sitecustomize.py`, which only this test puts on the path.
"""

from pathlib import Path

import pytest

from tidelog.lab import catalog
from tidelog.lab.runner import run_scenario
from tidelog.lab.scenario import Outcome

BROKEN = Path(__file__).parent / "broken_broker"

#: wrong edit, the scenario that must notice it, and a piece of the title of the step that does
NOTICED = (
    ("retries are stored again", "idempotence", "The same with idempotence"),
    ("acknowledged before replicated", "acks", "acks=all: the same trouble"),
    ("the minimum of replicas is ignored", "min-insync", "One broker is away"),
    ("nothing is retained away", "retention", "By age"),
    ("nothing is compacted", "compaction", "Many updates of few keys"),
    ("elections are unclean", "unclean-election", "The leader dies, the follower returns"),
    ("divergence is not seen", "unclean-election", "The old leader returns"),
    ("open transactions are visible", "transactions", "Together"),
    ("lookups by time are late", "on-disk", "A lookup by time"),
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("mutant", "name", "step"), NOTICED, ids=[row[0] for row in NOTICED])
def test_a_broken_system_is_noticed(
    mutant: str, name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BROKEN))
    monkeypatch.setenv("TIDELOG_LAB_MUTANT", mutant)
    result = run_scenario(catalog.load(name))
    print(*result.faults, sep="\n")
    assert result.outcome is Outcome.FAILED
    assert result.steps[-1].step.title == step
    assert result.faults


def test_the_folder_alone_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BROKEN))
    result = run_scenario(catalog.load("idempotence"))
    assert result.held, result.faults
