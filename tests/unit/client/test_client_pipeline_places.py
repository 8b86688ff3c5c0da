"""Where pipelines say how they are, which the console and the pipelines themselves agree about."""

import fcntl
from pathlib import Path

import pytest

from tidelog.client.pipeline_places import LOCK_FILE, STATE_VARIABLE, runs, state_directory
from tidelog.console.console import ConsoleSettings
from tidelog.pipelines.running import Place


def test_the_console_looks_where_pipelines_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STATE_VARIABLE, "state")
    assert state_directory() == tmp_path / "state"
    assert Place("archive").folder == ConsoleSettings().pipelines_folder / "archive"
    monkeypatch.setenv(STATE_VARIABLE, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".tidelog" / "pipelines"


def test_a_pipeline_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not runs(tmp_path / "nowhere")
    with (tmp_path / LOCK_FILE).open("w") as lock:
        assert not runs(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert runs(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert not runs(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody who asked still holds it
