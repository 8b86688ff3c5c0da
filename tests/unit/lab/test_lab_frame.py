"""The frame of the lab without any cluster: results, the runner, narration, events, gates, the catalog."""

import contextlib
import gc
import io
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tidelog.lab import catalog, runner
from tidelog.lab import lab as lab_module
from tidelog.lab.events import KEPT_MAX, EventStream
from tidelog.lab.faults import FAULTS, FaultNotPossible, Faults
from tidelog.lab.lab import Lab
from tidelog.lab.narrator import TerminalNarrator
from tidelog.lab.network import Network, api_key_of, client_id_of
from tidelog.lab.picture import changes
from tidelog.lab.runner import run_scenario, run_step
from tidelog.lab.scenario import Observation, Outcome, Scenario, ScenarioResult, Step, StepResult
from tidelog.lab.session import LabSession, Phase

WAIT_SECONDS = 10.0


class NoLab:
    """Stands where a lab stands, without a cluster."""

    def __init__(self, scenario: Scenario, *, events: EventStream | None = None) -> None:
        self.scenario = scenario
        self.events = events or EventStream()
        self.topics: list[str] = []
        self.consumers: dict[str, Any] = {}
        self.closed = False

    def start(self) -> "NoLab":
        return self

    def close(self) -> None:
        self.closed = True


def a_scenario(*functions: Any) -> Scenario:
    scenario = Scenario(
        name="a-lesson", title="A lesson", minutes=1, learn=("something",), summary="remember"
    )
    for number, function in enumerate(functions, 1):
        scenario.step(f"step {number}", narration="about it", action="do it", prediction="it holds")(function)
    return scenario


def holds(lab: Any, see: Observation) -> None:
    see.say("seen")
    see.table(("a", "b"), [(1, None)], title="rows")
    see.lines("raw\nlines")
    see.figure("count", 3)
    see.check("it is so", True)


def does_not_hold(lab: Any, see: Observation) -> None:
    see.check("it is so", False, "it is otherwise")


def checks_nothing(lab: Any, see: Observation) -> None:
    see.say("nothing to see")


def in_trouble(lab: Any, see: Observation) -> None:
    see.check("this much held", True)
    raise TimeoutError("waited in vain")


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Lab", NoLab)


def test_a_scenario_whose_checks_hold(no_cluster: None) -> None:
    result = run_scenario(a_scenario(holds, holds))
    assert result.held and result.faults == []
    told = result.as_json()
    assert told["outcome"] == "held"
    first = told["steps"][0]
    assert first["figures"] == {"count": 3}
    table = {"title": "rows", "columns": ["a", "b"], "rows": [[1, None]]}
    assert first["shown"] == ["seen", table, {"lines": ["raw", "lines"]}]


def test_what_does_not_hold_ends_it(no_cluster: None) -> None:
    result = run_scenario(a_scenario(does_not_hold, holds))
    assert result.outcome is Outcome.FAILED
    assert len(result.steps) == 1
    assert result.faults == ["step 1: it is so: it did not hold (it is otherwise)"]


def test_a_step_without_a_check_fails(no_cluster: None) -> None:
    result = run_scenario(a_scenario(checks_nothing))
    assert result.outcome is Outcome.FAILED
    assert "checked nothing" in result.faults[0]


def test_trouble_is_told_in_words(no_cluster: None) -> None:
    result = run_scenario(a_scenario(in_trouble))
    assert result.outcome is Outcome.FAILED
    assert result.faults == ["step 1: TimeoutError: waited in vain"]


def test_a_defect_of_a_scenario_is_raised() -> None:
    def wrong(lab: Any, see: Observation) -> None:
        raise TypeError("a defect")

    with pytest.raises(TypeError):
        run_step(NoLab(a_scenario()), a_scenario(wrong).steps[0])  # type: ignore[arg-type]


class InterruptedWhileClosing(NoLab):
    """Ctrl-C comes while it is cleared away."""

    closings = 0

    def close(self) -> None:
        self.closings += 1
        if self.closings == 1:
            raise KeyboardInterrupt
        super().close()


def test_ctrl_c_while_a_lab_is_cleared_away_does_not_leave_the_rest() -> None:
    lab = InterruptedWhileClosing(a_scenario(holds))
    with pytest.raises(KeyboardInterrupt):
        run_scenario(lab.scenario, make_lab=lambda *_: lab)  # type: ignore[arg-type]
    assert lab.closed


