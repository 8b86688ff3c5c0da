"""The store of a broker on its own: one SQLite file beside the data.

    table entries: key TEXT PRIMARY KEY, value BLOB, version INTEGER

WAL with synchronous=FULL: a commit is on disk when `commit` returns. An exclusive lock keeps a second broker
off the same folder. Calls may come from any thread, one at a time.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidelog.coordination.store import (
    ABSENT,
    Check,
    Committed,
    Conflict,
    Entry,
    StoreError,
    Write,
    check_writes,
)
from tidelog.coordination.watches import Listener, Watches

FILE_NAME = "tidelog-metadata.sqlite"
_SCHEMA_VERSION = 1
_CREATE = (
    "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)"
)


class EmbeddedStore:
    """A coordination store in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._watches = Watches()
        self._ephemeral: set[str] = set()
        with self._failures("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.5)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # The exclusive lock is taken with the first write, so one is made even if nothing changes.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _SCHEMA_VERSION):
            raise StoreError(f"{self._path} was written by a newer version (schema {version})")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE)
        connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def __repr__(self) -> str:
        return f"<EmbeddedStore {self._path}>"

    def get(self, key: str) -> Entry | None:
        return next((entry for entry in self.load(key) if entry.key == key), None)

    def watch(self, key: str, listener: Listener) -> None:
        self._watches.add(key, listener)

    def on_session_lost(self, listener: Listener) -> None:
        """A store that nobody else opens cannot lose its session."""

    def load(self, prefix: str = "") -> list[Entry]:
        with self._failures("read"):
            rows = self._open().execute(
                "SELECT key, value, version FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix + "\U0010ffff"),
            )
            return [Entry(key, value, version) for key, value, version in rows]

    def commit(self, writes: Sequence[Write | Check]) -> Committed | Conflict:
        check_writes(writes)
        with self._failures("written"):
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcome = self._write_all(connection, writes)
                connection.execute("ROLLBACK" if isinstance(outcome, Conflict) else "COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        if isinstance(outcome, Committed):
            self._ephemeral |= {write.key for write in writes if isinstance(write, Write) and write.ephemeral}
            for key in self._watches.touched_by(write.key for write in writes):
                for listener in self._watches.listeners(key):
                    listener()
        return outcome

    def _write_all(
        self, connection: sqlite3.Connection, writes: Sequence[Write | Check]
    ) -> Committed | Conflict:
        versions: dict[str, int] = {}
        for write in writes:
            key, expected_version = write.key, write.expected_version
            row = connection.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
            version = ABSENT if row is None else row[0]
            if expected_version is not None and version != expected_version:
                return Conflict(key, expected_version, version)
            if isinstance(write, Check):
                continue
            if write.value is None:
                connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                continue
            versions[key] = version + 1
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version",
                (key, write.value, version + 1),
            )
        return Committed(versions)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._failures("closed"):
                for key in self._ephemeral:
                    connection.execute("DELETE FROM entries WHERE key = ?", (key,))
                connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self._path} is closed")
        return self._connection

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            hint = "; is another broker using this folder?" if "locked" in str(error) else ""
            raise StoreError(f"{self._path} could not be {what}: {error}{hint}") from error
