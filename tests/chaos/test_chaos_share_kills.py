"""The checker of `make share-kills` notices what it is there for."""

from collections.abc import Callable

import pytest

from tests.chaos.share_history import FALLEN, KILLED, Said, check, rejected

COUNT = 40
NUMBERS = tuple(range(COUNT))


def story() -> list[Said]:
    """Everything is dealt with: 0 to 9 at the second try, after the first member was killed."""
    return [
        Said(1.0, "a", "got", NUMBERS[:10]),
        Said(2.0, "b", "got", NUMBERS),
        Said(3.0, "b", "told", NUMBERS),
    ]


def letters() -> dict[int, int]:
    return {number: 1 for number in NUMBERS if rejected(number)}


def test_what_went_well_is_found_to_have_gone_well() -> None:
    faults, figures = check(NUMBERS, story(), {"a"})
    assert faults == []
    assert (figures.delivered, figures.again, figures.accepted) == (COUNT, 10, COUNT)
    assert figures.untold == {KILLED: 10}
    faults, figures = check(NUMBERS, story(), {"a"}, dead=letters())
    assert faults == []
    assert (figures.accepted, figures.dead) == (COUNT - 4, 4)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda said: said.pop(0), ""),
        (lambda said: said.append(Said(4.0, "c", "got", (5,))), "came again after"),
        (lambda said: said.append(Said(4.0, "c", "told", (5,))), "count twice"),
        (lambda said: said.insert(1, Said(1.5, "c", "got", (5,))), "nobody said what became of it"),
        (lambda said: said.append(Said(4.0, "b", "got", (99,))), "were never produced"),
        (
            lambda said: said.__setitem__(
                slice(1, 3), [Said(2.0, "b", word, NUMBERS[:-1]) for word in ("got", "told")]
            ),
            "1 were lost, such as [39]",
        ),
    ],
)
def test_what_went_wrong_is_noticed(plant: Callable[[list[Said]], object], words: str) -> None:
    said = story()
    plant(said)
    faults, _ = check(NUMBERS, said, {"a"})
    assert bool(faults) is bool(words)
    assert any(words in fault for fault in faults) or not words


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        ({3: 1, 13: 1, 23: 1}, "were rejected and have no dead letter"),
        ({**letters(), 4: 1}, "were accepted and are dead letters"),
        ({**letters(), 99: 1}, "were never produced"),
    ],
)
def test_a_dead_letter_too_many_or_too_few_is_noticed(dead: dict[int, int], words: str) -> None:
    faults, _ = check(NUMBERS, story(), {"a"}, dead=dead)
    assert any(words in fault for fault in faults)


def test_why_a_delivery_does_not_count_is_told() -> None:
    said = [Said(0.5, "r", "got", (1,)), Said(0.6, "r", "refused", (1,), "INVALID_RECORD_STATE"), *story()]
    faults, figures = check(NUMBERS, said, (), {"a"})
    assert faults == []
    assert figures.untold == {"INVALID_RECORD_STATE": 1, FALLEN: 10}


def test_a_member_that_stood_still_may_be_late() -> None:
    said = [
        Said(0.5, "s", "got", (1,)),
        *story(),
        Said(20.0, "s", "told", (1,)),
        Said(20.5, "s", "got", (2,)),
        Said(21.0, "s", "told", (2,)),
    ]
    faults, figures = check(NUMBERS, said, {"a"}, went_on={"s": [19.5]})
    assert faults == []
    assert figures.late == 2
    faults, _ = check(NUMBERS, said, {"a"})
    assert len(faults) == 2
    faults, _ = check(NUMBERS, said, {"a"}, went_on={"s": [5.0]})
    assert len(faults) == 2
