"""What members of a share group saw and were told, and what must hold of it.

`check` gets what was produced, what every member said, and the dead letters; it returns what is wrong, and
figures.

- every record was delivered, or is a dead letter
- of at most one delivery of a record a member was told that it counts, and none came after that; but a member
  that stood still until its locks were over may still be given what its client had fetched, and is told that
  all is well if the record was dealt with meanwhile, as on Apache Kafka
- a delivery of which nobody was told has a reason: its member had ended, or what it said was refused
- what members reject is a dead letter and nothing else is, save what was delivered as often as allowed
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

KILLED, FALLEN = "member killed", "member ended by itself"
#: one in so many is rejected, in a run with dead letters
REJECT_EVERY = 10
_EXAMPLES_MAX = 3
#: what a member says so soon after it stood still may be of locks that are over
LATE_SECONDS = 10.0


def rejected(number: int) -> bool:
    """Whether members reject this record, where there are dead letters."""
    return number % REJECT_EVERY == 3


class Said(NamedTuple):
    """A line of a member."""

    #: seconds of the machine's monotonic clock
    at: float
    #: each process has a name of its own
    member: str
    #: got, told or refused
    word: str
    numbers: tuple[int, ...]
    #: why it was refused
    why: str = ""


class Delivery(NamedTuple):
    """A record at a member."""

    at: float
    member: str


@dataclass
class Figures:
    """What a run came to."""

    produced: int = 0
    delivered: int = 0
    #: records that were delivered more than once
    again: int = 0
    #: deliveries of which nobody was told that they count, by their reason
    untold: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    dead: int = 0
    #: dead letters beyond one for each record
    dead_again: int = 0
    #: dead letters of what nobody rejected: delivered as often as allowed
    given_up: int = 0
    #: acknowledgements of members that stood still, of records that others had dealt with
    late: int = 0

    def __str__(self) -> str:
        reasons = ", ".join(f"{why}: {count}" for why, count in sorted(self.untold.items())) or "none"
        return (
            f"{self.produced} produced, {self.delivered} delivered, {self.again} more than once; "
            f"deliveries that do not count: {reasons}; "
            f"{self.late} acknowledged late; {self.accepted} accepted, {self.dead} dead letters "
            f"({self.given_up} delivered too often, {self.dead_again} written twice)"
        )


def check(
    produced: Iterable[int],
    said: Iterable[Said],
    killed: Iterable[str],
    fallen: Iterable[str] = (),
    went_on: Mapping[str, Iterable[float]] | None = None,
    dead: Mapping[int, int] | None = None,
    deliveries_max: int = 10,
) -> tuple[list[str], Figures]:
    """What is wrong, and the figures; `dead` is None in a run without dead letters.

    `went_on` has when members that stood still went on.
    """
    wanted, letters = set(produced), Counter(dead or {})
    deliveries: dict[int, list[Delivery]] = defaultdict(list)
    told: dict[int, list[Delivery]] = defaultdict(list)
    refused: dict[tuple[str, int], str] = {}
    for line in sorted(said):
        for number in line.numbers:
            if line.word == "got":
                deliveries[number].append(Delivery(line.at, line.member))
            elif line.word == "told":
                told[number].append(Delivery(line.at, line.member))
            else:
                refused[line.member, number] = line.why
    figures = Figures(len(wanted), len(deliveries), sum(len(each) > 1 for each in deliveries.values()))
    faults = _lost(wanted, deliveries, letters)
    timely, on_time = _without_late(told, went_on or {}), _without_late(deliveries, went_on or {})
    figures.late = sum(len(told[number]) - len(timely[number]) for number in told)
    faults += _told_once(timely, on_time)
    ended = {**dict.fromkeys(fallen, FALLEN), **dict.fromkeys(killed, KILLED)}
    faults += _unexplained(deliveries, told, refused, ended, figures.untold)
    faults += _dead_letters(wanted, deliveries, told, letters if dead is not None else None, deliveries_max)
    figures.dead, figures.dead_again = len(letters), letters.total() - len(letters)
    figures.given_up = sum(1 for number in letters if not rejected(number))
    figures.accepted = len(deliveries.keys() - letters.keys())
    return faults, figures


def _fault(what: str, numbers: Iterable[int]) -> list[str]:
    found = sorted(numbers)
    return [f"{len(found)} {what}, such as {found[:_EXAMPLES_MAX]}"] if found else []


def _lost(
    wanted: set[int], deliveries: Mapping[int, list[Delivery]], letters: Mapping[int, int]
) -> list[str]:
    return [
        *_fault("were lost", wanted - deliveries.keys() - letters.keys()),
        *_fault("were never produced", (deliveries.keys() | letters.keys()) - wanted),
    ]


def _without_late(
    found: Mapping[int, list[Delivery]], went_on: Mapping[str, Iterable[float]]
) -> dict[int, list[Delivery]]:
    """Without what came of locks that were over; the only one of a record stays, whatever it was."""

    def late(each: Delivery) -> bool:
        return any(0 <= each.at - moment <= LATE_SECONDS for moment in went_on.get(each.member, ()))

    return {
        number: rows if len(rows) == 1 else [each for each in rows if not late(each)] or rows[:1]
        for number, rows in found.items()
    }


def _told_once(told: Mapping[int, list[Delivery]], deliveries: Mapping[int, list[Delivery]]) -> list[str]:
    late = [
        number
        for number, answers in told.items()
        if any(each.at > answers[0].at for each in deliveries.get(number, ()))
    ]
    return [
        *_fault("count twice", (number for number, answers in told.items() if len(answers) > 1)),
        *_fault("came again after a member was told that they are dealt with", late),
    ]


def _unexplained(
    deliveries: Mapping[int, list[Delivery]],
    told: Mapping[int, list[Delivery]],
    refused: Mapping[tuple[str, int], str],
    ended: Mapping[str, str],
    reasons: Counter[str],
) -> list[str]:
    odd = []
    for number, found in deliveries.items():
        counted = {each.member for each in told.get(number, ())}
        for member in {each.member for each in found} - counted:
            why = refused.get((member, number)) or ended.get(member, "")
            reasons[why or "no reason"] += 1
            if not why:
                odd.append(number)
    return _fault("were delivered, and nobody said what became of it", odd)


def _dead_letters(
    wanted: set[int],
    deliveries: Mapping[int, list[Delivery]],
    told: Mapping[int, list[Delivery]],
    letters: Counter[int] | None,
    deliveries_max: int,
) -> list[str]:
    if letters is None:
        return []
    odd = [number for number in letters if not rejected(number)]
    accepted = (deliveries.keys() - letters.keys()) & wanted
    faults = [
        *_fault("were rejected and have no dead letter", {n for n in wanted if rejected(n)} - letters.keys()),
        *_fault("were accepted and are dead letters", (number for number in odd if number in told)),
    ]
    # What a member got that was killed before it could say so was delivered, too.
    seldom = [number for number in odd if len(deliveries.get(number, ())) < deliveries_max // 2]
    faults += _fault("were given up after few deliveries", seldom)
    if len(accepted) + len(letters) != len(wanted):
        faults.append(f"{len(accepted)} accepted and {len(letters)} dead are not {len(wanted)} produced")
    return faults
