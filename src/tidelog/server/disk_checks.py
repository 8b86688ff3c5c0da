"""Tells a disk that hangs from one that is slow, or from work that is long.

Work in threads (fsync, checkpoints, deleting, loading) that takes more than a moment raises a suspicion. Then
a small block of a file in every log directory is written and synced, again and again while the suspicion
lasts, each time by a thread of its own that may hang. A disk with a gigabyte to sync still answers that soon
(the file exists and keeps its size, so that no journal is waited for); one that hangs does not. Any answer
counts, an error too: what errors mean is for others to decide. As long as all work is quick nothing is asked,
so an idle disk is left alone. So is one that is out of use, for it has failed or was never taken: what it
does not answer says nothing about the broker.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = ".disk-check"
BLOCK = b"This file is written to see whether the disk answers.\n".ljust(4096, b"\0")

#: for how long the longest work in the threads has been under way, in seconds; 0 if none is
WorkSeconds = Callable[[], float]


def write_block(folder: Path) -> None:
    """One small write that the disk must answer."""
    descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, BLOCK, 0)
        # Not every system has the lighter one.
        getattr(os, "fdatasync", os.fsync)(descriptor)
    finally:
        os.close(descriptor)


class DiskChecks:
    """The log directories of one broker that are `in_use`; `silent_ms` is asked by the event loop."""

    def __init__(
        self,
        in_use: Callable[[], Collection[str]],
        work_seconds: WorkSeconds,
        *,
        interval_seconds: float,
        check: Callable[[Path], None] = write_block,
    ) -> None:
        self._work_seconds = work_seconds
        self._interval_seconds = interval_seconds
        self._in_use = in_use
        self._check = check
        self._known: dict[str, _Place] = {}
        self._places()

    def _places(self) -> "list[_Place]":
        places = []
        for folder in self._in_use():
            place = self._known.get(folder)
            if place is None:
                place = self._known[folder] = _Place(Path(folder), self._check)
            places.append(place)
        return places

    def prepare(self) -> None:
        """Make the files, blocking, while the disks answer."""
        for place in self._places():
            place.answer()

    def silent_ms(self) -> int:
        """For how long a disk has not answered that was asked; 0 while there is nothing to suspect."""
        now = time.monotonic()
        worked_seconds = self._work_seconds()
        suspected = worked_seconds > self._interval_seconds
        seconds = [
            place.silent_seconds(now, worked_seconds, suspected, self._interval_seconds)
            for place in self._places()
        ]
        return int(max(seconds, default=0.0) * 1000)

    def hanging(self) -> list[str]:
        """The directories that are being asked and have not answered yet."""
        return [str(place.folder) for place in self._places() if place.asked_at is not None]


class _Place:
    """One directory."""

    def __init__(self, folder: Path, check: Callable[[Path], None]) -> None:
        self.folder = folder
        self._check = check
        #: when the question that has no answer yet was asked
        self.asked_at: float | None = None
        self._answered_at = time.monotonic()

    def silent_seconds(self, now: float, worked_seconds: float, suspected: bool, interval: float) -> float:
        asked_at = self.asked_at
        if asked_at is None:
            if not suspected:
                return 0.0
            if now - self._answered_at >= interval:
                self.asked_at = now
                threading.Thread(target=self.answer, name="tidelog-disk-check", daemon=True).start()
            return max(0.0, now - max(self._answered_at, now - worked_seconds))
        # The work began before the question, if it still waits: the disk may be silent since then.
        return now - max(self._answered_at, min(asked_at, now - worked_seconds))

    def answer(self) -> None:
        """Ask and wait for the answer, whatever it is."""
        try:
            self._check(self.folder)
        except OSError as fault:
            log.debug("%s answers with an error: %s", self.folder, fault)
        self._answered_at = time.monotonic()
        self.asked_at = None
