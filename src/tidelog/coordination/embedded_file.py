"""The file of the embedded store: entries and sessions in SQLite, shared by the processes of one machine.

    entries    key TEXT PRIMARY KEY, value BLOB, version INTEGER, owner TEXT   (owner: a session, or NULL)
    sessions   id TEXT PRIMARY KEY, pid INTEGER, timeout_ms INTEGER            (those that have not ended)
    counters   name TEXT PRIMARY KEY, value INTEGER                            (`sequence`: commits so far)

The journal is a WAL. A commit is on disk when `commit` returns (synchronous=FULL); rows about sessions are
only ordered with the commits (NORMAL), for no session survives a power cut. Every commit of a session begins
by looking for the session's own row, inside the same transaction: whoever removed the row has fenced it.
"""

import logging
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    CommitUnknown,
    Conflict,
    Entry,
    SessionLost,
    StoreError,
    Write,
)

log = logging.getLogger(__name__)

_SCHEMA_VERSION = 2
_CREATE = (
    "CREATE TABLE IF NOT EXISTS entries "
    "(key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, owner TEXT)",
    "CREATE TABLE IF NOT EXISTS sessions "
    "(id TEXT PRIMARY KEY, pid INTEGER NOT NULL, timeout_ms INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO counters VALUES ('sequence', 0)",
)
_UPGRADE_FROM_1 = "ALTER TABLE entries ADD COLUMN owner TEXT"
_NEXT_SEQUENCE = "UPDATE counters SET value = value + 1 WHERE name = 'sequence' RETURNING value"
_OPEN_SECONDS_MAX = 5.0
_RETRY_SECONDS = 0.005
_SLOW_SECONDS = 1.0


class SessionRow(NamedTuple):
    """A session that has not ended, as its process registered it."""

    id: str
    pid: int
    timeout_ms: int


class Change(NamedTuple):
    """What a transaction did, for those who watch."""

    keys: tuple[str, ...]
    sequence: int


class Busy(StoreError):
    """Somebody else is writing and did not finish in time; nothing happened."""


class StoreFile:
    """One connection to the file; used by one thread at a time."""

    def __init__(self, path: Path, *, busy_timeout_ms: int, durable: bool) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        with self._failures("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            _keep_private(path)
            connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=busy_timeout_ms / 1000
            )
            try:
                self._prepare(connection, durable)
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def _prepare(self, connection: sqlite3.Connection, durable: bool) -> None:
        deadline = time.monotonic() + _OPEN_SECONDS_MAX
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                if connection.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
                    self._create(connection)
                return
            except sqlite3.OperationalError as error:
                # SQLite does not wait by itself while others create, recover or close the same file.
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _create(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _SCHEMA_VERSION:
                raise StoreError(f"{self._path} was written by a newer version (schema {version})")
            if version == 1:
                connection.execute(_UPGRADE_FROM_1)
            for statement in _CREATE:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")

    def __repr__(self) -> str:
        return f"<StoreFile {self._path}>"

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._failures("closed"):
                connection.close()

    # -- entries

    def get(self, key: str) -> Entry | None:
        with self._failures("read"):
            row = self._open().execute("SELECT value, version FROM entries WHERE key = ?", (key,)).fetchone()
            return None if row is None else Entry(key, row[0], row[1])

    def load(self, prefix: str) -> list[Entry]:
        with self._failures("read"):
            rows = self._open().execute(
                "SELECT key, value, version FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + "\U0010ffff"),
            )
            return [Entry(key, value, version) for key, value, version in rows]

    def sequence(self) -> int:
        with self._failures("read"):
            row = self._open().execute("SELECT value FROM counters WHERE name = 'sequence'").fetchone()
            return int(row[0])

    def commit(
        self, session: str, writes: Sequence[Write | Check]
    ) -> tuple[Committed, Change] | tuple[Conflict, None]:
        """Do the writes for `session`, or raise SessionLost if it has ended."""
        with self._failures("written"):
            connection = self._open()
            with _transaction(connection):
                if not _session_exists(connection, session):
                    raise SessionLost(f"the session of this broker in {self._path} has ended")
                outcome, changed = _write_all(connection, session, writes)
                if isinstance(outcome, Conflict):
                    connection.execute("ROLLBACK")
                    return outcome, None
                sequence = connection.execute(_NEXT_SEQUENCE).fetchone()[0]
            return outcome, Change(changed, sequence)

    # -- sessions

    def sessions(self) -> list[SessionRow]:
        with self._failures("read"):
            rows = self._open().execute("SELECT id, pid, timeout_ms FROM sessions ORDER BY rowid")
            return [SessionRow(*row) for row in rows]

    def begin_session(self, row: SessionRow) -> None:
        with self._failures("written"):
            self._open().execute("INSERT INTO sessions VALUES (?, ?, ?)", row)

    def end_session(self, session: str) -> Change | None:
        """Remove a session with its keys; None if somebody else did."""
        with self._failures("written"):
            connection = self._open()
            with _transaction(connection):
                ended = connection.execute("DELETE FROM sessions WHERE id = ?", (session,)).rowcount
                if not ended:
                    connection.execute("ROLLBACK")
                    return None
                rows = connection.execute("DELETE FROM entries WHERE owner = ? RETURNING key", (session,))
                keys = tuple(key for (key,) in rows)
                sequence = connection.execute(_NEXT_SEQUENCE).fetchone()[0]
            return Change(keys, sequence)

    def kill_hung_writer(self, pid: int) -> bool:
        """End process `pid` if it holds the write lock of this file; True if it did.

        For a process that was stopped in the middle of a commit: its lock cannot be taken away, and while it
        is held nobody can write. Only Linux tells who holds a lock (/proc/locks).
        """
        if pid == os.getpid() or not self._locked_by(pid):
            return False
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            # Looked at again with the process pinned: the number cannot have passed to another one.
            if not self._locked_by(pid):
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except OSError:
            return False
        finally:
            os.close(process)
        return True

    def _locked_by(self, pid: int) -> bool:
        return pid in self._writers()

    def _writers(self) -> set[int]:
        """The process that holds the write lock of this file, if there is one and the system tells."""
        try:
            inode = Path(f"{self._path}-shm").stat().st_ino
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return set()
        # 1: POSIX  ADVISORY  WRITE 4711 08:01:1835009 120 120     (byte 120 is SQLite's WAL write lock)
        fields = [line.split() for line in lines]
        return {
            int(field[4])
            for field in fields
            if len(field) >= 8
            and field[3] == "WRITE"
            and field[5].rsplit(":", 1)[-1] == str(inode)
            and int(field[6]) <= 120
            and (field[7] == "EOF" or int(field[7]) >= 120)
        }

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self._path} is closed")
        return self._connection

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, StoreError):
                raise
            if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
                writers = ", ".join(map(str, sorted(self._writers()))) or "nobody any more"
                raise Busy(f"{self._path} could not be {what}: {error} (by process {writers})") from error
            raise StoreError(f"{self._path} could not be {what}: {error}") from error


