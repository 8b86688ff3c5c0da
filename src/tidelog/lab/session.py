"""A scenario that runs in a thread while a page shows it and decides when it goes on.

session = LabSession(catalog.load("acks"))
session.start()
session.state()             where it stands, and the texts of the present step, as JSON
session.go_on()             the key that a person presses; session.auto = True presses it for him
session.events.after(n)     what happened
session.picture()           brokers, positions, consumers (see `picture`), or None before they are there
session.fault("kill", "2")  raises FaultNotPossible
session.stop()
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from tidelog.lab.events import EventStream
from tidelog.lab.faults import FAULTS, FaultNotPossible
from tidelog.lab.lab import Lab
from tidelog.lab.picture import Watcher
from tidelog.lab.runner import Stopped, run_scenario
from tidelog.lab.scenario import Scenario, ScenarioResult, Step, StepResult

STOP_SECONDS_MAX = 60.0


class Phase(StrEnum):
    """Where a session stands."""

    STARTING = "starting"
    #: a step is told and waits for `go_on`
    PREDICTED = "predicted"
    ACTING = "acting"
    #: a step is over and waits for `go_on`
    OBSERVED = "observed"
    #: every step is over; the cluster stays until `stop`
    FINISHED = "finished"
    ENDED = "ended"


class LabSession:
    """One run of one scenario for a page; also its narrator."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        auto: bool = False,
        auto_seconds: float = 0.0,
        on_lab: Callable[[Lab], None] | None = None,
        on_result: Callable[[ScenarioResult], None] | None = None,
    ) -> None:
        """`auto_seconds` is how long an automatic run waits before it goes on, for people who watch it.

        `on_lab` and `on_result` are called in the thread of the session, when the cluster is there and when
        the steps are over.
        """
        self.scenario = scenario
        self._auto_seconds = auto_seconds
        self._on_lab = on_lab
        self._on_result = on_result
        self.events = EventStream()
        self.auto = auto
        self.phase = Phase.STARTING
        self.lab: Lab | None = None
        self.result: ScenarioResult | None = None
        #: a defect of the lab itself, as text
        self.defect = ""
        self._watcher: Watcher | None = None
        self._step: dict[str, Any] | None = None
        self._results: list[dict[str, Any]] = []
        self._wish = threading.Condition()
        self._go = False
        self._stopping = False
        #: nothing more is done to the cluster by people
        self._closed = False
        #: what people do something to now
        self._busy: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"lab-{scenario.name}", daemon=True)

    def __repr__(self) -> str:
        return f"<LabSession {self.scenario.name} {self.phase}>"

    # What a page does

    def start(self) -> None:
        """Begin in a thread; returns at once."""
        self._thread.start()

    def go_on(self) -> None:
        """Let the next thing happen."""
        with self._wish:
            self._go = True
            self._wish.notify_all()

    def set_auto(self, auto: bool) -> None:
        """Go on without being asked, or stop doing so."""
        with self._wish:
            self.auto = auto
            self._wish.notify_all()

    def stop(self) -> None:
        """End it and its cluster, after what people do to it now; returns when they are gone."""
        with self._wish:
            self._closed = True
            self._wish.wait_for(lambda: not self._busy, STOP_SECONDS_MAX)
            self._stopping = True
            self._wish.notify_all()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def fault(self, name: str, target: str) -> None:
        """What a fault button does; raises FaultNotPossible."""
        with self.busy_with(target) as lab:
            lab.faults.apply(name, target)

    @contextmanager
    def busy_with(self, target: str) -> Iterator[Lab]:
        """The lab, to do something to `target` that nobody else does now, and that `stop` waits for.

        Raises FaultNotPossible where that cannot be.
        """
        with self._wish:
            if self.lab is None or self._closed:
                raise FaultNotPossible("the cluster is not there")
            if target in self._busy:
                raise FaultNotPossible("something is done to it already; it is not over yet")
            self._busy.add(target)
        try:
            yield self.lab
        finally:
            with self._wish:
                self._busy.discard(target)
                self._wish.notify_all()

    def picture(self) -> dict[str, Any] | None:
        """The last look at the cluster."""
        return None if self._watcher is None else self._watcher.last

    def state(self) -> dict[str, Any]:
        """Everything a page needs besides events and picture."""
        return {
            "scenario": self.scenario.as_json(),
            "phase": str(self.phase),
            "auto": self.auto,
            "step": self._step,
            "results": list(self._results),
            "outcome": None if self.result is None else str(self.result.outcome),
            "summary": self.scenario.summary,
            "message": self.defect or ("" if self.result is None else self.result.message),
            "faults": [fault._asdict() for fault in FAULTS],
            "last_event": self.events.last_number,
        }

    # The narrator's side, in the thread of the session

    def scenario_begins(self, scenario: Scenario) -> None:
        self.events.emit("scenario-begins", scenario.title)

    def step_begins(self, step: Step, number: int, count: int) -> None:
        self._step = {
            "number": number,
            "count": count,
            "title": step.title,
            "narration": step.narration,
            "action": step.action,
            "prediction": step.prediction,
        }
        self._wait(Phase.PREDICTED)
        self._enter(Phase.ACTING)

    def step_ended(self, result: StepResult, number: int, count: int) -> None:
        self._results.append(result.as_json())
        if number < count and result.held:
            self._wait(Phase.OBSERVED)

    def scenario_ended(self, result: ScenarioResult) -> None:
        self.result = result
        if self._on_result is not None:
            self._on_result(result)
        if self.lab is None:
            return
        self._enter(Phase.FINISHED)
        with self._wish:
            self._wish.wait_for(lambda: self._stopping)

    def _wait(self, phase: Phase) -> None:
        self._enter(phase)
        with self._wish:
            while not (self._go or self._stopping):
                seconds = self._auto_seconds if self.auto else None
                woken = self._wish.wait(seconds)
                if self.auto and not woken:
                    break
            self._go = False
            if self._stopping:
                raise Stopped

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.events.emit("phase", str(phase), phase=str(phase))

    def _run(self) -> None:
        try:
            run_scenario(self.scenario, self, events=self.events, on_lab=self._watch)
        except BaseException:
            self.defect = traceback.format_exc()
            raise
        finally:
            self._unwatch()
            self._enter(Phase.ENDED)
            self.events.close()

    def _watch(self, lab: Lab) -> None:
        self.lab = lab
        if self._on_lab is not None:
            self._on_lab(lab)
        self._watcher = Watcher(lab).start()

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
