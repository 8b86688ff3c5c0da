"""Runs a scenario from its start state to its last check, and tells a narrator and the event stream.

A step that does not hold ends the scenario: what follows stands on it. Trouble of clients, brokers and the
system in a step is a failed step, told in words; anything else is a defect of the scenario and is raised.
"""

import subprocess
import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import KafkaException

from tidelog.client.faults import ClientFault
from tidelog.lab.events import EventStream
from tidelog.lab.lab import Lab
from tidelog.lab.requirements import missing
from tidelog.lab.scenario import Observation, Outcome, Scenario, ScenarioResult, Step, StepResult
from tidelog.server.cluster_view import NoView

#: what a system that does not do as predicted raises in a step (TimeoutError is an OSError)
STEP_TROUBLE = (
    KafkaException,
    ClientFault,
    NoView,
    OSError,
    RuntimeError,
    LookupError,
    subprocess.SubprocessError,
)


class Stopped(Exception):
    """The person does not want to go on."""


class Narrator(Protocol):
    """Who is told what happens, and who decides when it goes on (by returning)."""

    def scenario_begins(self, scenario: Scenario) -> None:
        """Before the cluster is started."""

    def step_begins(self, step: Step, number: int, count: int) -> None:
        """Before the action; returns when it may happen. Raises Stopped."""

    def step_ended(self, result: StepResult, number: int, count: int) -> None:
        """After the checks; returns when the next step may come. Raises Stopped."""

    def scenario_ended(self, result: ScenarioResult) -> None:
        """After the last step; the cluster is still there, so that it can be looked at."""


class SilentNarrator:
    """Tells nobody and goes on at once."""

    def scenario_begins(self, scenario: Scenario) -> None:
        pass

    def step_begins(self, step: Step, number: int, count: int) -> None:
        pass

    def step_ended(self, result: StepResult, number: int, count: int) -> None:
        pass

    def scenario_ended(self, result: ScenarioResult) -> None:
        pass


def run_scenario(
    scenario: Scenario,
    narrator: Narrator | None = None,
    *,
    events: EventStream | None = None,
    on_lab: Callable[[Lab], None] | None = None,
    make_lab: Callable[[Scenario, EventStream], Lab] | None = None,
) -> ScenarioResult:
    """Run it; `on_lab` is given the lab as soon as its cluster is there, `make_lab` makes another."""
    teller = narrator or SilentNarrator()
    started = time.monotonic()
    teller.scenario_begins(scenario)
    if advice := missing(scenario):
        unavailable = ScenarioResult(scenario, Outcome.UNAVAILABLE, (), 0.0, "; ".join(advice))
        teller.scenario_ended(unavailable)
        return unavailable
    steps: list[StepResult] = []
    stream = events or EventStream()
    lab = Lab(scenario, events=stream) if make_lab is None else make_lab(scenario, stream)
    try:
        lab.start()
        if on_lab is not None:
            on_lab(lab)
        outcome = _run_steps(lab, teller, steps)
        result = ScenarioResult(scenario, outcome, tuple(steps), time.monotonic() - started)
        lab.events.emit("scenario-ended", f"{scenario.title}: {outcome}", outcome=str(outcome))
        teller.scenario_ended(result)
        return result
    finally:
        _clear_away(lab)


def _clear_away(lab: Lab) -> None:
    """Close the lab, also when Ctrl-C comes in the middle of that."""
    try:
        lab.close()
    except KeyboardInterrupt:
        lab.close()
        raise


def _run_steps(lab: Lab, teller: Narrator, steps: list[StepResult]) -> Outcome:
    count = len(lab.scenario.steps)
    for number, step in enumerate(lab.scenario.steps, 1):
        try:
            teller.step_begins(step, number, count)
            lab.events.emit("step-begins", step.title, step=number, action=step.action)
            result = run_step(lab, step)
            steps.append(result)
            lab.events.emit("step-ended", step.title, step=number, **result.as_json())
            teller.step_ended(result, number, count)
        except Stopped:
            return Outcome.STOPPED
        if not result.held:
            return Outcome.FAILED
    return Outcome.HELD


def run_step(lab: Lab, step: Step) -> StepResult:
    """Act, observe, check."""
    observation = Observation()
    started = time.monotonic()
    trouble = ""
    try:
        step.run(lab, observation)
    except STEP_TROUBLE as fault:
        trouble = f"{type(fault).__name__}: {fault}"
    return StepResult(step, observation, time.monotonic() - started, trouble)
