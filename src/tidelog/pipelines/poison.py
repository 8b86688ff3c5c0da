"""Find the records on which a computation fails, by halving: whatever the computation is.

A batch that fails is cut in two by offsets until single records are left. Each halving is a run: it is
for the few that spoil a batch. When many fail it is the steps that are wrong, and the pipeline stops: more
than `POISON_MAX`, or every one of a batch that is not small. A small batch may well be nothing but poison.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

POISON_MAX = 100
#: a batch of no more records may fail as a whole: it says nothing about the steps, and would never go on
SMALL_BATCH = 20
#: who in Spark writes the stack of a task that fails to the log, up to five times
_TASK_LOGGERS = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util.Utils",
)


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


def condition(places: Sequence[Place], of: str = "") -> str:
    """SQL that is true for a run of sorted places, out of records that are only these and others around.

    `of` is what stands before the names of the columns, such as `_origin.`.
    """
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for place in places:
        low, _ = ranges.get(place[:2], (place.offset, 0))
        ranges[place[:2]] = (low, place.offset)
    return " OR ".join(
        f"({of}topic = '{topic}' AND {of}partition = {partition} AND {of}offset BETWEEN {low} AND {high})"
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


@contextmanager
def without_task_logs(spark: Any) -> Iterator[None]:
    """Keep failures of tasks out of the driver's log: a search makes dozens, and tells of what it finds."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    configurator = log4j.core.config.Configurator
    before = {name: log4j.LogManager.getLogger(name).getLevel() for name in _TASK_LOGGERS}
    for name in _TASK_LOGGERS:
        configurator.setLevel(name, log4j.Level.OFF)
    try:
        yield
    finally:
        for name, level in before.items():
            configurator.setLevel(name, level)


def find_poison(records: Any, compute: Callable[[Sequence[Place]], None]) -> list[Poison]:
    """The records of a frame that `compute` fails on, each by itself; raises TooMuchPoison.

    `compute` is given a run of the records' places, for `condition`.
    """
    from pyspark.errors import PySparkException

    rows = records.select("topic", "partition", "offset").collect()
    places = sorted(Place(*row) for row in rows)

    def fault_of(some: Sequence[Place]) -> PySparkException | None:
        try:
            compute(some)
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
    #: runs of places, and whether each is known to fail: when one half of what fails does not, the other does
    waiting = [(places, False)] if places else []
    while waiting:
        some, fails = waiting.pop()
        if len(some) == 1:
            fault = fault_of(some)
            if fault is not None:
                _add(found, Poison(some[0], _words(fault), _stack(fault)))
            continue
        if not fails and fault_of(some) is None:
            continue
        middle = len(some) // 2
        left, right = some[:middle], some[middle:]
        if middle == 1:
            # it is asked by itself in any case
            waiting += [(right, False), (left, False)]
        elif fault_of(left) is None:
            waiting.append((right, True))
        else:
            waiting += [(right, False), (left, True)]
    if len(found) == len(places) > SMALL_BATCH:
        raise TooMuchPoison(
            f"every one of {len(places)} records of a batch fails; the last: {found[-1].reason}"
        )
    return found


def _add(found: list[Poison], poison: Poison) -> None:
    if len(found) == POISON_MAX:
        raise TooMuchPoison(f"more than {POISON_MAX} records of a batch fail; the last: {poison.reason}")
    found.append(poison)


def _words(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}".split("\nJVM stacktrace", 1)[0].strip()


def _stack(fault: BaseException) -> str:
    """The stack of the executor where there is one, else ours."""
    trace = getattr(fault, "_stackTrace", None)
    return str(trace) if trace else "".join(traceback.format_exception(fault))
