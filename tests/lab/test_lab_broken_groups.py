"""The scenarios about groups, transactions, access and gateways notice a broken system, in the right step.

As in test_lab_broken_system: `broken_broker/sitecustomize.py` gives brokers, or gateways, the wrong edit.
"""

from pathlib import Path

import pytest

from tidelog.lab import catalog
from tidelog.lab.runner import run_scenario
from tidelog.lab.scenario import Outcome

BROKEN = Path(__file__).parent / "broken_broker"

#: wrong edit, the scenario that must notice it, the title of the step that does, and a piece of what it says
NOTICED = (
    ("aborted data is shown", "transactions", "Aborted", "'wrong' is hidden"),
    ("aborted data is shown", "delivery-semantics", "Exactly once", "none was lost, none repeated"),
    ("zombies are not fenced", "transactions", "A zombie", "because it is fenced"),
    ("commits are dropped", "offsets", "Commit after each record", "the group's committed offset is 10"),
    ("commits are dropped", "delivery-semantics", "At most once", "five orders were lost"),
    ("offsets of open transactions count", "delivery-semantics", "Exactly once", "none was lost"),
    ("sessions never end", "rebalance", "A member crashes", "anna have [4] partitions"),
    ("one member gets everything", "consumer-groups", "Two consumers", "the shares are [2, 2]"),
    (
        "accepted records come again",
        "share-group",
        "More workers than partitions",
        "each parcel was delivered once",
    ),
    (
        "rejected records come again",
        "share-group",
        "Accept, release, reject",
        "only 'heavy' came twice",
    ),
    ("locks never end", "share-group", "A worker hangs", "the other one has it"),
    ("the delivery limit is ignored", "share-group", "Too often", "it was delivered 3 times"),
    (
        "acknowledged before written",
        "sensor-and-worker",
        "A device publishes",
        "what was acknowledged is in the topic",
    ),
    ("given back is done", "sensor-and-worker", "A worker takes them as jobs", "everything was delivered"),
    (
        "redelivered is not said",
        "sensor-and-worker",
        "A worker takes them as jobs",
        "the gateway says which one was delivered before",
    ),
    (
        "places of sessions are forgotten",
        "sensor-and-worker",
        "An order for a device that is away",
        "device-7 has 3 messages",
    ),
    ("packet identifiers are forgotten", "sensor-and-worker", "Exactly once", "the alarm is there once"),
    ("everything is allowed", "acl", "Nobody may do anything", "she may not write"),
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("mutant", "name", "step", "said"), NOTICED, ids=[f"{row[0]}, {row[1]}" for row in NOTICED]
)
def test_a_broken_system_is_noticed(
    mutant: str, name: str, step: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BROKEN))
    monkeypatch.setenv("TIDELOG_LAB_MUTANT", mutant)
    result = run_scenario(catalog.load(name))
    print(*result.faults, sep="\n")
    assert result.outcome is Outcome.FAILED
    assert result.steps[-1].step.title == step
    assert any(said in fault for fault in result.faults), result.faults
