"""The supervisor with a real broker: deaths, giving up, signals, rolling restart, and nothing left behind."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.child_programs import environment, program
from tidelog.server.cluster_view import ask
from tidelog.server.supervisor import exit_text, read_state
from tidelog.testing.ports import ReservedPort

PROGRAM = "tests.unit.server.supervised"
DEADLINE_SECONDS = 60.0


class Supervised:
    """The program under test and what it says."""

    def __init__(self, data: Path, *ports: int, healthy_seconds: float = 0.0) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [*program(PROGRAM), str(data), ",".join(map(str, ports)), str(healthy_seconds)],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        self._lines: list[bytes] = []
        self._received = b""

    def wait_event(self, kind: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        assert self.process.stdout is not None
        while True:
            while b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                event: dict[str, Any] = json.loads(line)
                if event["event"] == kind:
                    return event
            readable, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 65536) if readable else b""
            assert piece, f"no event {kind!r}"
            self._received += piece

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def broker_pid(self) -> int:
        state = read_state(self.data)
        assert state is not None
        return int(state["brokers"][0]["pid"])

    def wait(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def port() -> Iterator[int]:
    reserved = ReservedPort()
    yield reserved.port
    reserved.close()


@pytest.fixture
def supervised(tmp_path: Path, port: int) -> Iterator[Supervised]:
    program = Supervised(tmp_path, port)
    yield program
    program.close()


def wait_gone(process_id: int) -> None:
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], DEADLINE_SECONDS)
    finally:
        os.close(descriptor)
    assert ended, f"process {process_id} is still there"


def test_a_killed_broker_comes_back_and_a_roll_replaces_it(supervised: Supervised, port: int) -> None:
    ready = supervised.wait_event("cluster_ready")
    assert ready["bootstrap"] == f"127.0.0.1:{port}"
    first = supervised.broker_pid()
    os.kill(first, signal.SIGKILL)
    assert "SIGKILL" in supervised.wait_event("died")["message"]
    assert supervised.wait_event("ready")["restarts"] == 1
    second = supervised.broker_pid()
    assert second != first
    assert ask(f"127.0.0.1:{port}").addresses == {1: f"127.0.0.1:{port}"}
    supervised.signal(signal.SIGUSR1)
    supervised.wait_event("rolled")
    third = supervised.broker_pid()
    assert third != second
    supervised.signal(signal.SIGINT)
    supervised.wait_event("cluster_stopped")
    assert supervised.wait() == 0
    assert read_state(supervised.data) is None
    wait_gone(third)


def test_a_broker_stopped_on_purpose_stays_down(supervised: Supervised) -> None:
    supervised.wait_event("cluster_ready")
    os.kill(supervised.broker_pid(), signal.SIGTERM)
    assert supervised.wait_event("stopped")["exit_code"] == 0
    assert supervised.wait() == 0


def test_a_broker_that_keeps_failing_is_given_up(tmp_path: Path, port: int) -> None:
    program = Supervised(tmp_path, port, healthy_seconds=3600.0)
    try:
        program.wait_event("cluster_ready")
        os.kill(program.broker_pid(), signal.SIGKILL)
        program.wait_event("died")
        program.wait_event("ready")
        os.kill(program.broker_pid(), signal.SIGKILL)
        program.wait_event("died")
        program.wait_event("ready")
        os.kill(program.broker_pid(), signal.SIGKILL)
        failed = program.wait_event("failed")
        assert failed["failures"] == 3 and "given up" in failed["message"]
        assert program.wait() == 1
    finally:
        program.close()


def test_a_port_in_use_is_told_and_nothing_runs(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        program = Supervised(tmp_path, port)
        try:
            assert "cannot listen" in program.wait_event("refused")["message"]
            assert program.wait() == 1
        finally:
            program.close()


def test_two_supervisors_do_not_share_a_folder(supervised: Supervised, port: int) -> None:
    supervised.wait_event("cluster_ready")
    other = Supervised(supervised.data, port)
    try:
        assert "another cluster runs" in other.wait_event("refused")["message"]
    finally:
        other.close()


def test_a_second_signal_ends_everything_at_once(supervised: Supervised) -> None:
    supervised.wait_event("cluster_ready")
    broker = supervised.broker_pid()
    supervised.signal(signal.SIGINT)
    supervised.wait_event("stopping")
    # Stopped by SIGSTOP it cannot end by itself, unless it was quick and is gone already.
    with contextlib.suppress(ProcessLookupError):
        os.kill(broker, signal.SIGSTOP)
    supervised.signal(signal.SIGINT)
    assert supervised.wait() in (0, 130)
    wait_gone(broker)


def test_a_broker_that_dies_while_the_others_stop_is_not_started_again(tmp_path: Path) -> None:
    reserved = [ReservedPort(), ReservedPort()]
    program = Supervised(tmp_path, *(item.port for item in reserved))
    try:
        ready = program.wait_event("cluster_ready")
        controller = ask(ready["bootstrap"].split(",")[0]).controller_id
        (last,) = (item["pid"] for item in ready["brokers"] if item["id"] == controller)
        program.signal(signal.SIGINT)
        program.wait_event("stopping")
        os.kill(last, signal.SIGKILL)
        program.wait_event("cluster_stopped")
        assert program.wait() == 0
        state = json.loads((tmp_path / "cluster.json").read_text())
        assert [(item["state"], item["restarts"]) for item in state["brokers"]] == [("stopped", 0)] * 2
    finally:
        program.close()
        for item in reserved:
            item.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_broker_ends_with_its_supervisor(supervised: Supervised, stopped: bool) -> None:
    supervised.wait_event("cluster_ready")
    broker = supervised.broker_pid()
    if stopped:
        os.kill(broker, signal.SIGSTOP)
    supervised.signal(signal.SIGKILL)
    supervised.wait()
    wait_gone(broker)


def test_exit_codes_in_words() -> None:
    assert exit_text(3) == "ended with exit code 3"
    assert exit_text(-9) == "was ended by SIGKILL"
