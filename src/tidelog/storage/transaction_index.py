"""The aborted transactions of one segment, so that read_committed consumers can skip their records.

One `<20-digit base offset>.txnindex` file per segment, in Kafka's format; an entry is written when the marker
that aborts a transaction is appended to the segment:

    int16   version              0
    int64   producer id
    int64   first offset         of the transaction, maybe in an earlier segment
    int64   last offset          of the transaction: its marker
    int64   last stable offset   at that time: no transaction before this offset was still open

Entries ascend by last offset. There is no file until a transaction aborts, and most segments never get one.
Entries are kept in memory as well; they are few. Recovery rebuilds the index from the segment's markers, so a
file with a torn or impossible entry is cut there (`was_malformed`).
"""

from struct import Struct
from typing import NamedTuple

from tidelog.storage.disk import Disk, File

FORMAT_VERSION = 0

_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, and what was stable when it was."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment."""

    __slots__ = ("_base_offset", "_disk", "_entries", "_file", "_path", "was_malformed")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self._path = path
        self._base_offset = base_offset
        self._file: File | None = None
        self._entries: list[AbortedTransaction] = []
        self.was_malformed = False
        if disk.exists(path):
            self._load()

    @property
    def path(self) -> str:
        return self._path

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        return tuple(self._entries)

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker was just appended to the segment."""
        entries = self._entries
        assert not entries or entries[-1].last_offset < aborted.last_offset, f"{aborted} behind {entries[-1]}"
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        self._file.append(_ENTRY.pack(FORMAT_VERSION, *aborted))
        entries.append(aborted)

    def collect(self, fetch_offset: int, upper_offset: int, aborted: list[AbortedTransaction]) -> bool:
        """Add to `aborted` the transactions that overlap offsets from `fetch_offset` up to `upper_offset`.

        Return whether the search is complete. A transaction may abort in a later segment than its records, so
        the caller goes on with the next segment's index until this says True or there is none.
        """
        for entry in self._entries:
            if entry.last_offset >= fetch_offset and entry.first_offset < upper_offset:
                aborted.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Forget transactions whose marker lies at or behind `offset`, the new end of the log."""
        entries = self._entries
        keep = len(entries)
        while keep and entries[keep - 1].last_offset >= offset:
            keep -= 1
        if keep == len(entries):
            return
        assert self._file is not None, "an index with entries has a file"
        self._file.truncate(keep * ENTRY_BYTES)
        del entries[keep:]

    def reset(self) -> None:
        """Forget everything, before the index is rebuilt from the segment's markers."""
        if self._file is not None:
            self._file.truncate(0)
        self._entries.clear()

    def sync(self) -> None:
        """Make the entries durable; may run in a worker thread."""
        file = self._file
        if file is not None:
            file.sync()

    def rename_to(self, path: str) -> None:
        """Give the file another name, or only note it if there is no file."""
        if self._disk.exists(self._path):
            self._disk.rename(self._path, path)
        self._path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Close the index and remove its file, if there is one."""
        self.close()
        if self._disk.exists(self._path):
            self._disk.remove(self._path)

    def _load(self) -> None:
        file = self._disk.open(self._path, create=False)
        data = file.read(0, file.size_bytes)
        whole_bytes = len(data) - len(data) % ENTRY_BYTES
        last_offset = self._base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(memoryview(data)[:whole_bytes]):
            entry = AbortedTransaction(*fields)
            if version != FORMAT_VERSION or not entry.first_offset <= entry.last_offset > last_offset:
                break
            last_offset = entry.last_offset
            self._entries.append(entry)
        if len(self._entries) * ENTRY_BYTES != len(data):
            self.was_malformed = True
            file.truncate(len(self._entries) * ENTRY_BYTES)
        self._file = file

    def __repr__(self) -> str:
        return f"<TransactionIndex {self._path} aborted={len(self._entries)}>"
