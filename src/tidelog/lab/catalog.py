"""Every scenario, in the order of the tour; a module is imported when its scenario is asked for."""

import importlib
import pkgutil
from collections.abc import Iterator

from tidelog.lab import scenarios
from tidelog.lab.scenario import Scenario

#: the order of the guided path; a scenario that is not named here comes last
ORDER = (
    "topics-and-partitions",
    "keys-and-ordering",
    "producer-anatomy",
    "batching-and-compression",
    "on-disk",
    "consumer-groups",
    "rebalance",
    "offsets",
    "auto-offset-reset",
    "lag",
    "standalone-consumer",
    "delivery-semantics",
    "acks",
    "min-insync",
    "idempotence",
    "replication-and-failover",
    "controller-failover",
    "unclean-election",
    "transactions",
    "retention",
    "compaction",
    "total-order",
    "dead-letter",
    "share-group",
    "delayed-messages",
    "expiring-messages",
    "priority-messages",
    "sensor-and-worker",
    "acl",
    "kappa",
    "spark-pipeline",
)


def names() -> list[str]:
    """The names of all scenarios that are there, in the order of the tour."""
    found = [module.name.replace("_", "-") for module in pkgutil.iter_modules(scenarios.__path__)]
    places = {name: number for number, name in enumerate(ORDER)}
    return sorted(found, key=lambda name: (places.get(name, len(ORDER)), name))


def load(name: str) -> Scenario:
    """The scenario of this name; LookupError if there is none."""
    if name not in names():
        raise LookupError(f"there is no scenario {name!r}")
    module = importlib.import_module(f"{scenarios.__name__}.{name.replace('-', '_')}")
    scenario = module.SCENARIO
    assert isinstance(scenario, Scenario) and scenario.name == name, name
    return scenario


def all_scenarios() -> Iterator[Scenario]:
    """Every scenario in the order of the tour."""
    for name in names():
        yield load(name)
