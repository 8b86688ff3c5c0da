"""Pipelines that run on this machine: who runs, how far it is, and how to ask one to stop.

    <state>/<name>/lock          held (flock) by the process that runs it, so a dead one is known at once
    <state>/<name>/status.json   what it is and how far, written anew with every report
    <state>/<name>/stop          asks it to stop

Nothing is signalled: a process that took a dead one's number is never hit.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidelog.client.faults import BadOption, ClientFault
from tidelog.pipelines.run_settings import state_directory
from tidelog.pipelines.work import Progress

STARTING, RUNNING, ENDED, STOPPED, FAILED, DIED = "starting", "running", "ended", "stopped", "failed", "died"
_POLL_SECONDS = 0.2
_ASKING_SECONDS_MAX = 0.5


class AlreadyRunning(ClientFault):
    """There is a pipeline of this name."""


@dataclass(frozen=True, slots=True)
class Status:
    """One pipeline, running or not."""

    name: str
    kind: str
    state: str
    pid: int
    started_ms: int
    updated_ms: int
    origin: str | None = None
    dead_letters: str | None = None
    failure: str | None = None
    progress: tuple[Progress, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, text: str) -> "Status":
        content = json.loads(text)
        content["progress"] = tuple(Progress(**one) for one in content["progress"])
        return cls(**content)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Place:
    """The files of one pipeline."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.folder = (root or state_directory()) / name
        self._lock: int | None = None

    def __enter__(self) -> "Place":
        """Be the one who runs it; raises AlreadyRunning."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Whoever asks whether it runs holds the lock for a moment too: once is not enough to tell.
        deadline = time.monotonic() + _ASKING_SECONDS_MAX
        while not _locked(lock):
            if time.monotonic() > deadline:
                os.close(lock)
                raise AlreadyRunning(f"pipeline {self.name} is running already")
            time.sleep(_ASKING_SECONDS_MAX / 10)
        self._lock = lock
        (self.folder / "stop").unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def tell(self, status: Status) -> None:
        """Write how it is, whole."""
        waiting = self.folder / "status.json.new"
        waiting.write_text(json.dumps(status.as_json()))
        waiting.replace(self.folder / "status.json")

    def stop_asked(self) -> bool:
        return (self.folder / "stop").exists()

    def is_running(self) -> bool:
        """Whether some process holds the lock."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def status(self) -> Status | None:
        """How it is; None when it never ran here."""
        try:
            status = Status.read((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return None
        if status.state in (STARTING, RUNNING) and not self.is_running():
            return _with_state(status, DIED)
        return status

    def ask_to_stop(self, timeout_seconds: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Ask it to stop and wait; False when it has not stopped in time."""
        if not self.is_running():
            raise BadOption(f"pipeline {self.name} is not running")
        (self.folder / "stop").touch()
        deadline = time.monotonic() + timeout_seconds
        while self.is_running():
            if time.monotonic() >= deadline:
                return False
            sleep(_POLL_SECONDS)
        return True


def _with_state(status: Status, state: str) -> Status:
    return Status(**{**{name: getattr(status, name) for name in Status.__slots__}, "state": state})


def all_statuses(root: Path | None = None) -> list[Status]:
    """Every pipeline that ran on this machine, by name."""
    folder = root or state_directory()
    if not folder.is_dir():
        return []
    found = (Place(path.name, folder).status() for path in sorted(folder.iterdir()) if path.is_dir())
    return [status for status in found if status is not None]
