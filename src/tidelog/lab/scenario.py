"""What a scenario is made of: a start state, steps, and in each step a prediction and checks that it held.

    SCENARIO = Scenario(
        name="keys-and-ordering",
        title="Keys and ordering",
        minutes=3,
        learn=("records with the same key go to the same partition",),
        brokers=1,
        topics=(Topic("rides", partitions=4),),
    )

    @SCENARIO.step(
        "Ten records with one key",
        narration="A key names what a record is about.",
        action="send ten records with the key 'taxi-7'",
        prediction="all ten land in one partition, in the order of sending",
    )
    def one_key(lab: Lab, see: Observation) -> None:
        sent = lab.produce("rides", [("taxi-7", f"ride {n}") for n in range(10)])
        used = {delivery.partition for delivery in sent}
        see.figure("partitions_used", len(used))
        see.check("one partition has all ten", len(used) == 1, f"partitions {sorted(used)}")

A step does one thing, tells what it saw, and checks. A step without a check is a mistake of its author, and
fails. What a later step needs is kept in `lab.notes`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.lab.lab import Lab

#: more of what was seen instead nobody reads
INSTEAD_MAX = 300


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that is there when a scenario begins; no replication factor means up to three."""

    name: str
    partitions: int = 1
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that a step shows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Preformatted:
    """Lines that are shown as they are: bytes, files, a drawing."""

    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and whether it held; `instead` says what was seen where it did not."""

    claim: str
    held: bool
    instead: str = ""


Shown = str | Table | Preformatted


class Observation:
    """What one step saw, as it goes on; the narrator is told of everything at once when the step is over."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []
        self.figures: dict[str, Any] = {}
        self.checks: list[Check] = []

    def __repr__(self) -> str:
        held = sum(check.held for check in self.checks)
        return f"<Observation {len(self.shown)} shown, {held} of {len(self.checks)} checks held>"

    def say(self, text: str) -> None:
        """A sentence about what was seen."""
        self.shown.append(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """Rows under column names."""
        self.shown.append(Table(tuple(columns), tuple(tuple(row) for row in rows), title))

    def lines(self, text: str) -> None:
        """Lines to show as they are."""
        self.shown.append(Preformatted(text))

    def figure(self, name: str, value: Any) -> None:
        """A number (or text) that was measured, under a name; documentation takes its figures from here."""
        self.figures[name] = value

    def check(self, claim: str, held: bool, instead: object = "") -> bool:
        """Check a claim; `instead` is what was seen, told where the claim did not hold."""
        seen = str(instead)
        if len(seen) > INSTEAD_MAX:
            seen = seen[:INSTEAD_MAX] + " …"
        self.checks.append(Check(claim, bool(held), seen))
        return bool(held)


StepFunction = Callable[["Lab", Observation], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One action with its prediction; `run` acts, observes and checks."""

    title: str
    narration: str
    action: str
    prediction: str
    run: StepFunction


class Scenario:
    """A lesson: what it starts from and its steps, in the order in which they were added."""

    def __init__(
        self,
        *,
        name: str,
        title: str,
        minutes: int,
        learn: Sequence[str],
        brokers: int = 1,
        topics: Sequence[Topic] = (),
        settings: Mapping[str, str] | None = None,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        gates: bool = True,
        users: bool = False,
        needs: Sequence[str] = (),
        summary: str = "",
    ) -> None:
        self.name = name
        self.title = title
        #: for a person who reads along; unattended it takes seconds
        self.minutes = minutes
        self.learn = tuple(learn)
        self.brokers = brokers
        self.topics = tuple(topics)
        self.settings = dict(settings or {})
        self.settings_of = {number: dict(values) for number, values in (settings_of or {}).items()}
        #: whether clients and brokers meet through gates that can be cut and slowed (see network)
        self.gates = gates
        #: whether brokers have one more listener, for users with passwords (see lab_cluster)
        self.users = users
        #: what is not in the plain install: names of `requirements.REQUIREMENTS`
        self.needs = tuple(needs)
        #: what to remember, said at the end
        self.summary = summary
        self.steps: list[Step] = []

    def __repr__(self) -> str:
        return f"<Scenario {self.name} {len(self.steps)} steps brokers={self.brokers}>"

    def step(
        self, title: str, *, narration: str, action: str, prediction: str
    ) -> Callable[[StepFunction], StepFunction]:
        """Add the decorated function as the next step."""

        def add(run: StepFunction) -> StepFunction:
            self.steps.append(Step(title, narration, action, prediction, run))
            return run

        return add

    def as_json(self) -> dict[str, Any]:
        """What a list of scenarios says about this one."""
        return {
            "name": self.name,
            "title": self.title,
            "minutes": self.minutes,
            "learn": list(self.learn),
            "brokers": self.brokers,
            "topics": [topic.name for topic in self.topics],
            "needs": list(self.needs),
            "steps": [step.title for step in self.steps],
        }


class Outcome(StrEnum):
    """How a step or a scenario ended."""

    HELD = "held"
    FAILED = "failed"
    #: something outside the plain install is missing
    UNAVAILABLE = "unavailable"
    #: the person stopped it
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step showed; `trouble` is what ended it before its last check, in words."""

    step: Step
    observation: Observation
    seconds: float
    trouble: str = ""

    @property
    def held(self) -> bool:
        checks = self.observation.checks
        return not self.trouble and bool(checks) and all(check.held for check in checks)

    @property
    def faults(self) -> list[str]:
        """What did not hold, in words."""
        found = [
            f"{check.claim}: it did not hold" + (f" ({check.instead})" if check.instead else "")
            for check in self.observation.checks
            if not check.held
        ]
        if self.trouble:
            found.append(self.trouble)
        elif not self.observation.checks:
            found.append("the step checked nothing")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.step.title,
            "prediction": self.step.prediction,
            "held": self.held,
            "seconds": round(self.seconds, 2),
            "shown": [_shown_json(item) for item in self.observation.shown],
            "figures": self.observation.figures,
            "checks": [
                {"claim": check.claim, "held": check.held, "instead": check.instead}
                for check in self.observation.checks
            ],
            "faults": self.faults,
        }


def _shown_json(item: Shown) -> Any:
    if isinstance(item, Table):
        return {"title": item.title, "columns": list(item.columns), "rows": [list(row) for row in item.rows]}
    if isinstance(item, Preformatted):
        return {"lines": item.text.splitlines()}
    return item


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A run of a scenario."""

    scenario: Scenario
    outcome: Outcome
    steps: tuple[StepResult, ...]
    seconds: float
    #: why it could not be run, or what went wrong outside the steps
    message: str = ""

    @property
    def held(self) -> bool:
        return self.outcome is Outcome.HELD

    @property
    def faults(self) -> list[str]:
        """Everything that did not hold, with the step it was in."""
        found = [f"{result.step.title}: {fault}" for result in self.steps for fault in result.faults]
        return [*found, self.message] if self.message else found

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "outcome": str(self.outcome),
            "seconds": round(self.seconds, 2),
            "message": self.message,
            "steps": [result.as_json() for result in self.steps],
        }
