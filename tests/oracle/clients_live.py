"""Both systems at once: sessions of clients carried out side by side, compared, shrunk and told."""

import dataclasses
import itertools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.oracle.clients_crashes import Crashes, Recoveries
from tests.oracle.clients_driver import GONE, HUNG, Driver
from tests.oracle.clients_rules import accepted, normalised
from tests.oracle.clients_session import (
    KILL,
    KILLS_SECONDS_MAX,
    SECONDS_MAX,
    WHOLE,
    ClientSession,
    Json,
    Operation,
    named,
)
from tests.oracle.judge import short, unlike, without_numbers
from tests.oracle.systems import System

#: a change has to be known everywhere before the next operation; clients ask again where they can
SETTLE_SECONDS = 0.1
#: markers of a transaction are written soon after its end is answered (KIP-890)
ENDINGS = ("commit", "abort")
KNOWN_SECONDS_MAX = 5.0
END_SECONDS_MAX = 20.0
ATTEMPTS_MAX = 16


@dataclasses.dataclass(frozen=True, slots=True)
class ClientDifference:
    """One field of one outcome that is not the same."""

    operation: Operation
    path: str
    kafka: Json
    here: Json

    @property
    def kind(self) -> str:
        """What differences of the same cause have in common."""
        path = ".".join(part for part in without_numbers(self.path).split(".") if "~" not in part)
        return f"{self.operation.name} {path}: {short(self.kafka)} | {short(self.here)}"


class Run:
    """One session on one system: what came of its operations, and how long each took."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.outcomes: dict[str, Json] = {}
        self.seconds: dict[str, float] = {}
        #: what went on after brokers were killed: seconds since then, and since the brokers were there again
        self.recoveries: list[tuple[str, float, float]] = []


def carry_out(session: ClientSession, driver: Driver, system: System, prefix: str) -> Run:
    """Carry out a session; one that hangs is given up."""
    run = Run(session)
    crashes = Crashes(system)
    seconds_max = KILLS_SECONDS_MAX if session.kills else SECONDS_MAX
    for operation in session.operations:
        fields = named(operation.fields, prefix)
        if operation.name == KILL:
            crashes.kill(fields)
            continue
        if operation.name == WHOLE:
            run.outcomes[operation.label] = crashes.wait_whole()
            continue
        outcome, seconds = driver.ask(prefix, operation.name, fields, seconds_max)
        run.outcomes[operation.label] = outcome
        run.seconds[operation.label] = seconds
        if operation.goes_on:
            crashes.note(operation.goes_on)
        if outcome in (HUNG, GONE):
            break
        if operation.settle or operation.name in ENDINGS:
            time.sleep(SETTLE_SECONDS if len(system.ports) == 1 else 3 * SETTLE_SECONDS)
        if operation.settle and not fields.get("validate_only"):
            _await_topics(driver, prefix, operation.name, fields, outcome)
    driver.ask(prefix, "end", {}, END_SECONDS_MAX)
    run.recoveries = crashes.noted()
    return run


def _await_topics(driver: Driver, session: str, name: str, fields: Json, outcome: Json) -> None:
    """Until brokers know what became of topics: Kafka answers before they do."""
    if name not in ("create_topics", "create_partitions", "delete_topics") or "error" in outcome:
        return
    changed = [topic for topic, one in outcome.items() if "error" not in one]

    def known(topic: str, found: Json) -> bool:
        if name == "delete_topics":
            return "error" in found
        wanted = fields["topics"][topic] if name == "create_partitions" else 1
        return len(found.get("partitions", ())) >= wanted

    deadline = time.monotonic() + KNOWN_SECONDS_MAX
    while changed and time.monotonic() < deadline:
        found, _ = driver.ask(session, "describe_topics", {"topics": changed}, KNOWN_SECONDS_MAX)
        if all(known(topic, found.get(topic, {})) for topic in changed):
            return


class ClientPair:
    """A client's drivers on both systems."""

    def __init__(self, drivers: tuple[Driver, Driver], systems: tuple[System, System]) -> None:
        self._drivers = drivers
        self._systems = systems
        self._pool = ThreadPoolExecutor(10, "clients")
        self._run = f"k{secrets.token_hex(3)}"
        self._attempts = itertools.count(1)
        self.recoveries = Recoveries()
        #: seeds of sessions that came to no end, on either system
        self.given_up: list[int] = []

    def close(self) -> None:
        self._pool.shutdown()

    def run(self, session: ClientSession) -> tuple[str, Run, Run]:
        prefix = f"{self._run}-{next(self._attempts)}-"
        under_way = [
            self._pool.submit(carry_out, session, driver, system, prefix)
            for driver, system in zip(self._drivers, self._systems, strict=True)
        ]
        kafka, here = (one.result() for one in under_way)
        return prefix, kafka, here

    def compare(self, session: ClientSession) -> list[ClientDifference]:
        """What differs, and is not meant to."""
        prefix, kafka, here = self.run(session)
        for system, run in zip(self._systems, (kafka, here), strict=True):
            self.recoveries.add(session.client, system.name, run.recoveries)
        if any(one in (HUNG, GONE) for run in (kafka, here) for one in run.outcomes.values()):
            self.given_up.append(session.seed)
        return differences(session, *(normalised(session, prefix, one.outcomes) for one in (kafka, here)))


def differences(
    session: ClientSession, kafka: dict[str, Json], here: dict[str, Json]
) -> list[ClientDifference]:
    """What is not the same and not meant to be; an operation that one side never came to counts."""
    found = []
    for one in session.operations:
        if one.name == KILL:
            continue
        if one.label not in kafka and one.label not in here:
            break
        sides = (side.get(one.label, "(not reached)") for side in (kafka, here))
        for path, theirs, ours in unlike("", *sides):
            if not accepted(one, without_numbers(path), theirs, ours):
                found.append(ClientDifference(one, path, theirs, ours))
    return found


def shrunk(
    session: ClientSession,
    difference: ClientDifference,
    compare: Callable[[ClientSession], list[ClientDifference]],
) -> ClientSession:
    """A smaller session with a difference of this kind: operations are left out in ever smaller groups."""
    attempts = 0

    def shows(candidate: ClientSession) -> bool:
        nonlocal attempts
        attempts += 1
        return any(found.kind == difference.kind for found in compare(candidate))

    labels = [one.label for one in session.operations]
    before = session.without(set(labels[labels.index(difference.operation.label) + 1 :]))
    if shows(before):
        session = before
    size = max(1, len(session.operations) // 2)
    while attempts < ATTEMPTS_MAX:
        smaller = False
        end = len(session.operations) - 1
        while end > 0 and attempts < ATTEMPTS_MAX:
            left_out = {one.label for one in session.operations[max(0, end - size) : end]}
            candidate = session.without(left_out)
            if shows(candidate):
                session = candidate
                smaller = True
            end -= size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return session


def told(session: ClientSession, found: list[ClientDifference]) -> str:
    """A session and its differences as a person reads them."""
    by_label: dict[str, list[ClientDifference]] = {}
    for difference in found:
        by_label.setdefault(difference.operation.label, []).append(difference)
    lines = [f"{session.client} session of seed {session.seed}"]
    for operation in session.operations:
        lines.append(f"  {operation}")
        for difference in by_label.get(operation.label, ()):
            lines.append(f"      ≠ {difference.path}")
            lines.append(f"        Kafka   {short(difference.kafka)}")
            lines.append(f"        Tidelog {short(difference.here)}")
    return "\n".join(lines)
