"""The one scenario that a page shows: starting, stopping, and what is told of it as values to draw.

Methods block and are for worker threads. One session at a time: starting another ends the one before.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from tidelog.lab import catalog
from tidelog.lab.faults import FaultNotPossible
from tidelog.lab.lab import Lab
from tidelog.lab.page.lanes import Lane, lanes
from tidelog.lab.page.timeline import Line, Timeline
from tidelog.lab.requirements import missing
from tidelog.lab.scenario import Outcome, ScenarioResult
from tidelog.lab.session import LabSession, Phase

#: how long an automatic run shows each page before it goes on
AUTO_SECONDS = 4.0
PLAY_RECORDS = 10
PLAY_KEYS = 6
PLAY_WORK_MS = 40
PLAY_SEND_SECONDS_MAX = 8.0


class TourProgress(Protocol):
    """What of the tour is done; the command line keeps it in a file."""

    done: list[str]

    def finish(self, name: str) -> None:
        """Note that a scenario is done."""


class Scene(NamedTuple):
    """Everything a page draws at a moment."""

    number: int
    state: dict[str, Any]
    picture: dict[str, Any] | None
    lanes: list[Lane]
    timeline: list[Line]
    gates: bool
    brokers: int


class Stage:
    """Has the session of the page, if there is one; `number` counts them."""

    def __init__(
        self,
        *,
        progress: TourProgress | None = None,
        on_cluster: Callable[[str], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.progress = progress
        #: called with the bootstrap address when a cluster is there, and before it goes
        self.on_cluster = on_cluster or (lambda bootstrap: None)
        self.on_end = on_end or (lambda: None)
        self.session: LabSession | None = None
        self.number = 0
        self._timeline = Timeline()
        self._changing = threading.Lock()
        self._telling = threading.Lock()
        self._played = 0

    def __repr__(self) -> str:
        return f"<Stage {self.number} {self.session!r}>"

    @property
    def running(self) -> str | None:
        """The name of the scenario on the stage."""
        session = self.session
        return None if session is None or session.phase is Phase.ENDED else session.scenario.name

    def start(self, name: str, *, auto: bool = False) -> None:
        """End what runs and start a scenario; LookupError if there is none of this name."""
        scenario = catalog.load(name)
        with self._changing:
            self._end()
            session = LabSession(
                scenario,
                auto=auto,
                auto_seconds=AUTO_SECONDS,
                on_lab=self._cluster_is_there,
                on_result=self._ended,
            )
            with self._telling:
                self.session = session
                self.number += 1
                self._timeline = Timeline()
            session.start()

    def stop(self) -> None:
        """End what runs, with its cluster."""
        with self._changing:
            self._end()

    def following(self) -> str | None:
        """The scenario after the present one, in the order of the tour."""
        names = catalog.names()
        session = self.session
        if session is None:
            return None
        place = names.index(session.scenario.name) + 1
        return names[place] if place < len(names) else None

    def scene(self) -> Scene | None:
        """What is to be seen now; None without a session."""
        with self._telling:
            session = self.session
            if session is None:
                return None
            for event in session.events.after(self._timeline.last_number):
                self._timeline.add(event)
            picture = session.picture()
            return Scene(
                self.number,
                session.state(),
                picture,
                [] if picture is None else lanes(picture, self._timeline.records),
                list(self._timeline.lines),
                session.scenario.gates,
                session.scenario.brokers,
            )

    def mark(self) -> tuple[object, ...]:
        """Differs when there may be something new to draw; cheaper than to draw it."""
        session = self.session
        if session is None:
            return (self.number,)
        return (self.number, session.phase, session.auto, session.events.last_number, session.picture())

    # Playing, when all steps are over

    def send(self, topic: str) -> None:
        """Send some records with keys; raises FaultNotPossible."""
        with self._playground().busy_with(f"sending to {topic}") as lab:
            if topic not in lab.topics:
                raise FaultNotPossible(f"there is no topic {topic!r}")
            first = self._played
            self._played += PLAY_RECORDS
            records = [(f"key {n % PLAY_KEYS}", f"yours {n}") for n in range(first, first + PLAY_RECORDS)]
            try:
                lab.produce(topic, records, timeout_seconds=PLAY_SEND_SECONDS_MAX, message_timeout_ms=6_000)
            except TimeoutError as unknown:
                raise FaultNotPossible(str(unknown)) from unknown

    def add_consumer(self) -> None:
        """Start a consumer of all topics; those that are added share one group. Raises FaultNotPossible."""
        with self._playground().busy_with("adding a consumer") as lab:
            if not lab.topics:
                raise FaultNotPossible("there is no topic to read")
            number = 1 + sum(name.startswith("you-") for name in lab.consumers)
            lab.start_consumer(
                f"you-{number}",
                group="yours",
                topics=list(lab.topics),
                work_ms=PLAY_WORK_MS,
                auto_offset_reset="earliest",
            )

    def _playground(self) -> LabSession:
        session = self.session
        if session is None or session.phase is not Phase.FINISHED:
            raise FaultNotPossible("the cluster is yours when the steps are over")
        return session

    # In the thread of the session

    def _cluster_is_there(self, lab: Lab) -> None:
        self.on_cluster(lab.bootstrap)

    def _ended(self, result: ScenarioResult) -> None:
        done = result.outcome in (Outcome.HELD, Outcome.UNAVAILABLE)
        if done and self.progress is not None and result.scenario.name not in self.progress.done:
            self.progress.finish(result.scenario.name)

    def _end(self) -> None:
        if self.session is not None:
            self.on_end()
            self.session.stop()


def listed(stage: Stage) -> list[Mapping[str, Any]]:
    """Every scenario with what a list says of it."""
    done = set() if stage.progress is None else set(stage.progress.done)
    return [
        {
            **scenario.as_json(),
            "missing": missing(scenario),
            "done": scenario.name in done,
            "running": scenario.name == stage.running,
        }
        for scenario in catalog.all_scenarios()
    ]
