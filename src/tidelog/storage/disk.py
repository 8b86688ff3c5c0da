"""The disk port: everything storage asks of a file system, and its real implementation.

`Disk` names files by path (`str`); `File` is one open file. The contract, which one suite checks for every
implementation:

- A `File` grows only by `append`, which writes everything or leaves the file as it was: after an error (a
  full disk, a short write) `size_bytes` and the readable content are those from before the call, and a later
  append may succeed.
- `size_bytes` is tracked, not asked of the kernel: a process opens a file for writing only once at a time.
- Reads may start anywhere and return fewer bytes than asked only where the file ends.
- A `File` stays readable after its path was renamed or removed, as long as somebody holds a reference to it.
  Dropping the last reference closes it; `close` does so at once and is only for a holder who knows that
  nobody else uses it.
- Appended bytes survive a power cut once `File.sync` has returned, provided that the name of the file does;
  names (created, renamed, removed) survive once `Disk.sync_directory` of their directory has returned.
- `File.sync` may run in another thread, at the same time as appends and reads.
- Trouble is an `OSError`: `FileNotFoundError` for a missing path, `ENOSPC` for a full disk, `BlockingIOError`
  for a lock that another process holds.
"""

# Paths are plain strings: building a pathlib.Path per call would cost more than most of the calls themselves.
# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH112, PTH116, PTH120, PTH208

import contextlib
import fcntl
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

Bytes = bytes | bytearray | memoryview

