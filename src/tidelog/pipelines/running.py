"""Pipelines that run on this machine: who runs, how far it is, and how to ask one to stop.

Their files are drawn in `client.pipeline_places`. Nobody else can read them. Nothing is
signalled: a process that took a dead one's number is never hit.
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
from tidelog.client.masking import masked
from tidelog.client.pipeline_places import (
    ALIVE,
    DIED,
    LOCK_FILE,
    STATUS_FILE,
    STOP_FILE,
    runs,
    state_directory,
)
from tidelog.pipelines.work import Progress

_POLL_SECONDS = 0.2
_ASKING_SECONDS_MAX = 0.5
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


class AlreadyRunning(ClientFault):
    """There is a pipeline of this name."""


class OtherPipeline(BadOption):
    """Another file, or another kind, has this name, and with it the checkpoint."""


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
    #: the failure in one sentence
    cause: str | None = None
    progress: tuple[Progress, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, text: str) -> "Status":
        content = json.loads(text)
        content["plan"] = masked(content["plan"])  # files of before had everything in them
        content["progress"] = tuple(map(Progress.read, content["progress"]))
        return cls(**content)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_private(folder: Path) -> None:
    """A pipeline's folder, and that of all pipelines where there was none."""
    folder.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    folder.chmod(_FOLDER_MODE)


class Place:
    """The files of one pipeline."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.folder = (root or state_directory()) / name
        self._lock: int | None = None

    def __enter__(self) -> "Place":
        """Be the one who runs it; raises AlreadyRunning."""
        _make_private(self.folder)
        lock = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        # Whoever asks whether it runs holds the lock for a moment too: once is not enough to tell.
        deadline = time.monotonic() + _ASKING_SECONDS_MAX
        while not _locked(lock):
            if time.monotonic() > deadline:
                os.close(lock)
                raise AlreadyRunning(f"pipeline {self.name} is running already")
            time.sleep(_ASKING_SECONDS_MAX / 10)
        self._lock = lock
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def tell(self, status: Status) -> None:
        """Write how it is, whole."""
        waiting = self.folder / f"{STATUS_FILE}.new"
        waiting.unlink(missing_ok=True)
        with os.fdopen(os.open(waiting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "w") as file:
            json.dump(status.as_json(), file)
        waiting.replace(self.folder / STATUS_FILE)

    def check_same(self, origin: Path | None, kind: str) -> None:
        """Raises OtherPipeline when what ran by this name was another file that is still there, or kind."""
        status = self.status()
        if status is None:
            return
        before = None if status.origin is None else Path(status.origin)
        if status.kind == kind and (before == origin or (before is not None and not before.exists())):
            return
        if before is not None and origin is not None and before.exists() and before.samefile(origin):
            return
        was = f"a pipeline of kind {status.kind}, from the command line" if before is None else str(before)
        raise OtherPipeline(
            f"pipeline {self.name} is {was}: {origin or f'this {kind}'} would go on in its checkpoint. Give "
            "this one another name (name: in the file, or --name), or take the name over with --replace"
        )

    def stop_asked(self) -> bool:
        return (self.folder / STOP_FILE).exists()

    def is_running(self) -> bool:
        """Whether some process runs it."""
        return runs(self.folder)

    def status(self) -> Status | None:
        """How it is; None when it never ran here."""
        try:
            status = Status.read((self.folder / STATUS_FILE).read_text())
        except FileNotFoundError:
            return None
        if status.state in ALIVE and not self.is_running():
            return _with_state(status, DIED)
        return status

    def ask_to_stop(self, timeout_seconds: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Ask it to stop and wait; False when it has not stopped in time."""
        if not self.is_running():
            raise BadOption(f"pipeline {self.name} is not running")
        (self.folder / STOP_FILE).touch(_FILE_MODE)
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
