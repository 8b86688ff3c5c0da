"""The embedded store: the brokers of one machine share a SQLite file, and no extra process runs.

The file (`embedded_file`) keeps the keys and says which sessions there are. The links (`embedded_links`) do
what a file cannot: every change is pushed to the other processes, a killed process is noticed by the end of
its sockets, a stopped one by its silence. Whoever notices first removes the session and its keys in one
transaction, and since every commit looks for its own session first, a process that was given up can no longer
write, however late it wakes.

A process stopped in the very middle of a commit holds the lock of the file, and nobody could write before it
goes on. When its session timeout has passed, the others kill it: the one way to take the lock from it.

Any number of stores, in one process or in many, may be open on one file, which must lie on a local disk.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tidelog.coordination.embedded_file import Busy, Change, SessionRow, StoreFile
from tidelog.coordination.embedded_links import Links
from tidelog.coordination.store import (
    Check,
    Committed,
    Conflict,
    Entry,
    SessionLost,
    StoreError,
    Write,
    check_writes,
)
from tidelog.coordination.watches import Listener, Watches

log = logging.getLogger(__name__)

SESSION_TIMEOUT_MS = 9000
_BUSY_TIMEOUT_MS = 5000
#: the thread of the links must go on telling that it lives, so it never waits for the file
_LINKS_BUSY_TIMEOUT_MS = 5
#: how long a writer that is silent beyond its timeout may block the others before it is killed
_HUNG_WRITER_SECONDS = 0.5


class EmbeddedStore:
    """A session of the store in the file `path`."""

    def __init__(self, path: Path, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        self._path = path
        self._session = SessionRow(os.urandom(8).hex(), os.getpid(), session_timeout_ms)
        self._watches = Watches()
        self._lock = threading.Lock()
        self._due: set[str] = set()
        self._lost_listeners: list[Listener] = []
        self._lost = False
        self._closed = False
        self._heard = _Heard()
        self._file = StoreFile(path, busy_timeout_ms=_BUSY_TIMEOUT_MS, durable=True)
        self._file_lock = threading.Lock()
        self._links_file: StoreFile | None = None
        self._links: Links | None = None
        try:
            self._join()
        except OSError as error:
            self.close()
            raise error if isinstance(error, StoreError) else StoreError(f"{path}: {error}") from error

    def _join(self) -> None:
        """Listen, then register, then meet the others: whoever comes later finds this session listening."""
        self._links_file = StoreFile(self._path, busy_timeout_ms=_LINKS_BUSY_TIMEOUT_MS, durable=False)
        folder = self._path.with_name(self._path.name + ".sessions")
        self._links = links = Links(folder, self._session, self)
        self._heard = _Heard(self._file.sequence())
        self._file.begin_session(self._session)
        others = [row for row in self._file.sessions() if row != self._session]
        for row in others:
            if not links.connect(row):
                # Before anything is read here: a dead process leaves no key behind for its successor.
                self._file.end_session(row.id)
                links.discard(row.id)
        links.sweep(row.id for row in others)
        links.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "lost" if self._lost else "open"
        return f"<EmbeddedStore {self._path} session={self._session.id} {state}>"

    # -- the port

    @property
    def session_timeout_ms(self) -> int | None:
        return self._session.timeout_ms

    def get(self, key: str) -> Entry | None:
        with self._file_lock:
            return self._usable_file().get(key)

    def load(self, prefix: str = "") -> list[Entry]:
        with self._file_lock:
            return self._usable_file().load(prefix)

    def commit(self, writes: Sequence[Write | Check]) -> Committed | Conflict:
        check_writes(writes)
        with self._file_lock:
            file = self._usable_file()
            try:
                outcome, change = file.commit(self._session.id, writes)
            except SessionLost:
                self._lose()
                raise
        if change is not None:
            self._announce(change)
        return outcome

    def watch(self, key: str, listener: Listener) -> None:
        self._usable_file()
        self._watches.add(key, listener)

    def on_session_lost(self, listener: Listener) -> None:
        with self._lock:
            if not self._lost:
                self._lost_listeners.append(listener)
                return
        listener()

    def lapse(self) -> None:
        # The thread of the links does it: the caller may be anybody, and the file may be busy.
        if self._links is not None and not self._lost and not self._closed:
            self._links.fall_silent()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        links, links_file = self._links, self._links_file
        if links is not None:
            if not self._lost:
                self._leave(links)
            links.stop()
        if links_file is not None:
            links_file.close()
        with self._file_lock:
            self._file.close()

    def _leave(self, links: Links) -> None:
        try:
            with self._file_lock:
                change = self._file.end_session(self._session.id)
        except StoreError as error:
            log.warning("the others must find out by themselves that this session ends: %s", error)
            return
        if change is not None:
            links.tell(change)
            links.say_bye()

    def _usable_file(self) -> StoreFile:
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        if self._lost:
            raise SessionLost(f"the session of this broker in {self._path} has ended")
        return self._file

    # -- telling: the others through the links, listeners here through the thread of the links

    def _announce(self, change: Change) -> None:
        links = self._links
        assert links is not None
        links.tell(change)
        with self._lock:
            self._heard.add(change.sequence)
            self._due.update(self._watches.touched_by(change.keys))
        links.wake()

    def _fire(self, watched: Iterable[str]) -> None:
        for key in watched:
            for listener in self._watches.listeners(key):
                _call(listener)

    def _lose(self) -> None:
        """The session has ended; the thread of the links tells so and ends too."""
        with self._lock:
            if self._lost or self._closed:
                return
            self._lost = True
        log.warning("the session of this broker in %s has ended", self._path)
        assert self._links is not None
        if self._links.running:
            self._links.wake()
        else:
            self.deliver()

    # -- what the links tell (their thread)

    def deliver(self) -> None:
        with self._lock:
            due, self._due = self._due, set()
            lost = self._lost and not self._closed
            listeners = self._lost_listeners if lost else []
            if lost:
                self._lost_listeners = []
        self._fire(due)
        for listener in listeners:
            _call(listener)
        if lost and self._links is not None:
            self._links.stop()

    def peer_changed(self, keys: list[str] | None, sequence: int) -> None:
        with self._lock:
            self._heard.add(sequence)
        self._fire(self._watches.keys() if keys is None else self._watches.touched_by(keys))

    def end_peer(self, row: SessionRow, *, silent_seconds: float) -> bool:
        assert self._links_file is not None
        assert self._links is not None
        try:
            change = self._links_file.end_session(row.id)
        except Busy:
            hung = silent_seconds > row.timeout_ms / 1000 + _HUNG_WRITER_SECONDS
            if hung and self._links_file.kill_hung_writer(row.pid):
                log.error("process %d hung while it was writing to %s and was killed", row.pid, self._path)
            return False
        except StoreError as error:
            log.debug("the session of process %d could not be ended yet: %s", row.pid, error)
            return False
        if row == self._session:
            if change is not None:
                self._links.tell(change)
            self._lose()
            return True
        if change is not None:
            why = f"silent for {silent_seconds:.1f} s" if silent_seconds else "its process is gone"
            log.warning("the session of process %d has ended: %s", row.pid, why)
            self._links.tell(change)
            with self._lock:
                self._heard.add(change.sequence)
        # Its last commit may be one that it could not tell of.
        self._fire(self._watches.keys())
        return True

    def links_failed(self) -> None:
        # Without them nobody here hears of changes, and the others take us for dead: begin anew.
        self._lose()
        self.deliver()

    def look_around(self, *, slept: bool) -> list[SessionRow] | None:
        assert self._links_file is not None
        try:
            rows = self._links_file.sessions()
            sequence = self._links_file.sequence()
        except StoreError as error:
            log.warning("the sessions could not be read: %s", error)
            return []
        if self._session not in rows:
            self._lose()
            self.deliver()
            return None
        with self._lock:
            missed = self._heard.catch_up(sequence)
        if missed or slept:
            self._fire(self._watches.keys())
        return rows


class _Heard:
    """Which commits are known of here: all up to a number, and some beyond it."""

    def __init__(self, sequence: int = 0) -> None:
        self._all_up_to = sequence
        self._beyond: set[int] = set()

    def add(self, sequence: int) -> None:
        if sequence > self._all_up_to:
            self._beyond.add(sequence)
            while self._all_up_to + 1 in self._beyond:
                self._all_up_to += 1
                self._beyond.discard(self._all_up_to)

    def catch_up(self, sequence: int) -> bool:
        """Count everything up to `sequence` as known; whether something was not."""
        missed = sequence > self._all_up_to
        if missed:
            self._all_up_to = sequence
            self._beyond = {number for number in self._beyond if number > sequence}
        return missed


def _call(listener: Callable[[], None]) -> None:
    try:
        listener()
    except RuntimeError:
        # An event loop that was closed meanwhile; the other listeners still want to know.
        log.exception("a listener of the store failed")
