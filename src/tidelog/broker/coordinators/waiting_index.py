"""The records that wait in one delay partition, in order of time, on the disk and with bounded memory.

A SQLite database that lives as long as its process: the file has no name any more once it is open, and no
later life reads anything in it, but builds its own from the log. So it needs no journal and no sync. It takes
about 30 bytes for each record that waits; in memory are `CACHE_BYTES` of its pages.

    waiting   (due, offset) → place      in the order in which they are forwarded
    late      offset → due, place        their time had passed in that order when they came
    cancels   digest of a key → offset   the last cancel of a key
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tidelog.delays.delay_partition import Entry

#: the file, as long as it has a name
FILE_NAME = "delays.index"
CACHE_BYTES = 8 << 20

_SET_UP = (
    "PRAGMA journal_mode=OFF",
    "PRAGMA synchronous=OFF",
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA cache_size=-{CACHE_BYTES >> 10}",
    "CREATE TABLE waiting (due INTEGER, offset INTEGER, place INTEGER, PRIMARY KEY (due, offset))"
    " WITHOUT ROWID",
    "CREATE TABLE late (offset INTEGER PRIMARY KEY, due INTEGER, place INTEGER)",
    "CREATE TABLE cancels (digest BLOB PRIMARY KEY, offset INTEGER) WITHOUT ROWID",
)


class IndexFault(OSError):
    """The index cannot be read or written: it has to be built anew."""


class WaitingIndex:
    """One index; what `DelayPartition` asks of it, and looks for people."""

    def __init__(self, directory: str | None) -> None:
        """In a folder; in memory without one, where disks are simulated."""
        path = None if directory is None else Path(directory) / FILE_NAME
        try:
            if path is not None:
                path.unlink(missing_ok=True)  # of a process that was killed before it could
            self._database = sqlite3.connect(path or ":memory:", isolation_level=None)
            for statement in _SET_UP:
                self._database.execute(statement)
            if path is not None:
                path.unlink()
            # One transaction that never ends: pages go to the disk when the cache is full, not before.
            self._database.execute("BEGIN")
        except sqlite3.Error as fault:
            raise IndexFault(f"the index of delayed records in {directory}: {fault}") from fault

    def close(self) -> None:
        self._database.close()

    def _all(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as fault:
            raise IndexFault(f"the index of delayed records: {fault}") from fault

    def _each(self, statement: str, rows: Iterable[Sequence[int]]) -> None:
        try:
            self._database.executemany(statement, rows)
        except sqlite3.Error as fault:
            raise IndexFault(f"the index of delayed records: {fault}") from fault

    def add(self, waiting: Sequence[Entry], late: Sequence[Entry]) -> None:
        if waiting:
            # Sorted, so that neighbours go to one page while it is in memory.
            self._each("INSERT INTO waiting (due, offset, place) VALUES (?, ?, ?)", sorted(waiting))
        if late:
            self._each("INSERT INTO late (due, offset, place) VALUES (?, ?, ?)", late)

    def first_late(self, count: int) -> list[Entry]:
        return [
            Entry(*row)
            for row in self._all("SELECT due, offset, place FROM late ORDER BY offset LIMIT ?", count)
        ]

    def first_waiting(self, count: int) -> list[Entry]:
        rows = self._all("SELECT due, offset, place FROM waiting ORDER BY due, offset LIMIT ?", count)
        return [Entry(*row) for row in rows]

    def remove(self, late_through: int, due_ms: int, offset: int) -> None:
        self._all("DELETE FROM late WHERE offset <= ?", late_through)
        self._all("DELETE FROM waiting WHERE (due, offset) <= (?, ?)", due_ms, offset)

    def late_above(self, due_ms: int, offset: int) -> int:
        above = "FROM late WHERE (due, offset) > (?, ?)"
        moved = self._all(
            f"INSERT INTO waiting (due, offset, place) SELECT due, offset, place {above} RETURNING 1",
            due_ms,
            offset,
        )
        self._all(f"DELETE {above}", due_ms, offset)
        return len(moved)

    def cancel(self, digest: bytes, offset: int) -> None:
        self._all("INSERT OR REPLACE INTO cancels (digest, offset) VALUES (?, ?)", digest, offset)

    def cancelled_up_to(self, digest: bytes) -> int:
        rows = self._all("SELECT offset FROM cancels WHERE digest = ?", digest)
        return int(rows[0][0]) if rows else -1

    def forget_cancels(self, low: int) -> None:
        self._all("DELETE FROM cancels WHERE offset < ?", low)

    def due_count(self, now_ms: int, count_max: int) -> int:
        """How many waiting records are due; at most so many are counted."""
        rows = self._all(
            "SELECT COUNT(*) FROM (SELECT 1 FROM waiting WHERE due <= ? LIMIT ?)", now_ms, count_max
        )
        return int(rows[0][0])
