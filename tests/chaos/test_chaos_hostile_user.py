"""Every API under a user without rights, in small: nobody else waits for long, and nothing is kept.

The table of APIs is the list of tests, so a new API cannot be forgotten. How long others wait is measured by
what the broker computes meanwhile: the machine may be busy with other tests. `make hostile` has the largest
requests there are.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.chaos.hostile_attacks import ATTACKS, kept_mib_max, long_group_id
from tests.chaos.hostile_attacks import attack as attack_once
from tests.chaos.hostile_broker import HostileBroker, Probe
from tests.chaos.hostile_user import (
    KEPT_MIB_MAX,
    METADATA_MS_MAX,
    QUICK,
    Outcome,
    Who,
    attack,
    attackers_of,
    cases,
)
from tidelog.protocol.apis import APIS, Api

#: for requests of a quarter of the largest; without slices several APIs take longer
QUICK_CPU_MS_MAX = 80
#: what a machine that others keep busy does to one attack it seldom does to the next
ATTEMPTS = 3
#: a broker that serves every request in one step
ONE_STEP = "from tidelog.server import sliced_calls\nsliced_calls.SLICE_NS = 10**15\n"
#: one broker for all of them
pytestmark = pytest.mark.xdist_group("hostile user")


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostileBroker, Probe]]:
    folder = tmp_path_factory.mktemp("hostile")
    with HostileBroker(folder, QUICK.frame_bytes_max) as broker, Probe(broker) as probe:
        yield broker, probe


def best_of_attempts(broker: HostileBroker, probe: Probe, api: Api, version: int, who: Who) -> Outcome:
    """The first outcome below the bounds, or the last."""
    for attempt in range(ATTEMPTS):
        outcome = attack(broker, probe, api, version, QUICK, who)
        if outcome.seen.worst_cpu_ms <= QUICK_CPU_MS_MAX and outcome.kept_mib <= KEPT_MIB_MAX:
            break
        print(f"attempt {attempt + 1}: {outcome}")
    return outcome


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_no_api_lets_a_stranger_hold_others_up_or_fill_the_memory(
    api: Api, besieged: tuple[HostileBroker, Probe]
) -> None:
    broker, probe = besieged
    for _, version in cases([api.name]):
        for who in attackers_of(api):
            outcome = best_of_attempts(broker, probe, api, version, who)
            print(outcome)
            assert outcome.seen.worst_cpu_ms <= QUICK_CPU_MS_MAX, outcome
            assert outcome.kept_mib <= KEPT_MIB_MAX, outcome
            assert outcome.answered + outcome.closed > 0


def test_the_bound_is_broken_by_a_broker_that_serves_requests_in_one_step(tmp_path: Path) -> None:
    """So that the bound does not become one that nothing can break."""
    (tmp_path / "sitecustomize.py").write_text(ONE_STEP)
    source = f"{tmp_path}{os.pathsep}{Path(tidelog.__file__).parents[1]}"
    with HostileBroker(tmp_path, QUICK.frame_bytes_max, source) as broker, Probe(broker) as probe:
        outcomes = [
            best_of_attempts(broker, probe, api, version, Who.STRANGER)
            for api, version in cases(["Fetch", "OffsetCommit"])
        ]
    print(*outcomes, sep="\n")
    assert max(outcome.seen.worst_cpu_ms for outcome in outcomes) > QUICK_CPU_MS_MAX


@pytest.mark.parametrize("name", ATTACKS)
def test_a_single_attack_comes_to_nothing(name: str, tmp_path: Path) -> None:
    """Each of them stopped a broker or filled its memory once; see hostile_attacks.py."""
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with HostileBroker(folder, 100 << 20) as broker, Probe(broker) as probe:
            attack_once(broker, probe, "expression")
            result = attack_once(broker, probe, name)
        print(result)
        if result.seen.worst_cpu_ms <= METADATA_MS_MAX:
            break
    assert result.seen.worst_cpu_ms <= METADATA_MS_MAX, result
    assert result.kept_mib <= kept_mib_max(name) and result.log_kib < 500, result


def test_a_group_that_could_not_be_listed_is_not_made(besieged: tuple[HostileBroker, Probe]) -> None:
    assert long_group_id(besieged[0]) == "ListGroups answers 0, 0 groups"
