"""What the two Spark benches share: a session on local[2], and turns that are measured by clock and by CPU.

A busy machine makes every clock time wrong and leaves CPU time nearly right, so both are kept: the best rate
of all rounds, and the least CPU time of this process with everything that it started (Spark's JVM and Python
workers; not the broker).
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PARENT, _USER_TIME, _TIMES_END = 1, 11, 15


def start_spark(jars: Sequence[str] = ()) -> "SparkSession":
    """A session as a user with two cores has it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", ",".join(jars))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Place(NamedTuple):
    """Where the topics are; process id 0 when the broker is none of ours."""

    bootstrap: str
    process_id: int


@contextmanager
def place_of(bootstrap: str | None) -> Iterator[Place]:
    """A cluster that runs, or a broker of our own."""
    if bootstrap:
        yield Place(bootstrap, 0)
        return
    from tidelog.testing.broker import RunningBroker

    with RunningBroker(mode="process") as broker:
        yield Place(broker.bootstrap, broker.process_id or 0)


@dataclass
class Turn:
    """The best of the rounds of one contestant, or why there is none."""

    seconds: float = float("inf")
    cpu_seconds: float = float("inf")
    rounds: int = 0
    failure: str = ""

    def take(self, seconds: float, cpu_seconds: float) -> None:
        self.seconds = min(self.seconds, seconds)
        self.cpu_seconds = min(self.cpu_seconds, cpu_seconds)
        self.rounds += 1


def cpu_seconds(besides: int = 0) -> float:
    """The CPU time of this process and its descendants, those that have ended too; not of `besides`."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process_id = int(path.parent.name)
        parents[process_id] = int(fields[_PARENT])
        times[process_id] = sum(map(int, fields[_USER_TIME:_TIMES_END])) / _TICKS_PER_SECOND
    ours = os.getpid()

    def belongs(process_id: int) -> bool:
        while process_id > 1 and process_id not in (ours, besides):
            process_id = parents.get(process_id, 0)
        return process_id == ours

    return sum(seconds for process_id, seconds in times.items() if belongs(process_id))


def take_turns(
    contestants: Mapping[str, Callable[[], str]], rounds: int, seconds_max: float, broker_process_id: int
) -> dict[str, Turn]:
    """Run all, one after the other, round after round, while there is time; the first round warms up.

    A contestant returns what went wrong, or nothing. Everybody gets a round that counts.
    """
    turns = {name: Turn() for name in contestants}
    deadline = time.monotonic() + seconds_max
    for number in range(rounds + 1):
        if number > 1 and time.monotonic() > deadline:
            break
        for name, run in contestants.items():
            turn = turns[name]
            if turn.failure:
                continue
            cpu, started = cpu_seconds(broker_process_id), time.perf_counter()
            turn.failure = run()
            seconds = time.perf_counter() - started
            if number and not turn.failure:
                turn.take(seconds, cpu_seconds(broker_process_id) - cpu)
    return turns


def show(title: str, turns: Mapping[str, Turn], records: int, ours: str) -> None:
    """A table; how much faster ours is, by clock and by CPU time."""
    print(f"\n{title}")
    print(f"  {'':<38} {'records/s':>12} {'ours is':>9} {'CPU µs/record':>14} {'ours is':>9} {'rounds':>7}")
    own = turns[ours]
    for name, turn in turns.items():
        if turn.failure:
            print(f"  {name:<38} {turn.failure}")
            continue
        by_clock, by_cpu = turn.seconds / own.seconds, turn.cpu_seconds / own.cpu_seconds
        ratios = ("", "") if name == ours else (f"{by_clock:.2f} x", f"{by_cpu:.2f} x")
        cost = 1e6 * turn.cpu_seconds / records
        print(
            f"  {name:<38} {records / turn.seconds:>12,.0f} {ratios[0]:>9} {cost:>14.2f} {ratios[1]:>9}"
            f" {turn.rounds:>7}"
        )
    sys.stdout.flush()


def show_machine() -> None:
    """How busy the machine is, for whoever reads the numbers."""
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True)
