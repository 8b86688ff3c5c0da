"""The records that wait in one delay partition, in order of time, on the disk and with bounded memory.

A SQLite database that lives as long as its process: the file has no name any more once it is open, and no
later life reads anything in it, but builds its own from the log. So it needs no journal and no sync. It takes
about 30 bytes for each record that waits; in memory are `CACHE_BYTES` of its pages.

    waiting   (due, offset) → place      in the order in which they are forwarded
    fresh     (due, offset) → place      those of `waiting` that came last
    late      offset → due, place        their time had passed in that order when they came
    cancels   digest of a key → offset   the last cancel of a key

Where due times are random each record would be put on another page of a tree that is not in memory. So the
last ones are in a tree of their own, which is; from there they are moved in the order of their times, a part
at a time and round after round, so that neighbours go to one page together.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tidelog.delays.delay_partition import Entry, Row
from tidelog.model.log_config import INT64_MAX

#: the file, as long as it has a name
FILE_NAME = "delays.index"
CACHE_BYTES = 8 << 20
ROWS_AT_ONCE = 50
#: about two megabytes
FRESH_MAX = 60_000
MOVED_AT_ONCE = 2_000
_BEFORE_ALL = (-1, -1)
_AFTER_ALL = (INT64_MAX, INT64_MAX)

_SET_UP = (
    "PRAGMA journal_mode=OFF",
    "PRAGMA synchronous=OFF",
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA cache_size=-{CACHE_BYTES >> 10}",
    "CREATE TABLE waiting (due INTEGER, offset INTEGER, place INTEGER, PRIMARY KEY (due, offset))"
    " WITHOUT ROWID",
    "CREATE TABLE fresh (due INTEGER, offset INTEGER, place INTEGER, PRIMARY KEY (due, offset))"
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
        self._fresh_count = 0
        #: up to here this round has moved what was fresh
        self._moved_to: tuple[int, int] = _BEFORE_ALL
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

    def _delete(self, which: str, *values: object) -> int:
        """How many there were."""
        try:
            return self._database.execute(f"DELETE {which}", values).rowcount
        except sqlite3.Error as fault:
            raise IndexFault(f"the index of delayed records: {fault}") from fault

    def _insert(self, table: str, rows: Sequence[Row]) -> None:
        """Many rows with one statement: that takes half the time."""
        statement = f"INSERT INTO {table} (due, offset, place) VALUES "
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            self._all(statement + ",".join(["(?,?,?)"] * len(some)), *chain.from_iterable(some))

    def add(self, waiting: Sequence[Row], late: Sequence[Row]) -> None:
        # Sorted, so that neighbours go to one page while it is in memory.
        self._insert("fresh", sorted(waiting))
        self._insert("late", late)
        self._fresh_count += len(waiting)
        while self._fresh_count > FRESH_MAX:
            self._move_some()

    def _move_some(self) -> None:
        """Move the next part of what is fresh."""
        start = self._moved_to
        ends = self._all(
            "SELECT due, offset FROM fresh WHERE (due, offset) > (?, ?)"
            " ORDER BY due, offset LIMIT 1 OFFSET ?",
            *start,
            MOVED_AT_ONCE - 1,
        )
        end = ends[0] if ends else _AFTER_ALL
        part = "FROM fresh WHERE (due, offset) > (?, ?) AND (due, offset) <= (?, ?)"
        self._all(f"INSERT INTO waiting SELECT due, offset, place {part}", *start, *end)
        self._fresh_count -= self._delete(part, *start, *end)
        self._moved_to = end if ends else _BEFORE_ALL

    def first_late(self, count: int) -> list[Entry]:
        return [
            Entry(*row)
            for row in self._all("SELECT due, offset, place FROM late ORDER BY offset LIMIT ?", count)
        ]

    def first_waiting(self, count: int) -> list[Entry]:
        first = "SELECT due, offset, place FROM {} ORDER BY due, offset LIMIT ?"
        rows = self._all(first.format("waiting"), count) + self._all(first.format("fresh"), count)
        return [Entry(*row) for row in sorted(rows)[:count]]

    def remove(self, late_through: int, due_ms: int, offset: int) -> None:
        self._delete("FROM late WHERE offset <= ?", late_through)
        self._delete("FROM waiting WHERE (due, offset) <= (?, ?)", due_ms, offset)
        self._fresh_count -= self._delete("FROM fresh WHERE (due, offset) <= (?, ?)", due_ms, offset)

    def late_above(self, due_ms: int, offset: int) -> int:
        above = "FROM late WHERE (due, offset) > (?, ?)"
        moved = self._all(
            f"INSERT INTO waiting (due, offset, place) SELECT due, offset, place {above} RETURNING 1",
            due_ms,
            offset,
        )
        self._delete(above, due_ms, offset)
        return len(moved)

    def cancel(self, digest: bytes, offset: int) -> None:
        self._all("INSERT OR REPLACE INTO cancels (digest, offset) VALUES (?, ?)", digest, offset)

    def cancelled_up_to(self, digest: bytes) -> int:
        rows = self._all("SELECT offset FROM cancels WHERE digest = ?", digest)
        return int(rows[0][0]) if rows else -1

    def forget_cancels(self, low: int) -> None:
        self._delete("FROM cancels WHERE offset < ?", low)

    def due_count(self, now_ms: int, count_max: int) -> int:
        """How many waiting records are due; at most so many are counted."""
        counted = "SELECT COUNT(*) FROM (SELECT 1 FROM {} WHERE due <= ? LIMIT ?)"
        rows = [self._all(counted.format(table), now_ms, count_max)[0] for table in ("waiting", "fresh")]
        return min(count_max, sum(int(count) for (count,) in rows))