# Linux never reads or writes more than this at once.
SYSTEM_CALL_BYTES_MAX = 0x7FFF_F000
# Nor does it take more pieces at once.
VIEWS_MAX = 1024
# Linux keeps what one call writes in pieces of memory as large as that. Pieces of a megabyte are rare where
# memory is fragmented, and in a virtual machine they are those that its host has taken back: such a write was
# seen to take five times as long as two halves. Smaller ones than this cost more for each byte.
WRITE_BYTES = 512 << 10
# Room is reserved for appends only where that leaves this many times as much to others.
RESERVABLE_SHARE = 64
FALLOC_FL_KEEP_SIZE = 1
# Where Linux tells one boot of the machine from another. A test that cuts the power names a file of its own.
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
BOOT_ID_FILE_VARIABLE = "TIDELOG_BOOT_ID_FILE"


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's fallocate, which the standard library has no door to (posix_fallocate changes the size)."""
    import ctypes

    found = getattr(ctypes.CDLL(None), "fallocate", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        found.restype = ctypes.c_int
    return found


def reserve_room(descriptor: int, position: int, size: int) -> None:
    """Allocate blocks behind the end of a file, if the file system can."""
    fallocate = _fallocate()
    if fallocate is not None:
        fallocate(descriptor, FALLOC_FL_KEEP_SIZE, position, size)


class File(Protocol):
    """One open file: appended to at its end, read anywhere."""

    @property
    def path(self) -> str:
        """The path the file was opened by; it does not follow renames."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def append(self, view: Bytes) -> None:
        """Write all of `view` at the end, or raise and leave the file as it was."""
        ...

    def append_many(self, views: Sequence[Bytes]) -> None:
        """Write all views one after another at the end, or raise and leave the file as it was."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`, fewer only where the file ends."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file down to `size` bytes, which must not be more than it has."""
        ...

    def reserve(self, end: int) -> None:
        """Ask for room on the disk for appends up to the position `end`; content and size stay as they are.

        A wish: nothing happens where there is no such thing, or where little space is left.
        """
        ...

    def release(self) -> None:
        """Give back the room behind the end of the file; only for the one who appends to it."""
        ...

    def sync(self) -> None:
        """Return when every byte appended before the call is on stable storage."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile; valid as long as a reference to the file is held."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system, as much of it as storage needs."""

    def open(self, path: str, *, create: bool) -> File:
        """Open a file for reading and appending; with `create`, make an empty one if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size_bytes(self, path: str) -> int:
        """The size of the file at `path`, without opening it."""
        ...

    def list(self, directory: str) -> list[str]:
        """The sorted names of the entries of a directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its missing parents; one that exists is left alone."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file at `target` is replaced in one step."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and everything in it; one that is missing is no error."""
        ...

    def replace_atomically(self, path: str, data: Bytes) -> None:
        """Make `data` the durable content of `path`: after a crash it has the old content or the new.

        Until it is done the new content is in `<path>.tmp`, which a crash may leave behind.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory are on stable storage."""
        ...

    def boot_id(self) -> str:
        """Changes whenever bytes that were not synced may have been lost; empty where nobody can tell."""
        ...

    def lock(self, path: str) -> File:
        """Lock the file at `path` (made if missing) against others until the returned file is closed.

        Raises `BlockingIOError` when somebody else holds it.
        """
        ...


def groups_of(views: Sequence[Bytes]) -> Iterator[Sequence[Bytes]]:
    """What one call should write, and then the next, each time as many as may go together."""
    group: list[Bytes] = []
    group_length = 0
    for view in views:
        if group and (group_length + len(view) > WRITE_BYTES or len(group) == VIEWS_MAX):
            yield group
            group, group_length = [], 0
        if len(view) <= WRITE_BYTES:
            group.append(view)
            group_length += len(view)
        else:
            whole = memoryview(view)
            yield from ([whole[start : start + WRITE_BYTES]] for start in range(0, len(whole), WRITE_BYTES))
    if group:
        yield group


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "path", "size_bytes")

    def __init__(self, path: str, descriptor: int, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._descriptor = descriptor

    def append(self, view: Bytes) -> None:
        # Written at an explicit position, not with O_APPEND: what a failed write left behind the tracked size
        # is overwritten by the next append even if the truncation below failed too.
        size_bytes = self.size_bytes
        length = len(view)
        try:
            if length <= WRITE_BYTES:
                written = os.pwrite(self._descriptor, view, size_bytes)
                if written != length:
                    self._write(memoryview(view)[written:], size_bytes + written)
            else:
                self._write(memoryview(view), size_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)
            raise
        self.size_bytes = size_bytes + length

    def append_many(self, views: Sequence[Bytes]) -> None:
        size_bytes = position = self.size_bytes
        length = sum(map(len, views))
        try:
            for group in (views,) if length <= WRITE_BYTES and len(views) <= VIEWS_MAX else groups_of(views):
                group_length = length if group is views else sum(map(len, group))
                written = os.pwritev(self._descriptor, group, position)
                if written != group_length:
                    self._write(memoryview(b"".join(group))[written:], position + written)
                position += group_length
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)
            raise
        self.size_bytes = position

    def _write(self, view: memoryview, position: int) -> None:
        while view:
            written = os.pwrite(self._descriptor, view[:WRITE_BYTES], position)
            view = view[written:]
            position += written

    def read(self, position: int, size: int) -> bytes:
        assert size <= SYSTEM_CALL_BYTES_MAX
        return os.pread(self._descriptor, size, position)

    def truncate(self, size: int) -> None:
        assert 0 <= size <= self.size_bytes, f"cannot cut {self!r} to {size} bytes"
        os.ftruncate(self._descriptor, size)
        self.size_bytes = size

    def reserve(self, end: int) -> None:
        wanted_bytes = end - self.size_bytes
        status = os.fstatvfs(self._descriptor)
        if wanted_bytes > 0 and status.f_bavail * status.f_frsize > wanted_bytes * RESERVABLE_SHARE:
            reserve_room(self._descriptor, self.size_bytes, wanted_bytes)

    def release(self) -> None:
        # Linux frees what lies behind the end even when the size stays.
        os.ftruncate(self._descriptor, self.size_bytes)

    def sync(self) -> None:
        # fdatasync also writes the metadata that reading the data back needs, the size above all.
        os.fdatasync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OsFile {self.path} size_bytes={self.size_bytes}>"


class OsDisk:
    """The file system of the operating system (POSIX)."""

    __slots__ = ()

    def open(self, path: str, *, create: bool) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o644)
        return OsFile(path, descriptor, os.lseek(descriptor, 0, os.SEEK_END))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size_bytes(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def replace_atomically(self, path: str, data: Bytes) -> None:
        temporary = path + ".tmp"
        try:
            file = self.open(temporary, create=True)
            try:
                file.truncate(0)
                file.append(data)
                file.sync()
            finally:
                file.close()
            os.replace(temporary, path)
        except OSError:
            # On a full disk every byte counts.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self.sync_directory(os.path.dirname(path) or ".")

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def boot_id(self) -> str:
        try:
            with open(os.environ.get(BOOT_ID_FILE_VARIABLE) or BOOT_ID_FILE) as file:  # noqa: PTH123
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> OsFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def __repr__(self) -> str:
        return "<OsDisk>"
