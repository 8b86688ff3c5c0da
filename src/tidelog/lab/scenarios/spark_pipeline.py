"""A Spark pipeline end to end: from topic to topic, exactly once through a crash, and sorted."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.spark_job import SparkJob

PARTITIONS = 2
FIRST_MS = 1_700_000_040_000
"""A full minute."""
PER_MINUTE = 60
MINUTES = 4
FIRST_MINUTES = 3
#: a busy machine of two cores has taken 100 s for what takes 15 s on an idle one
START_SECONDS = 300.0
RUN_SECONDS = 300.0
HOUR_MS = 3_600_000

SCENARIO = Scenario(
    name="spark-pipeline",
    title="A Spark pipeline",
    minutes=6,
    learn=(
        "Spark reads topics as tables and streams, and writes them",
        "windows by event time are written when the watermark has passed their end",
        "a query that is killed goes on from its checkpoint, and writes nothing twice",
        "a sort on Spark brings spread records back in one order",
    ),
    brokers=1,
    topics=(Topic("orders", partitions=PARTITIONS), Topic("revenue"), Topic("ordered")),
    gates=False,
    needs=("spark", "java"),
    summary="Keep the checkpoint with the query, and let readers of its results read committed data only.",
)


def _send_orders(lab: Lab, numbers: range) -> None:
    """An order each second of event time, spread over the partitions; order n has amount n % 7."""
    sender = lab.sender()
    for number in numbers:
        order = {"at_ms": FIRST_MS + number * 1_000, "amount": number % 7}
        sender.send("orders", json.dumps(order), f"customer-{number % 5}", partition=number % PARTITIONS)
    sender.flush()


def _expected(minute: int) -> dict[str, int]:
    numbers = range(minute * PER_MINUTE, (minute + 1) * PER_MINUTE)
    return {"revenue": sum(number % 7 for number in numbers), "orders": PER_MINUTE}


def _revenue(lab: Lab) -> list[tuple[int, dict[str, int]]]:
    """Minute (counted from the first) and result of every committed record in 'revenue'."""
    found = lab.read("revenue", isolation_level="read_committed")
    return [((int(r.key or 0) - FIRST_MS) // 60_000, json.loads(r.value or "{}")) for r in found]


def _start(lab: Lab, *, follow: bool, reorder: bool = False) -> "subprocess.Popen[bytes]":
    folder = lab.folder / "spark"
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog.lab.spark_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            process_group=0,
        )
    assert process.stdin is not None
    process.stdin.write(SparkJob(lab.bootstrap, str(folder), follow, reorder).as_line())
    process.stdin.flush()
    lab.events.emit("spark", f"Spark starts as process {process.pid}")
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """The Python of the driver and its Java, at once."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _log_end(lab: Lab) -> str:
    return (lab.folder / "spark" / "log").read_text(errors="replace")[-400:]


@SCENARIO.step(
    "From topic to topic",
    narration="Orders come into two partitions, one for each second. A Spark query sums them by minute "
    "of their own time and writes each minute to 'revenue' when it is over. Spark takes some seconds to "
    "start.",
    action="send the orders of three minutes, start the query, then kill it (SIGKILL) while more orders come",
    prediction="two minutes are over and are written; the third is not, because a later order may still "
    "belong to it",
)
def first_life(lab: Lab, see: Observation) -> None:
    _send_orders(lab, range(FIRST_MINUTES * PER_MINUTE))
    spark = _start(lab, follow=True)
    try:
        seconds = lab.wait(
            "the first minutes are written",
            lambda: spark.poll() is not None or lab.positions("revenue").last_stable >= FIRST_MINUTES - 1,
            START_SECONDS,
        )
        alive = spark.poll() is None
        written = _revenue(lab)
        _send_orders(lab, range(FIRST_MINUTES * PER_MINUTE, MINUTES * PER_MINUTE))
    finally:
        _kill(spark)
    see.table(
        ("minute", "revenue", "orders"), [(m, r["revenue"], r["orders"]) for m, r in sorted(written, key=str)]
    )
    see.figure("seconds_to_the_first_results", round(seconds, 1))
    see.check("Spark was at work when it was killed", alive, _log_end(lab))
    expected = [(minute, _expected(minute)) for minute in range(FIRST_MINUTES - 1)]
    see.check("two minutes were written, with the right sums", sorted(written, key=str) == expected, written)


@SCENARIO.step(
    "After the crash",
    narration="What the query knew is in its checkpoint and in the topics. An order an hour later ends "
    "all minutes.",
    action="send that order, start the same query again, and let it work up everything",
    prediction="each of the four minutes is in 'revenue' once, with the right sum",
)
def second_life(lab: Lab, see: Observation) -> None:
    late = {"at_ms": FIRST_MS + HOUR_MS, "amount": 0}
    lab.produce("orders", [("nobody", json.dumps(late))])
    spark = _start(lab, follow=False, reorder=True)
    try:
        code = spark.wait(RUN_SECONDS)
    finally:
        _kill(spark)
    written = _revenue(lab)
    see.table(
        ("minute", "revenue", "orders"), [(m, r["revenue"], r["orders"]) for m, r in sorted(written, key=str)]
    )
    times = Counter(minute for minute, _ in written)
    see.figure("records_in_revenue", len(written))
    see.check("the query came to its end", code == 0, _log_end(lab))
    see.check("each minute is there once", times == Counter(range(MINUTES)), dict(times))
    expected = [(minute, _expected(minute)) for minute in range(MINUTES)]
    see.check("with the right sums", sorted(written, key=str) == expected, written)


@SCENARIO.step(
    "Back in one order",
    narration="The orders are spread over two partitions, so nobody reads them in order. The second "
    "run has also sorted them by their time into a topic with one partition.",
    action="read 'ordered'",
    prediction="all orders are there once, in the order of their time",
)
def ordered(lab: Lab, see: Observation) -> None:
    times = [
        json.loads(record.value or "{}")["at_ms"]
        for record in lab.read("ordered", isolation_level="read_committed")
    ]
    spread = [json.loads(record.value or "{}")["at_ms"] for record in lab.read("orders")]
    see.figure("orders", len(times))
    see.figure("first_partitions_read", [(moment - FIRST_MS) // 1_000 for moment in spread[:6]])
    see.check("all orders are there once", sorted(times) == sorted(spread) and len(set(times)) == len(times))
    see.check("in the order of their time", times == sorted(times), times[:20])
