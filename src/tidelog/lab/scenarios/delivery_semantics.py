"""Delivery semantics: a worker dies at the worst moment. At most once, at least once, exactly once."""

import signal
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

from tidelog.lab.delivery_worker import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Job
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

ORDERS = 20
LIFE_SECONDS_MAX = 40.0
COLUMNS = ("worker", "orders", "receipts", "lost", "repeated")

SCENARIO = Scenario(
    name="delivery-semantics",
    title="Lost, repeated, or neither",
    minutes=6,
    learn=(
        "what a crash does to records in hand depends on the order of work and commit",
        "a transaction makes results and offsets count together",
    ),
    brokers=1,
    topics=(
        Topic("orders"),
        Topic("receipts-at-most-once"),
        Topic("receipts-at-least-once"),
        Topic("receipts-exactly-once"),
    ),
    summary="At least once with work that may be repeated is usually right; transactions where it may not.",
)


class DeliveryResult(NamedTuple):
    """What became of the orders, as a reader of committed receipts sees it."""

    exit_code_of_the_first_life: int
    receipts: int
    lost: int
    repeated: int


def _life(lab: Lab, mode: str, *, crash: bool) -> int:
    name = mode.replace(" ", "-")
    job = Job(lab.bootstrap, mode, name, "orders", f"receipts-{name}", crash)
    lab.events.emit("worker", f"the worker '{mode}' starts")
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.lab.delivery_worker"],
        input=job.as_line(),
        capture_output=True,
        timeout=LIFE_SECONDS_MAX,
        check=False,
    )
    lab.events.emit("worker", f"the worker '{mode}' ended with code {done.returncode}")
    if not crash and done.returncode:
        raise RuntimeError(f"the worker failed: {done.stderr.decode(errors='replace')[-300:]}")
    return done.returncode


def _receipts(lab: Lab, mode: str, isolation: str = "read_committed") -> list[str | None]:
    found = lab.read(f"receipts-{mode.replace(' ', '-')}", isolation_level=isolation)
    return [record.value for record in found]


def _two_lives(lab: Lab, mode: str) -> DeliveryResult:
    if "sent" not in lab.notes:
        lab.produce("orders", [f"order {number}" for number in range(ORDERS)])
        lab.notes["sent"] = True
    first = _life(lab, mode, crash=True)
    _life(lab, mode, crash=False)
    counts = Counter(_receipts(lab, mode))
    expected = {f"receipt for order {number}" for number in range(ORDERS)}
    lost = len(expected - set(counts))
    return DeliveryResult(first, sum(counts.values()), lost, sum(counts.values()) - len(counts))


def _show(lab: Lab, see: Observation, mode: str, outcome: DeliveryResult) -> None:
    rows: list[tuple[object, ...]] = lab.notes.setdefault("rows", [])
    rows.append((mode, ORDERS, outcome.receipts, outcome.lost, outcome.repeated))
    see.table(COLUMNS, rows)
    see.figure("lost", outcome.lost)
    see.figure("repeated", outcome.repeated)
    killed = outcome.exit_code_of_the_first_life == -signal.SIGKILL
    see.check("the first life of the worker was killed", killed, outcome.exit_code_of_the_first_life)


@SCENARIO.step(
    "At most once",
    narration="A worker takes orders five at a time and writes a receipt for each. It commits first, "
    "then works. It dies in its second batch between the two, and starts again.",
    action="kill it between commit and work",
    prediction="five orders have no receipt: lost 5, repeated 0",
)
def at_most_once(lab: Lab, see: Observation) -> None:
    outcome = _two_lives(lab, AT_MOST_ONCE)
    _show(lab, see, AT_MOST_ONCE, outcome)
    see.check("five orders were lost, none repeated", (outcome.lost, outcome.repeated) == (5, 0), outcome)


@SCENARIO.step(
    "At least once",
    narration="The same orders, another worker: it works first and commits then.",
    action="kill it between work and commit",
    prediction="five orders have two receipts: lost 0, repeated 5",
)
def at_least_once(lab: Lab, see: Observation) -> None:
    outcome = _two_lives(lab, AT_LEAST_ONCE)
    _show(lab, see, AT_LEAST_ONCE, outcome)
    see.check("none was lost, five were repeated", (outcome.lost, outcome.repeated) == (0, 5), outcome)


@SCENARIO.step(
    "Exactly once",
    narration="The third worker writes its receipts and its offsets in one transaction. It dies when "
    "everything is sent and nothing is committed. Its next life takes over its transactional id, which "
    "aborts what was left open.",
    action="kill it just before the commit of the transaction",
    prediction="every order has one receipt: lost 0, repeated 0",
)
def exactly_once(lab: Lab, see: Observation) -> None:
    outcome = _two_lives(lab, EXACTLY_ONCE)
    _show(lab, see, EXACTLY_ONCE, outcome)
    see.check("none was lost, none repeated", (outcome.lost, outcome.repeated) == (0, 0), outcome)


@SCENARIO.step(
    "What is in the log",
    narration="The receipts of the aborted transaction were written, and nobody can take them out of a "
    "log again.",
    action="read the receipts of the third worker with isolation.level=read_uncommitted",
    prediction="25 receipts are there; readers of committed data see 20",
)
def in_the_log(lab: Lab, see: Observation) -> None:
    everything = len(_receipts(lab, EXACTLY_ONCE, "read_uncommitted"))
    visible = len(_receipts(lab, EXACTLY_ONCE))
    see.figure("in_the_log", everything)
    see.figure("visible", visible)
    see.say(f"{everything} receipts are in the log, readers of committed data see {visible}.")
    see.check("the five aborted receipts are in the log", everything == ORDERS + 5, everything)
    see.check("and hidden from readers of committed data", visible == ORDERS, visible)
