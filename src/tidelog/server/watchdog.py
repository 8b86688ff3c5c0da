"""A thread that looks whether the event loop moves, and ends the broker's session when it does not.

It says once, with the place where the loop stands, that the loop is slow to come back, and once that the
session had to go. What counts as standing still is decided in `broker/runtime/liveness.py`.
"""

import logging
import sys
import threading
from pathlib import Path
from types import FrameType

from tidelog.broker.runtime.liveness import Liveness

log = logging.getLogger(__name__)

FRAMES_SHOWN_MAX = 6


class Watchdog:
    """Looks after the loop of the thread that made it."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._loop_thread_id = threading.get_ident()
        self._stopping = threading.Event()
        self._told_slow = self._told_ended = False
        self._thread = threading.Thread(target=self._run, name="tidelog-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it is not waited for, for it never waits long."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._liveness.tick_ms / 1000):
            self._tell(self._liveness.look())

    def _tell(self, still_ms: int) -> None:
        stall_ms = self._liveness.stall_ms
        if still_ms == 0:
            self._told_slow = self._told_ended = False
        elif still_ms >= stall_ms and not self._told_ended:
            self._told_ended = True
            log.error(
                "the event loop has not moved for %.1f s: the session is given up, so that others can lead",
                still_ms / 1000,
            )
        elif still_ms >= stall_ms // 2 and not self._told_slow:
            self._told_slow = True
            place = where(sys._current_frames().get(self._loop_thread_id))
            log.warning("the event loop has not moved for %.1f s; it is at %s", still_ms / 1000, place)


def where(frame: FrameType | None) -> str:
    """Where a thread is, the innermost function first."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES_SHOWN_MAX:
        code = frame.f_code
        places.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(places) or "an unknown place"
