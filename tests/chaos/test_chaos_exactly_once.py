"""The checks of exactly_once.py notice every fault that can be planted, and nothing where there is none."""

from dataclasses import replace

import pytest

from tests.chaos.exactly_once_checks import SPOILERS, History, Said, Seen, violations
from tests.chaos.transaction_worker import Taken, firsts, nexts, transform

WHOLE = "worker.1/1/4"
ABORTED = "worker.1/2/2"
ZOMBIE = "zombie.1/1/1"


@pytest.fixture
def history() -> History:
    """Two partitions with two records each; one aborted transaction, one of a zombie."""
    expected = [[transform(b"0"), transform(b"2")], [transform(b"1"), transform(b"3")]]
    committed = [[Seen(2 + place, value, WHOLE) for place, value in enumerate(values)] for values in expected]
    hidden = [
        [Seen(0, transform(b"0"), ABORTED), Seen(1, transform(b"0"), ZOMBIE)],
        [Seen(0, transform(b"1"), ABORTED)],
    ]
    return History(
        expected=expected,
        committed=committed,
        uncommitted=[before + after for before, after in zip(hidden, committed, strict=True)],
        watched=[list(records) for records in committed],
        said=Said(
            begun=frozenset({WHOLE, ABORTED, ZOMBIE}),
            committed=frozenset({WHOLE}),
            aborted=frozenset({ABORTED}),
            flushed=frozenset({ABORTED, ZOMBIE}),
            zombies=frozenset({ZOMBIE}),
        ),
        group_offsets=[2, 2],
    )


def test_a_good_history_passes(history: History) -> None:
    assert violations(history) == []


@pytest.mark.parametrize("name", SPOILERS)
def test_a_planted_fault_is_noticed(history: History, name: str) -> None:
    assert violations(SPOILERS[name](history))


@pytest.mark.parametrize(
    ("name", "words"),
    [("duplicate", "1 repeated"), ("loss", "1 lost"), ("order", "order"), ("glimpse", "watched")],
)
def test_the_fault_is_named(history: History, name: str, words: str) -> None:
    assert any(words in violation for violation in violations(SPOILERS[name](history)))


def test_a_visible_zombie_is_noticed(history: History) -> None:
    said = replace(history.said, zombies=frozenset({WHOLE}))
    assert any("of zombies and visible" in each for each in violations(replace(history, said=said)))


def test_a_run_without_aborted_records_shows_nothing(history: History) -> None:
    blind = replace(history, uncommitted=history.committed)
    assert any("nothing was shown" in each for each in violations(blind))


def test_offsets_of_a_batch() -> None:
    taken = [Taken(0, 7, b""), Taken(1, 3, b""), Taken(0, 8, b"")]
    assert firsts(taken) == {0: 7, 1: 3}
    assert nexts(taken) == {0: 9, 1: 4}
