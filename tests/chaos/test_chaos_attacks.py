"""Every attack of `attacks.py` in small: memory bounded, others served, nobody in who does not belong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.attacked_broker import AttackedBroker
from tests.chaos.attacks import ATTACKS, besiege

#: what a healthy user waits at most in all but every hundredth round, on a machine that others keep busy
P99_MS_MAX = 15_000
ROUNDS_MIN = 10


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nowhere_and_others_are_served(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    attack = ATTACKS[name]
    with AttackedBroker(tmp_path) as broker:
        told, figures = besiege(broker, attack, attack.amount_in_tests)
    print(f"{name}: {told}; {figures}; bound {attack.memory_mib_max} MiB")
    record_property("figures", str(figures))
    assert figures.rounds >= ROUNDS_MIN and figures.p99_ms <= P99_MS_MAX, figures
