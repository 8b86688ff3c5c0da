"""A bounded set of files kept open for reading closed segments.

Every active segment keeps its own file open. Closed segments, of which there can be any number, share this
set: the file used longest ago is dropped when the set is full. Dropping gives up a reference and never
closes a file that somebody still reads or sends; such a file closes itself when its last holder lets go of
it.

Safe to use from several threads, because compaction and flushing read segments outside the event loop.
"""

import threading
from collections import OrderedDict

from tidelog.storage.disk import Disk, File

OPEN_FILES_MAX = 512


class OpenFiles:
    """Files by path, least recently used first."""

    __slots__ = ("_disk", "_files", "_lock", "limit")

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        assert limit > 0
        self.limit = limit
        self._disk = disk
        self._files: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> File:
        """Return the open file of `path`, opening it if need be."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
            file = self._disk.open(path, create=False)
            self._keep(path, file)
            return file

    def put(self, path: str, file: File) -> None:
        """Take over a file that its holder no longer needs all the time."""
        with self._lock:
            self._keep(path, file)

    def forget(self, path: str) -> None:
        """Drop the file of a path that is about to be renamed, removed or written to."""
        with self._lock:
            self._files.pop(path, None)

    def _keep(self, path: str, file: File) -> None:
        self._files[path] = file
        while len(self._files) > self.limit:
            self._files.popitem(last=False)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._files)}/{self.limit}>"