def _keep_private(path: Path) -> None:
    """See to it that nobody else can read the file: it holds what checks passwords.

    SQLite gives its other files, the journal and the index of it, the mode of this one. The file is never
    opened here under its own name: closing a descriptor of it takes away every lock that this process has on
    it, and with them its claim on the journal, which the next process to close the store would then delete.
    """
    if not path.exists():
        new = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink()
    elif path.stat().st_mode & 0o077:
        # Another user's file that we may write: the modes are that user's affair.
        with suppress(PermissionError):
            path.chmod(0o600)


def _is_busy(error: sqlite3.OperationalError) -> bool:
    # The extended codes (recovery, snapshot) carry the primary one in the low byte.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Begin writing, and commit what the block did unless it raised or rolled back itself.

    Nobody else can write meanwhile, so a transaction that took long is told of.
    """
    connection.execute("BEGIN IMMEDIATE")
    alone = time.monotonic()
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if not connection.in_transaction:
        return
    written = time.monotonic()
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
            raise
        # A failed fsync: what was written may be there after the next crash, or may not.
        raise CommitUnknown(f"a commit may not have reached the disk: {error}") from error
    ended = time.monotonic()
    if ended - alone > _SLOW_SECONDS:
        log.warning(
            "the store was locked for %.1f s by a commit here: %.1f s to write, %.1f s for the disk",
            ended - alone,
            written - alone,
            ended - written,
        )


def _session_exists(connection: sqlite3.Connection, session: str) -> bool:
    return connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is not None


def _write_all(
    connection: sqlite3.Connection, session: str, writes: Sequence[Write | Check]
) -> tuple[Committed | Conflict, tuple[str, ...]]:
    versions: dict[str, int] = {}
    changed: list[str] = []
    for write in writes:
        key = write.key
        row = connection.execute("SELECT version, owner FROM entries WHERE key = ?", (key,)).fetchone()
        version, owner = row or (ABSENT, None)
        if write.expected_version is not None and version != write.expected_version:
            return Conflict(key, write.expected_version, version), ()
        if isinstance(write, Check):
            continue
        if write.value is None:
            if row is not None:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                changed.append(key)
            continue
        if write.ephemeral and owner != session:
            version, owner = ABSENT, session
        versions[key] = version + 1
        changed.append(key)
        connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, write.value, version + 1, owner)
        )
    return Committed(versions), tuple(changed)