def test_the_folder_of_a_lab_that_was_never_closed_goes_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        assert list(tmp_path.glob("tidelog-lab-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lab_module, "LabCluster", interrupted)
    with pytest.warns(ResourceWarning, match="tidelog-lab-"):
        with contextlib.suppress(KeyboardInterrupt):
            Lab(a_scenario(holds))
        gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_step_whose_broker_was_killed_by_hand_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = catalog.load("keys-and-ordering")
    lab = Lab(scenario)  # never started, so its broker is as one that was killed
    try:
        monkeypatch.setattr(lab, "produce", partial(lab.produce, timeout_seconds=0.1))
        result = run_step(lab, scenario.steps[0])
    finally:
        lab.close()
    assert not result.held
    assert result.trouble == (
        "TimeoutError: 0.1 s after sending, nobody has answered for 20 of 20 records; broker 1 is down"
    )


def test_what_is_missing_is_said(no_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "missing", lambda scenario: ["install it"])
    result = run_scenario(a_scenario(holds))
    assert result.outcome is Outcome.UNAVAILABLE and result.message == "install it"


def narrated(result_of: Scenario, *, width: int = 100) -> str:
    text = io.StringIO()
    narrator = TerminalNarrator(Console(file=text, width=width, highlight=False), auto=True)
    run_scenario(result_of, narrator)
    return text.getvalue()


def test_the_narrator_tells_everything_within_100_columns(no_cluster: None) -> None:
    told = narrated(a_scenario(holds, in_trouble))
    for words in ("A lesson", "something", "Prediction: it holds", "✔ it is so", "raw", "waited in vain"):
        assert words in told
    assert max(len(line) for line in told.splitlines()) <= 100


def test_a_check_that_failed_is_told(no_cluster: None) -> None:
    told = narrated(a_scenario(does_not_hold))
    assert "✘ it is so" in told and "instead: it is otherwise" in told and "did not hold" in told


class ReadsAlong:
    """A narrator that stops at the second step."""

    def scenario_begins(self, scenario: Scenario) -> None:
        pass

    def step_begins(self, step: Step, number: int, count: int) -> None:
        if number == 2:
            raise runner.Stopped

    def step_ended(self, result: StepResult, number: int, count: int) -> None:
        pass

    def scenario_ended(self, result: ScenarioResult) -> None:
        pass


def test_a_person_may_stop(no_cluster: None) -> None:
    result = run_scenario(a_scenario(holds, holds), ReadsAlong())
    assert result.outcome is Outcome.STOPPED and len(result.steps) == 1


def test_events_are_numbered_kept_and_waited_for() -> None:
    events = EventStream()
    events.emit("first", "one", topic="a")
    assert [event.as_json()["topic"] for event in events.after(0)] == ["a"]
    threading.Thread(target=events.emit, args=("second", "two")).start()
    assert [event.kind for event in events.after(1, WAIT_SECONDS)] == ["second"]
    for _ in range(KEPT_MAX + 5):
        events.emit("more", "")
    assert len(events.after(0)) == KEPT_MAX
    assert events.last_number == KEPT_MAX + 7


class OneFaultLab:
    """What a fault needs of a lab."""

    class cluster:  # noqa: N801
        broker_ids = (1, 2)

    def __init__(self) -> None:
        self.events = EventStream()


def test_faults_are_refused_in_words() -> None:
    faults = Faults(OneFaultLab())  # type: ignore[arg-type]
    for name, target in (("melt", "1"), ("kill", "7"), ("kill", "one")):
        with pytest.raises(FaultNotPossible):
            faults.apply(name, target)
    for fault in FAULTS:
        assert callable(getattr(faults, fault.name)), fault


def request_bytes(api_key: int, client_id: bytes) -> bytes:
    body = struct.pack(">hhih", api_key, 3, 1, len(client_id)) + client_id
    return struct.pack(">i", len(body)) + body


def test_requests_say_who_and_what() -> None:
    data = request_bytes(0, b"broker-2")
    assert (client_id_of(data), api_key_of(data)) == ("broker-2", 0)
    assert (client_id_of(b"short"), api_key_of(b"short")) == ("", -1)


@contextmanager
def echoing() -> Iterator[tuple[Network, int]]:
    """A gate of 'broker 1' before a server that answers with what it got."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                stream, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(stream,), daemon=True).start()

    def echo(stream: socket.socket) -> None:
        with stream:
            while data := stream.recv(4096):
                stream.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    network = Network()
    network.open_gate(1, port, listening.getsockname()[1])
    try:
        yield network, port
    finally:
        network.close()
        listening.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


def test_a_gate_passes_bytes_on() -> None:
    with echoing() as (_, port), connect(port) as stream:
        stream.sendall(request_bytes(3, b"anna"))
        assert stream.recv(100) == request_bytes(3, b"anna")


def test_a_cut_is_silent_and_its_connections_end_with_it() -> None:
    with echoing() as (network, port), connect(port) as stream:
        stream.sendall(request_bytes(3, b"broker-2"))
        assert stream.recv(100)
        network.cut(2)
        assert network.cut_brokers == {2}
        stream.sendall(b"into the cut")
        stream.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stream.recv(100)
        with connect(port) as other:  # others pass
            other.sendall(request_bytes(3, b"anna"))
            assert other.recv(100)
        network.heal(2)
        stream.settimeout(WAIT_SECONDS)
        assert stream.recv(100) == b""


def test_an_answer_is_lost_with_its_connection() -> None:
    with echoing() as (network, port), connect(port) as stream:
        lost = network.lose_answers(1)
        stream.sendall(request_bytes(3, b"anna"))
        assert stream.recv(100), "answers to other requests pass"
        stream.sendall(request_bytes(0, b"anna"))
        assert stream.recv(100) == b""
        assert lost.wait(WAIT_SECONDS)
        with connect(port) as again:
            again.sendall(request_bytes(0, b"anna"))
            assert again.recv(100), "only one was to be lost"


def test_changes_between_two_pictures() -> None:
    def looked(known: bool, leader: int, isr: list[int], controller: bool) -> dict[str, Any]:
        partition = {"partition": 0, "leader": leader, "isr": isr}
        return {
            "brokers": [{"id": 1, "known": known, "controller": controller}],
            "topics": [{"name": "orders", "partitions": [partition]}],
        }

    found = changes(looked(True, 1, [1, 2], False), looked(False, 2, [2], True))
    assert [kind for kind, _, _ in found] == ["broker", "controller", "leader", "isr"]
    assert changes(looked(True, 1, [1, 2], True), looked(True, 1, [2, 1], True)) == []


def test_a_session_waits_for_its_person(no_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabSession, "_watch", lambda self, lab: setattr(self, "lab", lab))
    session = LabSession(a_scenario(holds, holds))
    session.start()
    seen = 0
    for phase in (Phase.PREDICTED, Phase.OBSERVED, Phase.PREDICTED):
        seen = wait_phase(session, phase, seen)
        session.go_on()
    wait_phase(session, Phase.FINISHED, seen)
    state = session.state()
    assert state["outcome"] == "held" and len(state["results"]) == 2
    assert state["step"]["prediction"] == "it holds"
    session.stop()
    assert session.phase is Phase.ENDED and session.defect == ""


def test_a_session_ends_after_what_people_do_to_it(no_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabSession, "_watch", lambda self, lab: setattr(self, "lab", lab))
    session = LabSession(a_scenario(holds))
    with pytest.raises(FaultNotPossible, match="not there"), session.busy_with("1"):
        pass
    session.start()
    wait_phase(session, Phase.PREDICTED, 0)
    with session.busy_with("1"):
        with pytest.raises(FaultNotPossible, match="already"), session.busy_with("1"):
            pass
        stopping = threading.Thread(target=session.stop)
        stopping.start()
        while True:  # until the stop is under way: it lets nobody else in
            try:
                with session.busy_with("2"):
                    pass
            except FaultNotPossible:
                break
        assert session.phase is Phase.PREDICTED
    stopping.join(WAIT_SECONDS)
    assert session.phase is Phase.ENDED and session.defect == ""  # type: ignore[comparison-overlap]


def test_an_automatic_session_shows_each_page_for_a_while(
    no_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LabSession, "_watch", lambda self, lab: setattr(self, "lab", lab))
    held: list[str] = []
    session = LabSession(
        a_scenario(holds, holds), auto_seconds=0.01, on_result=lambda result: held.append(str(result.outcome))
    )
    session.start()
    seen = wait_phase(session, Phase.PREDICTED, 0)
    session.set_auto(True)
    wait_phase(session, Phase.FINISHED, seen)
    assert held == ["held"]
    session.stop()


def wait_phase(session: LabSession, phase: Phase, after: int) -> int:
    """Wait until the session says that it entered the phase; the number of that event."""
    while True:
        events = session.events.after(after, WAIT_SECONDS)
        assert events, f"{phase} did not come"
        for event in events:
            after = event.number
            if event.fields.get("phase") == phase:
                return after


@pytest.mark.parametrize("name", catalog.names())
def test_every_scenario_is_well_formed(name: str) -> None:
    scenario = catalog.load(name)
    assert name in catalog.ORDER, "give it a place in the tour"
    assert scenario.title and scenario.learn and scenario.summary and 1 <= scenario.minutes <= 15
    assert len(scenario.steps) >= 3, "a lesson has a beginning, a middle and an end"
    for step in scenario.steps:
        assert step.narration and step.action and step.prediction, step.title


def test_an_unknown_scenario() -> None:
    with pytest.raises(LookupError):
        catalog.load("no-such-lesson")
