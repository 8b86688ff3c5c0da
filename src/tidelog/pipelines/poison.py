"""Find the records on which a computation fails, by halving: whatever the computation is.

A batch that fails is cut in two by offsets until single records are left. Each halving is a run: it is
for the few that spoil a batch. When many fail it is the steps that are wrong, and the pipeline stops.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

POISON_MAX = 100


class TooMuchPoison(ValueError):
    """So many records fail that it cannot be the records."""


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that fails, and how."""

    place: Place
    reason: str
    stack: str

    @property
    def condition(self) -> str:
        """SQL that is true for this record alone."""
        return condition([self.place])


def condition(places: Sequence[Place]) -> str:
    """SQL that is true for a run of sorted places, out of records that are only these and others around."""
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for place in places:
        low, _ = ranges.get(place[:2], (place.offset, 0))
        ranges[place[:2]] = (low, place.offset)
    return " OR ".join(
        f"(topic = '{topic}' AND partition = {partition} AND offset BETWEEN {low} AND {high})"
        for (topic, partition), (low, high) in ranges.items()
    )


def is_data_fault(fault: BaseException) -> bool:
    """Whether a failure can come from a record; a cancelled job or a lost executor cannot."""
    from pyspark import errors

    kinds = (
        errors.ArithmeticException,
        errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException,
        errors.NumberFormatException,
        errors.PythonException,
        errors.SparkRuntimeException,
    )
    return isinstance(fault, kinds)


def find_poison(records: Any, compute: Callable[[Any], None]) -> list[Poison]:
    """The records of a frame that `compute` fails on, each by itself; raises TooMuchPoison."""
    from pyspark.errors import PySparkException

    rows = records.select("topic", "partition", "offset").collect()
    places = sorted(Place(*row) for row in rows)

    def fault_of(some: Sequence[Place]) -> PySparkException | None:
        try:
            compute(records.where(condition(some)))
        except PySparkException as fault:
            if not is_data_fault(fault):
                raise
            return fault
        return None

    return halve(places, fault_of)


def halve(
    places: Sequence[Place], fault_of: Callable[[Sequence[Place]], BaseException | None]
) -> list[Poison]:
    """The places that fail by themselves; `fault_of` says how a run of places fails, None if it does not."""
    found: list[Poison] = []
    waiting = [places] if places else []
    while waiting:
        some = waiting.pop()
        fault = fault_of(some)
        if fault is None:
            continue
        if len(some) == 1:
            if len(found) == POISON_MAX:
                raise TooMuchPoison(
                    f"more than {POISON_MAX} records of a batch fail; the last: {_words(fault)}"
                )
            found.append(Poison(some[0], _words(fault), _stack(fault)))
            continue
        middle = len(some) // 2
        waiting += [some[middle:], some[:middle]]
    if len(found) == len(places) > 1:
        raise TooMuchPoison(f"every record of a batch fails; the last: {found[-1].reason}")
    return found


def _words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".split("\nJVM stacktrace", 1)[0].strip()


def _stack(fault: BaseException) -> str:
    """The stack of the executor where there is one, else ours."""
    trace = getattr(fault, "_stackTrace", None)
    return str(trace) if trace else "".join(traceback.format_exception(fault))
