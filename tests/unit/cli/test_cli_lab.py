"""`tidelog lab` without clusters: what is listed, exit codes, and a tour that goes on where it was left."""

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import tidelog
from tidelog.lab import catalog, runner
from tidelog.lab.scenario import Observation, Outcome, Scenario, ScenarioResult, StepResult


class Runs:
    """Stands for `run_scenario`: what ran, and how each is to end."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.outcomes: dict[str, Outcome] = {}

    def __call__(self, scenario: Scenario, narrator: object) -> ScenarioResult:
        self.names.append(scenario.name)
        outcome = self.outcomes.get(scenario.name, Outcome.HELD)
        seen = Observation()
        seen.check("it is so", outcome is Outcome.HELD, "otherwise")
        return ScenarioResult(scenario, outcome, (StepResult(scenario.steps[0], seen, 0.1),), 0.1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    found = Runs()
    monkeypatch.setattr(runner, "run_scenario", found)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return found


def lab(*words: str) -> Result:
    return CliRunner().invoke(tidelog, ["lab", *words])


def test_list_has_all_in_the_order_of_the_tour() -> None:
    listed = json.loads(lab("list", "--json").stdout)
    assert [row["name"] for row in listed] == catalog.names()
    assert all(row["steps"] and row["learn"] for row in listed)
    assert all(row["name"] in lab("list").stdout for row in listed)


def test_run_prints_results_and_its_exit_code_tells(runs: Runs) -> None:
    done = lab("run", "acks", "retention", "--json")
    assert done.exit_code == 0
    assert [row["scenario"] for row in json.loads(done.stdout)] == ["acks", "retention"]
    runs.outcomes["retention"] = Outcome.FAILED
    failed = lab("run", "acks", "retention", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)[1]["steps"][0]["faults"] == ["it is so: it did not hold (otherwise)"]


def test_what_cannot_be_run_here_alone_is_a_failure(runs: Runs) -> None:
    runs.outcomes["acks"] = Outcome.UNAVAILABLE
    assert lab("run", "acks", "--auto").exit_code == 1
    assert lab("run", "acks", "retention", "--auto").exit_code == 0


def test_an_unknown_scenario_is_explained(runs: Runs) -> None:
    done = lab("run", "aks")
    assert done.exit_code == 1
    assert "tidelog lab list" in done.output


def test_all_runs_all_and_sums_up(runs: Runs) -> None:
    done = lab("all")
    assert done.exit_code == 0
    assert runs.names == catalog.names()
    assert "s in all" in done.stdout


def test_a_tour_goes_on_where_it_was_left(runs: Runs) -> None:
    names = catalog.names()
    runs.outcomes[names[2]] = Outcome.STOPPED
    first = lab("tour", "--auto")
    assert first.exit_code == 0 and f"goes on with {names[2]}" in first.stdout
    assert runs.names == names[:3]
    runs.names.clear()
    runs.outcomes.clear()
    second = lab("tour", "--auto")
    assert second.exit_code == 0 and "2 are done" in second.stdout
    assert runs.names == names[2:]
    assert "--restart" in lab("tour").stdout
    runs.names.clear()
    lab("tour", "--auto", "--restart")
    assert runs.names == names


def test_a_tour_stops_where_something_does_not_hold(runs: Runs) -> None:
    names = catalog.names()
    runs.outcomes[names[1]] = Outcome.FAILED
    assert lab("tour", "--auto").exit_code == 1
    assert runs.names == names[:2]


def test_a_damaged_note_of_the_tour_is_explained(runs: Runs, tmp_path: Path) -> None:
    note = tmp_path / "tidelog" / "lab-tour.json"
    note.parent.mkdir()
    note.write_text("{")
    done = lab("tour")
    assert done.exit_code == 1 and "--restart" in done.output


class Interrupted:
    """Stands for a `run_scenario` that signals reach: one while it runs, two while it clears away."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        self.names: list[str] = []
        self.cleared = False

    def __call__(self, scenario: Scenario, narrator: object) -> ScenarioResult:
        self.names.append(scenario.name)
        try:
            signal.raise_signal(self.number)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            self.cleared = True
        raise AssertionError("the signal was not heard")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [("all",), ("run", "acks", "retention", "--auto"), ("tour", "--auto")])
def test_an_interrupt_clears_away_and_is_the_exit_code(
    words: tuple[str, ...], number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    interrupted = Interrupted(number)
    monkeypatch.setattr(runner, "run_scenario", interrupted)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    done = lab(*words)
    assert done.exit_code == 128 + number, done.output
    assert interrupted.cleared and len(interrupted.names) == 1
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
